package lst

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
)

// model is the deliberately dumb second implementation: plain maps.
type model struct {
	streams map[StreamID]*mstream
	kvs     map[string]string
}

type mstream struct {
	trim, eof uint64
	recs      map[uint64]string
}

func newModel() *model { return &model{streams: map[StreamID]*mstream{}, kvs: map[string]string{}} }

func (m *model) clone() *model {
	c := newModel()
	for k, v := range m.kvs {
		c.kvs[k] = v
	}
	for id, st := range m.streams {
		n := &mstream{trim: st.trim, eof: st.eof, recs: map[uint64]string{}}
		for k, v := range st.recs {
			n.recs[k] = v
		}
		c.streams[id] = n
	}
	return c
}

func (m *model) stream(id StreamID) *mstream {
	st := m.streams[id]
	if st == nil {
		st = &mstream{recs: map[uint64]string{}}
		m.streams[id] = st
	}
	return st
}

func (m *model) eof(id StreamID) uint64 {
	if st := m.streams[id]; st != nil {
		return st.eof
	}
	return 0
}

type mop struct {
	code   uint8
	id     StreamID
	seq    uint64
	key    string
	val    string
	before uint64
}

func (m *model) apply(ops []mop) {
	for _, op := range ops {
		switch op.code {
		case opAppend, opReplace:
			st := m.stream(op.id)
			if op.seq < st.trim {
				continue
			}
			if _, ok := st.recs[op.seq]; ok && op.code == opAppend {
				continue
			}
			st.recs[op.seq] = op.val
			st.eof = max(st.eof, op.seq+1)
		case opPut:
			m.kvs[op.key] = op.val
		case opDelete:
			delete(m.kvs, op.key)
		case opTrim:
			st := m.stream(op.id)
			if op.before > st.trim {
				for seq := range st.recs {
					if seq < op.before {
						delete(st.recs, seq)
					}
				}
				st.trim = op.before
				st.eof = max(st.eof, op.before)
			}
		case opDropStream:
			delete(m.streams, op.id)
		}
	}
}

func fill(b *Batch, ops []mop) {
	b.Reset()
	for _, op := range ops {
		switch op.code {
		case opAppend:
			h := len(op.val) / 2
			b.Append(op.id, op.seq, []byte(op.val[:h]), []byte(op.val[h:]))
		case opReplace:
			b.Replace(op.id, op.seq, []byte(op.val))
		case opPut:
			b.Put([]byte(op.key), []byte(op.val))
		case opDelete:
			b.Delete([]byte(op.key))
		case opTrim:
			b.Trim(op.id, op.before)
		case opDropStream:
			b.DeleteStream(op.id)
		}
	}
}

// differs says how a view differs from the model, or "" if it does not. Counts
// are recomputed by a scan on the model's side, so the aggregates are checked
// against what they stand for (T8).
func (m *model) differs(v View) string { return m.compare(v, true) }

// differsNamed is differs without a list of what there is: a restart that reads
// what it is asked for stays unread in the rest.
func (m *model) differsNamed(v View) string {
	for n := 0; n < 40; n++ {
		if id := sid(n); m.streams[id] == nil {
			if st, ok := v.Stat(id); ok {
				return fmt.Sprintf("stream %v is not in the model: %+v", id, st)
			}
		}
	}
	for n := 0; n < 14; n++ {
		key := fmt.Sprintf("k%d", n)
		want, ok := m.kvs[key]
		if got, err := v.GetKV([]byte(key), nil); ok != (err == nil) || string(got) != want || err != nil && !errors.Is(err, ErrNotFound) {
			return fmt.Sprintf("kv %q is %q %v, want %q (%v)", key, got, err, want, ok)
		}
	}
	return m.compare(v, false)
}

