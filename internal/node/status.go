package node

import (
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/btrlog/btrlog/internal/archive"
	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/internal/ring"
	"github.com/btrlog/btrlog/internal/shard"
	"github.com/btrlog/btrlog/lst"
)

// Status is what StatusPath shows. It is for people and for tools that watch; fields may be added.
type Status struct {
	Identity
	Address    string        `json:"address"`
	UptimeMS   int64         `json:"uptime_ms"`
	Durability string        `json:"durability"`        // the way to the disk; logs with memory durability say so themselves
	Ready      string        `json:"ready"`             // "ready", or why not
	DiskBudget int64         `json:"disk_budget_bytes"` // of all shards together; 0: none but the disk
	Flush      FlushStatus   `json:"flush"`
	Pack       PackStatus    `json:"pack"`
	Collect    CollectStatus `json:"collect"`
	Peers      []PeerStatus  `json:"peers"`
	HTTP       HTTPStatus    `json:"http"`
	Detail     []ShardStatus `json:"shard_status"`
}

// FlushStatus says how archiving goes.
type FlushStatus struct {
	Done        uint64           `json:"done"`
	Failed      uint64           `json:"failed"`
	Running     int64            `json:"running"`
	Pending     int64            `json:"pending"`   // stretches of committed records that are not archived
	Snapshots   uint64           `json:"snapshots"` // failure snapshots of logs that were completed
	LastError   string           `json:"last_error,omitempty"`
	LastErrorAt *time.Time       `json:"last_error_at,omitempty"`
	Store       string           `json:"store"`
	Archive     archive.Counters `json:"archive"`
}

// HTTPStatus counts messages over HTTP.
type HTTPStatus struct {
	Running, Bytes                       int64
	Served, Refused, Malformed, Timeouts uint64
}

// ShardStatus is one shard.
type ShardStatus struct {
	Shard    int          `json:"shard"`
	Port     uint16       `json:"port"`
	Problem  string       `json:"problem,omitempty"`
	Counters ShardCounts  `json:"counters"`
	Core     shard.Stats  `json:"core"`
	Store    StoreStatus  `json:"store"`
	Socket   SocketStatus `json:"socket"`
	Parked   int          `json:"parked_reads"`
	Logs     []LogStatus  `json:"logs"`
}

// ShardCounts count since the start of the node.
type ShardCounts struct {
	Messages, Batches, BadPackets, OtherCluster, OtherVersion, Unexpected, Forwarded, Overloaded, InboxRefused, Unanswered uint64
}

// StoreStatus is a shard's store.
type StoreStatus struct {
	Directory string
	lst.Stats
	// In place of the errors of lst.Stats, which have no JSON.
	NoSpace, IndexDamage string `json:",omitempty"`
	Start                string `json:"start"`
}

// SocketStatus is a shard's socket.
type SocketStatus struct {
	ring.Stats
	LastSendError string `json:",omitempty"` // in place of the error, which has no JSON
}

func socketOf(s ring.Stats) SocketStatus {
	out := SocketStatus{Stats: s}
	if s.LastSendError != nil {
		out.LastSendError, out.Stats.LastSendError = s.LastSendError.Error(), nil
	}
	return out
}

// LogStatus is what one node knows of one log.
type LogStatus struct {
	Log             string           `json:"log"`
	Name            string           `json:"name"`
	Durability      string           `json:"durability"`
	Promised        protocol.Epoch   `json:"promised"`
	Activated       protocol.Epoch   `json:"activated"`
	Start           protocol.LSN     `json:"start"`
	Committed       protocol.LSN     `json:"committed"`
	ArchivedThrough protocol.LSN     `json:"archived_through"`
	DroppedThrough  protocol.LSN     `json:"dropped_through"`
	Highest         protocol.LSN     `json:"highest"`
	Deleted         bool             `json:"deleted,omitempty"`
	Damaged         []protocol.Range `json:"damaged,omitempty"`
	IdleMS          int64            `json:"idle_ms"`
	Unarchived      uint64           `json:"unarchived_bytes"`  // held here above archived_through, committed or not
	Missing         []protocol.Range `json:"missing,omitempty"` // above archived_through, of which no copy is here

	id    protocol.LogID
	peers []protocol.Incarnation
}

