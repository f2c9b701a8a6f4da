// Package disk is a block device with a volatile write cache whose power can be cut, served to a virtual machine over the NBD
// protocol.
//
// What holds:
//
//	D1 A write that was answered before a flush arrived is durable once that flush was answered; so is a write with FUA once
//	   it was answered itself. Nothing else is durable.
//	D2 A cut happens at one instant for all devices that are cut together. After it no request is answered until Release: no
//	   program on the machine can learn of a write that did not survive, so that whatever was acknowledged, also later, was
//	   acknowledged rightly.
//	D3 A cut keeps what is durable and a seeded choice of the writes that are not, answered or not: none, all, some, a prefix,
//	   and some of them torn at a sector.
//	D4 Between Release and PowerOn requests are answered and have no effect: the machine may unmount what is no longer there.
//
// Writes and flushes take a short time, each its own, so that a flush covers less than what is under way, and a cut finds the
// cache in use. Writes that overlap take effect in the order in which they arrive.
package disk

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// SectorBytes is the unit that a cut never tears.
const SectorBytes = 512

type state uint8

const (
	running  state = iota
	frozen         // cut: no request is answered
	released       // cut: requests are answered and lead nowhere
)

// write is one that a cut may take.
type write struct {
	off      int64
	data     []byte
	fua      bool
	answered bool
}

// certain says that a cut must not take the write, although it is in the cache: it stands there for its place in the order.
func (w *write) certain() bool { return w.fua && w.answered }

// Disk is one device. All methods may be called concurrently.
type Disk struct {
	name string
	size int64

	mu      sync.Mutex
	changed *sync.Cond // of state
	state   state
	lying   bool
	current image // what a read sees
	durable image
	pending []*write           // not durable, in the order of their arrival
	cuts    int                // so far: an answer that waited for one is void
	rng     *rand.Rand         // of the times that requests take
	dirty   map[int64]struct{} // chunks in which current may differ from durable
	stats   Stats
	// countdown is the number of writes and flushes to the one that FreezeAfter waits for; 0: no order.
	countdown int
	atFlush   bool
	reached   chan struct{}
}

// Stats counts the requests of a device since it was made.
type Stats struct {
	Reads, Writes, Flushes, FUA uint64
}

// Loss says what a cut took from one device.
type Loss struct {
	Disk    string `json:"disk"`
	Pending int    `json:"pending"` // writes in the cache
	Kept    int    `json:"kept"`
	Torn    int    `json:"torn"` // kept in part
	Dropped int    `json:"dropped"`
}

// New returns a device of size bytes, a multiple of the sector, full of zeros.
func New(name string, size int64) *Disk {
	d := &Disk{name: name, size: size, current: make(image), durable: make(image), dirty: make(map[int64]struct{}),
		rng: rand.New(rand.NewPCG(uint64(size), uint64(len(name))))}
	d.changed = sync.NewCond(&d.mu)
	return d
}

// Name is the device's name, which is that of its export too.
func (d *Disk) Name() string { return d.name }

// Size is in bytes.
func (d *Disk) Size() int64 { return d.size }

// Stats returns the counts so far.
func (d *Disk) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.stats
}

// SetLying makes the device answer flushes and FUA without doing them: a device that lies, for a control which must lose something.
func (d *Disk) SetLying(on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lying = on
}

// Fill writes durable content from outside, before the device is used.
func (d *Disk) Fill(p []byte, off int64) error {
	if err := d.check(int64(len(p)), off); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.current.write(p, off)
	d.durable.write(p, off)
	return nil
}

// FreezeAfter stops the device in front of the nth write or flush from now on, or, if atFlush is set, of the first flush that is not
// before it, as the first moment of a cut that CutAll completes: the channel is closed when it has happened. A later call, or CutAll,
// takes an order back.
func (d *Disk) FreezeAfter(n int, atFlush bool) <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.countdown, d.atFlush, d.reached = n, atFlush, make(chan struct{})
	return d.reached
}

func (d *Disk) check(n, off int64) error {
	if off < 0 || n < 0 || off%SectorBytes != 0 || n%SectorBytes != 0 || off > d.size-n {
		return fmt.Errorf("disk %s: %d bytes at offset %d do not fit into %d bytes, or are no sectors", d.name, n, off, d.size)
	}
	return nil
}

// await returns with the lock held, when requests are answered.
func (d *Disk) await() {
	d.mu.Lock()
	for d.state == frozen {
		d.changed.Wait()
	}
}

// readAt serves a read.
func (d *Disk) readAt(p []byte, off int64) error {
	if err := d.check(int64(len(p)), off); err != nil {
		return err
	}
	d.await()
	defer d.mu.Unlock()
	d.stats.Reads++
	d.current.read(p, off)
	return nil
}

// fire counts a write or flush, and stops it if FreezeAfter asked for it. The lock is held.
func (d *Disk) fire(flush bool) {
	if d.countdown == 0 || d.state != running {
		return
	}
	if d.countdown > 1 || d.atFlush && !flush {
		d.countdown = max(d.countdown-1, 1)
		return
	}
	d.state = frozen
	close(d.reached)
	for d.state == frozen {
		d.changed.Wait()
	}
}

// took draws how long a request takes: mostly little, sometimes long. The lock is held.
func (d *Disk) took(typical time.Duration) time.Duration {
	t := time.Duration(d.rng.Int64N(int64(typical)))
	if d.rng.IntN(16) == 0 {
		t *= 8
	}
	return t
}

const (
	writeTakes = 300 * time.Microsecond
	flushTakes = 2 * time.Millisecond
)

