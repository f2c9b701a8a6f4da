package disk

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

// The numbers of the NBD protocol (https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md), as far as they are used.
const (
	nbdMagic       = 0x4e42444d41474943
	nbdOptMagic    = 0x49484156454f5054
	nbdReplyMagic  = 0x3e889045565a9
	nbdRequest     = 0x25609513
	nbdReply       = 0x67446698
	nbdFixed       = 1 << 0 // handshake: fixed newstyle
	nbdNoZeroes    = 1 << 1
	nbdOptExport   = 1
	nbdOptAbort    = 2
	nbdOptInfo     = 6
	nbdOptGo       = 7
	nbdRepAck      = 1
	nbdRepInfo     = 3
	nbdRepUnsup    = 1<<31 | 1
	nbdRepUnknown  = 1<<31 | 6
	nbdInfoExport  = 0
	nbdHasFlags    = 1 << 0
	nbdSendsFlush  = 1 << 2
	nbdSendsFUA    = 1 << 3
	nbdCmdRead     = 0
	nbdCmdWrite    = 1
	nbdCmdDisc     = 2
	nbdCmdFlush    = 3
	nbdCmdFlagFUA  = 1 << 0
	nbdErrInvalid  = 22
	nbdMaxBytes    = 32 << 20
	nbdMaxOptBytes = 4096
)

// Server exports disks on one listener, by their names.
type Server struct {
	disks map[string]*Disk
	lis   net.Listener

	mu    sync.Mutex
	conns map[net.Conn]struct{}
	wg    sync.WaitGroup
}

// Serve answers on lis until Close.
func Serve(lis net.Listener, disks ...*Disk) *Server {
	s := &Server{disks: make(map[string]*Disk), lis: lis, conns: make(map[net.Conn]struct{})}
	for _, d := range disks {
		s.disks[d.name] = d
	}
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		for {
			c, err := lis.Accept()
			if err != nil {
				return // closed
			}
			s.mu.Lock()
			s.conns[c] = struct{}{}
			s.mu.Unlock()
			s.wg.Add(1)
			go s.session(c)
		}
	}()
	return s
}

// Drop closes all connections, as when the machine at their other end is gone, and waits for their last requests. Disks must not be
// frozen.
func (s *Server) Drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.Close()
	}
}

// Idle waits until no connection is left; disks must not be frozen.
func (s *Server) Idle(wait func(cond func() bool) error) error {
	return wait(func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.conns) == 0
	})
}

// Close ends the server. Disks must not be frozen.
func (s *Server) Close() {
	s.lis.Close()
	s.Drop()
	s.wg.Wait()
}

func (s *Server) session(c net.Conn) {
	defer s.wg.Done()
	defer func() {
		c.Close()
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
	}()
	r, w := bufio.NewReaderSize(c, 256<<10), bufio.NewWriterSize(c, 64<<10)
	d, err := s.handshake(r, w)
	if err != nil || d == nil {
		return
	}
	out := &answers{w: w}
	for err == nil {
		err = d.request(r, out)
	}
	out.wg.Wait()
}

// answers are sent in the order in which they come about.
type answers struct {
	wg sync.WaitGroup
	mu sync.Mutex
	w  *bufio.Writer
}

func (a *answers) send(handle uint64, data []byte, err error) {
	var head [16]byte
	binary.BigEndian.PutUint32(head[:], nbdReply)
	if err != nil {
		binary.BigEndian.PutUint32(head[4:], nbdErrInvalid)
		data = nil
	}
	binary.BigEndian.PutUint64(head[8:], handle)
	a.mu.Lock()
	defer a.mu.Unlock()
	_, _ = a.w.Write(head[:])
	_, _ = a.w.Write(data)
	_ = a.w.Flush() // who is gone is missed by the reader of requests
}

// later sends an answer when it is due.
func (a *answers) later(handle uint64, due func()) {
	a.wg.Add(1)
	go func() {
		defer a.wg.Done()
		due()
		a.send(handle, nil, nil)
	}()
}

// option is the header of a client's option.
type option struct {
	Magic   uint64
	ID, Len uint32
}

