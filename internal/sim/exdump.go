package sim

import (
	"encoding/binary"
	"math/bits"
	"reflect"
	"slices"
	"unsafe"

	"github.com/btrlog/btrlog/internal/protocol"
)

// fingerprint stands for a value in the explorer. Two fingerprints are added, not chained, so that a set has one whatever its order.
type fingerprint struct{ hi, lo uint64 }

func (f fingerprint) plus(g fingerprint) fingerprint {
	lo, carry := bits.Add64(f.lo, g.lo, 0)
	return fingerprint{f.hi + g.hi + carry, lo}
}

func (f fingerprint) minus(g fingerprint) fingerprint {
	lo, borrow := bits.Sub64(f.lo, g.lo, 0)
	return fingerprint{f.hi - g.hi - borrow, lo}
}

func (f fingerprint) less(g fingerprint) bool { return f.hi < g.hi || f.hi == g.hi && f.lo < g.lo }

// print128 is the fingerprint of bytes. 128 bits leave a chance of about 1 in 10^20 that two of 10^9 states share one.
func print128(b []byte) fingerprint {
	x, y := digest(0x243f6a8885a308d3), digest(0x13198a2e03707344)
	x.bytes(b)
	y.word(0xa4093822299f31d0)
	y.bytes(b)
	x.word(1)
	y.word(2)
	return fingerprint{uint64(x), uint64(y)}
}

// renaming is a permutation of the nodes: slot i of the world is called to[i]. Incarnations are renamed with their slot.
type renaming struct{ to []int }

// slotOf splits an incarnation of the explorer into slot and generation.
func slotOf(inc protocol.Incarnation) (slot, generation int) { return int(inc)%16 - 1, int(inc) / 16 }

func incOf(slot, generation int) protocol.Incarnation {
	return protocol.Incarnation(16*generation + slot + 1)
}

func (r renaming) inc(inc protocol.Incarnation) protocol.Incarnation {
	slot, generation := slotOf(inc)
	if slot < 0 || slot >= len(r.to) {
		return inc
	}
	return incOf(r.to[slot], generation)
}

func (r renaming) node(id protocol.NodeID) protocol.NodeID {
	if len(id) != 1 || int(id[0]-'a') >= len(r.to) {
		return id
	}
	return protocol.NodeID(rune('a' + r.to[id[0]-'a']))
}

// renamings returns all permutations of n nodes, the identity first, or the identity alone.
func renamings(n int, all bool) []renaming {
	id := make([]int, n)
	for i := range id {
		id[i] = i
	}
	out := []renaming{{id}}
	if !all {
		return out
	}
	var permute func(p []int, k int)
	permute = func(p []int, k int) {
		if k == n {
			if !slices.Equal(p, id) {
				out = append(out, renaming{slices.Clone(p)})
			}
			return
		}
		for i := k; i < n; i++ {
			p[k], p[i] = p[i], p[k]
			permute(p, k+1)
			p[k], p[i] = p[i], p[k]
		}
	}
	permute(slices.Clone(id), 0)
	return out
}

// dumper writes the whole state of a machine, unexported fields too, in a canonical form: what two machines that behave alike have in
// common. Times are left out, because every timer of the explorer may have fired (zeroTimes); so are words for people. The order of an
// ensemble is left out: it decides only who is asked first.
type dumper struct {
	r   renaming
	buf []byte
}

var (
	typeTime        = reflect.TypeFor[protocol.Time]()
	typeIncarnation = reflect.TypeFor[protocol.Incarnation]()
	typeNodeID      = reflect.TypeFor[protocol.NodeID]()
	typeEnsemble    = reflect.TypeFor[protocol.Ensemble]()
	typeWriter      = reflect.TypeFor[protocol.Writer]()
	typeOpener      = reflect.TypeFor[protocol.Opener]()
	typeError       = reflect.TypeFor[error]()
	typeRules       = reflect.TypeFor[protocol.Rules]()
)

// sets are slices whose order means nothing.
var sets = map[string]bool{"contact": true, "Member": true, "NodeID": true, "Incarnation": true}

// words are fields that nothing but a message to people depends on.
var words = map[string]bool{"missing": true, "failedIn": true, "out": true, "outbox": true, "refused": true}

func (d *dumper) word(v uint64) { d.buf = binary.AppendUvarint(d.buf, v) }

func (d *dumper) value(v reflect.Value) {
	t := v.Type()
	switch t {
	case typeTime, typeRules:
		return
	case typeIncarnation:
		d.word(uint64(d.r.inc(protocol.Incarnation(v.Uint()))))
		return
	case typeNodeID:
		d.text(string(d.r.node(protocol.NodeID(v.String()))))
		return
	case typeError:
		d.flag(!v.IsNil()) // a machine that failed does nothing more
		return
	case typeWriter:
		d.writer(v)
		return
	case typeOpener:
		d.opener(v)
		return
	}
	switch t.Kind() {
	case reflect.Bool:
		d.flag(v.Bool())
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		d.word(uint64(v.Int()))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		d.word(v.Uint())
	case reflect.String:
		d.text(v.String())
	case reflect.Pointer, reflect.Interface:
		d.flag(!v.IsNil())
		if !v.IsNil() {
			if t.Kind() == reflect.Interface {
				d.text(v.Elem().Type().String())
			}
			d.value(v.Elem())
		}
	case reflect.Struct:
		for i := range t.NumField() {
			if !words[t.Field(i).Name] {
				d.value(v.Field(i))
			}
		}
	case reflect.Slice, reflect.Array:
		d.word(uint64(v.Len()))
		if t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8 {
			d.buf = append(d.buf, v.Bytes()...)
			return
		}
		if sets[t.Elem().Name()] {
			d.sorted(v.Len(), func(i int) { d.value(v.Index(i)) })
			return
		}
		for i := range v.Len() {
			d.value(v.Index(i))
		}
	case reflect.Map:
		keys := v.MapKeys()
		d.word(uint64(len(keys)))
		d.sorted(len(keys), func(i int) {
			d.value(keys[i])
			d.value(v.MapIndex(keys[i]))
		})
	default:
		panic("the explorer cannot dump a " + t.String())
	}
}

