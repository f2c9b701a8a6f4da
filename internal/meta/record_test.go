package meta

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/objstore"
)

func sampleRecord() LogRecord {
	return LogRecord{Name: "orders", ID: 0xfedcba9876543210, State: Live, Epoch: 7, OpenNonce: "n7", Opener: "host-1",
		Ensemble: "0123456789abcdef0123456789abcdef", History: protocol.History{{Epoch: 3, Start: 1}, {Epoch: 5, Start: 20}},
		Options: DefaultOptions(), TrimBefore: 4, Created: time.Unix(1_800_000_000, 0).UTC(), Updated: time.Unix(1_800_000_001, 0).UTC(),
		Revision: 9, Write: "w9"}
}

func sampleLost() LogRecord {
	r := sampleRecord()
	r.TrimBefore = 1
	at := time.Unix(1_800_000_002, 0).UTC()
	r.Lost = []LostRange{{protocol.Lost{From: 2, To: 3, Epoch: 3}, at}, {protocol.Lost{From: 9, To: 18, Epoch: 5, Skipped: true}, at.Add(time.Second)}}
	return r
}

// The bytes of a record are a format: they change only with its version. A record without lost ranges is of version 1.
func TestGoldenRecord(t *testing.T) {
	for file, r := range map[string]LogRecord{"testdata/log.json": sampleRecord(), "testdata/log-lost.json": sampleLost()} {
		body, err := r.encode()
		if err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(file)
		if err != nil || string(want) != string(body)+"\n" {
			t.Fatalf("%s differs (%v) from\n%s", file, err, body)
		}
		// The other file is what earlier programs wrote.
		earlier, err := os.ReadFile(strings.TrimSuffix(file, ".json") + "-indented.json")
		if err != nil {
			t.Fatal(err)
		}
		for _, body := range [][]byte{want, earlier} {
			var back LogRecord
			if err := back.decode(body); err != nil {
				t.Fatal(err)
			}
			if fmt.Sprint(back) != fmt.Sprint(r) {
				t.Fatalf("decoded %+v, want %+v", back, r)
			}
		}
	}
}

