package meta

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/btrlog/btrlog/internal/protocol"
)

// State of a log.
type State string

const (
	// Live: the log can be opened.
	Live State = "live"
	// Deleted: a tombstone; the name may be taken again, by a log with another id.
	Deleted State = "deleted"
)

// Durability says when a node may acknowledge.
type Durability string

const (
	// Disk: forced to the device first.
	Disk Durability = "disk"
	// Memory: when it is in the memory of the node.
	Memory Durability = "memory"
)

// Options of a log. Only Retention, FlushAge and, with a new ensemble, N and Qw can change after Create.
type Options struct {
	N, Qw        int           // nodes of the ensemble; write quorum
	Zones        int           // the ensemble must span at least so many zones; 0: no matter
	SegmentBytes int64         // size at which a segment is cut
	Window       int           // W, in LSNs
	Durability   Durability    //
	FlushAge     time.Duration // a segment older than this is cut and archived although it is not full; 0: never. Whole milliseconds
	Retention    Retention
}

// Retention says what is trimmed without being asked. The zero value keeps everything.
type Retention struct {
	Age   time.Duration // records archived longer ago than this; whole milliseconds
	Bytes int64         // the oldest records beyond this many archived bytes
}

// DefaultOptions are those of a log that asks for nothing else.
func DefaultOptions() Options {
	return Options{N: 3, Qw: 2, SegmentBytes: protocol.DefaultSegmentBytes, Window: protocol.DefaultWindow,
		Durability: Disk, FlushAge: 5 * time.Minute}
}

// LogRecord is the record of a log. A Catalog keeps no reference to one that it returned or was given.
type LogRecord struct {
	Name string
	ID   protocol.LogID // never reused; never zero
	State
	// Epoch is the highest that was given out, to the open with OpenNonce; zero before the first open.
	Epoch     protocol.Epoch
	OpenNonce string
	// Opener is what the opener said about himself, for people.
	Opener string
	// Ensemble names the recorded ensemble: the nodes that could know (P4). Empty before the first Install.
	Ensemble string
	History  protocol.History
	Options  Options
	// TrimBefore is the trim point: LSNs below it are trimmed. It is at least 1.
	TrimBefore protocol.LSN
	// Lost are the ranges that opens gave up with their owner's consent (P5), ascending and disjoint; those below the trim point
	// are forgotten.
	Lost             []LostRange
	Created, Updated time.Time
	Revision         int64  // number of writes of this object
	Write            string // nonce of the last write (M2)
}

// LostRange is one lost range of a log's record.
type LostRange struct {
	protocol.Lost
	At time.Time // when the loss was accepted
}

// LostRanges are the lost ranges as the protocol has them.
func (r *LogRecord) LostRanges() protocol.LostRanges {
	var out protocol.LostRanges
	for _, l := range r.Lost {
		out = append(out, l.Lost)
	}
	return out
}

// withLost returns the lost ranges with more of them.
func (r *LogRecord) withLost(more protocol.LostRanges, at time.Time) ([]LostRange, error) {
	all, err := r.LostRanges().With(more)
	if err != nil || len(more) == 0 {
		return r.Lost, err
	}
	times := make(map[protocol.LSN]time.Time, len(r.Lost))
	for _, l := range r.Lost {
		times[l.From] = l.At
	}
	out := make([]LostRange, len(all))
	for i, l := range all {
		out[i] = LostRange{l, at}
		if t, old := times[l.From]; old {
			out[i].At = t
		}
	}
	return out, nil
}

// Owner is an open's claim to a log: what RaiseEpoch won, and what Install and later writes demand.
type Owner struct {
	ID    protocol.LogID
	Epoch protocol.Epoch
	Nonce string
}

// Owner returns the current owner.
func (r *LogRecord) Owner() Owner { return Owner{r.ID, r.Epoch, r.OpenNonce} }

// Qr is the read quorum, N − Qw + 1.
func (o Options) Qr() int { return o.N - o.Qw + 1 }

