package lst

import (
	"bytes"
	"errors"
	"fmt"
	"sort"
	"sync"
	"sync/atomic"
)

// coldState is what a restart has not read yet: the snapshot that it found, and
// the operations behind it, by stream (T5). Open reads neither the pieces nor the
// older roots of the snapshot; a stream or key is read when it is first asked
// for, and the keeper brings in the rest meanwhile, after which there is no cold
// state any more.
//
//	C1 A key is taken once: by who asks for it, or by the keeper. Who takes it
//	   puts its state from the snapshot, with the operations behind applied, into
//	   the index in one step under the index's lock. Nothing is read under it.
//	C2 What is taken is decided by the index alone, absence included: a stream
//	   that was deleted since must not come back from the snapshot.
//	C3 No snapshot is begun and no segment dropped before all is taken: both need
//	   the counts of everything, and the pieces must stay where they are.
type coldState struct {
	x    *index
	rec  recovery // for reading frames
	root *rootInfo
	ops  recOps
	next []int32 // per operation: the next one of the same stream, or -1
	head []int32 // per stream of ops

	chainMu sync.Mutex
	chain   []*rootInfo // newest first, read with the first use

	loadMu sync.Mutex // one loadAll at a time
	taken  map[string]struct{}
	err    atomic.Pointer[error]
	failed func(error)       // told of damage, without locks
	loaded func([]*rootInfo) // told of the chain when all is in, under the lock
}

func newColdState(x *index, r *recovery) *coldState {
	c := &coldState{x: x, root: r.root, ops: r.ops, taken: map[string]struct{}{}}
	c.rec = recovery{fs: x.files.fs, dir: r.dir, ix: x, numbers: r.numbers, segs: map[uint32]*recSegment{}, rep: &RecoveryReport{}}
	c.next = make([]int32, len(c.ops.ops))
	c.head = make([]int32, len(c.ops.ids))
	tail := make([]int32, len(c.ops.ids))
	for i := range c.head {
		c.head[i] = -1
	}
	for i := range c.ops.ops {
		op := &c.ops.ops[i]
		c.next[i] = -1
		if op.isKV() {
			continue
		}
		if c.head[op.who] < 0 {
			c.head[op.who] = int32(i)
		} else {
			c.next[tail[op.who]] = int32(i)
		}
		tail[op.who] = int32(i)
	}
	return c
}

// Tagged keys, as in the roots: key-values before streams.
func streamKey(id StreamID) []byte { return append([]byte{1}, id[:]...) }
func kvKey(key []byte) []byte      { return append([]byte{0}, key...) }

// fail remembers damage and stops the store: nobody may take what cannot be read
// for absent.
func (c *coldState) fail(err error) error {
	c.err.CompareAndSwap(nil, &err)
	if c.failed != nil {
		c.failed(err)
	}
	return err
}

func (c *coldState) roots() ([]*rootInfo, error) {
	if c.chain == nil {
		chain, err := c.rec.readChain(c.root)
		if err != nil {
			return nil, err
		}
		c.chain = chain
	}
	return c.chain, nil
}

// fetch reads the pieces that may hold key, oldest first, into an index of its own.
func (c *coldState) fetch(key []byte) (*index, error) {
	c.chainMu.Lock()
	defer c.chainMu.Unlock()
	chain, err := c.roots()
	if err != nil {
		return nil, err
	}
	tmp := newIndex(c.x.files, nil)
	for i := len(chain) - 1; i >= 0; i-- {
		for _, k := range chain[i].holding(key) {
			if err := c.rec.loadPiece(tmp, chain[i], k); err != nil {
				return nil, err
			}
		}
	}
	return tmp, nil
}

// holding lists the pieces that may hold entries of key: the last that begins at
// or before it, and those that go on with it. A piece without a first key may
// hold anything.
func (o *rootInfo) holding(key []byte) []int {
	var out []int
	if len(o.pieces) > 0 && len(o.pieces[0].key) == 0 {
		for k := range o.pieces {
			out = append(out, k)
		}
		return out
	}
	k := sort.Search(len(o.pieces), func(i int) bool { return bytes.Compare(o.pieces[i].key, key) > 0 })
	// Several pieces may begin with the same key.
	for k > 0 && bytes.Equal(o.pieces[k-1].key, key) {
		k--
	}
	k = max(k-1, 0)
	goesOn := append(append([]byte(nil), key...), 0)
	for ; k < len(o.pieces) && bytes.Compare(o.pieces[k].key, goesOn) <= 0; k++ {
		out = append(out, k)
	}
	return out
}

