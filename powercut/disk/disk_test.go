package disk

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

const testBytes = 1 << 20

// mustWrite writes n sectors of one byte and waits for the answer.
func mustWrite(t *testing.T, d *Disk, sector, n int, b byte, fua bool) {
	t.Helper()
	answer, err := d.writeAt(bytes.Repeat([]byte{b}, n*SectorBytes), int64(sector)*SectorBytes, fua)
	if err != nil {
		t.Fatal(err)
	}
	answer()
}

func sectorOf(t *testing.T, d *Disk, sector int) byte {
	t.Helper()
	p := make([]byte, SectorBytes)
	if err := d.readAt(p, int64(sector)*SectorBytes); err != nil {
		t.Fatal(err)
	}
	for _, b := range p {
		if b != p[0] {
			t.Fatalf("sector %d is torn inside", sector)
		}
	}
	return p[0]
}

// What was flushed stays, what was not is lost in every way that there is, and a sector holds one write or another.
func TestCutKeepsWhatWasFlushed(t *testing.T) {
	var none, all, some, torn int
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 2))
		d := New("d", testBytes)
		mustWrite(t, d, 0, 64, 1, false)
		d.flush()()
		mustWrite(t, d, 70, 1, 9, true) // FUA needs no flush
		for w := range 8 {
			mustWrite(t, d, 8*w, 8, 2, false)
		}
		loss := CutAll(rng, d)
		if l := loss[0]; l.Pending != 9 || l.Kept+l.Torn+l.Dropped != 9 {
			t.Fatalf("seed %d: %+v", seed, l)
		}
		d.Release()
		d.PowerOn()
		if b := sectorOf(t, d, 70); b != 9 {
			t.Fatalf("seed %d: a FUA write is gone", seed)
		}
		kept := 0
		for s := range 64 {
			switch b := sectorOf(t, d, s); b {
			case 2:
				kept++
			case 1:
			default:
				t.Fatalf("seed %d: sector %d holds %d", seed, s, b)
			}
		}
		switch {
		case kept == 0:
			none++
		case kept == 64:
			all++
		case kept%8 == 0:
			some++
		default:
			torn++
		}
	}
	if none == 0 || all == 0 || some == 0 || torn == 0 {
		t.Fatalf("of 100 cuts %d kept nothing, %d everything, %d whole writes, %d parts: each must come", none, all, some, torn)
	}
}

// A flush covers what was answered before it came, and an older write does not come back over a newer one.
func TestFlushCoversWhatWasAnswered(t *testing.T) {
	d := New("d", testBytes)
	older, err := d.writeAt(bytes.Repeat([]byte{1}, SectorBytes), 0, false)
	if err != nil {
		t.Fatal(err)
	}
	mustWrite(t, d, 0, 1, 2, false)
	if _, err := d.writeAt(bytes.Repeat([]byte{3}, SectorBytes), SectorBytes, false); err != nil { // never answered
		t.Fatal(err)
	}
	d.flush()()
	older()
	d.flush()()
	if n := len(d.pending); n != 1 {
		t.Fatalf("%d writes are in the cache, want the one that was not answered", n)
	}
	CutAll(rand.New(rand.NewPCG(1, 1)), d)
	d.Release()
	d.PowerOn()
	if b := sectorOf(t, d, 0); b != 2 {
		t.Fatalf("sector 0 holds %d, want 2", b)
	}
}