// Check says what is wrong with the options.
func (o Options) Check() error {
	switch {
	case o.N < 1 || o.N > protocol.MaxEnsemble:
		return fmt.Errorf("N is %d; 1 to %d nodes are allowed", o.N, protocol.MaxEnsemble)
	case o.Qw < 1 || o.Qw > o.N:
		return fmt.Errorf("write quorum is %d of %d nodes", o.Qw, o.N)
	case o.Zones < 0 || o.Zones > o.N:
		return fmt.Errorf("%d nodes cannot span %d zones", o.N, o.Zones)
	case o.SegmentBytes < protocol.MinSegmentBytes || o.SegmentBytes > protocol.MaxSegmentBytes:
		return fmt.Errorf("segment size is %d bytes; %d to %d are allowed", o.SegmentBytes, protocol.MinSegmentBytes, protocol.MaxSegmentBytes)
	case o.Window < 1 || o.Window > protocol.MaxWindow:
		return fmt.Errorf("window is %d; 1 to %d are allowed", o.Window, protocol.MaxWindow)
	case o.Durability != Disk && o.Durability != Memory:
		return fmt.Errorf("durability is %q; %q and %q are allowed", o.Durability, Disk, Memory)
	case o.FlushAge < 0 || o.FlushAge%time.Millisecond != 0:
		return fmt.Errorf("flush age is %v; whole milliseconds, not negative, are allowed", o.FlushAge)
	}
	return o.Retention.Check()
}

// Check says what is wrong with a retention.
func (r Retention) Check() error {
	if r.Age < 0 || r.Age%time.Millisecond != 0 || r.Bytes < 0 {
		return fmt.Errorf("retention is %v and %d bytes; whole milliseconds and bytes, not negative, are allowed", r.Age, r.Bytes)
	}
	return nil
}

// The JSON forms. Numbers of 64 random bits are written in hex: many JSON tools lose the low bits of large numbers.
type hex64 uint64

func (h hex64) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%016x", uint64(h)), nil }

func (h *hex64) UnmarshalText(b []byte) error {
	n, err := strconv.ParseUint(string(b), 16, 64)
	if err != nil || len(b) != 16 {
		return fmt.Errorf("%q is not 16 hex digits", b)
	}
	*h = hex64(n)
	return nil
}

type logJSON struct {
	Format     int              `json:"format"`
	Name       string           `json:"name"`
	ID         hex64            `json:"id"`
	State      State            `json:"state"`
	Epoch      protocol.Epoch   `json:"epoch"`
	OpenNonce  string           `json:"open_nonce"`
	Opener     string           `json:"opener,omitempty"`
	Ensemble   string           `json:"ensemble"`
	History    protocol.History `json:"history"`
	Options    optionsJSON      `json:"options"`
	TrimBefore protocol.LSN     `json:"trim_before"`
	Lost       []lostJSON       `json:"lost,omitempty"`
	Created    time.Time        `json:"created"`
	Updated    time.Time        `json:"updated"`
	Revision   int64            `json:"revision"`
	Write      string           `json:"write"`
}

type lostJSON struct {
	From    protocol.LSN   `json:"from"`
	To      protocol.LSN   `json:"to"`
	Epoch   protocol.Epoch `json:"epoch"`
	Skipped bool           `json:"skipped,omitempty"`
	At      time.Time      `json:"at"`
}

type optionsJSON struct {
	N              int        `json:"n"`
	Qw             int        `json:"qw"`
	Zones          int        `json:"zones"`
	SegmentBytes   int64      `json:"segment_bytes"`
	Window         int        `json:"window"`
	Durability     Durability `json:"durability"`
	FlushAgeMs     int64      `json:"flush_age_ms"`
	RetentionAgeMs int64      `json:"retention_age_ms"`
	RetentionBytes int64      `json:"retention_bytes"`
}

