package guest

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/btrlog/btrlog/lst"
)

// Event is what the worker tells the host, one JSON object a line: at first everything that the store holds, then every commit that
// has returned.
type Event struct {
	// Kind is "record" (Stream, From, Data: the store holds it), "stream" (Stream, From, To: trim point and EOF), "opened" (Text: the
	// recovery report), "failed" (Text: why it ends), "trim" (Stream, From: about to trim below it), "ack" (Stream, From, To: these
	// records were acknowledged together, with Forced as said, at Segment and Offset).
	Kind    string `json:"k"`
	Stream  int    `json:"s,omitempty"`
	From    uint64 `json:"f,omitempty"`
	To      uint64 `json:"t,omitempty"`
	Forced  bool   `json:"d,omitempty"`
	Segment uint32 `json:"g,omitempty"`
	Offset  int64  `json:"o,omitempty"`
	Data    []byte `json:"p,omitempty"`
	Text    string `json:"x,omitempty"`
}

// Styles of the worker.
const (
	// StyleCommit: several goroutines that each commit forced batches to a stream of their own, and one that does not force.
	StyleCommit = "commit"
	// StylePipeline: one owner with several prepared writes in flight.
	StylePipeline = "pipeline"
	// StyleSoft: as StyleCommit, nobody forces.
	StyleSoft = "soft"
	// StyleClaim: as StyleSoft, but every commit is told as forced: a program that is wrong, for a control.
	StyleClaim = "claim"
)

// Numbers of the worker that the host's judgement needs.
const (
	WorkerStreams      = 3
	WorkerSegmentBytes = 256 << 10
	WorkerInterval     = time.Second // of snapshots: what a power cut may take of what was not forced
	keepRecords        = 1500        // of a stream, before it is trimmed
	inFlight           = 6
)

type worker struct {
	store *lst.Store
	style string
	run   uint64
	soft  bool // a write that is complete is not durable yet: the mode is buffered

	mu  sync.Mutex
	out *bufio.Writer
}

// Worker runs until it is killed, or until the host ends the connection.
func Worker(args []string) error {
	f := flag.NewFlagSet("worker", flag.ContinueOnError)
	host := f.String("host", "", "address of the host")
	dir := f.String("dir", "", "directory of the store")
	mode := f.String("mode", "direct", "direct or buffered")
	style := f.String("style", StyleCommit, "how to write; empty: only tell what is there")
	run := f.Uint64("run", 0, "number of this run")
	if err := f.Parse(args); err != nil {
		return err
	}
	c, err := net.DialTimeout("tcp", *host, 20*time.Second)
	if err != nil {
		return err
	}
	w := &worker{style: *style, run: *run, out: bufio.NewWriter(c), soft: *mode == "buffered"}
	opt := lst.Options{SegmentBytes: WorkerSegmentBytes, SnapshotInterval: WorkerInterval}
	if *mode == "direct" {
		opt.Mode = lst.Direct
	}
	s, report, err := lst.Open(*dir, opt)
	if err != nil {
		_ = w.tell(Event{Kind: "failed", Text: err.Error()}) // the host also sees the end of the connection
		return err
	}
	w.store = s
	if err := w.dump(report); err != nil {
		return err
	}
	switch *style {
	case "":
		return nil // without Close, which would write
	case StylePipeline:
		return w.pipeline()
	}
	failed := make(chan error, WorkerStreams)
	for stream := 1; stream <= WorkerStreams; stream++ {
		go func() { failed <- w.commits(stream) }()
	}
	return <-failed
}

func (w *worker) tell(e Event) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := json.NewEncoder(w.out).Encode(e); err != nil {
		return err
	}
	return w.out.Flush()
}

func streamID(n int) (id lst.StreamID) {
	binary.BigEndian.PutUint64(id[8:], uint64(n))
	return id
}

func (w *worker) dump(report lst.RecoveryReport) error {
	v := w.store.View()
	for n := 1; n <= WorkerStreams; n++ {
		st, ok := v.Stat(streamID(n))
		if !ok {
			continue
		}
		it := v.Range(streamID(n), st.Trim, st.EOF)
		for it.Next() {
			if err := w.tell(Event{Kind: "record", Stream: n, From: it.Seq(), Data: it.Value()}); err != nil {
				return err
			}
		}
		if err := it.Err(); err != nil {
			return errors.Join(err, w.tell(Event{Kind: "failed", Text: err.Error()}))
		}
		if err := w.tell(Event{Kind: "stream", Stream: n, From: st.Trim, To: st.EOF}); err != nil {
			return err
		}
	}
	return w.tell(Event{Kind: "opened", Text: fmt.Sprintf("%d records behind snapshot %d, cut %d bytes at %s:%d (%s), direct %v", report.ReplayedRecords, report.Snapshot,
		report.CutBytes, report.CutFile, report.CutOffset, report.CutReason, report.Direct)})
}

