package judge

import (
	"bytes"
	"encoding/binary"
	"time"

	"github.com/btrlog/btrlog/powercut/guest"
)

// SoftSlack is how much longer than an interval an unforced commit may be lost: a snapshot takes its time to become durable,
// under emulation much.
const SoftSlack = 5 * time.Second

// Store is what the host knows of a store that the worker of package guest writes to. It belongs to one goroutine.
type Store struct {
	Name    string
	run     uint64
	streams [guest.WorkerStreams + 1]stream
}

type stream struct {
	trimmed uint64 // the worker was about to trim below it
	acks    map[uint64]ack
	found   map[uint64]uint64 // run by sequence, of the recovery under way
	tails   map[uint64]uint64 // last sequence of the batch of each found one
	eof     uint64
}

type ack struct {
	run     uint64
	forced  bool
	when    time.Time
	segment uint32
	offset  int64
}

// NewStore returns the judge of an empty store.
func NewStore(name string) *Store {
	s := &Store{Name: name}
	for i := range s.streams {
		s.streams[i] = stream{acks: make(map[uint64]ack), found: make(map[uint64]uint64), tails: make(map[uint64]uint64)}
	}
	return s
}

// Run begins a run of the worker and returns its number. Only records of the last run may turn up without having been acknowledged.
func (s *Store) Run() uint64 {
	s.run++
	return s.run
}

// Event takes what the worker says while it writes.
func (s *Store) Event(e *guest.Event, now time.Time) {
	st := &s.streams[e.Stream]
	switch e.Kind {
	case "trim":
		for ; st.trimmed < e.From; st.trimmed++ {
			delete(st.acks, st.trimmed)
		}
	case "ack":
		for seq := e.From; seq < e.To; seq++ {
			st.acks[seq] = ack{s.run, e.Forced, now, e.Segment, e.Offset}
		}
	}
}

// Found takes what the worker says that the store holds after a cut: events of the kinds record and stream.
func (s *Store) Found(e *guest.Event, v *Verdict) {
	st := &s.streams[e.Stream]
	if e.Kind == "stream" {
		st.eof = e.To
		if e.From > max(st.trimmed, 1) {
			v.problem("stream %d is trimmed below %d, the worker trimmed below %d", e.Stream, e.From, st.trimmed)
		}
		return
	}
	if e.Kind != "record" {
		return
	}
	v.Compared++
	if len(e.Data) < 16 {
		v.problem("stream %d, sequence %d: %d bytes", e.Stream, e.From, len(e.Data))
		return
	}
	tag := binary.LittleEndian.Uint64(e.Data[8:])
	run, batch, first := guest.TagRun(tag)
	if !bytes.Equal(e.Data, guest.Payload(tag, e.From)) || tag != guest.Tag(run, e.Stream, first, first+batch) || e.From < first || e.From >= first+batch {
		v.problem("stream %d, sequence %d is %s", e.Stream, e.From, guest.Describe(e.Data))
		return
	}
	st.found[e.From] = run
	st.tails[e.From] = first + batch - 1
}

// Finish judges a recovery whose records were all told. cut is when the power went.
func (s *Store) Finish(cut time.Time, v *Verdict) {
	v.Name = s.Name
	var survived, lost *ack // the last survivor of this run, and the first lost one, by place
	for n := 1; n <= guest.WorkerStreams; n++ {
		st := &s.streams[n]
		for seq, a := range st.acks {
			run, there := st.found[seq]
			if there && run != a.run {
				v.problem("stream %d, sequence %d is of run %d, acknowledged was that of run %d", n, seq, run, a.run)
				there = false
			}
			s.count(v, &a, there, cut, n, seq)
			if a.run != s.run {
				continue
			}
			if there && (survived == nil || a.after(survived)) {
				survived = &a
			}
			if !there && (lost == nil || lost.after(&a)) {
				lost = &a
			}
		}
		s.shape(v, n)
	}
	// I2 of lst: what a crash takes is a suffix of the places in the files.
	if lost != nil && survived != nil && survived.after(lost) {
		v.problem("the batch at %d:%d is lost, the later one at %d:%d is there", lost.segment, lost.offset, survived.segment, survived.offset)
	}
}

func (a *ack) after(b *ack) bool {
	return a.segment > b.segment || a.segment == b.segment && a.offset > b.offset
}

func (s *Store) count(v *Verdict, a *ack, there bool, cut time.Time, n int, seq uint64) {
	if a.forced {
		v.Acknowledged++
		if !there {
			v.Lost++
			v.problem("stream %d, sequence %d is lost; it was acknowledged %v before the cut, at %d:%d", n, seq, cut.Sub(a.when).Round(time.Millisecond), a.segment, a.offset)
		}
		return
	}
	v.Soft++
	if there {
		return
	}
	v.SoftLost++
	age := cut.Sub(a.when)
	v.SoftOldestMS = max(v.SoftOldestMS, float64(age.Microseconds())/1000)
	if age > guest.WorkerInterval+SoftSlack {
		v.problem("stream %d, sequence %d is lost; it was acknowledged, unforced, %v before the cut, the interval is %v", n, seq, age.Round(time.Millisecond), guest.WorkerInterval)
	}
}

// shape looks at a stream's records without the acknowledgements: no hole, no part of a batch, nothing from a run that is over. What
// is there stays from now on.
func (s *Store) shape(v *Verdict, n int) {
	st := &s.streams[n]
	for seq := max(st.trimmed, 1); seq < st.eof; seq++ {
		if _, ok := st.found[seq]; !ok {
			v.problem("stream %d has no sequence %d, and ends at %d", n, seq, st.eof)
			break
		}
	}
	if last, ok := st.tails[st.eof-1]; ok && last >= st.eof {
		v.problem("stream %d ends at %d, in the middle of the batch up to %d", n, st.eof-1, last)
	}
	next := make(map[uint64]ack, len(st.found))
	for seq, run := range st.found {
		if seq >= st.eof {
			v.problem("stream %d ends at %d and holds sequence %d", n, st.eof, seq)
		}
		if seq < st.trimmed {
			continue
		}
		if _, known := st.acks[seq]; !known {
			v.Unknown++
			v.Kept++
			if run != s.run {
				v.problem("stream %d, sequence %d is of run %d and was not there after it", n, seq, run)
			}
		}
		next[seq] = ack{run: run, forced: true}
	}
	st.acks = next
	clear(st.found)
	clear(st.tails)
	st.eof = 0
}

// Forget drops what Found has noted, of a recovery that is not judged.
func (s *Store) Forget() {
	for i := range s.streams {
		clear(s.streams[i].found)
		clear(s.streams[i].tails)
		s.streams[i].eof = 0
	}
}
