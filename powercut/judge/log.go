// Package judge compares what is there after a power cut with what was acknowledged before it. It knows nothing of machines: it is
// told what was written, what was acknowledged and what was read back.
package judge

import (
	"bytes"
	"fmt"

	"github.com/btrlog/btrlog/powercut/guest"
)

// Verdict on one log or store after one cut.
type Verdict struct {
	Name         string   `json:"name"`
	Acknowledged uint64   `json:"acknowledged"` // records, not trimmed, that must be there
	Lost         uint64   `json:"lost"`         // of them
	Unknown      uint64   `json:"unknown"`      // appended and never acknowledged
	Kept         uint64   `json:"kept"`         // of those
	Compared     uint64   `json:"compared"`     // records read back and compared byte for byte
	Problems     []string `json:"problems,omitempty"`

	// Of records that were acknowledged without being forced, which a cut may take.
	Soft         uint64  `json:"soft,omitempty"`
	SoftLost     uint64  `json:"soft_lost,omitempty"`
	SoftOldestMS float64 `json:"soft_oldest_ms,omitempty"` // how long before the cut the oldest lost one was acknowledged
}

// OK says whether nothing is wrong.
func (v *Verdict) OK() bool { return v.Lost == 0 && len(v.Problems) == 0 }

// maxProblems bounds what a verdict says in words; the counts go on.
const maxProblems = 8

func (v *Verdict) problem(format string, args ...any) {
	if len(v.Problems) < maxProblems {
		v.Problems = append(v.Problems, fmt.Sprintf(format, args...))
	}
}

// Log is what the host knows of one log. It belongs to one goroutine.
type Log struct {
	Name string
	tag  uint64
	id   uint64 // last one that was given out

	entries []entry // of LSN 1 and up
	acked   uint64  // all LSNs up to it were acknowledged, or read after a takeover
}

type entry struct {
	id          uint64 // number of the payload
	first, last uint64 // LSNs of its batch
}

// NewLog returns the judge of a log that is empty. tag makes its payloads its own.
func NewLog(name string, tag uint64) *Log { return &Log{Name: name, tag: tag} }

// Next returns n payloads for records that are going to be appended together.
func (l *Log) Next(n int) [][]byte {
	out := make([][]byte, n)
	for i := range out {
		out[i] = guest.Payload(l.tag, l.id+1+uint64(i))
	}
	return out
}

// Appended takes the LSNs that the payloads of the last Next got.
func (l *Log) Appended(first, last uint64) error {
	if first != uint64(len(l.entries))+1 || last < first {
		return fmt.Errorf("log %s: an append got LSN %d to %d, the next one is %d", l.Name, first, last, len(l.entries)+1)
	}
	for range last - first + 1 {
		l.id++
		l.entries = append(l.entries, entry{l.id, first, last})
	}
	return nil
}

// Acknowledged notes that everything up to lsn was acknowledged.
func (l *Log) Acknowledged(lsn uint64) { l.acked = max(l.acked, lsn) }

// Acked is the highest LSN that was acknowledged.
func (l *Log) Acked() uint64 { return l.acked }

// Recovered judges a log that was opened with the given tail. read calls its argument for the records from LSN from to the tail, in
// order. Afterwards everything up to the tail counts as acknowledged, for a reader has seen it, and what is above it is forgotten.
func (l *Log) Recovered(tail, from uint64, read func(func(lsn uint64, data []byte)) error) Verdict {
	v := Verdict{Name: l.Name, Acknowledged: l.acked, Unknown: uint64(len(l.entries)) - l.acked}
	if tail < l.acked {
		v.Lost = l.acked - tail
		v.problem("the tail is %d, acknowledged is up to %d", tail, l.acked)
	} else {
		v.Kept = tail - l.acked
	}
	if tail > uint64(len(l.entries)) {
		v.problem("the tail is %d, only %d were ever appended", tail, len(l.entries))
		tail = uint64(len(l.entries))
	}
	if tail > 0 && l.entries[tail-1].last > tail {
		e := l.entries[tail-1]
		v.problem("the tail is %d, in the middle of the batch %d to %d", tail, e.first, e.last)
	}
	next := from
	err := read(func(lsn uint64, data []byte) {
		if lsn != next {
			v.problem("LSN %d was read where %d comes", lsn, next)
		}
		next = lsn + 1
		v.Compared++
		if lsn == 0 || lsn > uint64(len(l.entries)) {
			v.problem("LSN %d was never appended", lsn)
			return
		}
		if want := guest.Payload(l.tag, l.entries[lsn-1].id); !bytes.Equal(want, data) {
			v.problem("LSN %d is %s; appended was number %d of %d", lsn, guest.Describe(data), l.entries[lsn-1].id, l.tag)
			if lsn <= l.acked {
				v.Lost++
			}
		}
	})
	if err != nil {
		v.problem("read: %v", err)
	}
	if next <= tail && from <= tail {
		v.problem("the records end at LSN %d, the tail is %d", next-1, tail)
		if next <= l.acked {
			v.Lost += min(tail, l.acked) - next + 1
		}
	}
	l.entries = l.entries[:tail]
	l.acked = tail
	return v
}
