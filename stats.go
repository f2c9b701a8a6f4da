package btrlog

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/internal/storecount"
	"github.com/btrlog/btrlog/metrics"
)

// Stages of an append, as Client.Metrics counts their times. A record goes through all of them, and is counted when it is
// committed.
const (
	// stageQueue is the wait for space in the window, before the record gets its LSN; no time for most.
	stageQueue = iota
	// stageQuorum is the time from there until a quorum has it, and all before it are committed.
	stageQuorum
	// stageTotal is both.
	stageTotal
	stages
)

var stageNames = [stages]string{"queue", "quorum", "total"}

// mode is a log's durability as an index: times of logs that are acknowledged from memory are never mixed with others'.
type mode uint8

const (
	modeDisk mode = iota
	modeMemory
	modes
)

var modeNames = [modes]Durability{Disk, Memory}

func modeOf(d Durability) mode {
	if d == Memory {
		return modeMemory
	}
	return modeDisk
}

// Reasons for which writers end.
const (
	endClosed  = iota // by Writer.Close
	endFenced         // another open took the log
	endDeleted        // the log was deleted
	endLost           // no quorum at its epoch, or its window was lost
	endClient         // by Client.Close
	endings
)

var endingNames = [endings]string{"closed", "fenced", "deleted", "lost", "client_closed"}

const statuses = int(protocol.StatusUnavailable) + 1

// counters of a Client. Everything is atomic: nobody waits for who looks.
type counters struct {
	stages   [modes][stages]metrics.Histogram
	appended [modes]atomic.Uint64 // LSNs given out
	refused  [statuses]atomic.Uint64
	ended    [endings]atomic.Uint64
	opens    [2]atomic.Uint64 // succeeded, failed
	open     metrics.Histogram
}

// stamps remembers when the LSNs that are not committed yet were given out: LSN x at x mod its length. It grows with what is in
// flight, and an idle writer has none.
type stamps struct{ ring []stamp }

type stamp struct{ given, queued protocol.Time }

const minStamps = 16

func (s *stamps) at(x protocol.LSN) *stamp { return &s.ring[uint64(x)&uint64(len(s.ring)-1)] }

// add notes [first, last]; everything up to committed is not needed any more.
func (s *stamps) add(committed, first, last protocol.LSN, t stamp) {
	for need := int(last - committed); need > len(s.ring); {
		old := *s
		s.ring = make([]stamp, max(minStamps, 2*len(old.ring)))
		for x := first - 1; x > committed && len(old.ring) > 0; x-- {
			*s.at(x) = *old.at(x)
		}
	}
	for x := first; x <= last; x++ {
		*s.at(x) = t
	}
}

// committed counts the times of what was committed between two watermarks. Callers hold mu.
func (w *Writer) countCommit(now protocol.Time, from, through protocol.LSN) {
	if len(w.stamps.ring) == 0 {
		return
	}
	h := &w.c.counters.stages[w.mode]
	for x := from + 1; x <= through; {
		// Records of a batch have all times in common.
		t, n := *w.stamps.at(x), uint64(1)
		for x++; x <= through && *w.stamps.at(x) == t; x++ {
			n++
		}
		wait := time.Duration(max(0, now-t.given))
		h[stageQueue].Observe(time.Duration(t.queued), n)
		h[stageQuorum].Observe(wait, n)
		h[stageTotal].Observe(wait+time.Duration(t.queued), n)
	}
}

// countEnd notes why a writer ended.
func (c *Client) countEnd(e *Error) {
	i := endLost
	switch {
	case e.Kind == ErrFenced:
		i = endFenced
	case e.Kind == ErrNotFound:
		i = endDeleted
	case errors.Is(e.Err, errClientClosed):
		i = endClient
	case e.Kind == ErrClosed:
		i = endClosed
	}
	c.counters.ended[i].Add(1)
}

func (c *Client) countOpen(began time.Time, err error) {
	if err != nil {
		c.counters.opens[1].Add(1)
		return
	}
	c.counters.opens[0].Add(1)
	c.counters.open.Observe(time.Since(began), 1)
}

// statusOf is the status of an answer to an open.
func statusOf(m protocol.Message) protocol.Status {
	switch m := m.(type) {
	case *protocol.OpenReply:
		return m.Status
	case *protocol.FetchReply:
		return m.Status
	}
	return protocol.StatusOK
}

func (c *counters) refusal(s protocol.Status) {
	if s != protocol.StatusOK && int(s) < statuses {
		c.refused[s].Add(1)
	}
}

