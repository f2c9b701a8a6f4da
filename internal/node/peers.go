package node

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/btrlog/btrlog/internal/meta"
	"github.com/btrlog/btrlog/internal/protocol"
)

// Heartbeats (P12, paper 4.3). Every node asks every other node of the cluster, once in an interval, who it is, over HTTP: also
// those of logs that no client writes to. An answer counts for the incarnation that gives it, so a node that came back with
// an empty disk does not keep the one alive that it replaced. A node whose shards do not turn, or whose store has failed, gives
// none (HeartbeatPath).

// HeartbeatPath answers like IdentityPath while all shards of the node are well, and with 503 otherwise.
const HeartbeatPath = "/v1/heartbeat"

// registryEvery is after how many intervals the list of nodes is read again.
const registryEvery = 60

// PeerStatus is what a node knows of another one.
type PeerStatus struct {
	Node        string `json:"node"`
	Incarnation string `json:"incarnation"`
	Down        bool   `json:"down"`
	Problem     string `json:"problem,omitempty"` // why the last question had no answer
}

// watcher asks the other nodes.
type watcher struct {
	wg     sync.WaitGroup
	living atomic.Pointer[protocol.Living]
	client *http.Client

	mu       sync.Mutex
	detector *protocol.Detector
	nodes    []meta.NodeRecord
	stale    bool                     // a node is depended on that the list lacks
	asked    map[protocol.NodeID]bool // a question is under way
	problem  map[protocol.NodeID]string
}

func (n *Node) startWatcher(ctx context.Context) {
	w := &n.watcher
	w.detector = protocol.NewDetector(protocol.Time(n.cfg.PeerTimeout))
	w.asked, w.problem = make(map[protocol.NodeID]bool), make(map[protocol.NodeID]string)
	transport := &http.Transport{MaxIdleConnsPerHost: 1, IdleConnTimeout: 2 * time.Minute} // and no proxy: it could answer for a node that is gone
	w.client = &http.Client{Transport: transport}
	w.wg.Go(func() {
		defer transport.CloseIdleConnections()
		n.watch(ctx)
	})
}

func (n *Node) watch(ctx context.Context) {
	w := &n.watcher
	ticker := time.NewTicker(n.cfg.PeerInterval)
	defer ticker.Stop()
	var all sync.WaitGroup
	defer all.Wait()
	reading := make(chan struct{}, 1)
	last := n.now()
	for i := 0; ; i++ {
		w.mu.Lock()
		stale := w.stale || i%registryEvery == 0
		w.stale = false
		w.mu.Unlock()
		if stale {
			select {
			case reading <- struct{}{}: // the store may be slow, the heartbeats go on
				all.Go(func() {
					n.readRegistry(ctx)
					<-reading
				})
			default:
			}
		}
		w.mu.Lock()
		for _, r := range w.nodes {
			if w.asked[r.ID] || r.HTTP == "" {
				continue
			}
			w.asked[r.ID] = true
			all.Go(func() { n.askPeer(ctx, r) })
		}
		// A process that was stopped, or got no processor, comes back to answers that are old. Without this it would take all
		// nodes for down at once, and write a snapshot of every log.
		now := n.now()
		if late := now - last - protocol.Time(n.cfg.PeerInterval); late > protocol.Time(n.cfg.PeerTimeout)/4 {
			w.detector.Deaf(late, now)
		}
		last = now
		before, living := w.living.Load(), w.detector.Living(now)
		w.living.Store(living)
		for _, r := range w.nodes {
			was, _ := before.Down(r.Incarnation)
			is, _ := living.Down(r.Incarnation)
			switch {
			case is && !was:
				n.cfg.Log.Warn("node is down: it gave no sign of life", "node", string(r.ID), "incarnation", r.Incarnation.String(), "for", n.cfg.PeerTimeout, "problem", w.problem[r.ID])
			case was && !is:
				n.cfg.Log.Warn("node is back", "node", string(r.ID), "incarnation", r.Incarnation.String())
			}
		}
		w.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// seek makes sure that a node is asked that a log depends on: it may have joined the cluster since the list was read.
func (w *watcher) seek(inc protocol.Incarnation, now protocol.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.detector.Sought(inc, now) && !slices.ContainsFunc(w.nodes, func(r meta.NodeRecord) bool { return r.Incarnation == inc }) {
		w.stale = true
	}
}

// readRegistry lists the other nodes of the cluster. Without an answer the old list stays.
func (n *Node) readRegistry(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, registryEvery*n.cfg.PeerInterval+n.cfg.PeerTimeout)
	defer cancel()
	var nodes []meta.NodeRecord
	for r, err := range n.catalog.Nodes(ctx) {
		if err != nil {
			return
		}
		if r.Record.ID != n.cfg.Node {
			nodes = append(nodes, r.Record)
		}
	}
	n.watcher.mu.Lock()
	defer n.watcher.mu.Unlock()
	n.watcher.nodes = nodes
	for _, r := range nodes {
		n.watcher.detector.Sought(r.Incarnation, n.now())
	}
}

func (n *Node) askPeer(ctx context.Context, r meta.NodeRecord) {
	inc, problem := n.heartbeat(ctx, &r)
	w := &n.watcher
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked[r.ID], w.problem[r.ID] = false, problem
	if problem == "" {
		w.detector.Heard(inc, n.now())
	}
}

func (n *Node) heartbeat(ctx context.Context, r *meta.NodeRecord) (protocol.Incarnation, string) {
	ctx, cancel := context.WithTimeout(ctx, n.cfg.PeerTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.HTTP+HeartbeatPath, nil)
	if err != nil {
		return 0, err.Error()
	}
	resp, err := n.watcher.client.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	switch {
	case err != nil:
		return 0, err.Error()
	case resp.StatusCode != http.StatusOK:
		return 0, resp.Status + ": " + string(body)
	}
	var who Identity
	if err := json.Unmarshal(body, &who); err != nil {
		return 0, "no answer of a log node: " + err.Error()
	}
	inc, err := strconv.ParseUint(who.Incarnation, 16, 64)
	switch {
	case err != nil:
		return 0, err.Error()
	case who.Node != r.ID || who.Cluster != n.cluster.String():
		return 0, "node " + string(who.Node) + " of cluster " + who.Cluster + " answers there"
	}
	return protocol.Incarnation(inc), ""
}

func (n *Node) serveHeartbeat(w http.ResponseWriter, r *http.Request) {
	if err := n.well(); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	n.serveIdentity(w, r)
}

func (w *watcher) status() []PeerStatus {
	w.mu.Lock()
	defer w.mu.Unlock()
	living := w.living.Load()
	out := make([]PeerStatus, 0, len(w.nodes))
	for _, r := range w.nodes {
		down, _ := living.Down(r.Incarnation)
		out = append(out, PeerStatus{Node: string(r.ID), Incarnation: r.Incarnation.String(), Down: down, Problem: w.problem[r.ID]})
	}
	return out
}