// Behind a cut nobody gets an answer before Release, and what is written after it leads nowhere.
func TestCutIsSilent(t *testing.T) {
	d := New("d", testBytes)
	mustWrite(t, d, 0, 1, 1, false)
	due := d.flush()
	CutAll(rand.New(rand.NewPCG(1, 1)), d)
	var wg sync.WaitGroup
	answered := make(chan string, 3)
	for name, f := range map[string]func(){
		"flush": due,
		"write": func() { mustWrite(t, d, 1, 1, 7, true) },
		"read":  func() { sectorOf(t, d, 0) },
	} {
		wg.Add(1)
		go func() {
			defer wg.Done()
			f()
			answered <- name
		}()
	}
	select {
	case name := <-answered:
		t.Fatalf("a %s was answered behind the cut", name)
	case <-time.After(50 * time.Millisecond):
	}
	d.Release()
	wg.Wait()
	mustWrite(t, d, 2, 1, 7, false)
	d.flush()()
	d.PowerOn()
	for _, s := range []int{1, 2} {
		if b := sectorOf(t, d, s); b != 0 {
			t.Fatalf("sector %d holds %d, which was written behind the cut", s, b)
		}
	}
	// And it works again.
	mustWrite(t, d, 3, 1, 8, false)
	d.flush()()
	CutAll(rand.New(rand.NewPCG(1, 1)), d)
	d.Release()
	d.PowerOn()
	if b := sectorOf(t, d, 3); b != 8 {
		t.Fatalf("sector 3 holds %d, want 8", b)
	}
}

func TestLyingDeviceLoses(t *testing.T) {
	lost := false
	for seed := range uint64(50) {
		d := New("d", testBytes)
		d.SetLying(true)
		mustWrite(t, d, 0, 1, 1, true)
		d.flush()()
		CutAll(rand.New(rand.NewPCG(seed, 1)), d)
		d.Release()
		d.PowerOn()
		lost = lost || sectorOf(t, d, 0) == 0
	}
	if !lost {
		t.Fatal("nothing was lost in 50 cuts")
	}
}

func TestFreezeAfter(t *testing.T) {
	d := New("d", testBytes)
	flushing := d.FreezeAfter(2, true)
	mustWrite(t, d, 0, 1, 1, false)
	mustWrite(t, d, 0, 1, 1, false)
	select {
	case <-flushing:
		t.Fatal("frozen in front of a write, a flush was asked for")
	default:
	}
	frozen := d.FreezeAfter(3, false)
	mustWrite(t, d, 0, 1, 1, false)
	d.flush()()
	select {
	case <-frozen:
		t.Fatal("frozen before the third request")
	default:
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		mustWrite(t, d, 1, 1, 2, true)
	}()
	<-frozen
	CutAll(rand.New(rand.NewPCG(1, 1)), d)
	d.Release()
	<-ended
	d.PowerOn()
	if a, b := sectorOf(t, d, 0), sectorOf(t, d, 1); a != 1 || b != 0 {
		t.Fatalf("sectors hold %d and %d, want 1 and 0", a, b)
	}
}

func TestRequestsOutsideTheDevice(t *testing.T) {
	d := New("d", testBytes)
	for _, r := range []struct{ n, off int64 }{{512, testBytes}, {512, -512}, {100, 0}, {512, 7}, {testBytes + 512, 0}} {
		if _, err := d.writeAt(make([]byte, r.n), r.off, false); err == nil {
			t.Errorf("a write of %d bytes at %d was taken", r.n, r.off)
		}
		if err := d.readAt(make([]byte, r.n), r.off); err == nil {
			t.Errorf("a read of %d bytes at %d was served", r.n, r.off)
		}
	}
}

// The image keeps bytes across chunks, against a plain slice.
func TestImage(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	m, plain := make(image), make([]byte, 5*chunkBytes)
	for i := range uint32(200) {
		off := rng.IntN(len(plain) - 8)
		p := make([]byte, 1+rng.IntN(min(len(plain)-off, 2*chunkBytes)))
		for j := range p {
			p[j] = byte(i) + 1
		}
		binary.LittleEndian.PutUint32(plain[off:], i)
		copy(plain[off:], p)
		m.write(p, int64(off))
		if len(p) < 4 { // what the number above left behind the write
			m.write(plain[off:off+4], int64(off))
		}
	}
	got := make([]byte, len(plain))
	m.read(got, 0)
	if !bytes.Equal(got, plain) {
		t.Fatal("the image differs from a plain slice")
	}
}
