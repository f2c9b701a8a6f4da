package sim

import (
	"encoding/binary"
	"github.com/btrlog/btrlog/internal/protocol"
	"slices"
)

// print is the state's fingerprint: the least of those under all renamings of the nodes.
func (x *explorer) print(s *exState, classes bool) fingerprint {
	var least fingerprint
	for i := range x.renamings {
		if i > 0 && x.o.NoSymmetry && !classes {
			break
		}
		var f fingerprint
		for _, n := range s.nodes {
			f = f.plus(x.locals[n].prints[i])
		}
		for _, c := range s.clients {
			f = f.plus(x.locals[c].prints[i])
		}
		f = f.plus(x.records[s.record].prints[i])
		for _, l := range s.letters {
			f = f.plus(x.letters[l].prints[i])
		}
		if i == 0 || f.less(least) {
			least = f
		}
	}
	b := append(x.buf[:0], s.opens, s.appends, s.crashes, s.wipes, s.reopens, s.damages)
	b = append(b, s.told[:]...)
	b = append(b, s.gave[:]...)
	b = append(b, s.tails[:]...)
	x.buf = b
	return least.plus(print128(b))
}

func (s *exState) clone() *exState {
	t := *s
	t.nodes, t.clients, t.letters = slices.Clone(s.nodes), slices.Clone(s.clients), slices.Clone(s.letters)
	return &t
}

// news reports whether an effect sends something that is not under way.
func (x *explorer) news(s *exState, e *effect) bool {
	for _, n := range e.out {
		if _, ok := slices.BinarySearch(s.letters, n); !ok && !x.idle(s, n) {
			return true
		}
	}
	return false
}

func (x *explorer) sent(t *exState, out []uint32) {
	for _, n := range out {
		if i, ok := slices.BinarySearch(t.letters, n); !ok {
			t.letters = slices.Insert(t.letters, i, n)
		}
	}
}

// tidy forgets messages that can do nothing any more, whatever happens. And it lets clients take acknowledgements that complete nothing at
// once: a client that counted one more of them can do all that it could do before, and sends the same.
func (x *explorer) tidy(t *exState) {
	for again := true; again; {
		again = false
		for _, n := range t.letters {
			l := &x.letters[n]
			if a, ok := l.m.(*protocol.Ack); !ok || a.Status != protocol.StatusOK {
				continue
			}
			c := l.to - x.o.Nodes
			if l.epoch != x.locals[t.clients[c]].epoch && l.epoch != x.locals[t.clients[c]].reign {
				continue
			}
			e := x.effect(t.clients[c], input{inMessage, n})
			if e.next != t.clients[c] && len(e.acked) == 0 && !e.opened && e.bad == "" && x.quiet(t, e) && x.locals[e.next].install == nil {
				t.clients[c] = e.next
				again = true
			}
		}
	}
	t.letters = slices.DeleteFunc(t.letters, func(n uint32) bool { return x.idle(t, n) })
}

// idle reports whether a message can do nothing any more. To a client: what it makes of it, it has made already, for what a client
// learns it never forgets. To a node: it is refused for good, or done already, and whoever sent it has no use for the answer.
func (x *explorer) idle(s *exState, n uint32) bool {
	l := &x.letters[n]
	if l.to >= x.o.Nodes {
		c := s.clients[l.to-x.o.Nodes]
		p := &x.locals[c]
		if l.epoch != p.epoch && l.epoch != p.reign {
			return true // of an open or a reign that is over
		}
		e := x.effect(c, input{inMessage, n})
		return e.next == c && x.quiet(s, e)
	}
	id := s.nodes[l.to]
	e := x.effect(id, input{inMessage, n})
	if e.next != id || !e.final {
		return false
	}
	if _, ok := l.m.(*protocol.Watermark); ok && int(s.crashes)+int(s.damages) < x.o.Crashes+x.o.Damages {
		return false // the node may forget it
	}
	for _, r := range e.out {
		if x.letters[r].to >= x.o.Nodes && !x.idle(s, r) {
			return false
		}
	}
	return true
}

// quiet reports whether everything that an effect sends is under way.
func (x *explorer) quiet(s *exState, e *effect) bool {
	for _, n := range e.out {
		if _, ok := slices.BinarySearch(s.letters, n); !ok && !x.idle(s, n) {
			return false
		}
	}
	return true
}

// encode appends a state for the frontier.
func (x *explorer) encode(b []byte, number uint32, s *exState) []byte {
	b = binary.AppendUvarint(b, uint64(number))
	for _, n := range s.nodes {
		b = binary.AppendUvarint(b, uint64(n))
	}
	for _, c := range s.clients {
		b = binary.AppendUvarint(b, uint64(c))
	}
	b = binary.AppendUvarint(b, uint64(s.record))
	b = append(b, s.opens, s.appends, s.crashes, s.wipes, s.reopens, s.damages)
	b = append(b, s.told[:]...)
	b = append(b, s.gave[:]...)
	b = append(b, s.tails[:]...)
	b = binary.AppendUvarint(b, uint64(len(s.letters)))
	last := uint32(0)
	for _, l := range s.letters {
		b = binary.AppendUvarint(b, uint64(l-last))
		last = l
	}
	return b
}

func (x *explorer) decode(b []byte) (uint32, *exState, []byte) {
	word := func() uint64 {
		v, n := binary.Uvarint(b)
		b = b[n:]
		return v
	}
	number := uint32(word())
	s := &exState{nodes: make([]int32, x.o.Nodes), clients: make([]int32, x.o.Writers)}
	for i := range s.nodes {
		s.nodes[i] = int32(word())
	}
	for i := range s.clients {
		s.clients[i] = int32(word())
	}
	s.record = int32(word())
	s.opens, s.appends, s.crashes, s.wipes, s.reopens, s.damages = b[0], b[1], b[2], b[3], b[4], b[5]
	b = b[6:]
	b = b[copy(s.told[:], b):]
	b = b[copy(s.gave[:], b):]
	b = b[copy(s.tails[:], b):]
	s.letters = make([]uint32, word())
	last := uint32(0)
	for i := range s.letters {
		last += uint32(word())
		s.letters[i] = last
	}
	return number, s, b
}

// printSet is a set of fingerprints, 16 bytes each at a load of at most 3/4.
type printSet struct {
	slots []fingerprint
	n     int
}

// add reports whether f was not in the set.
func (s *printSet) add(f fingerprint) bool {
	if f == (fingerprint{}) {
		f.lo = 1 // zero is an empty slot
	}
	if 4*(s.n+1) > 3*len(s.slots) {
		old := s.slots
		s.slots = make([]fingerprint, max(1<<12, 2*len(old)))
		for _, g := range old {
			if g != (fingerprint{}) {
				s.slots[s.place(g)] = g
			}
		}
	}
	i := s.place(f)
	if s.slots[i] == f {
		return false
	}
	s.slots[i] = f
	s.n++
	return true
}

func (s *printSet) place(f fingerprint) int {
	mask := len(s.slots) - 1
	i := int(f.lo) & mask
	for s.slots[i] != (fingerprint{}) && s.slots[i] != f {
		i = (i + 1) & mask
	}
	return i
}

// openWithTail is Open and the read of the tail in one packet, promiseWithTail the answers to both.
type (
	openWithTail struct {
		*protocol.Open
		read *protocol.Fetch
	}
	promiseWithTail struct {
		*protocol.OpenReply
		read *protocol.FetchReply
	}
)