// Stats is a picture of a client. Metrics says the same, and more, with names.
type Stats struct {
	// Writers are open ones.
	Writers int
	// Window sums the windows of all writers, and WindowInUse the LSNs that they have given out and not seen committed.
	Window, WindowInUse int64
	// WaitingForSpace and WaitingForCommit are goroutines that wait in Append and in Sync.
	WaitingForSpace, WaitingForCommit int
	// QueuedMessages and QueuedBytes wait for a node over HTTP, or are on their way.
	QueuedMessages int
	QueuedBytes    int64
	// WatermarkLag sums, over all writers and their nodes, the committed LSNs of which the node is not known to have heard that
	// they are.
	WatermarkLag int64
	// RetainedRecords and RetainedBytes are what writers keep of what they appended: uncommitted records, and committed ones
	// for slow nodes and for their own reads.
	RetainedRecords int64
	RetainedBytes   int64
	// Connections are TCP connections that are open, to nodes and to the store that they serve.
	Connections int
}

// Stats looks at every open writer for a moment.
func (c *Client) Stats() Stats {
	s := Stats{Connections: c.dialer.Open()}
	if o, ok := c.store.(interface{ Connections() int }); ok {
		s.Connections += o.Connections()
	}
	for _, e := range c.routes.all() {
		if w, ok := e.(*Writer); ok {
			w.addTo(&s)
		}
	}
	return s
}

func (w *Writer) addTo(s *Stats) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return
	}
	s.Writers++
	s.Window += int64(w.result.Config.Settings.Window)
	s.WindowInUse += int64(w.m.Next() - 1 - w.m.Committed())
	s.WaitingForCommit += len(w.syncs)
	s.WaitingForSpace += len(w.space.q)
	if w.space.awake != nil {
		s.WaitingForSpace++
	}
	s.WatermarkLag += int64(w.m.WatermarkLag())
	records, bytes := w.m.Retained()
	s.RetainedRecords += int64(records)
	s.RetainedBytes += int64(bytes)
	for i := range w.peers {
		messages, bytes := w.peers[i].courier.queued()
		s.QueuedMessages += messages
		s.QueuedBytes += bytes
	}
}

func (k *courier) queued() (messages int, bytes int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.keys), int64(k.bytes)
}

// The metrics of a client.
var (
	clientAppend = &metrics.Desc{Name: "btrlog_client_append_seconds", Kind: metrics.Distribution, Unit: "seconds", Labels: []string{"stage", "durability"},
		Help: "Times of committed records: queue is the wait for space in the window, quorum from the LSN to the commit, total both. " +
			"Durability names the mode of their logs: records of memory logs are acknowledged before they are on disk."}
	clientAppended = &metrics.Desc{Name: "btrlog_client_appended_records_total", Kind: metrics.Counter, Unit: "records", Labels: []string{"durability"},
		Help: "Records that were given an LSN."}
	clientWriters = &metrics.Desc{Name: "btrlog_client_writers", Kind: metrics.Gauge, Unit: "writers", Help: "Open writers."}
	clientEnded   = &metrics.Desc{Name: "btrlog_client_writers_ended_total", Kind: metrics.Counter, Unit: "writers", Labels: []string{"reason"},
		Help: "Writers that ended: closed, fenced by another open, deleted log, lost (no quorum at its epoch), client_closed."}
	clientOpens = &metrics.Desc{Name: "btrlog_client_opens_total", Kind: metrics.Counter, Unit: "opens", Labels: []string{"outcome"},
		Help: "OpenWriter calls and Reopens that took over a log (ok) or did not (failed)."}
	clientOpenSeconds = &metrics.Desc{Name: "btrlog_client_open_seconds", Kind: metrics.Distribution, Unit: "seconds",
		Help: "Times of the opens that succeeded."}
	clientWindow = &metrics.Desc{Name: "btrlog_client_window_records", Kind: metrics.Gauge, Unit: "records",
		Help: "Sum of the windows of the open writers."}
	clientInUse = &metrics.Desc{Name: "btrlog_client_window_in_use_records", Kind: metrics.Gauge, Unit: "records",
		Help: "Records given out and not committed, of all open writers."}
	clientWaiting = &metrics.Desc{Name: "btrlog_client_waiting", Kind: metrics.Gauge, Unit: "goroutines", Labels: []string{"for"},
		Help: "Goroutines that wait in Append for space, or in Sync for a commit."}
	clientQueued = &metrics.Desc{Name: "btrlog_client_queued_messages", Kind: metrics.Gauge, Unit: "messages",
		Help: "Messages that do not fit a datagram and wait for a node over HTTP, or are on their way."}
	clientQueuedBytes = &metrics.Desc{Name: "btrlog_client_queued_bytes", Kind: metrics.Gauge, Unit: "bytes", Help: "Bytes of these messages."}
	clientLag         = &metrics.Desc{Name: "btrlog_client_watermark_lag_records", Kind: metrics.Gauge, Unit: "records",
		Help: "Sum over writers and nodes of committed records of which the node is not known to have heard that they are."}
	clientRetained = &metrics.Desc{Name: "btrlog_client_retained_records", Kind: metrics.Gauge, Unit: "records",
		Help: "Records that writers keep in memory, for slow nodes and for their own reads."}
	clientRetainedBytes = &metrics.Desc{Name: "btrlog_client_retained_bytes", Kind: metrics.Gauge, Unit: "bytes", Help: "Bytes of these records."}
	clientRefusals      = &metrics.Desc{Name: "btrlog_client_refusals_total", Kind: metrics.Counter, Unit: "answers", Labels: []string{"reason"},
		Help: "Answers of nodes that refused a message of a writer or of an open, by reason. Not-activated ones are answered by an activation."}
	clientDatagrams = &metrics.Desc{Name: "btrlog_client_datagrams_total", Kind: metrics.Counter, Unit: "datagrams", Labels: []string{"event"},
		Help: "UDP datagrams sent and received, send_dropped for want of buffer, send_failed, and unreadable ones."}
	clientCalls = &metrics.Desc{Name: "btrlog_client_system_calls_total", Kind: metrics.Counter, Unit: "calls", Labels: []string{"call"},
		Help: "System calls on the UDP socket: poll and receive of whoever receives, send of appends and of what is sent again."}
	clientConnections = &metrics.Desc{Name: "btrlog_client_connections", Kind: metrics.Gauge, Unit: "connections", Help: "Open TCP connections to nodes."}
)

