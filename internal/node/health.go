package node

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/internal/storecount"
)

// HealthReport is the body of HealthPath and ReadyPath.
//
// HealthPath fails (503) when only a new process helps. ReadyPath fails when the node should get no new work, for whatever
// reason; most of them pass by themselves, and restarting the process for them makes it worse.
type HealthReport struct {
	Status   string    `json:"status"` // ok, starting, or failing
	Problems []Problem `json:"problems,omitempty"`
}

// Problem is one reason not to be healthy or ready.
type Problem struct {
	Part   string      `json:"part"` // node, shard 0, object store
	Kind   ProblemKind `json:"kind"`
	Detail string      `json:"detail"`
}

// ProblemKind is for programs; fields may be added.
type ProblemKind string

const (
	ShardDead        ProblemKind = "shard_dead"               // not healthy: its thread has ended
	ShardStuck       ProblemKind = "shard_stuck"              // not healthy: one turn of its thread takes too long
	StoreLatched     ProblemKind = "store_latched"            // not healthy: its store has failed for good (P14)
	Starting         ProblemKind = "starting"                 // not ready: recovering, or waiting for the object store
	Stopping         ProblemKind = "stopping"                 // not ready
	DiskReserveOnly  ProblemKind = "disk_reserve_only"        // not ready: appends are refused for want of disk space
	StoreUnreachable ProblemKind = "object_store_unreachable" // not ready: no answer for Config.StoreGrace
	NotArchiving     ProblemKind = "not_archiving"            // not ready: the store answers, and nothing could be archived for Config.StoreGrace
)

// stuckAfter is when a shard that makes no turn is called stuck.
const stuckAfter = 10 * time.Second

// unhealthy lists what only a new process mends.
func (n *Node) unhealthy() (ps []Problem) {
	if !n.serving() {
		return nil
	}
	for _, t := range n.threads {
		part := fmt.Sprintf("shard %d", t.index)
		silent := time.Duration(n.now() - protocol.Time(t.beat.Load()))
		switch err := t.core.Store().Err(); {
		case err != nil:
			ps = append(ps, Problem{part, StoreLatched, err.Error()})
		case !t.alive.Load() && !n.stopping():
			ps = append(ps, Problem{part, ShardDead, part + " does not run"})
		case silent > stuckAfter && !n.stopping():
			ps = append(ps, Problem{part, ShardStuck, fmt.Sprintf("%s has been in one write for %v; its disk may hang", part, silent.Round(time.Second))})
		}
	}
	return ps
}

func (n *Node) stopping() bool {
	select {
	case <-n.done:
		return true
	default:
		return false
	}
}

// unready lists why the node should get no work.
func (n *Node) unready() (ps []Problem) {
	if phase := n.phase.Load(); phase != nil {
		ps = append(ps, Problem{"node", Starting, "the node is starting: " + *phase})
	}
	if n.stopping() {
		ps = append(ps, Problem{"node", Stopping, "the node is stopping"})
	}
	ps = append(ps, n.unhealthy()...)
	if n.serving() {
		for _, t := range n.threads {
			if t.tally.full.Load() {
				ps = append(ps, Problem{fmt.Sprintf("shard %d", t.index), DiskReserveOnly,
					"the disk budget is used up, and what is left is kept for promises and archiving: appends are refused until segments are archived"})
			}
		}
	}
	if d, err := n.requests.health.Failing(); d > n.cfg.StoreGrace {
		ps = append(ps, Problem{"object store", StoreUnreachable, fmt.Sprintf("%s has not answered for %v: %v", n.cfg.Store, d.Round(time.Second), err)})
	} else if d, why := n.flusher.failing(); d > n.cfg.StoreGrace {
		ps = append(ps, Problem{"archive", NotArchiving, fmt.Sprintf("nothing could be archived for %v, and the disk fills: %s", d.Round(time.Second), why)})
	}
	return ps
}

// ready says why the node should get no work, or nil.
func (n *Node) ready() error {
	if ps := n.unready(); len(ps) > 0 {
		return fmt.Errorf("%s: %s", ps[0].Part, ps[0].Detail)
	}
	return nil
}

// well says which part of the node does not work, or nil. What a peer asks for is whether it can count on the node.
func (n *Node) well() error {
	if n.stopping() {
		return errors.New("the node is stopping")
	}
	if ps := n.unhealthy(); len(ps) > 0 {
		return errors.New(ps[0].Detail)
	}
	return nil
}

func writeReport(w http.ResponseWriter, ps []Problem) {
	r := HealthReport{Status: "ok", Problems: ps}
	code := http.StatusOK
	if len(ps) > 0 {
		r.Status, code = "failing", http.StatusServiceUnavailable
		if ps[0].Kind == Starting {
			r.Status = "starting"
		}
	}
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	writeJSON(w, r)
}

func (n *Node) serveHealth(w http.ResponseWriter, r *http.Request) { writeReport(w, n.unhealthy()) }

func (n *Node) serveReady(w http.ResponseWriter, r *http.Request) { writeReport(w, n.unready()) }

// requests counts what this node asks of the object store, by who asks.
type requests struct {
	health                          storecount.Health
	metadata, archive, proxy, probe *storecount.Counter
}

func (r *requests) init() {
	r.metadata, r.archive = storecount.New("metadata", &r.health), storecount.New("archive", &r.health)
	r.proxy, r.probe = storecount.New("proxy", &r.health), storecount.New("probe", &r.health)
}

// prober notices that the object store is silent although nobody asks it for anything, and that it is back, and tells the log.
func (n *Node) prober(ctx context.Context) {
	store := n.requests.probe.Wrap(n.cfg.Store)
	key := "cluster.json"
	if n.cfg.Root != "" {
		key = n.cfg.Root + "/" + key
	}
	silent := false
	pause := min(n.cfg.StoreProbe, 5*time.Second)
	for sleep(ctx, pause) == nil {
		if d, _ := n.requests.health.Failing(); d > 0 || n.requests.health.Quiet() >= n.cfg.StoreProbe {
			ask, cancel := context.WithTimeout(ctx, max(n.cfg.StoreProbe, time.Second))
			_, _ = store.Head(ask, key) // its outcome is in the counters
			cancel()
		}
		switch d, err := n.requests.health.Failing(); {
		case d > n.cfg.StoreGrace && !silent:
			silent = true
			n.cfg.Log.Warn("object store does not answer; nothing is archived, and the disk fills", "store", n.cfg.Store.String(), "for", d.Round(time.Second), "error", err)
		case d == 0 && silent:
			silent = false
			n.cfg.Log.Warn("object store answers again", "store", n.cfg.Store.String())
		}
	}
}