func (d *dumper) flag(b bool) {
	if b {
		d.word(1)
	} else {
		d.word(0)
	}
}

func (d *dumper) text(s string) {
	d.word(uint64(len(s)))
	d.buf = append(d.buf, s...)
}

// sorted dumps n items in the order of their dumps.
func (d *dumper) sorted(n int, item func(i int)) {
	start := len(d.buf)
	parts := make([]string, n)
	for i := range n {
		item(i)
		parts[i] = string(d.buf[start:])
		d.buf = d.buf[:start]
	}
	slices.Sort(parts)
	for _, p := range parts {
		d.text(p)
	}
}

// opener dumps an Opener. From the compare-and-swap on it needs nothing of what it was answered before.
func (d *dumper) opener(v reflect.Value) {
	late := protocol.Stage(v.FieldByName("stage").Uint()) >= protocol.StageInstall
	for i := range v.NumField() {
		switch name := v.Type().Field(i).Name; {
		case words[name]:
		case late && slices.Contains([]string{"choices", "fetching", "fetched", "units", "unitAt", "sentTo", "kept", "freeAt", "req", "undone"}, name):
		case late && name == "contacts":
			contacts := v.Field(i)
			d.sorted(contacts.Len(), func(i int) {
				c := contacts.Index(i)
				d.value(c.FieldByName("member"))
				d.value(c.FieldByName("target"))
				d.value(c.FieldByName("active"))
			})
		default:
			d.value(v.Field(i))
		}
	}
}

// writer dumps a Writer, whose members go by their place in the ensemble and whose ring has slots that are not in use.
func (d *dumper) writer(v reflect.Value) {
	cfg := v.FieldByName("cfg")
	members := cfg.FieldByName("Ensemble")
	member := func(i int) uint64 {
		return uint64(d.r.inc(protocol.Incarnation(members.Index(i).FieldByName("Incarnation").Uint())))
	}
	for i := range v.NumField() {
		switch name := v.Type().Field(i).Name; name {
		case "ring":
			ring := v.Field(i)
			for x := v.FieldByName("low").Uint(); x < v.FieldByName("next").Uint(); x++ {
				d.slot(ring.Index(int(x&uint64(ring.Len()-1))), members.Len(), member)
			}
		case "nodes":
			nodes := v.Field(i)
			d.sorted(nodes.Len(), func(i int) {
				d.word(member(i))
				d.value(nodes.Index(i))
			})
		default:
			if !words[name] {
				d.value(v.Field(i))
			}
		}
	}
}

func (d *dumper) slot(s reflect.Value, n int, member func(int) uint64) {
	for i := range s.NumField() {
		switch s.Type().Field(i).Name {
		case "acks", "again":
			mask := s.Field(i).Uint()
			var who []uint64
			for j := range n {
				if mask>>j&1 != 0 {
					who = append(who, member(j))
				}
			}
			slices.Sort(who)
			d.word(uint64(len(who)))
			for _, w := range who {
				d.word(w)
			}
		default:
			d.value(s.Field(i))
		}
	}
}

// forget makes a writer forget what decides only when it sends something again: which watermark a node is known to hold, what was sent to
// it, whether it lacks the epoch, who else holds what is committed. In the explorer everything that may be sent again is under way for ever.
func forget(w *protocol.Writer) {
	if w == nil {
		return
	}
	v := reflect.ValueOf(w).Elem()
	nodes, ring, committed := v.FieldByName("nodes"), v.FieldByName("ring"), v.FieldByName("clsn").Uint()
	for x := v.FieldByName("low").Uint(); x <= committed; x++ {
		s := ring.Index(int(x & uint64(ring.Len()-1)))
		*(*uint16)(unsafe.Pointer(s.FieldByName("acks").UnsafeAddr())) = 0
		*(*uint16)(unsafe.Pointer(s.FieldByName("again").UnsafeAddr())) = 0
	}
	for i := range nodes.Len() {
		n := nodes.Index(i)
		for _, name := range []string{"wm", "wmSent", "sent", "resent", "sealed"} {
			*(*protocol.LSN)(unsafe.Pointer(n.FieldByName(name).UnsafeAddr())) = 0
		}
		*(*protocol.LSN)(unsafe.Pointer(n.FieldByName("lo").UnsafeAddr())) = protocol.LSN(committed) + 1
		*(*bool)(unsafe.Pointer(n.FieldByName("activated").UnsafeAddr())) = true
	}
}

// zeroTimes sets every time in a machine to zero, but for deadlines: before each step every timer may have fired, so that what a machine
// does depends on nothing that the dump leaves out.
func zeroTimes(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			zeroTimes(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Field(i)
			if f.Type() == typeTime {
				if v.Type().Field(i).Name != "Deadline" && f.CanAddr() {
					*(*protocol.Time)(unsafe.Pointer(f.UnsafeAddr())) = 0
				}
				continue
			}
			zeroTimes(f)
		}
	case reflect.Slice:
		if k := v.Type().Elem().Kind(); k == reflect.Struct || k == reflect.Pointer {
			for i := range v.Len() {
				zeroTimes(v.Index(i))
			}
		}
	case reflect.Map:
		if v.Type().Elem().Kind() == reflect.Pointer {
			for it := v.MapRange(); it.Next(); {
				zeroTimes(it.Value())
			}
		}
	}
}