func (m *model) compare(v View, list bool) string {
	var ids []StreamID
	if list {
		v.Streams(nil, func(id StreamID) bool { ids = append(ids, id); return true })
	} else {
		for id := range m.streams {
			ids = append(ids, id)
		}
		slices.SortFunc(ids, func(a, b StreamID) int { return bytes.Compare(a[:], b[:]) })
	}
	if len(ids) != len(m.streams) {
		return fmt.Sprintf("%d streams, model has %d", len(ids), len(m.streams))
	}
	if !slices.IsSortedFunc(ids, func(a, b StreamID) int { return bytes.Compare(a[:], b[:]) }) {
		return "streams are not listed in order"
	}
	var buf []byte
	for _, id := range ids {
		ms := m.streams[id]
		if ms == nil {
			return fmt.Sprintf("stream %v is not in the model", id)
		}
		seqs := make([]uint64, 0, len(ms.recs))
		size := uint64(0)
		for seq, val := range ms.recs {
			seqs = append(seqs, seq)
			size += uint64(len(val))
		}
		slices.Sort(seqs)
		want := Stat{Trim: ms.trim, First: ms.eof, Contiguous: ms.eof, EOF: ms.eof, Count: uint64(len(seqs)), Bytes: size}
		var ext []Extent
		for _, seq := range seqs {
			if k := len(ext); k > 0 && ext[k-1].To == seq {
				ext[k-1].To++
			} else {
				ext = append(ext, Extent{seq, seq + 1})
			}
		}
		if len(ext) > 0 {
			want.First, want.Contiguous = ext[0].From, ext[0].To
		}
		if got, ok := v.Stat(id); !ok || got != want {
			return fmt.Sprintf("stat of %v is %+v, want %+v", id, got, want)
		}
		if got := v.Extents(id, nil); !slices.Equal(got, ext) {
			return fmt.Sprintf("extents of %v are %v, want %v", id, got, ext)
		}
		it := v.Range(id, 0, 1<<63)
		for _, seq := range seqs {
			if !it.Next() || it.Seq() != seq || string(it.Value()) != ms.recs[seq] {
				return fmt.Sprintf("range of %v at %d: got %d, %v", id, seq, it.Seq(), it.Err())
			}
			var err error
			if buf, err = v.Get(id, seq, buf[:0]); err != nil || string(buf) != ms.recs[seq] {
				return fmt.Sprintf("get %v %d: %v", id, seq, err)
			}
		}
		if it.Next() || it.Err() != nil {
			return fmt.Sprintf("range of %v goes on: %d, %v", id, it.Seq(), it.Err())
		}
		if ms.trim > 0 {
			if _, err := v.Get(id, ms.trim-1, nil); !errors.Is(err, ErrTrimmed) {
				return fmt.Sprintf("get below the trim point of %v: %v", id, err)
			}
		}
		if _, err := v.Get(id, ms.eof, nil); !errors.Is(err, ErrNotFound) {
			return fmt.Sprintf("get at EOF of %v: %v", id, err)
		}
	}
	if !list {
		return ""
	}
	n := 0
	bad := ""
	v.KVs(nil, func(k, val []byte) bool {
		n++
		if want, ok := m.kvs[string(k)]; !ok || want != string(val) {
			bad = fmt.Sprintf("kv %q is %q, want %q (%v)", k, val, want, ok)
		}
		return bad == ""
	})
	if bad == "" && n != len(m.kvs) {
		bad = fmt.Sprintf("%d key-values, model has %d", n, len(m.kvs))
	}
	return bad
}

// history is the model with the batches that a crash may take.
type history struct {
	sure   *model // everything durable
	maybe  [][]mop
	latest *model
}

func (h *history) commit(ops []mop, durable bool) {
	h.latest.apply(ops)
	h.maybe = append(h.maybe, ops)
	if durable {
		h.settle()
	}
}

func (h *history) settle() {
	h.sure, h.maybe = h.latest.clone(), nil
}

// fresh reports whether the store may still be without a durable batch.
func (h *history) fresh() bool { return len(h.sure.streams) == 0 && len(h.sure.kvs) == 0 }

// recovered finds the prefix of batches that a reopened store holds.
func (h *history) recovered(v View) error {
	m := h.sure.clone()
	first := m.differs(v)
	last := first
	for i := 0; last != "" && i < len(h.maybe); i++ {
		m.apply(h.maybe[i])
		last = m.differs(v)
	}
	if last != "" {
		return fmt.Errorf("no prefix of the batches gives this state; against what is durable: %s; against everything: %s", first, last)
	}
	h.latest = m
	h.settle()
	return nil
}
