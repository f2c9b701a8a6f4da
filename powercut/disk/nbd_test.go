package disk

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"path/filepath"
	"testing"
)

// nbdClient speaks just enough of the protocol.
type nbdClient struct {
	t *testing.T
	c net.Conn
}

func (n *nbdClient) put(vs ...any) {
	n.t.Helper()
	var b bytes.Buffer
	for _, v := range vs {
		if err := binary.Write(&b, binary.BigEndian, v); err != nil {
			n.t.Fatal(err)
		}
	}
	if _, err := n.c.Write(b.Bytes()); err != nil {
		n.t.Fatal(err)
	}
}

func (n *nbdClient) get(v any) {
	n.t.Helper()
	if err := binary.Read(n.c, binary.BigEndian, v); err != nil {
		n.t.Fatal(err)
	}
}

// choose sends the option that begins the transmission and returns the size, 0 if the export was refused.
func (n *nbdClient) choose(name string) (size uint64, flags uint16) {
	body := binary.BigEndian.AppendUint32(nil, uint32(len(name)))
	body = append(append(body, name...), 0, 0)
	n.put(uint64(nbdOptMagic), uint32(nbdOptGo), uint32(len(body)), body)
	for {
		var r optionReply
		n.get(&r)
		data := make([]byte, r.Len)
		if _, err := io.ReadFull(n.c, data); err != nil {
			n.t.Fatal(err)
		}
		switch r.Type {
		case nbdRepInfo:
			size, flags = binary.BigEndian.Uint64(data[2:]), binary.BigEndian.Uint16(data[10:])
		case nbdRepAck:
			return size, flags
		default:
			return 0, 0
		}
	}
}

func (n *nbdClient) request(kind uint16, handle uint64, off uint64, length uint32, data []byte) (errno uint32) {
	n.t.Helper()
	n.put(uint32(nbdRequest), uint16(0), kind, handle, off, length, data)
	var r struct {
		Magic, Errno uint32
		Handle       uint64
	}
	n.get(&r)
	if r.Magic != nbdReply || r.Handle != handle {
		n.t.Fatalf("answer %+v to request %d", r, handle)
	}
	return r.Errno
}

func TestServer(t *testing.T) {
	lis, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	d := New("disk", testBytes)
	s := Serve(lis, d)
	defer s.Close()
	c, err := net.Dial("unix", lis.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	n := &nbdClient{t, c}
	var hello struct {
		Magic, Option uint64
		Flags         uint16
	}
	n.get(&hello)
	if hello.Magic != nbdMagic || hello.Option != nbdOptMagic {
		t.Fatalf("greeting %+v", hello)
	}
	n.put(uint32(nbdFixed | nbdNoZeroes))
	if size, _ := n.choose("other"); size != 0 {
		t.Fatalf("an export that is not there has %d bytes", size)
	}
	if size, flags := n.choose("disk"); size != testBytes || flags != transmissionFlags {
		t.Fatalf("size %d, flags %x", size, flags)
	}
	data := bytes.Repeat([]byte("ab"), 2048)
	if e := n.request(nbdCmdWrite, 1, 8192, 4096, data); e != 0 {
		t.Fatalf("write: error %d", e)
	}
	if e := n.request(nbdCmdFlush, 2, 0, 0, nil); e != 0 {
		t.Fatalf("flush: error %d", e)
	}
	if e := n.request(nbdCmdWrite, 3, testBytes, 4096, data); e != nbdErrInvalid {
		t.Fatalf("a write behind the end: error %d", e)
	}
	if e := n.request(nbdCmdRead, 4, 8192, 4096, nil); e != 0 {
		t.Fatalf("read: error %d", e)
	}
	got := make([]byte, 4096)
	if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, data) {
		t.Fatalf("read returned something else, %v", err)
	}
	if st := d.Stats(); st.Writes != 1 || st.Flushes != 1 || st.Reads != 1 {
		t.Fatalf("%+v", st)
	}
}