func (r *LogRecord) encode() ([]byte, error) {
	o := r.Options
	format := firstVersion
	var lost []lostJSON
	for _, l := range r.Lost {
		format = lostVersion
		lost = append(lost, lostJSON{l.From, l.To, l.Epoch, l.Skipped, l.At})
	}
	return marshalHistory(logJSON{
		Format: format, Lost: lost, Name: r.Name, ID: hex64(r.ID), State: r.State, Epoch: r.Epoch, OpenNonce: r.OpenNonce, Opener: r.Opener,
		Ensemble: r.Ensemble, History: r.History, TrimBefore: r.TrimBefore, Created: r.Created, Updated: r.Updated,
		Revision: r.Revision, Write: r.Write,
		Options: optionsJSON{N: o.N, Qw: o.Qw, Zones: o.Zones, SegmentBytes: o.SegmentBytes, Window: o.Window, Durability: o.Durability,
			FlushAgeMs: o.FlushAge.Milliseconds(), RetentionAgeMs: o.Retention.Age.Milliseconds(), RetentionBytes: o.Retention.Bytes},
	})
}

func (r *LogRecord) decode(body []byte) error {
	var j logJSON
	if err := strictHistory(body, &j); err != nil {
		return err
	}
	if (j.Format >= lostVersion) != (len(j.Lost) > 0) {
		return fmt.Errorf("record of version %d has %d lost ranges", j.Format, len(j.Lost))
	}
	flushAge, err1 := fromMs(j.Options.FlushAgeMs)
	retentionAge, err2 := fromMs(j.Options.RetentionAgeMs)
	if err1 != nil || err2 != nil {
		return fmt.Errorf("options hold an age out of range")
	}
	*r = LogRecord{
		Name: j.Name, ID: protocol.LogID(j.ID), State: j.State, Epoch: j.Epoch, OpenNonce: j.OpenNonce, Opener: j.Opener, Ensemble: j.Ensemble,
		History: j.History, TrimBefore: j.TrimBefore, Created: j.Created, Updated: j.Updated, Revision: j.Revision, Write: j.Write,
		Options: Options{N: j.Options.N, Qw: j.Options.Qw, Zones: j.Options.Zones, SegmentBytes: j.Options.SegmentBytes, Window: j.Options.Window,
			Durability: j.Options.Durability, FlushAge: flushAge, Retention: Retention{retentionAge, j.Options.RetentionBytes}},
	}
	for _, l := range j.Lost {
		r.Lost = append(r.Lost, LostRange{protocol.Lost{From: l.From, To: l.To, Epoch: l.Epoch, Skipped: l.Skipped}, l.At})
	}
	return r.validate()
}

func fromMs(ms int64) (time.Duration, error) {
	d := time.Duration(ms) * time.Millisecond
	if ms < 0 || d.Milliseconds() != ms {
		return 0, fmt.Errorf("%d ms is out of range", ms)
	}
	return d, nil
}

func (*LogRecord) limit() int64 { return maxLogBytes }

func (r *LogRecord) stamp(nonce string, c *Catalog, old *LogRecord) {
	r.Write, r.Updated, r.Revision = nonce, c.cfg.Now().UTC(), 1
	if old != nil {
		r.Revision = old.Revision + 1
	}
}

// clone returns a copy that shares nothing that a change would write to.
func (r *LogRecord) clone() *LogRecord {
	n := *r
	n.History, n.Lost = slices.Clone(r.History), slices.Clone(r.Lost)
	return &n
}

// strict decodes a record into one that has the field format. A newer one may have any fields; this one has exactly those it has,
// since a field that is read and not understood would be lost at the next write. newest is the newest version of the kind.
func strict(body []byte, into any, format *int, newest int) error {
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	err := d.Decode(into)
	if _, end := d.Token(); err == nil && end != io.EOF {
		err = fmt.Errorf("record has something behind its end")
	}
	v := *format
	if err != nil {
		// The version decides what the error means.
		var only struct {
			Format *int `json:"format"`
		}
		if json.Unmarshal(body, &only) != nil {
			return err
		}
		if v = 0; only.Format != nil {
			v = *only.Format
		}
	}
	switch {
	case v < 1:
		return fmt.Errorf("record has no valid format version")
	case v > newest:
		return fmt.Errorf("%w: it has version %d, this program knows up to %d: upgrade it", ErrNewer, v, newest)
	}
	return err
}

func keyed(key string, err error) error { return fmt.Errorf("object %s: %w", key, err) }

func errTooLong(n int, limit int64) error {
	return fmt.Errorf("record would have %d bytes, the limit is %d", n, limit)
}