// writeAt takes a write into the cache; p is kept. The function that it returns waits until it is answered.
func (d *Disk) writeAt(p []byte, off int64, fua bool) (answer func(), err error) {
	if err := d.check(int64(len(p)), off); err != nil {
		return nil, err
	}
	d.await()
	defer d.mu.Unlock()
	d.fire(false)
	d.stats.Writes++
	if fua {
		d.stats.FUA++
	}
	d.current.write(p, off)
	for k := off / chunkBytes; k*chunkBytes < off+int64(len(p)); k++ {
		d.dirty[k] = struct{}{}
	}
	w := &write{off: off, data: p, fua: fua && !d.lying}
	if d.state == running {
		d.pending = append(d.pending, w)
	}
	takes := d.took(writeTakes)
	return func() {
		time.Sleep(takes)
		d.await()
		w.answered = true // also behind a cut: then it is in no list any more
		d.mu.Unlock()
	}, nil
}

// flush begins a flush. The function that it returns waits until it is answered.
func (d *Disk) flush() (answer func()) {
	d.await()
	defer d.mu.Unlock()
	d.fire(true)
	d.stats.Flushes++
	covered := make(map[*write]bool)
	if d.state == running && !d.lying {
		for _, w := range d.pending {
			if w.answered {
				covered[w] = true
			}
		}
		d.coverOlder(covered)
	}
	takes, cuts := d.took(flushTakes), d.cuts
	return func() {
		time.Sleep(takes)
		d.await()
		defer d.mu.Unlock()
		if cuts == d.cuts {
			d.persist(covered)
		}
	}
}

// coverOlder adds the writes that are overwritten, in part at least, by ones that are covered: left in the cache they would later
// take their place. The lock is held.
func (d *Disk) coverOlder(covered map[*write]bool) {
	for i, w := range d.pending {
		for _, v := range d.pending[i+1:] {
			if !covered[w] && covered[v] && w.off < v.off+int64(len(v.data)) && v.off < w.off+int64(len(w.data)) {
				covered[w] = true
			}
		}
	}
}

// persist makes writes of the cache durable. The lock is held.
func (d *Disk) persist(covered map[*write]bool) {
	left := d.pending[:0]
	for _, w := range d.pending {
		if !covered[w] {
			left = append(left, w)
			continue
		}
		d.durable.write(w.data, w.off)
	}
	clear(d.pending[len(left):])
	if d.pending = left; len(left) == 0 && d.state == running {
		clear(d.dirty) // all that differed was pending
	}
}

// CutAll takes the power from all disks at one instant; what each loses is drawn from rng. They stay silent until they are
// released.
func CutAll(rng *rand.Rand, disks ...*Disk) []Loss {
	for _, d := range disks {
		d.mu.Lock() // always in the caller's order, and nobody else holds two
	}
	out := make([]Loss, len(disks))
	for i, d := range disks {
		out[i] = d.cut(rng)
		d.mu.Unlock()
	}
	return out
}

func (d *Disk) cut(rng *rand.Rand) Loss {
	d.state = frozen
	d.countdown = 0
	d.cuts++
	loss := Loss{Disk: d.name, Pending: len(d.pending)}
	keep := chooser(rng, len(d.pending))
	for i, w := range d.pending {
		from, to := 0, len(w.data)
		if !w.certain() {
			from, to = keep(i, len(w.data)/SectorBytes)
			from, to = from*SectorBytes, to*SectorBytes
		}
		switch {
		case from == to:
			loss.Dropped++
			continue
		case from > 0 || to < len(w.data):
			loss.Torn++
		default:
			loss.Kept++
		}
		d.durable.write(w.data[from:to], w.off+int64(from))
	}
	d.pending = nil
	return loss
}

// chooser draws how a cut treats the n writes in the cache; the function that it returns says for a write which of its sectors
// stay.
func chooser(rng *rand.Rand, n int) func(i, sectors int) (from, to int) {
	torn := func(sectors int) (from, to int) {
		if sectors < 2 {
			return 0, 0
		}
		cut := 1 + rng.IntN(sectors-1)
		if rng.IntN(3) == 0 {
			return cut, sectors // the end without the beginning
		}
		return 0, cut
	}
	switch rng.IntN(5) {
	case 0: // nothing but what was flushed
		return func(int, int) (int, int) { return 0, 0 }
	case 1: // all in order up to one, which is torn
		last := rng.IntN(n + 1)
		return func(i, sectors int) (int, int) {
			switch {
			case i < last:
				return 0, sectors
			case i == last:
				return torn(sectors)
			}
			return 0, 0
		}
	case 2: // all but one: a hole
		hole := rng.IntN(n + 1)
		return func(i, sectors int) (int, int) {
			if i == hole {
				return 0, 0
			}
			return 0, sectors
		}
	case 3: // a subset of whole writes
		return func(_, sectors int) (int, int) {
			if rng.IntN(2) == 0 {
				return 0, 0
			}
			return 0, sectors
		}
	default: // a subset, some of it torn
		return func(_, sectors int) (int, int) {
			switch rng.IntN(4) {
			case 0:
				return 0, sectors
			case 1, 2:
				return torn(sectors)
			}
			return 0, 0
		}
	}
}

// Release lets the device answer again, without effect. Call it when no program is left that would draw conclusions.
func (d *Disk) Release() {
	d.set(released)
}

// PowerOn makes the device what the cut left of it. No request may be in flight.
func (d *Disk) PowerOn() {
	d.mu.Lock()
	for k := range d.dirty {
		d.current.copyChunk(k, d.durable)
	}
	clear(d.dirty)
	d.mu.Unlock()
	d.set(running)
}

func (d *Disk) set(s state) {
	d.mu.Lock()
	d.state = s
	d.mu.Unlock()
	d.changed.Broadcast()
}