type optionReply struct {
	Magic         uint64
	ID, Type, Len uint32
}

var errAbort = errors.New("nbd: the client went away")

func (s *Server) handshake(r *bufio.Reader, w *bufio.Writer) (*Disk, error) {
	put := func(vs ...any) error {
		for _, v := range vs {
			if err := binary.Write(w, binary.BigEndian, v); err != nil {
				return err
			}
		}
		return w.Flush()
	}
	if err := put(uint64(nbdMagic), uint64(nbdOptMagic), uint16(nbdFixed|nbdNoZeroes)); err != nil {
		return nil, err
	}
	var flags uint32
	if err := binary.Read(r, binary.BigEndian, &flags); err != nil {
		return nil, err
	}
	for {
		var o option
		if err := binary.Read(r, binary.BigEndian, &o); err != nil {
			return nil, err
		}
		if o.Magic != nbdOptMagic || o.Len > nbdMaxOptBytes {
			return nil, fmt.Errorf("nbd: option with magic %x and %d bytes", o.Magic, o.Len)
		}
		body := make([]byte, o.Len)
		if _, err := io.ReadFull(r, body); err != nil {
			return nil, err
		}
		reply := func(kind uint32, data ...byte) error {
			return put(optionReply{nbdReplyMagic, o.ID, kind, uint32(len(data))}, data)
		}
		switch o.ID {
		case nbdOptExport:
			d := s.disks[string(body)]
			if d == nil {
				return nil, fmt.Errorf("nbd: no export %q", body)
			}
			err := put(uint64(d.size), transmissionFlags)
			if err == nil && flags&nbdNoZeroes == 0 {
				err = put(make([]byte, 124))
			}
			return d, err
		case nbdOptInfo, nbdOptGo:
			var d *Disk
			if len(body) >= 4 {
				if n := binary.BigEndian.Uint32(body); int(n) <= len(body)-4 {
					d = s.disks[string(body[4:4+n])]
				}
			}
			if d == nil {
				if err := reply(nbdRepUnknown); err != nil {
					return nil, err
				}
				continue
			}
			info := binary.BigEndian.AppendUint16(nil, nbdInfoExport)
			info = binary.BigEndian.AppendUint64(info, uint64(d.size))
			info = binary.BigEndian.AppendUint16(info, transmissionFlags)
			if err := reply(nbdRepInfo, info...); err != nil {
				return nil, err
			}
			if err := reply(nbdRepAck); err != nil {
				return nil, err
			}
			if o.ID == nbdOptGo {
				return d, nil
			}
		case nbdOptAbort:
			return nil, errors.Join(errAbort, reply(nbdRepAck))
		default:
			if err := reply(nbdRepUnsup); err != nil {
				return nil, err
			}
		}
	}
}

const transmissionFlags = uint16(nbdHasFlags | nbdSendsFlush | nbdSendsFUA)

// request takes one request.
func (d *Disk) request(r *bufio.Reader, out *answers) error {
	var h struct {
		Magic       uint32
		Flags, Type uint16
		Handle, Off uint64
		Len         uint32
	}
	if err := binary.Read(r, binary.BigEndian, &h); err != nil {
		return err
	}
	if h.Magic != nbdRequest || h.Len > nbdMaxBytes {
		return fmt.Errorf("nbd: request with magic %x for %d bytes", h.Magic, h.Len)
	}
	switch h.Type {
	case nbdCmdRead:
		data := make([]byte, h.Len)
		err := d.readAt(data, int64(h.Off))
		out.send(h.Handle, data, err)
	case nbdCmdWrite:
		p := make([]byte, h.Len)
		if _, err := io.ReadFull(r, p); err != nil {
			return err
		}
		due, err := d.writeAt(p, int64(h.Off), h.Flags&nbdCmdFlagFUA != 0)
		if err != nil {
			out.send(h.Handle, nil, err)
			return nil
		}
		out.later(h.Handle, due)
	case nbdCmdFlush:
		out.later(h.Handle, d.flush())
	case nbdCmdDisc:
		return errAbort
	default:
		out.send(h.Handle, nil, fmt.Errorf("nbd: request %d", h.Type))
	}
	return nil
}
