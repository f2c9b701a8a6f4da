//go:build linux && (amd64 || arm64)

package acktrace

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/btrlog/btrlog"
	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/internal/wire"
)

const records = 400

// checker holds the rule: an LSN may be acknowledged when a write that carried its record has completed on a descriptor
// that forces each write, or was followed by a completed fdatasync of that descriptor.
type checker struct {
	t       *tracer
	dir     string // of the node's data
	cluster wire.ClusterID

	forced  map[uint64]bool            // descriptor was opened with O_DSYNC
	names   map[uint64]string          // descriptors of segment files
	written map[uint64]map[uint64]bool // by descriptor: records written and not forced yet
	durable map[uint64]bool            // records

	acked     int // LSNs in acknowledgements that were checked
	promises  int
	firstBad  error
	forcedWas bool // a forced write was seen at all
}

var mark = regexp.MustCompile(`\[\[record ([0-9]+) of the trace\]\]`)

func payload(lsn int) []byte { return fmt.Appendf(nil, "[[record %d of the trace]]", lsn) }

func (c *checker) entry(k *call) error {
	switch k.NR {
	case syscall.SYS_SENDTO:
		return c.datagram(k.Args[1], int(k.Args[2]))
	case sysSendmmsg:
		return c.sendmmsg(k.Args[1], int(k.Args[2]))
	}
	return nil
}

// sendmmsg walks struct mmsghdr {name, namelen, iov, iovlen, control, controllen, flags; len}, 64 bytes each.
func (c *checker) sendmmsg(addr uint64, n int) error {
	hdrs, err := c.t.read(addr, 64*n)
	if err != nil {
		return err
	}
	for i := range n {
		h := hdrs[64*i:]
		iov, niov := binary.NativeEndian.Uint64(h[16:]), int(binary.NativeEndian.Uint64(h[24:]))
		vec, err := c.t.read(iov, 16*niov)
		if err != nil {
			return err
		}
		var packet []byte
		for j := range niov {
			part, err := c.t.read(binary.NativeEndian.Uint64(vec[16*j:]), int(binary.NativeEndian.Uint64(vec[16*j+8:])))
			if err != nil {
				return err
			}
			packet = append(packet, part...)
		}
		if err := c.packet(packet); err != nil {
			return err
		}
	}
	return nil
}

func (c *checker) datagram(addr uint64, n int) error {
	b, err := c.t.read(addr, n)
	if err != nil {
		return err
	}
	return c.packet(b)
}

// packet checks what leaves the node.
func (c *checker) packet(b []byte) error {
	var r wire.Reader
	if r.Reset(b, c.cluster) != nil {
		return nil // not one of ours: a name look-up, say
	}
	for r.Next() {
		switch r.Kind() {
		case wire.KindAck:
			var a protocol.Ack
			if err := r.Ack(&a); err != nil {
				return err
			}
			if a.Kind != protocol.AckAppend || a.Status != protocol.StatusOK {
				continue
			}
			for x := a.First; x <= a.Last; x++ {
				c.acked++
				if !c.durable[uint64(x)] {
					return fmt.Errorf("LSN %d is acknowledged, and no completed synced write carried it", x)
				}
			}
		case wire.KindOpenReply:
			c.promises++
			if !c.forcedWas {
				return errors.New("a promise is answered before any synced write has completed")
			}
		}
	}
	return r.Err()
}

func (c *checker) exit(k *call) error {
	if k.Ret < 0 {
		return nil
	}
	switch k.NR {
	case syscall.SYS_OPENAT:
		name := c.t.text(k.Args[1])
		if fd := uint64(k.Ret); strings.HasPrefix(name, c.dir) {
			c.names[fd], c.forced[fd] = name, k.Args[2]&syscall.O_DSYNC != 0
			delete(c.written, fd)
		}
	case syscall.SYS_CLOSE:
		delete(c.names, k.Args[0])
	case syscall.SYS_PWRITE64:
		fd := k.Args[0]
		if c.names[fd] == "" {
			return nil
		}
		b, err := c.t.read(k.Args[1], int(k.Ret))
		if err != nil {
			return err
		}
		if c.forced[fd] {
			c.forcedWas = true
		}
		for _, m := range mark.FindAllSubmatch(b, -1) {
			lsn, err := strconv.ParseUint(string(m[1]), 10, 64)
			if err != nil {
				return err
			}
			if c.forced[fd] {
				c.durable[lsn] = true
				continue
			}
			if c.written[fd] == nil {
				c.written[fd] = map[uint64]bool{}
			}
			c.written[fd][lsn] = true
		}
	case syscall.SYS_FDATASYNC, syscall.SYS_FSYNC:
		fd := k.Args[0]
		if c.names[fd] == "" {
			return nil
		}
		c.forcedWas = true
		for lsn := range c.written[fd] {
			c.durable[lsn] = true
		}
		delete(c.written, fd)
	}
	return nil
}

// note remembers the first violation and lets the child go on, so that the test ends in order.
func (c *checker) note(f func(*call) error) func(*call) error {
	return func(k *call) error {
		if err := f(k); err != nil && c.firstBad == nil {
			c.firstBad = err
		}
		return nil
	}
}

func build(t *testing.T, tags string) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "btrlog")
	cmd := exec.Command("go", "build", "-tags", tags, "-o", bin, ".")
	cmd.Dir = filepath.Join("..", "..", "cmd", "btrlog") // a module of its own
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build -tags %q: %v\n%s", tags, err, out)
	}
	return bin
}