// status is called on the shard's thread; the result shares nothing with the machine.
func (t *thread) status(now protocol.Time) ShardStatus {
	c := &t.counters
	s := ShardStatus{
		Shard: t.index, Port: t.port, Core: t.core.Stats(), Socket: socketOf(t.loop.Stats()), Parked: t.nparked,
		Counters: ShardCounts{c.messages.Load(), c.batches.Load(), c.badPackets.Load(), c.otherCluster.Load(), c.otherVersion.Load(),
			c.unexpected.Load(), c.forwarded.Load(), c.overloaded.Load(), t.inbox.refusals(), c.lost.Load() + t.post.unsent},
		Store: StoreStatus{Directory: t.n.dir.shardDir(t.index), Stats: t.core.Store().Stats(), Start: startOf(&t.n.reports[t.index])},
	}
	if err := s.Store.Stats.NoSpace; err != nil {
		s.Store.NoSpace, s.Store.Stats.NoSpace = err.Error(), nil
	}
	if err := s.Store.Stats.IndexDamage; err != nil {
		s.Store.IndexDamage, s.Store.Stats.IndexDamage = err.Error(), nil
	}
	for _, l := range t.core.Logs() {
		durability := "disk"
		if l.Settings.Memory {
			durability = "memory: acknowledged before it is on disk"
		}
		s.Logs = append(s.Logs, LogStatus{Log: l.Log.String(), Name: l.Settings.Name, Durability: durability, Promised: l.Promised, Activated: l.Activated,
			Start: l.Start, Committed: l.CLSN, ArchivedThrough: l.ArchivedThrough, DroppedThrough: l.DroppedThrough, Highest: l.Highest, Deleted: l.Deleted,
			Damaged: slices.Clone(l.Damaged), IdleMS: int64(now-l.LastAppend) / int64(protocol.Millisecond),
			Unarchived: l.Unarchived, Missing: l.Missing, id: l.Log, peers: slices.Clone(l.Settings.Peers)})
	}
	return s
}

// startOf says in words what a store's recovery found.
func startOf(r *lst.RecoveryReport) string {
	if r.Created {
		return "created"
	}
	s := fmt.Sprintf("recovered %d files in %v, %d records replayed", r.Segments, r.Elapsed.Round(time.Millisecond), r.ReplayedRecords)
	if r.CutFile != "" {
		s += fmt.Sprintf("; a torn tail of %d bytes was cut at offset %d of %s (%s)", r.CutBytes, r.CutOffset, r.CutFile, r.CutReason)
	}
	return s
}

// statusTimeout bounds the wait for a shard's answer.
const statusTimeout = 2 * time.Second

// Status asks every shard and returns the whole picture. A shard that does not answer in time is named as such.
func (n *Node) Status() Status {
	s := Status{Identity: n.identity(), Address: n.advertise, UptimeMS: time.Since(n.started).Milliseconds(), Durability: n.cfg.durability(), Ready: "ready",
		DiskBudget: n.cfg.DiskBudgetBytes,
		Flush: FlushStatus{Done: n.flusher.flushed.Load(), Failed: n.flusher.failed.Load(), Running: n.flusher.running.Load(), Snapshots: n.flusher.snapshots.Load(),
			Store: n.cfg.Store.String(), Archive: n.archive.Counters()},
		HTTP: HTTPStatus{n.traffic.requests.Load(), n.traffic.bytes.Load(), n.traffic.served.Load(), n.traffic.refused.Load(),
			n.traffic.malformed.Load(), n.traffic.timeouts.Load()},
	}
	s.Pack, s.Collect, s.Peers = n.packer.status(), n.collector.status(), n.watcher.status()
	if err := n.ready(); err != nil {
		s.Ready = err.Error()
	}
	if text, at := n.flusher.last(); text != "" {
		s.Flush.LastError, s.Flush.LastErrorAt = text, &at
	}
	answers := make([]chan ShardStatus, len(n.threads))
	for i, t := range n.threads {
		s.Flush.Pending += t.plan.pending.Load()
		answers[i] = make(chan ShardStatus, 1) // the shard never waits for the reader
		if !t.inbox.ask(answers[i]) {
			answers[i] <- ShardStatus{Shard: i, Problem: "the shard has stopped"}
		}
		t.loop.Wake()
	}
	timeout := time.After(statusTimeout)
	expired := false
	for i, c := range answers {
		if expired {
			select {
			case got := <-c:
				s.Detail = append(s.Detail, got)
			default:
				s.Detail = append(s.Detail, ShardStatus{Shard: i, Problem: fmt.Sprintf("no answer within %v", statusTimeout)})
			}
			continue
		}
		select {
		case got := <-c:
			s.Detail = append(s.Detail, got)
		case <-timeout:
			expired = true
			s.Detail = append(s.Detail, ShardStatus{Shard: i, Problem: fmt.Sprintf("no answer within %v", statusTimeout)})
		}
	}
	return s
}

func (n *Node) serveStatus(w http.ResponseWriter, r *http.Request) { writeJSON(w, n.Status()) }