func TestDecodeLostRefuses(t *testing.T) {
	r := sampleLost()
	good, _ := r.encode()
	for from, to := range map[string]string{
		`"format": 2`: `"format": 1`, `"skipped": true`: `"skipped": 1`, `"from": 9`: `"from": 3`, `"to": 3`: `"to": 1`, `"to": 18`: `"to": 20`, `"epoch": 3,
   "at"`: `"epoch": 6,
   "at"`, `"epoch": 5,
   "skipped"`: `"epoch": 0,
   "skipped"`,
	} {
		bad := strings.Replace(string(good), from, to, 1)
		if bad == string(good) {
			t.Fatalf("%q is not in the record:\n%s", from, good)
		}
		var back LogRecord
		if err := back.decode([]byte(bad)); err == nil || errors.Is(err, ErrNewer) {
			t.Errorf("%s → %s: %v", from, to, err)
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	r := sampleRecord()
	good, _ := r.encode()
	for _, c := range []struct {
		from, to string
		kind     error
	}{
		{`"format": 1`, `"format": 3`, ErrNewer},
		{`"format": 1`, `"format": 3, "new_field": {}`, ErrNewer},
		{`"format": 1`, `"format": 2`, nil},
		{`"format": 1`, `"format": 0`, nil},
		{`"format": 1,`, ``, nil},
		{`"format": 1`, `"format": 1, "new_field": 1`, nil},
		{`"id": "fedcba9876543210"`, `"id": "fedc"`, nil},
		{`"id": "fedcba9876543210"`, `"id": "0000000000000000"`, nil},
		{`"id": "fedcba9876543210"`, `"id": 12`, nil},
		{`"epoch": 7`, `"epoch": -7`, nil},
		{`"epoch": 7`, `"epoch": 4`, nil},
		{`"epoch": 7`, `"epoch": 0`, nil},
		{`"start": 20`, `"start": 0`, nil},
		{`"n": 3`, `"n": 300`, nil},
		{`"flush_age_ms": 300000`, `"flush_age_ms": 9223372036854775807`, nil},
		{`"trim_before": 4`, `"trim_before": 0`, nil},
		{`"ensemble": "0123456789abcdef0123456789abcdef"`, `"ensemble": ""`, nil},
		{`"write": "w9"`, `"write": ""`, nil},
		{"\n}", "\n}{}", nil},
		{"\n}", "\n", nil},
	} {
		bad := strings.Replace(string(good), c.from, c.to, 1)
		if bad == string(good) {
			t.Fatalf("%q is not in the record:\n%s", c.from, good)
		}
		var back LogRecord
		err := back.decode([]byte(bad))
		if err == nil || errors.Is(err, ErrNewer) != (c.kind == ErrNewer) {
			t.Errorf("%s → %s: %v", c.from, c.to, err)
		}
	}
}

// Damaged and newer records are named, and never overwritten.
func TestBadRecordsAreKept(t *testing.T) {
	w := newWorld(t, 1)
	c := w.catalog(1)
	mustCreate(t, c, "l")
	for _, bad := range []struct {
		from, to string
		kind     error
	}{{`"format": 1`, `"format": 9`, ErrNewer}, {`"format": 9`, `"format": 1, "x": 1`, ErrCorrupt}} {
		w.rewrite("c1/logs/l.json", bad.from, bad.to)
		before, _, _ := objstore.ReadAll(t.Context(), w.store, "c1/logs/l.json", 1<<20)
		_, err := c.Load(t.Context(), "l")
		wantKind(t, "load", err, bad.kind)
		if !strings.Contains(err.Error(), "c1/logs/l.json") {
			t.Fatalf("error %v does not name the object", err)
		}
		_, err = c.Create(t.Context(), "l", DefaultOptions())
		wantKind(t, "create", err, bad.kind)
		_, err = c.RaiseEpoch(t.Context(), "l", Raise{Nonce: "n"})
		wantKind(t, "raise", err, bad.kind)
		wantKind(t, "delete", c.Delete(t.Context(), "l", Owner{}), bad.kind)
		after, _, _ := objstore.ReadAll(t.Context(), w.store, "c1/logs/l.json", 1<<20)
		if string(before) != string(after) {
			t.Fatal("a record that could not be read was changed")
		}
	}
	w.store.Put(t.Context(), "c1/logs/l.json", make([]byte, maxLogBytes+1), nil, objstore.Always())
	_, err := c.Load(t.Context(), "l")
	wantKind(t, "load of an oversized record", err, ErrCorrupt)
	mustCreate(t, c, "m")
	body, _, _ := objstore.ReadAll(t.Context(), w.store, "c1/logs/m.json", 1<<20)
	w.store.Put(t.Context(), "c1/logs/l.json", body, nil, objstore.Always())
	_, err = c.Load(t.Context(), "l")
	wantKind(t, "load of another log's record", err, ErrCorrupt)
}

// Each predicate, broken alone.
func TestPredicates(t *testing.T) {
	for what, change := range map[string]func(r *LogRecord){
		"name changes":           func(r *LogRecord) { r.Name = "other" },
		"bad name":               func(r *LogRecord) { r.Name = "-" },
		"id changes":             func(r *LogRecord) { r.ID++ },
		"id zero":                func(r *LogRecord) { r.ID = 0 },
		"epoch falls":            func(r *LogRecord) { r.Epoch-- },
		"epoch below history":    func(r *LogRecord) { r.Epoch = 4 },
		"epoch rises, old nonce": func(r *LogRecord) { r.Epoch++ },
		"epoch changes hands":    func(r *LogRecord) { r.OpenNonce = "thief" },
		"no nonce":               func(r *LogRecord) { r.OpenNonce = "" },
		"ensemble alone":         func(r *LogRecord) { r.Ensemble = "f123456789abcdef0123456789abcdef" },
		"history cut":            func(r *LogRecord) { r.History = r.History[:1] },
		"history forgotten":      func(r *LogRecord) { r.History = r.History[1:] },
		"history empty":          func(r *LogRecord) { r.History, r.Ensemble = nil, "" },
		"history rewritten":      func(r *LogRecord) { r.History[0].Start = 2 },
		"start falls":            func(r *LogRecord) { r.History = append(r.History, protocol.HistoryEntry{Epoch: 7, Start: 19}) },
		"installs another epoch": func(r *LogRecord) { r.History = append(r.History, protocol.HistoryEntry{Epoch: 6, Start: 30}) },
		"installs while raising": func(r *LogRecord) {
			r.Epoch, r.OpenNonce = 8, "n8"
			r.History = append(r.History, protocol.HistoryEntry{Epoch: 8, Start: 30})
		},
		"installs and rewrites":     func(r *LogRecord) { r.History = protocol.History{{Epoch: 5, Start: 20}, {Epoch: 7, Start: 30}} },
		"trim falls":                func(r *LogRecord) { r.TrimBefore-- },
		"trim zero":                 func(r *LogRecord) { r.TrimBefore = 0 },
		"segment size changes":      func(r *LogRecord) { r.Options.SegmentBytes *= 2 },
		"durability changes":        func(r *LogRecord) { r.Options.Durability = Memory },
		"window changes":            func(r *LogRecord) { r.Options.Window++ },
		"quorum changes alone":      func(r *LogRecord) { r.Options.Qw = 3 },
		"quorum too large":          func(r *LogRecord) { r.Options.Qw = 4 },
		"creation time changes":     func(r *LogRecord) { r.Created = r.Created.Add(1) },
		"revision repeats":          func(r *LogRecord) { r.Revision-- },
		"write nonce repeats":       func(r *LogRecord) { r.Write = "w9" },
		"unknown state":             func(r *LogRecord) { r.State = "asleep" },
		"deletion trims":            func(r *LogRecord) { r.State = Deleted; r.TrimBefore++ },
		"deletion raises":           func(r *LogRecord) { r.State = Deleted; r.Epoch++; r.OpenNonce = "n8" },
		"negative retention":        func(r *LogRecord) { r.Options.Retention.Bytes = -1 },
		"retention of microseconds": func(r *LogRecord) { r.Options.Retention.Age = time.Microsecond },
		"loss without an install": func(r *LogRecord) {
			r.Lost = []LostRange{{Lost: protocol.Lost{From: 6, To: 9, Epoch: 5}}}
		},
		"loss of another epoch": func(r *LogRecord) {
			r.History = append(r.History, protocol.HistoryEntry{Epoch: 7, Start: 30})
			r.Lost = []LostRange{{Lost: protocol.Lost{From: 6, To: 9, Epoch: 5}}}
		},
		"loss at the start": func(r *LogRecord) {
			r.History = append(r.History, protocol.HistoryEntry{Epoch: 7, Start: 30})
			r.Lost = []LostRange{{Lost: protocol.Lost{From: 6, To: 30, Epoch: 7}}}
		},
		"opener writes a novel": func(r *LogRecord) { r.Opener = strings.Repeat("x", 257) },
	} {
		old := sampleRecord()
		next := *old.clone()
		next.Revision, next.Write = 10, "w10"
		if err := next.follows(&old); err != nil {
			t.Fatalf("a rewrite without change: %v", err)
		}
		change(&next)
		if err := next.follows(&old); err == nil {
			t.Errorf("%s: allowed", what)
		}
	}
	for what, change := range map[string]func(r *LogRecord){
		"raise": func(r *LogRecord) { r.Epoch, r.OpenNonce, r.Opener = 8, "n8", "host-2" },
		"install": func(r *LogRecord) {
			r.History = append(r.History, protocol.HistoryEntry{Epoch: 7, Start: 20})
			r.History = append(r.History[:1], r.History[2:]...)
		},
		"grow": func(r *LogRecord) {
			r.History = append(r.History, protocol.HistoryEntry{Epoch: 7, Start: 25})
			r.Options.N = 5
			r.Options.Qw = 3
			r.Ensemble = "f123456789abcdef0123456789abcdef"
		},
		"loss": func(r *LogRecord) {
			r.History = append(r.History, protocol.HistoryEntry{Epoch: 7, Start: 30})
			r.Lost = []LostRange{{Lost: protocol.Lost{From: 6, To: 29, Epoch: 7}}}
		},
		"trim":      func(r *LogRecord) { r.TrimBefore = 19 },
		"prune":     func(r *LogRecord) { r.TrimBefore = 20; r.History = r.History[1:] },
		"retention": func(r *LogRecord) { r.Options.Retention.Age = time.Hour },
		"delete":    func(r *LogRecord) { r.State = Deleted },
	} {
		old := sampleRecord()
		next := *old.clone()
		next.Revision, next.Write = 10, "w10"
		change(&next)
		if err := next.follows(&old); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// What is lost stays lost, until it is trimmed.
func TestLostPredicates(t *testing.T) {
	for what, c := range map[string]struct {
		change func(r *LogRecord)
		ok     bool
	}{
		"forgotten":        {func(r *LogRecord) { r.Lost = r.Lost[1:] }, false},
		"forgotten wholly": {func(r *LogRecord) { r.Lost = nil }, false},
		"grows":            {func(r *LogRecord) { r.Lost[0].To++ }, false},
		"moves in time":    {func(r *LogRecord) { r.Lost[0].At = r.Lost[0].At.Add(1) }, false},
		"found again": {func(r *LogRecord) {
			r.History = append(r.History, protocol.HistoryEntry{Epoch: 7, Start: 30})
			r.Lost = r.Lost[:1]
		}, false},
		"deletion forgets":    {func(r *LogRecord) { r.State, r.Lost = Deleted, nil }, false},
		"trim inside":         {func(r *LogRecord) { r.TrimBefore = 3 }, true},
		"trim forgets":        {func(r *LogRecord) { r.TrimBefore, r.Lost = 4, r.Lost[1:] }, true},
		"trim may keep":       {func(r *LogRecord) { r.TrimBefore = 4 }, true},
		"trim forgets more":   {func(r *LogRecord) { r.TrimBefore, r.Lost = 4, nil }, false},
		"trim inside forgets": {func(r *LogRecord) { r.TrimBefore, r.Lost = 3, r.Lost[1:] }, false},
		"another loss": {func(r *LogRecord) {
			r.History = append(r.History, protocol.HistoryEntry{Epoch: 7, Start: 30})
			r.Lost = append(r.Lost, LostRange{Lost: protocol.Lost{From: 21, To: 22, Epoch: 7}})
		}, true},
		"deletion": {func(r *LogRecord) { r.State = Deleted }, true},
	} {
		old := sampleLost()
		next := *old.clone()
		next.Revision, next.Write = 10, "w10"
		c.change(&next)
		if err := next.follows(&old); (err == nil) != c.ok {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// Pruning changes nothing for records that are not trimmed.
func TestPrunedHistory(t *testing.T) {
	h := protocol.History{{Epoch: 1, Start: 1}, {Epoch: 3, Start: 5}, {Epoch: 4, Start: 9}, {Epoch: 7, Start: 9}, {Epoch: 8, Start: 12}}
	shrunk := false
	for trim := protocol.LSN(1); trim < 20; trim++ {
		p := prunedHistory(h, trim)
		shrunk = shrunk || len(p) < len(h)
		for lsn := trim; lsn < 25; lsn++ {
			for label := protocol.Epoch(1); label < 10; label++ {
				if h.Void(label, lsn) != p.Void(label, lsn) {
					t.Fatalf("trim %d: record %d labelled %d is judged differently by %v and %v", trim, lsn, label, h, p)
				}
			}
		}
		if p.Last() != h.Last() {
			t.Fatalf("trim %d: the last entry was dropped", trim)
		}
	}
	if !shrunk {
		t.Fatal("nothing was pruned")
	}
}

// A record with the longest history fits its bound, and Trim shortens it.
func TestLongHistory(t *testing.T) {
	r := sampleRecord()
	r.History = nil
	for i := range protocol.MaxHistory {
		r.History = append(r.History, protocol.HistoryEntry{Epoch: protocol.Epoch(1<<40 + i), Start: protocol.LSN(1<<40 + i)})
	}
	r.Epoch = 1 << 50
	most := r
	for i := range protocol.LSN(protocol.MaxLost) {
		most.Lost = append(most.Lost, LostRange{protocol.Lost{From: 1<<39 + 2*i, To: 1<<39 + 2*i, Epoch: 1 << 40, Skipped: true}, time.Unix(0, 1).UTC()})
	}
	if body, err := most.encode(); err != nil || int64(len(body)) > maxLogBytes || most.validate() != nil {
		t.Fatalf("longest record with most lost ranges: %d bytes, %v, %v; the limit is %d", len(body), err, most.validate(), maxLogBytes)
	}
	body, err := r.encode()
	if err != nil || int64(len(body)) > maxLogBytes {
		t.Fatalf("longest record: %d bytes, %v; the limit is %d", len(body), err, maxLogBytes)
	}
	w := newWorld(t, 1)
	c := w.catalog(1)
	w.store.Put(t.Context(), "c1/logs/orders.json", body, nil, objstore.Always())
	l := mustRaise(t, c, "orders")
	_, err = c.Install(t.Context(), "orders", Install{Owner: l.Record.Owner(), Ensemble: r.Ensemble, Start: 1 << 60})
	wantKind(t, "one entry too many", err, ErrInvalid)
	if !strings.Contains(err.Error(), "trim") {
		t.Fatalf("error %v does not say what to do", err)
	}
	if l, err = c.Trim(t.Context(), "orders", 0, 1<<40+protocol.MaxHistory-10); err != nil || len(l.Record.History) != 10 {
		t.Fatalf("trimmed to %d entries, %v", len(l.Record.History), err)
	}
	if _, err = c.Install(t.Context(), "orders", Install{Owner: l.Record.Owner(), Ensemble: r.Ensemble, Start: 1 << 60}); err != nil {
		t.Fatal(err)
	}
}

// M2: the same logical content written twice has two ETags.
func TestETagsNeverRepeat(t *testing.T) {
	w := newWorld(t, 1)
	c := w.catalog(1)
	seen := make(map[string]bool)
	note := func(l Log, err error) {
		t.Helper()
		if err != nil || seen[l.ETag] {
			t.Fatalf("ETag %q again, or %v", l.ETag, err)
		}
		seen[l.ETag] = true
	}
	note(c.Create(t.Context(), "l", DefaultOptions()))
	for range 5 {
		note(c.SetRetention(t.Context(), "l", 0, Retention{Bytes: 1}, 0))
		note(c.SetRetention(t.Context(), "l", 0, Retention{}, 0))
	}
}

func TestNames(t *testing.T) {
	for _, ok := range []string{"a", "A9", "a.b_c-d", strings.Repeat("x", 128), "0", "a..b"} {
		if err := CheckName(ok); err != nil {
			t.Errorf("%q: %v", ok, err)
		}
	}
	w := newWorld(t, 1)
	c := w.catalog(1)
	for _, bad := range []string{"", ".", "-a", "a-", "_", "a/b", "ü", "a b", "a\x00", strings.Repeat("x", 129), "..", "a."} {
		if CheckName(bad) == nil {
			t.Errorf("%q is allowed", bad)
		}
		_, err := c.Create(t.Context(), bad, DefaultOptions())
		wantKind(t, "create", err, ErrInvalid)
		_, err = c.Load(t.Context(), bad)
		wantKind(t, "load", err, ErrInvalid)
		_, err = c.RaiseEpoch(t.Context(), bad, Raise{Nonce: "n"})
		wantKind(t, "raise", err, ErrInvalid)
		wantKind(t, "delete", c.Delete(t.Context(), bad, Owner{}), ErrInvalid)
	}
	if c.Requests() != (Requests{}) {
		t.Fatalf("bad names cost requests: %+v", c.Requests())
	}
	for what, o := range map[string]Options{"zero": {}, "Qw 0": {N: 3}, "segment": func() Options { o := DefaultOptions(); o.SegmentBytes = 1; return o }()} {
		_, err := c.Create(t.Context(), "l", o)
		wantKind(t, what, err, ErrInvalid)
	}
}