// trace runs one node of bin under the checker while a client appends, and returns the checker.
func trace(t *testing.T, bin string, more ...string) *checker {
	t.Helper()
	dir := t.TempDir()
	store := "file://" + filepath.Join(dir, "store")
	data := filepath.Join(dir, "node")
	c := &checker{dir: data, forced: map[uint64]bool{}, names: map[uint64]string{}, written: map[uint64]map[uint64]bool{}, durable: map[uint64]bool{}}
	c.t = &tracer{entry: c.note(c.entry), exit: c.note(c.exit)}
	cmd := exec.Command(bin, append([]string{"node", "--id", "traced", "--dir", data, "--listen", "127.0.0.1:0", "--store", store}, more...)...)
	var errout lines
	cmd.Stderr, cmd.Stdout = &errout, &errout
	ended := make(chan error, 1)
	started := make(chan struct{})
	// The node's identity, and with it the cluster's id, is on disk before the node answers anybody; the tracer's thread
	// reads it at the first packet that it could not parse otherwise.
	entry := c.t.entry
	c.t.entry = func(k *call) error {
		if c.cluster == 0 && (k.NR == sysSendmmsg || k.NR == syscall.SYS_SENDTO) {
			if err := c.readCluster(); err != nil && c.firstBad == nil {
				c.firstBad = err
			}
		}
		return entry(k)
	}
	go func() { ended <- c.t.run(cmd, func() { close(started) }) }()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	select {
	case <-started:
	case err := <-ended:
		t.Fatalf("the node did not start: %v", err)
	}
	err := work(ctx, store)
	if serr := syscall.Kill(cmd.Process.Pid, syscall.SIGTERM); serr != nil {
		t.Errorf("SIGTERM to the node: %v", serr)
	}
	select {
	case terr := <-ended:
		if terr != nil {
			t.Fatalf("tracer: %v", terr)
		}
	case <-ctx.Done():
		_ = syscall.Kill(cmd.Process.Pid, syscall.SIGKILL) // the test fails either way
		t.Fatalf("the traced node did not end; it printed:\n%s", errout.String())
	}
	if err != nil {
		t.Fatalf("client: %v; the node printed:\n%s", err, errout.String())
	}
	return c
}

func (c *checker) readCluster() error {
	b, err := os.ReadFile(filepath.Join(c.dir, "node.json"))
	if err != nil {
		return err
	}
	var id struct {
		Cluster string `json:"cluster_id"`
	}
	if err := json.Unmarshal(b, &id); err != nil {
		return err
	}
	n, err := strconv.ParseUint(id.Cluster, 16, 64)
	c.cluster = wire.ClusterID(n)
	return err
}

// lines is a buffer for two streams of a child.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// work appends marked records, some alone and synced, some pipelined, so that acknowledgements cover one and many.
func work(ctx context.Context, store string) error {
	var client *btrlog.Client
	var err error
	for { // the node makes the cluster's record and its own when it is up
		if client, err = btrlog.Connect(ctx, btrlog.Config{StoreURL: store}); err == nil {
			var nodes []btrlog.NodeInfo
			if nodes, err = client.Nodes(ctx); err == nil && len(nodes) == 1 {
				break
			}
			client.Close()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for the node: %w (%v)", ctx.Err(), err)
		case <-time.After(20 * time.Millisecond):
		}
	}
	defer client.Close()
	if _, err := client.Create(ctx, "traced", btrlog.LogOptions{N: 1, Qw: 1}); err != nil {
		return err
	}
	w, err := client.OpenWriter(ctx, "traced", btrlog.WriterOptions{})
	if err != nil {
		return err
	}
	for i := 1; i <= records; i++ {
		lsn, err := w.Append(ctx, payload(i))
		if err != nil {
			return err
		}
		if lsn != btrlog.LSN(i) {
			return fmt.Errorf("record %d got LSN %d", i, lsn)
		}
		if i < 50 || i == records {
			if err := w.Sync(ctx, lsn); err != nil {
				return err
			}
		}
	}
	return w.Close(ctx)
}

func TestEveryAcknowledgementFollowsItsSyncedWrite(t *testing.T) {
	bin := build(t, "")
	for _, mode := range []string{"direct", "buffered"} {
		t.Run(mode, func(t *testing.T) {
			var more []string
			if mode == "buffered" {
				more = append(more, "--buffered")
			}
			c := trace(t, bin, more...)
			if c.firstBad != nil {
				t.Fatal(c.firstBad)
			}
			if c.acked < records || c.promises == 0 {
				t.Fatalf("%d acknowledged LSNs and %d promises were seen, want %d and 1: the trace is not complete", c.acked, c.promises, records)
			}
			t.Logf("%d acknowledged LSNs and %d promises, each behind its completed synced write", c.acked, c.promises)
		})
	}
}

// TestTheCheckFailsWithoutTheSync is what makes the test above worth something.
func TestTheCheckFailsWithoutTheSync(t *testing.T) {
	bin := build(t, "btrlog_nosync")
	for _, mode := range []string{"direct", "buffered"} {
		t.Run(mode, func(t *testing.T) {
			var more []string
			if mode == "buffered" {
				more = append(more, "--buffered")
			}
			c := trace(t, bin, more...)
			if c.firstBad == nil {
				t.Fatalf("a build without the sync passed the check: %d acknowledged LSNs, %d promises", c.acked, c.promises)
			}
			t.Logf("caught: %v", c.firstBad)
		})
	}
}
