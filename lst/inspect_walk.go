package lst

import (
	"errors"
	"fmt"
	"io"

	"github.com/btrlog/btrlog/lst/vfs"
)

const (
	pieceFrame   = "frame"
	piecePadding = "padding"
	pieceDamage  = "damage"
	pieceUnused  = "unused" // zeros to the end of a segment whose end is not known
)

// piece is a part of a segment. body is valid until the next one.
type piece struct {
	what string
	at   pos
	n    int64
	head frameHead
	body []byte
	why  string
}

// walk visits everything in [From, To) of a segment in order and without gaps. Unlike recovery it goes on behind damage.
func (in *Inspection) walk(i *SegmentInfo, fn func(*piece) error) error {
	s := in.segs[i.Number]
	if s == nil || s.reason != "" || i.To <= i.From {
		return nil
	}
	f, err := in.opt.FS.Open(s.path, vfs.ReadOnly)
	if err != nil {
		return err
	}
	defer f.Close()
	w := &frameReader{f: f, size: i.To}
	for off := i.From; off < i.To; {
		p, err := in.pieceAt(w, s, i, off)
		if err != nil {
			return fmt.Errorf("read %s at offset %d: %w", s.path, off, err)
		}
		off += p.n
		if err := fn(p); err != nil {
			return err
		}
	}
	return nil
}

func (in *Inspection) pieceAt(w *frameReader, s *recSegment, i *SegmentInfo, off int64) (*piece, error) {
	at := mkpos(s.number, off)
	h, body, ok, err := w.frame(off, i.To, s.number, s.head.salt)
	if err != nil {
		return nil, err
	}
	if ok {
		return &piece{what: pieceFrame, at: at, n: frameHeadBytes + int64(h.length), head: h, body: body}, nil
	}
	if next := min(alignUp(off, int64(s.head.block)), i.To); next > off {
		b, err := w.bytes(off, int(next-off))
		if err != nil {
			return nil, err
		}
		if int64(len(b)) == next-off && allZero(b) {
			return &piece{what: piecePadding, at: at, n: next - off}, nil
		}
	}
	p := &piece{what: pieceDamage, at: at}
	head, err := w.bytes(off, int(min(frameHeadBytes, i.To-off)))
	if err != nil {
		return nil, err
	}
	if len(head) == 0 {
		p.n, p.why = i.To-off, fmt.Sprintf("file ends here, %d bytes of the store are missing", i.To-off)
		return p, nil
	}
	if len(head) == frameHeadBytes {
		if h, ok := readFrameHead(head, at, s.head.salt); ok {
			// The head is sound, so its length is: the damage is in the body.
			if end := off + frameHeadBytes + int64(h.length); end <= i.To {
				p.head, p.n, p.why = h, end-off, fmt.Sprintf("body of a %s frame of %d bytes fails its checksum", kindNames[h.kind], h.length)
				return p, nil
			}
		}
	}
	next, zero, err := in.resync(w.f, s, off+1, i.To)
	if err != nil {
		return nil, err
	}
	p.n, p.why = next-off, fmt.Sprintf("no valid frame in %d bytes", next-off)
	if zero && allZero(head[:1]) && in.end == 0 && next == i.To {
		p.what, p.why = pieceUnused, ""
	}
	return p, nil
}

func allZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// resync looks at every byte from off on for the next frame; to if there is none. zero says that only zeros are in between.
func (in *Inspection) resync(f vfs.File, s *recSegment, off, to int64) (next int64, zero bool, err error) {
	zero = true
	win := make([]byte, 256<<10)
	w := &frameReader{f: f, size: to}
	for off < to {
		n, err := f.ReadAt(win[:min(int64(len(win)), to-off)], off)
		if err != nil && !errors.Is(err, io.EOF) {
			return off, false, err
		}
		if n < frameHeadBytes {
			return to, zero && allZero(win[:n]), nil
		}
		last := n - frameHeadBytes // the highest place in the window that has room for a head
		for k := 0; k <= last; k++ {
			c := win[k]
			if c == 0 {
				continue
			}
			if c <= byte(kindRoot) && win[k+1] == formatVersion {
				_, _, ok, err := w.frame(off+int64(k), to, s.number, s.head.salt)
				if err != nil {
					return off, false, err
				}
				if ok {
					return off + int64(k), zero, nil
				}
			}
			zero = false
		}
		off += int64(last) + 1
	}
	return to, zero, nil
}