// isTaken reports whether the index decides about key. Under the index's lock.
func (c *coldState) isTaken(key []byte) bool {
	_, ok := c.taken[string(key)]
	return ok || c.x.cold.Load() != c
}

// stream is the lookup of a stream that the index does not hold.
func (c *coldState) stream(id StreamID) (*stream, error) {
	x, key := c.x, streamKey(id)
	x.lock.Lock()
	taken := c.isTaken(key)
	x.lock.Unlock()
	if taken {
		return x.byID.get(&id), nil
	}
	tmp, err := c.fetch(key)
	if err != nil {
		return nil, c.fail(err)
	}
	x.lock.Lock()
	if !c.isTaken(key) {
		err = c.adopt(id, tmp.byID.get(&id))
	}
	x.lock.Unlock()
	if err != nil {
		return nil, c.fail(err)
	}
	return x.byID.get(&id), nil
}

// adopt takes a stream: st is its state in the snapshot, nil for none. Under the
// index's lock; readers see the stream when it is whole.
func (c *coldState) adopt(id StreamID, st *stream) error {
	x := c.x
	c.taken[string(streamKey(id))] = struct{}{}
	if st != nil {
		if err := x.loadedStream(st); err != nil {
			return err
		}
	}
	if who, ok := c.ops.who[id]; ok {
		for i := c.head[who]; i >= 0; i = c.next[i] {
			op := &c.ops.ops[i]
			if st == nil && op.code != opDropStream {
				st = &stream{id: id}
			}
			st = x.applyTo(st, op)
		}
	}
	if x.broken != nil {
		return x.broken
	}
	if x.damage != nil {
		return x.damage
	}
	if st != nil {
		x.keep(st)
	}
	return nil
}

// kv is the lookup of a key-value that the index does not hold.
func (c *coldState) kv(key []byte) (*kvEntry, error) {
	x, tagged := c.x, kvKey(key)
	x.lock.Lock()
	taken := c.isTaken(tagged)
	x.lock.Unlock()
	if taken {
		return x.kvs.get(key), nil
	}
	tmp, err := c.fetch(tagged)
	if err != nil {
		return nil, c.fail(err)
	}
	x.lock.Lock()
	defer x.lock.Unlock()
	if !c.isTaken(tagged) {
		c.takeKV(key)
		if e := tmp.kvs.get(key); e != nil {
			x.kvs.put(key, e)
		}
	}
	return x.kvs.get(key), nil
}

func (c *coldState) takeKV(key []byte) { c.taken[string(kvKey(key))] = struct{}{} }

const takeAtOnce = 64 // streams or keys taken under one hold of the lock

// loadAll takes everything that is left. It reads without locks, and holds the
// index's lock for a few entries at a time.
func (c *coldState) loadAll() error {
	c.loadMu.Lock()
	defer c.loadMu.Unlock()
	x := c.x
	if p := c.err.Load(); p != nil {
		return *p
	}
	if x.cold.Load() != c {
		return nil
	}
	c.chainMu.Lock()
	chain, err := c.roots()
	rec := c.rec // its own buffers: lookups go on meanwhile
	c.chainMu.Unlock()
	if err != nil {
		return c.fail(err)
	}
	rec.buf, rec.segs, rec.rep = nil, map[uint32]*recSegment{}, &RecoveryReport{}
	tmp := newIndex(x.files, nil)
	for i := len(chain) - 1; i >= 0; i-- {
		for k := range chain[i].pieces {
			if err := rec.loadPiece(tmp, chain[i], k); err != nil {
				return c.fail(err)
			}
		}
	}
	if err := c.takeAll(tmp); err != nil {
		return c.fail(err)
	}
	return nil
}

