package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/internal/shard"
	"github.com/btrlog/btrlog/internal/wire"
	"github.com/btrlog/btrlog/objstore/httpstore"
)

// Paths of a node. HTTP is the way of what does not fit a datagram; the messages are the same.
const (
	// MessagePath takes POST with one framed request (package wire) and answers with one framed reply.
	MessagePath = "/btrlog/v1/message"
	// StatusPath answers GET with Status in JSON.
	StatusPath = "/btrlog/v1/status"
	// identityPath answers GET with Identity in JSON.
	identityPath = "/btrlog/v1/identity"
	// HealthPath, ReadyPath and MetricsPath answer GET; see HealthReport and Descs.
	HealthPath  = "/healthz"
	ReadyPath   = "/readyz"
	MetricsPath = "/metrics"
	// TracesPath answers GET with the latest traces of appends (stagetrace.Node), a JSON array.
	TracesPath = "/btrlog/v1/traces"
	// IdentityPath is where a node says who it is.
	IdentityPath = identityPath
)

// Limits of HTTP.
const (
	// maxRequestBytes bounds a framed request: one largest append, or an activation with the longest history.
	maxRequestBytes = protocol.MaxBlockBytes + 64<<10
	// maxRequests and maxTrafficBytes bound the messages that are served at once, and the memory of their bodies.
	maxRequests     = 8192
	maxTrafficBytes = 256 << 20
	// defaultReplyBytes is the size of an answer whose asker names none.
	defaultReplyBytes = 1 << 20
	// bodyTimeout bounds reading a request and writing an answer.
	bodyTimeout = 30 * time.Second
	// answerTimeout bounds the wait for a shard: longer, and its disk hangs.
	answerTimeout = 30 * time.Second
	// longPoll is how long a read waits at most for the watermark to rise.
	longPoll = time.Second
)

// traffic bounds what HTTP messages take (P15).
type traffic struct {
	requests, bytes                      atomic.Int64
	served, refused, malformed, timeouts atomic.Uint64
}

func (t *traffic) enter(bytes int64) bool {
	if t.requests.Add(1) > maxRequests || t.bytes.Add(bytes) > maxTrafficBytes {
		t.leave(bytes)
		t.refused.Add(1)
		return false
	}
	return true
}

func (t *traffic) leave(bytes int64) {
	t.requests.Add(-1)
	t.bytes.Add(-bytes)
}

// serve starts the HTTP server on the bound listener.
func (n *Node) serve() {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+MessagePath, n.whenServing(n.serveMessage))
	mux.HandleFunc("GET "+StatusPath, n.whenServing(n.serveStatus))
	mux.HandleFunc("GET /status", n.whenServing(n.serveStatus)) // for people
	mux.HandleFunc("GET /{$}", serveIndex)
	mux.HandleFunc("GET "+IdentityPath, n.whenServing(n.serveIdentity))
	mux.HandleFunc("GET "+HeartbeatPath, n.whenServing(n.serveHeartbeat))
	mux.HandleFunc("GET "+HealthPath, n.serveHealth)
	mux.HandleFunc("GET "+ReadyPath, n.serveReady)
	mux.HandleFunc("GET "+MetricsPath, n.serveMetrics)
	mux.HandleFunc("GET "+TracesPath, n.whenServing(n.serveTraces))
	// The store needs no shard, and an answer that is not the store's own would leave writes of clients unknown.
	mux.Handle(httpstore.Path, httpstore.Handler(n.requests.proxy.Wrap(n.cfg.Store), n.cfg.Root, httpstore.HandlerOptions{}))
	var p http.Protocols
	p.SetHTTP1(true)
	p.SetUnencryptedHTTP2(true)
	n.server = &http.Server{
		Handler: mux, Protocols: &p, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		HTTP2:    &http.HTTP2Config{MaxConcurrentStreams: 1000, MaxReceiveBufferPerConnection: 16 << 20, MaxReceiveBufferPerStream: 4 << 20},
		ErrorLog: slog.NewLogLogger(n.cfg.Log.Handler(), slog.LevelDebug),
	}
	n.background.Go(func() {
		if err := n.server.Serve(boundConnections(n.listener, connectionBound())); err != nil && !errors.Is(err, http.ErrServerClosed) {
			n.fail(fmt.Errorf("node: HTTP: %w", err))
		}
	})
}

// serveIndex tells a person what can be asked here.
func serveIndex(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	fmt.Fprintf(w, "a log node of BtrLog\n%s  is the process well\n%s   does it take appends\n%s  for Prometheus\n/status   everything, as JSON\n", HealthPath, ReadyPath, MetricsPath)
}

// whenServing refuses requests while the node starts.
func (n *Node) whenServing(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if phase := n.phase.Load(); phase != nil {
			busy(w, "the node is starting: "+*phase)
			return
		}
		h(w, r)
	}
}

