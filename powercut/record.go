package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/btrlog/btrlog/powercut/disk"
	"github.com/btrlog/btrlog/powercut/judge"
)

// record is one line of the output: one cut.
type record struct {
	N       int       `json:"n"`
	Seed    uint64    `json:"seed"` // of the whole run
	Kind    string    `json:"kind"`
	Control bool      `json:"control,omitempty"` // a cut that must lose something
	Time    time.Time `json:"time"`
	TookMS  int64     `json:"took_ms"`

	Node        string          `json:"node,omitempty"`   // that was cut, if it was one
	Killed      string          `json:"killed,omitempty"` // that was killed after it
	AtRequest   int             `json:"at_request,omitempty"`
	LoadRecords uint64          `json:"load_records"` // acknowledged since the last cut
	Devices     []disk.Loss     `json:"devices,omitempty"`
	LastAck     string          `json:"last_ack,omitempty"` // of the storage engine: segment and offset
	Recovery    string          `json:"recovery,omitempty"`
	Verdicts    []judge.Verdict `json:"verdicts"`
	Memory      *judge.Verdict  `json:"memory,omitempty"`  // of a log with memory durability, which may lose
	Refused     bool            `json:"refused,omitempty"` // of a control: what is left of a device is not mounted, or no node starts on it
	Error       string          `json:"error,omitempty"`

	cutAt time.Time
}

// records writes the lines and adds them up.
type records struct {
	f       *os.File
	started time.Time
	kinds   map[string]*sum
	total   sum
}

type sum struct {
	cuts, failed                                           int
	load, acknowledged, lost, unknown, kept, pending, gone uint64
	compared                                               uint64
	softLost                                               uint64
	softOldest                                             float64
	controls, controlsLost, controlLost                    uint64
}

func newRecords(path string) (*records, error) {
	f, err := os.Create(path)
	return &records{f: f, started: time.Now(), kinds: make(map[string]*sum)}, err
}

func (r *record) ok() bool {
	if r.Error != "" {
		return false
	}
	for i := range r.Verdicts {
		if !r.Verdicts[i].OK() {
			return false
		}
	}
	return true
}

func (r *record) lost() (n uint64) {
	for i := range r.Verdicts {
		n += r.Verdicts[i].Lost
	}
	return n
}

func (rs *records) add(r *record) error {
	for _, s := range []*sum{rs.of(r.Kind), &rs.total} {
		if r.Control {
			s.controls++
			s.controlLost += r.lost()
			if r.lost() > 0 || r.Refused {
				s.controlsLost++
			}
			continue
		}
		s.cuts++
		if !r.ok() {
			s.failed++
		}
		s.load += r.LoadRecords
		for _, v := range r.Verdicts {
			s.acknowledged += v.Acknowledged
			s.lost += v.Lost
			s.unknown += v.Unknown
			s.kept += v.Kept
			s.compared += v.Compared
			s.softLost += v.SoftLost
			s.softOldest = max(s.softOldest, v.SoftOldestMS)
		}
		for _, d := range r.Devices {
			s.pending += uint64(d.Pending)
			s.gone += uint64(d.Dropped + d.Torn)
		}
		if r.Memory != nil {
			s.controls++
			s.controlLost += r.Memory.Lost
			if r.Memory.Lost > 0 {
				s.controlsLost++
			}
		}
	}
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	_, err = rs.f.Write(append(line, '\n'))
	return err
}

func (rs *records) of(kind string) *sum {
	s := rs.kinds[kind]
	if s == nil {
		s = new(sum)
		rs.kinds[kind] = s
	}
	return s
}

// table prints what all cuts have in sum.
func (rs *records) table(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "kind\tcuts\tfailed\trecords of the load\tcompared\tlost\tunknown kept\twrites in the caches\tof them lost or torn\tcontrols\tthat lost\t")
	var names []string
	for k := range rs.kinds {
		names = append(names, k)
	}
	slices.Sort(names)
	for _, k := range names {
		s := rs.kinds[k]
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%d of %d\t%d\t%d\t%d\t%d\t\n", k, s.cuts, s.failed, s.load, s.compared, s.lost, s.kept, s.unknown, s.pending, s.gone, s.controls, s.controlsLost)
	}
	w.Flush()
}

// ok says whether nothing was lost that must not be, and every control lost something: one that loses nothing says that the cuts
// cut nothing.
func (rs *records) ok() bool {
	t := &rs.total
	return t.cuts > 0 && t.failed == 0 && t.lost == 0 && t.controls > 0 && t.controlsLost == t.controls
}

func (rs *records) summary(ok bool) string {
	word, t := "FAILED", &rs.total
	if ok {
		word = "ok"
	}
	return fmt.Sprintf("powercut: %s cuts=%d failed=%d lost=%d compared=%d unknown_kept=%d controls=%d controls_that_lost=%d seconds=%.0f",
		word, t.cuts, t.failed, t.lost, t.compared, t.kept, t.controls, t.controlsLost, time.Since(rs.started).Seconds())
}
