package lst

import (
	"bytes"
	"slices"
	"sync/atomic"
)

// trie is a path-collapsed byte trie with one writer and any number of
// lock-free readers.
//
// Nodes are immutable except for their child pointers, which are replaced
// atomically: a writer that adds or removes a child builds a new node and swaps
// one pointer in its parent. A reader therefore sees every key that was there
// when it started and is not removed meanwhile.
type trie[T any] struct {
	root atomic.Pointer[tnode[T]]
	n    atomic.Int64
}

type tnode[T any] struct {
	prefix []byte // bytes of the key that this node collapses
	val    *T     // value of the key that ends here
	keys   []byte // first bytes of the children, ascending
	kids   []atomic.Pointer[tnode[T]]
}

func (t *trie[T]) len() int { return int(t.n.Load()) }

func (t *trie[T]) get(key []byte) *T {
	n := t.root.Load()
	for n != nil {
		if !bytes.HasPrefix(key, n.prefix) {
			return nil
		}
		key = key[len(n.prefix):]
		if len(key) == 0 {
			return n.val
		}
		i := bytes.IndexByte(n.keys, key[0])
		if i < 0 {
			return nil
		}
		n = n.kids[i].Load()
	}
	return nil
}

// put adds or replaces the value of key. Writer only.
func (t *trie[T]) put(key []byte, val *T) {
	at := &t.root
	for {
		n := at.Load()
		if n == nil {
			at.Store(&tnode[T]{prefix: bytes.Clone(key), val: val})
			t.n.Add(1)
			return
		}
		p := commonPrefix(key, n.prefix)
		if p < len(n.prefix) {
			// Split: a new parent takes the common part.
			low := n.with(n.prefix[p:], n.val)
			up := &tnode[T]{prefix: n.prefix[:p:p], keys: []byte{n.prefix[p]}, kids: make([]atomic.Pointer[tnode[T]], 1)}
			up.kids[0].Store(low)
			if p == len(key) {
				up.val = val
			} else {
				up = up.withChild(key[p], &tnode[T]{prefix: bytes.Clone(key[p:]), val: val})
			}
			at.Store(up)
			t.n.Add(1)
			return
		}
		key = key[p:]
		if len(key) == 0 {
			if n.val == nil {
				t.n.Add(1)
			}
			at.Store(n.with(n.prefix, val))
			return
		}
		i := bytes.IndexByte(n.keys, key[0])
		if i < 0 {
			at.Store(n.withChild(key[0], &tnode[T]{prefix: bytes.Clone(key), val: val}))
			t.n.Add(1)
			return
		}
		at = &n.kids[i]
	}
}

// del removes key. Writer only.
func (t *trie[T]) del(key []byte) {
	var up *atomic.Pointer[tnode[T]]
	at := &t.root
	for {
		n := at.Load()
		if n == nil || !bytes.HasPrefix(key, n.prefix) {
			return
		}
		key = key[len(n.prefix):]
		if len(key) > 0 {
			i := bytes.IndexByte(n.keys, key[0])
			if i < 0 {
				return
			}
			up, at = at, &n.kids[i]
			continue
		}
		if n.val == nil {
			return
		}
		t.n.Add(-1)
		switch {
		case len(n.kids) > 0:
			at.Store(n.with(n.prefix, nil).collapsed())
		case up == nil:
			at.Store(nil)
		default:
			parent := up.Load()
			up.Store(parent.withoutChild(n.prefix[0]).collapsed())
		}
		return
	}
}

func (n *tnode[T]) with(prefix []byte, val *T) *tnode[T] {
	c := &tnode[T]{prefix: prefix, val: val, keys: n.keys, kids: make([]atomic.Pointer[tnode[T]], len(n.kids))}
	for i := range n.kids {
		c.kids[i].Store(n.kids[i].Load())
	}
	return c
}

func (n *tnode[T]) withChild(b byte, child *tnode[T]) *tnode[T] {
	i := 0
	for i < len(n.keys) && n.keys[i] < b {
		i++
	}
	c := &tnode[T]{prefix: n.prefix, val: n.val, keys: make([]byte, len(n.keys)+1), kids: make([]atomic.Pointer[tnode[T]], len(n.kids)+1)}
	copy(c.keys, n.keys[:i])
	c.keys[i] = b
	copy(c.keys[i+1:], n.keys[i:])
	for k := range n.kids {
		d := k
		if k >= i {
			d++
		}
		c.kids[d].Store(n.kids[k].Load())
	}
	c.kids[i].Store(child)
	return c
}

func (n *tnode[T]) withoutChild(b byte) *tnode[T] {
	c := &tnode[T]{prefix: n.prefix, val: n.val, kids: make([]atomic.Pointer[tnode[T]], len(n.kids)-1)}
	for k := range n.kids {
		if n.keys[k] != b {
			c.kids[len(c.keys)].Store(n.kids[k].Load())
			c.keys = append(c.keys, n.keys[k])
		}
	}
	return c
}

// collapsed joins a node without value with its only child.
func (n *tnode[T]) collapsed() *tnode[T] {
	if n.val != nil || len(n.kids) != 1 {
		return n
	}
	kid := n.kids[0].Load()
	joined := append(append(make([]byte, 0, len(n.prefix)+len(kid.prefix)), n.prefix...), kid.prefix...)
	return kid.with(joined, kid.val)
}

func commonPrefix(a, b []byte) int {
	n := min(len(a), len(b))
	for i := 0; i < n; i++ {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// ascend calls fn for the values whose keys are at or after from, in key order,
// until fn returns false.
func (t *trie[T]) ascend(from []byte, fn func(*T) bool) {
	if n := t.root.Load(); n != nil {
		n.ascend(from, fn)
	}
}

func (n *tnode[T]) ascend(from []byte, fn func(*T) bool) bool {
	p := commonPrefix(from, n.prefix)
	switch {
	case p == len(from):
		from = nil
	case p == len(n.prefix):
		from = from[p:]
	case n.prefix[p] < from[p]:
		return true // all below from
	default:
		from = nil
	}
	if n.val != nil && len(from) == 0 && !fn(n.val) {
		return false
	}
	i, rest := 0, from
	if len(from) > 0 {
		var found bool
		if i, found = slices.BinarySearch(n.keys, from[0]); !found {
			rest = nil
		}
	}
	for ; i < len(n.kids); i++ {
		if !n.kids[i].Load().ascend(rest, fn) {
			return false
		}
		rest = nil
	}
	return true
}
