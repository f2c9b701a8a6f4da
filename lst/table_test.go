package lst

import (
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
)

// twin is an id whose hash is that of all other twins, which takes the table's seed.
func twin(t *streamTable, n uint64) (id StreamID) {
	binary.LittleEndian.PutUint64(id[:], t.mem.Load().seed)
	binary.LittleEndian.PutUint64(id[8:], n)
	return id
}

func plainID(n uint64) (id StreamID) {
	binary.BigEndian.PutUint64(id[8:], n)
	return id
}

func TestTableTwins(t *testing.T) {
	var x streamTable
	x.put(&stream{id: plainID(0)})
	a, b := twin(&x, 1), twin(&x, 2)
	if m := x.mem.Load(); m.hash(&a) != m.hash(&b) {
		t.Fatal("the ids were meant to have one hash")
	}
	x.put(&stream{id: a})
	x.put(&stream{id: b})
	x.del(&a)
	again := &stream{id: b}
	x.put(again) // must take b's place, not the one that a has left
	if x.get(&b) != again || x.live != 2 {
		t.Fatalf("put again: found %p, want %p; %d live", x.get(&b), again, x.live)
	}
	x.del(&b)
	if st := x.get(&b); st != nil || x.live != 1 {
		t.Fatalf("deleted, but an older one is found: %v; %d live", st, x.live)
	}
}

// The table against a map: growth, deletes, ids that come again, ids of one hash.
func TestTableModel(t *testing.T) {
	for seed := range uint64(5) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		var x streamTable
		x.put(&stream{id: plainID(0)})
		ids := []StreamID{plainID(0)}
		for n := range uint64(400) {
			if n%8 == 0 {
				ids = append(ids, twin(&x, n))
			} else {
				ids = append(ids, plainID(n+1))
			}
		}
		model := map[StreamID]*stream{ids[0]: x.get(&ids[0])}
		most := 0
		for step := range 6000 {
			// The pool that is used widens and narrows, so that the table grows and empties.
			id := ids[rnd.IntN(1+len(ids)*(step%1500)/1500)]
			if rnd.IntN(5) < 3 {
				st := &stream{id: id}
				x.put(st)
				model[id] = st
			} else {
				x.del(&id)
				delete(model, id)
			}
			most = max(most, len(model))
			if x.live != len(model) {
				t.Fatalf("seed %d step %d: %d live, want %d", seed, step, x.live, len(model))
			}
			if step%50 == 0 {
				for k := range ids {
					if got := x.get(&ids[k]); got != model[ids[k]] {
						t.Fatalf("seed %d step %d: id %d: %p, want %p", seed, step, k, got, model[ids[k]])
					}
				}
			}
		}
		if n := len(x.mem.Load().slots); n > 16*(most+1) {
			t.Errorf("seed %d: %d slots for at most %d streams", seed, n, most)
		}
	}
}

// Readers find what stays, through growth and the coming and going of the others, and
// never another stream than the one they ask for.
func TestTableReaders(t *testing.T) {
	var x streamTable
	const stay = 64
	for n := range uint64(stay) {
		x.put(&stream{id: plainID(n)})
	}
	var stop atomic.Bool
	var all sync.WaitGroup
	for k := range uint64(3) {
		all.Add(1)
		go func() {
			defer all.Done()
			rnd := rand.New(rand.NewPCG(7, k))
			for !stop.Load() {
				n := rnd.Uint64N(2 * stay)
				id := plainID(n)
				x.prefetch(&id)
				x.prefetchStream(&id)
				st := x.get(&id)
				if st == nil && n < stay {
					t.Errorf("stream %d is not found", n)
					return
				}
				if st != nil && st.id != id {
					t.Errorf("asked for %v, got %v", id, st.id)
					return
				}
			}
		}()
	}
	rnd := rand.New(rand.NewPCG(7, 99))
	for step := range 40_000 {
		id := plainID(stay + rnd.Uint64N(uint64(1+step/20)))
		if rnd.IntN(2) == 0 {
			x.put(&stream{id: id})
		} else {
			x.del(&id)
		}
	}
	stop.Store(true)
	all.Wait()
}