// clientDescs are all of them, in the order in which they are written.
var clientDescs = append([]*metrics.Desc{clientAppend, clientAppended, clientWriters, clientEnded, clientOpens, clientOpenSeconds, clientWindow, clientInUse,
	clientWaiting, clientQueued, clientQueuedBytes, clientLag, clientRetained, clientRetainedBytes, clientRefusals, clientDatagrams, clientCalls,
	clientConnections}, storecount.Descs...)

// MetricDescs describes what Client.Metrics returns.
func MetricDescs() []*metrics.Desc { return clientDescs }

// Metrics returns the client's metrics as they are now. metrics.Write puts them into the text format of Prometheus, for example
// behind a path of the program's own HTTP server; the module integrations/prometheus registers them with a
// prometheus.Registerer. A program that never calls it pays some atomic additions for each record.
func (c *Client) Metrics() []metrics.Family {
	var l metrics.List
	k := &c.counters
	for m := range modes {
		for s := range stages {
			l.AddHistogram(clientAppend, k.stages[m][s].Snapshot(), stageNames[s], string(modeNames[m]))
		}
		l.Add(clientAppended, float64(k.appended[m].Load()), string(modeNames[m]))
	}
	s := c.Stats()
	l.Add(clientWriters, float64(s.Writers))
	for i, name := range endingNames {
		l.Add(clientEnded, float64(k.ended[i].Load()), name)
	}
	l.Add(clientOpens, float64(k.opens[0].Load()), "ok")
	l.Add(clientOpens, float64(k.opens[1].Load()), "failed")
	l.AddHistogram(clientOpenSeconds, k.open.Snapshot())
	l.Add(clientWindow, float64(s.Window))
	l.Add(clientInUse, float64(s.WindowInUse))
	l.Add(clientWaiting, float64(s.WaitingForSpace), "space")
	l.Add(clientWaiting, float64(s.WaitingForCommit), "commit")
	l.Add(clientQueued, float64(s.QueuedMessages))
	l.Add(clientQueuedBytes, float64(s.QueuedBytes))
	l.Add(clientLag, float64(s.WatermarkLag))
	l.Add(clientRetained, float64(s.RetainedRecords))
	l.Add(clientRetainedBytes, float64(s.RetainedBytes))
	for i := 1; i < statuses; i++ {
		l.Add(clientRefusals, float64(k.refused[i].Load()), protocol.Status(i).String())
	}
	u := c.sock.Stats()
	for _, d := range []struct {
		event string
		n     uint64
	}{{"sent", u.Sent}, {"received", u.Received}, {"send_dropped", u.SendDropped}, {"send_failed", u.SendFailed}, {"unreadable", c.receiver.packet.dropped.Load()}} {
		l.Add(clientDatagrams, float64(d.n), d.event)
	}
	for _, k := range []struct {
		call string
		n    uint64
	}{{"poll", u.PollCalls}, {"receive", u.ReceiveCalls}, {"send", u.SendCalls}} {
		l.Add(clientCalls, float64(k.n), k.call)
	}
	l.Add(clientConnections, float64(s.Connections))
	c.requests.metadata.Collect(&l)
	c.requests.archive.Collect(&l)
	failing, _ := c.requests.health.Failing()
	l.Add(storecount.Failing, failing.Seconds())
	return l.Families()
}

// requests counts what the client asks of the store.
type requests struct {
	health            storecount.Health
	metadata, archive *storecount.Counter
}