// serveMessage is a datagram's way without its size: one request, one answer.
func (n *Node) serveMessage(w http.ResponseWriter, r *http.Request) {
	size := r.ContentLength
	if size < 0 || size > maxRequestBytes {
		n.traffic.malformed.Add(1)
		http.Error(w, fmt.Sprintf("a message has its length announced, and at most %d bytes", maxRequestBytes), http.StatusRequestEntityTooLarge)
		return
	}
	if !n.traffic.enter(size) {
		busy(w, "too many requests at this node")
		return
	}
	defer n.traffic.leave(size)
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(bodyTimeout)) // both kinds of connection can
	_, m, err := wire.ReadMessage(r.Body, n.cluster, maxRequestBytes)
	if err != nil {
		n.traffic.malformed.Add(1)
		if wire.Answerable(err) {
			w.Header().Set("Content-Type", wire.FrameMediaType)
			_ = wire.WriteNotice(w, n.cluster) // its loss is the peer's timeout
			return
		}
		code := http.StatusBadRequest
		if errors.Is(err, wire.ErrCluster) {
			code = http.StatusMisdirectedRequest // the asker must not take it for silence
		}
		http.Error(w, err.Error(), code)
		return
	}
	_ = control.SetReadDeadline(time.Time{})
	log, ok := logOf(m)
	if !ok {
		n.traffic.malformed.Add(1)
		http.Error(w, "no request", http.StatusBadRequest)
		return
	}
	answer, held := n.ask(w, r, log, m)
	defer n.traffic.bytes.Add(-held)
	if answer == nil {
		return
	}
	frame, err := wire.AppendFrame(nil, n.cluster, n.threads[n.owner(log)].port, answer)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	n.traffic.served.Add(1)
	_ = control.SetWriteDeadline(time.Now().Add(bodyTimeout))
	w.Header().Set("Content-Type", wire.FrameMediaType)
	w.Header().Set("Content-Length", strconv.Itoa(len(frame)))
	_, _ = w.Write(frame) // the asker is gone, or notices
}

// ask hands a request to its shard and returns the answer, or nil after it has answered with an HTTP error. held is memory
// that the caller gives back.
func (n *Node) ask(w http.ResponseWriter, r *http.Request, log protocol.LogID, m protocol.Message) (answer protocol.Message, held int64) {
	t := n.threads[n.owner(log)]
	c := newCall()
	if read, ok := m.(*protocol.Read); ok && read.WaitAbove != 0 {
		c.waitAbove, c.until = read.WaitAbove, n.now()+protocol.Time(longPoll)
	}
	if !t.inbox.put(item{msg: m, size: sizeOf(m), call: c}) {
		if t.stopping.Load() {
			return refusal(m, protocol.StatusUnavailable, n.dir.inc), 0
		}
		t.counters.overloaded.Add(1)
		t.tally.answered(kindOf(m), protocol.StatusOverloaded)
		return refusal(m, protocol.StatusOverloaded, n.dir.inc), 0
	}
	t.loop.Wake()
	timer := time.NewTimer(answerTimeout)
	defer timer.Stop()
	select {
	case <-c.done:
	case <-r.Context().Done():
		return nil, 0 // the asker is gone; what the shard does with the request is as if its answer was lost
	case <-timer.C:
		n.traffic.timeouts.Add(1)
		http.Error(w, fmt.Sprintf("shard %d did not answer within %v; its disk may hang", t.index, answerTimeout), http.StatusGatewayTimeout)
		return nil, 0
	}
	switch c.kind {
	case callAck:
		return &c.ack, 0
	case callReply:
		return n.fill(m, c)
	case callStop:
		return refusal(m, protocol.StatusUnavailable, n.dir.inc), 0
	}
	http.Error(w, "the shard gave no answer: the request is malformed, or was undone for want of space", http.StatusServiceUnavailable)
	return nil, 0
}

// fill reads the records of a reply from the view that came with it, on this goroutine and not on the shard's thread.
func (n *Node) fill(m protocol.Message, c *call) (answer protocol.Message, held int64) {
	if len(c.reply.Refs) == 0 {
		return c.reply.Msg, 0
	}
	limit := defaultReplyBytes
	if c.reply.MaxBytes > 0 {
		limit = min(c.reply.MaxBytes, wire.MaxReplyBytes)
	}
	// The records, and their copy in the frame.
	if held = 2 * int64(limit); n.traffic.bytes.Add(held) > maxTrafficBytes {
		n.traffic.refused.Add(1)
		n.threads[n.owner(c.reply.Log)].tally.answered(kindOf(m), protocol.StatusOverloaded)
		return refusal(m, protocol.StatusOverloaded, n.dir.inc), held
	}
	shard.FillReply(c.view, &c.reply, limit)
	return c.reply.Msg, held
}

func busy(w http.ResponseWriter, what string) {
	w.Header().Set("Retry-After", "1")
	http.Error(w, what, http.StatusServiceUnavailable)
}

// Identity is what a node says of itself at IdentityPath.
type Identity struct {
	Node        protocol.NodeID `json:"node"`
	Incarnation string          `json:"incarnation"` // 16 hex digits
	Cluster     string          `json:"cluster_id"`  // 16 hex digits
	Zone        string          `json:"zone,omitempty"`
	Root        string          `json:"root"`  // prefix of the cluster's keys in the store that the node serves
	Ports       []int           `json:"ports"` // UDP port of each shard
	Shards      int             `json:"shards"`
}

func (n *Node) identity() Identity {
	id := Identity{Node: n.cfg.Node, Incarnation: n.dir.inc.String(), Cluster: n.cluster.String(), Zone: n.cfg.Zone, Root: n.cfg.Root, Shards: n.active}
	for _, t := range n.threads {
		id.Ports = append(id.Ports, int(t.port))
	}
	return id
}

func (n *Node) serveIdentity(w http.ResponseWriter, r *http.Request) { writeJSON(w, n.identity()) }

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	_ = e.Encode(v) // the asker is gone
}