func (c *coldState) takeAll(tmp *index) (err error) {
	x, held := c.x, 0
	x.lock.Lock()
	defer x.lock.Unlock()
	breathe := func() {
		if held++; held%takeAtOnce == 0 {
			x.lock.Unlock()
			x.lock.Lock()
		}
	}
	tmp.streams.ascend(nil, func(st *stream) bool {
		if !c.isTaken(streamKey(st.id)) {
			err = c.adopt(st.id, st)
		}
		breathe()
		return err == nil
	})
	for who := 0; who < len(c.ops.ids) && err == nil; who++ {
		if id := c.ops.ids[who]; !c.isTaken(streamKey(id)) {
			err = c.adopt(id, nil)
		}
		breathe()
	}
	tmp.kvs.ascend(nil, func(e *kvEntry) bool {
		if key := []byte(e.key); !c.isTaken(kvKey(key)) {
			c.takeKV(key)
			x.kvs.put(key, e)
		}
		breathe()
		return true
	})
	if err == nil {
		if c.loaded != nil {
			c.loaded(c.chain)
		}
		x.cold.Store(nil)
	}
	return err
}

// streamOf finds a stream, from the snapshot if it was not read yet.
func (x *index) streamOf(id StreamID) (*stream, error) {
	if st := x.byID.get(&id); st != nil {
		return st, nil
	}
	c := x.cold.Load()
	if c == nil {
		return x.byID.get(&id), nil // the rest may have come in between
	}
	return c.stream(id)
}

func (x *index) kvOf(key []byte) (*kvEntry, error) {
	if e := x.kvs.get(key); e != nil {
		return e, nil
	}
	c := x.cold.Load()
	if c == nil {
		return x.kvs.get(key), nil
	}
	return c.kv(key)
}

// all makes sure that enumerating sees everything.
func (x *index) all() error {
	if c := x.cold.Load(); c != nil {
		return c.loadAll()
	}
	return nil
}

// preload takes the streams that a batch speaks of before the commit takes the
// store's lock. In Inline mode, where no keeper does it, the rest follows before
// a snapshot is due.
func (s *Store) preload(b *Batch) error {
	c := s.ix.cold.Load()
	if c == nil {
		return nil
	}
	for i := range b.ops {
		if op := &b.ops[i]; op.code != opPut && op.code != opDelete {
			if i > 0 && b.ops[i-1].stream == op.stream {
				continue
			}
			if _, err := s.ix.streamOf(op.stream); err != nil {
				return err
			}
		}
	}
	if !s.opt.Inline {
		return nil
	}
	s.mu.Lock()
	due := s.snapDue()
	s.mu.Unlock()
	if due {
		return c.loadAll()
	}
	return nil
}

// loadRest brings in what the restart left, and settles what follows from it.
func (s *Store) loadRest() error {
	c := s.ix.cold.Load()
	if c == nil {
		return nil
	}
	return c.loadAll()
}

var errManyRoots = errors.New("snapshot roots do not lead to a base")

// readChain reads the roots from the newest down to a base.
func (r *recovery) readChain(newest *rootInfo) ([]*rootInfo, error) {
	chain := []*rootInfo{newest}
	for root := newest; root.prev != 0; {
		if len(chain) > baseAtMostEvery+1 || root.prev >= root.at {
			return nil, r.corrupt(root.at, errManyRoots.Error())
		}
		next, err := r.readRoot(root.prev)
		if err != nil {
			return nil, err
		}
		chain, root = append(chain, next), next
	}
	return chain, nil
}

func (r *recovery) readRoot(at pos) (*rootInfo, error) {
	h, body, err := r.frameAt(at, kindRoot, 0, 0)
	if err != nil {
		return nil, err
	}
	root, err := decodeRoot(append([]byte(nil), body...), at)
	if err != nil {
		return nil, r.corrupt(at, err.Error())
	}
	root.claim, root.length = h.claim, frameHeadBytes+int(h.length)
	return root, nil
}

// loadPiece reads piece k of a snapshot into x.
func (r *recovery) loadPiece(x *index, root *rootInfo, k int) error {
	p := &root.pieces[k]
	_, body, err := r.frameAt(p.at, kindTable, p.size, p.crc)
	if err != nil {
		return err
	}
	r.rep.SnapshotBytes += int64(len(body))
	if err := x.loadTable(body, root.number); err != nil {
		return r.corrupt(p.at, fmt.Sprint(err))
	}
	return nil
}