// fill puts the next batch of a stream together: 1 to 4 records.
func (w *worker) fill(b *lst.Batch, stream int, next uint64) (end uint64) {
	b.Reset()
	end = next + 1 + (next+w.run)%4
	for seq := next; seq < end; seq++ {
		b.Append(streamID(stream), seq, Payload(Tag(w.run, stream, next, end), seq))
	}
	return end
}

// Tag is that of the payloads of a batch of the worker, so that a record says which run wrote it, and with which others.
func Tag(run uint64, stream int, first, end uint64) uint64 {
	return run<<40 | uint64(stream)<<32 | (end-first)<<24 | first&0xffffff
}

// TagRun and the others take a Tag apart.
func TagRun(tag uint64) (run uint64, batch uint64, first uint64) {
	return tag >> 40, tag >> 24 & 0xff, tag & 0xffffff
}

// next is where a stream goes on.
func (w *worker) next(stream int) uint64 {
	if st, ok := w.store.View().Stat(streamID(stream)); ok {
		return st.EOF
	}
	return 1
}

func (w *worker) commits(stream int) error {
	var b lst.Batch
	d, claim := lst.Forced, true
	switch {
	case w.style == StyleClaim:
		d = lst.Acknowledged
	case w.style == StyleSoft, stream == WorkerStreams:
		d, claim = lst.Acknowledged, false
	}
	trimmed := uint64(0)
	for next := w.next(stream); ; {
		end := w.fill(&b, stream, next)
		at, err := w.store.Commit(&b, d)
		if errors.Is(err, lst.ErrNoSpace) {
			time.Sleep(time.Millisecond) // the next segment is being made
			continue
		}
		if err != nil {
			return err
		}
		if err := w.tell(Event{Kind: "ack", Stream: stream, From: next, To: end, Forced: claim, Segment: at.Segment, Offset: at.Offset}); err != nil {
			return err
		}
		if next = end; next > trimmed+2*keepRecords {
			trimmed = next - keepRecords
			if err := w.trim(&b, stream, trimmed, d); err != nil {
				return err
			}
			if _, err := w.store.Reclaim(); err != nil {
				return err
			}
		}
		if d == lst.Acknowledged {
			time.Sleep(2 * time.Millisecond) // so that the page cache does not run far ahead of the disk
		}
	}
}

// trim tells before it trims: afterwards the records may be gone.
func (w *worker) trim(b *lst.Batch, stream int, before uint64, d lst.Durability) error {
	if err := w.tell(Event{Kind: "trim", Stream: stream, From: before}); err != nil {
		return err
	}
	b.Reset()
	b.Trim(streamID(stream), before)
	_, err := w.store.Commit(b, d)
	return err
}

// prepared is a write on its way.
type prepared struct {
	batch *lst.Batch
	write lst.Write
	event Event
	err   error
}

// pipeline keeps several writes in flight, as a log node does, and acknowledges in order. In direct mode a write is durable with
// its completion; through the page cache a Sync at every tenth batch makes it so.
func (w *worker) pipeline() error {
	var next [WorkerStreams + 1]uint64
	for n := 1; n <= WorkerStreams; n++ {
		next[n] = w.next(n)
	}
	free := make([]*lst.Batch, inFlight)
	for i := range free {
		free[i] = new(lst.Batch)
	}
	done := make(chan *prepared, inFlight)
	waiting := make(map[uint64]*prepared) // by ticket, until all before it are complete
	acked, flying, count := uint64(0), 0, 0
	var unsynced []Event
	complete := func(p *prepared) error {
		flying--
		if err := w.store.Complete(p.write, p.err); err != nil {
			return err
		}
		free = append(free, p.batch)
		waiting[p.write.Ticket] = p
		for last := w.store.Completed(); acked < last; {
			acked++
			p := waiting[acked]
			if p == nil {
				continue // not one of ours: the store's own
			}
			delete(waiting, acked)
			if w.soft {
				unsynced = append(unsynced, p.event)
			} else if err := w.tell(p.event); err != nil {
				return err
			}
		}
		return nil
	}
	for {
		for len(free) == 0 {
			if err := complete(<-done); err != nil {
				return err
			}
		}
		stream := 1 + count%WorkerStreams
		p := &prepared{batch: free[len(free)-1]}
		end := w.fill(p.batch, stream, next[stream])
		var err error
		p.write, err = w.store.Prepare(p.batch)
		if errors.Is(err, lst.ErrNoSpace) {
			time.Sleep(time.Millisecond)
			continue
		}
		if err != nil {
			return err
		}
		free = free[:len(free)-1]
		p.event = Event{Kind: "ack", Stream: stream, From: next[stream], To: end, Forced: true, Segment: p.write.Location.Segment, Offset: p.write.Location.Offset}
		next[stream] = end
		flying++
		go func() {
			p.err = p.write.Execute()
			done <- p
		}()
		if count++; w.soft && count%10 == 0 {
			for flying > 0 {
				if err := complete(<-done); err != nil {
					return err
				}
			}
			if err := w.store.Sync(); err != nil {
				return err
			}
			for _, e := range unsynced {
				if err := w.tell(e); err != nil {
					return err
				}
			}
			unsynced = unsynced[:0]
		}
	}
}
