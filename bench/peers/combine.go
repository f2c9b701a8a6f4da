package peers

import "sync"

// combined is a leader in front of a log that takes one caller at a time: what arrives while it writes goes into its next
// write together. Without it such an engine would be measured with one record per sync, which nobody would use.
type combined struct {
	write func(recs [][]byte) error
	read  func(i uint64) ([]byte, error)
	close func() error

	mu      sync.Mutex
	queue   []*waiting
	leading bool
	recs    [][]byte
}

type waiting struct {
	recs [][]byte
	done chan result
}

type result struct {
	err  error
	lead bool // the write is not done: lead the next one
}

var waitings = sync.Pool{New: func() any { return &waiting{done: make(chan result, 1)} }}

func newCombined(write func([][]byte) error, read func(uint64) ([]byte, error), close func() error) *combined {
	return &combined{write: write, read: read, close: close}
}

func (c *combined) Append(recs [][]byte) error {
	w := waitings.Get().(*waiting)
	defer waitings.Put(w)
	w.recs = recs
	c.mu.Lock()
	c.queue = append(c.queue, w)
	lead := !c.leading
	c.leading = true
	c.mu.Unlock()
	if !lead {
		if r := <-w.done; !r.lead {
			return r.err
		}
	}
	c.mu.Lock()
	group := c.queue
	c.queue = nil
	c.mu.Unlock()
	c.recs = c.recs[:0]
	for _, g := range group {
		c.recs = append(c.recs, g.recs...)
	}
	err := c.write(c.recs)
	for _, g := range group {
		if g != w {
			g.done <- result{err: err}
		}
	}
	c.mu.Lock()
	if len(c.queue) > 0 {
		c.queue[0].done <- result{lead: true}
	} else {
		c.leading = false
	}
	c.mu.Unlock()
	return err
}

func (c *combined) Read(i uint64) ([]byte, error) { return c.read(i) }
func (c *combined) Close() error                  { return c.close() }
