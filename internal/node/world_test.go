package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/btrlog/btrlog/internal/meta"
	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/internal/wire"
	"github.com/btrlog/btrlog/objstore"
	"github.com/btrlog/btrlog/objstore/memory"
)

// waitFor is how long a test waits for what must come.
const waitFor = 20 * time.Second

// eventually waits for a condition that other goroutines bring about.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(waitFor)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline.C:
			t.Fatalf("waited %v for %s", waitFor, what)
		case <-tick.C:
		}
	}
}

func testConfig(t testing.TB, id string, store objstore.Store) Config {
	t.Helper()
	return Config{Dir: filepath.Join(t.TempDir(), id), Node: protocol.NodeID(id), Listen: "127.0.0.1:0", Store: store, Root: "cluster",
		Buffered: true, SegmentBytes: 4 << 20, StartTimeout: 5 * time.Second, PackEvery: -1}
}

func startNode(t testing.TB, cfg Config) *Node {
	t.Helper()
	n, err := Start(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	return n
}

func stopNode(t testing.TB, n *Node) {
	t.Helper()
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
}

// client speaks to one node with plain sockets.
type client struct {
	t       testing.TB
	cluster wire.ClusterID
	inc     protocol.Incarnation
	address string
	conn    *net.UDPConn
	to      *net.UDPAddr // the shard that is asked
	buf     []byte
}

func dial(t testing.TB, n *Node) *client {
	t.Helper()
	return dialAddress(t, n.Address(), n.Cluster(), n.Incarnation())
}

func dialAddress(t testing.TB, address string, cluster wire.ClusterID, inc protocol.Incarnation) *client {
	t.Helper()
	to, err := net.ResolveUDPAddr("udp4", address)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &client{t: t, cluster: cluster, inc: inc, address: address, conn: conn, to: to, buf: make([]byte, 1<<16)}
}

func (c *client) send(ms ...protocol.Message) {
	c.t.Helper()
	var w wire.Writer
	w.Reset(nil, wire.MaxDatagramBytes, c.cluster, 0)
	for _, m := range ms {
		if err := w.Message(m); err != nil {
			c.t.Fatal(err)
		}
	}
	c.sendRaw(w.Finish())
}

func (c *client) sendRaw(b []byte) {
	c.t.Helper()
	if _, err := c.conn.WriteToUDP(b, c.to); err != nil {
		c.t.Fatal(err)
	}
}

// receive returns the messages of the next datagram and the reply_to in it.
func (c *client) receive() ([]protocol.Message, uint16) {
	c.t.Helper()
	c.conn.SetReadDeadline(time.Now().Add(waitFor))
	n, _, err := c.conn.ReadFromUDP(c.buf)
	if err != nil {
		c.t.Fatal(err)
	}
	var r wire.Reader
	if err := r.Reset(c.buf[:n], c.cluster); err != nil {
		c.t.Fatal(err)
	}
	var ms []protocol.Message
	for r.Next() {
		m, err := r.Message()
		if err != nil {
			c.t.Fatal(err)
		}
		ms = append(ms, m)
	}
	if r.Err() != nil || len(ms) == 0 {
		c.t.Fatalf("datagram of %d messages: %v", len(ms), r.Err())
	}
	return ms, r.Header().ReplyTo
}

// call sends one message and returns its one answer.
func (c *client) call(m protocol.Message) protocol.Message {
	c.t.Helper()
	c.send(m)
	ms, _ := c.receive()
	if len(ms) != 1 {
		c.t.Fatalf("%d answers to one message", len(ms))
	}
	return ms[0]
}

func (c *client) ack(m protocol.Message, want protocol.Status) *protocol.Ack {
	c.t.Helper()
	got := c.call(m)
	a, ok := got.(*protocol.Ack)
	if !ok || a.Status != want {
		c.t.Fatalf("answer to %T is %+v, want status %v", m, got, want)
	}
	return a
}

// post sends a message over HTTP/2 without TLS.
func (c *client) post(m protocol.Message) (protocol.Message, error) {
	return postTo(http2Client, "http://"+c.address+MessagePath, c.cluster, m)
}

func (c *client) mustPost(m protocol.Message) protocol.Message {
	c.t.Helper()
	got, err := c.post(m)
	if err != nil {
		c.t.Fatal(err)
	}
	return got
}

var http2Client = func() *http.Client {
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	return &http.Client{Transport: &http.Transport{Protocols: &p}, Timeout: waitFor}
}()

func postTo(h *http.Client, url string, cluster wire.ClusterID, m protocol.Message) (protocol.Message, error) {
	frame, err := wire.AppendFrame(nil, cluster, 0, m)
	if err != nil {
		return nil, err
	}
	resp, err := h.Post(url, wire.FrameMediaType, bytes.NewReader(frame))
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 1000))
		return nil, fmt.Errorf("%s: %s", resp.Status, b)
	}
	_, got, err := wire.ReadMessage(resp.Body, cluster, 0)
	return got, err
}

// writer makes the messages of one log's writer for several nodes.
type writer struct {
	log     protocol.LogID
	epoch   protocol.Epoch
	next    protocol.LSN
	seg     protocol.LSN
	off     uint64
	cLSN    protocol.LSN
	history protocol.History
	set     protocol.Settings
}

func newWriter(log protocol.LogID) *writer {
	return &writer{log: log, next: 1, set: protocol.Settings{Name: "orders-" + log.String(), Window: 8, SegmentBytes: 1 << 20, Qw: 2}}
}

func (w *writer) open(e protocol.Epoch) *protocol.Open {
	return &protocol.Open{Log: w.log, Epoch: e, Req: uint64(e), Name: w.set.Name}
}

func (w *writer) activate(inc protocol.Incarnation, e protocol.Epoch, start protocol.LSN) *protocol.Activate {
	if w.epoch != e {
		h, err := w.history.Add(e, start)
		if err != nil {
			panic(err)
		}
		w.history, w.epoch, w.next, w.seg, w.off = h, e, start, start, 0
	}
	return &protocol.Activate{Log: w.log, Epoch: e, Incarnation: inc, Start: start, B: start - 1, History: w.history, Settings: w.set}
}

// append makes the next append of n records; the addressee is set by the caller.
func (w *writer) append(n, size int) *protocol.Append {
	a := &protocol.Append{Log: w.log, Epoch: w.epoch, Label: w.epoch, First: w.next, Count: uint32(n), SegStart: w.seg, SegOff: w.off, CLSN: w.cLSN}
	for range n {
		p := payload(w.log, w.next, size)
		a.Block = protocol.AppendRecord(a.Block, p, false)
		w.off += uint64(protocol.EncodedSize(len(p)))
		w.next++
	}
	return a
}

// cut begins a new segment.
func (w *writer) cut() { w.seg, w.off = w.next, 0 }

func (w *writer) watermark(inc protocol.Incarnation, sealed protocol.LSN) *protocol.Watermark {
	return &protocol.Watermark{Log: w.log, Epoch: w.epoch, Incarnation: inc, CLSN: w.cLSN, Sealed: sealed}
}

func to(inc protocol.Incarnation, a *protocol.Append) *protocol.Append {
	b := *a
	b.Incarnation = inc
	return &b
}

func payload(log protocol.LogID, lsn protocol.LSN, size int) []byte {
	b := fmt.Appendf(nil, "%v/%d ", log, lsn)
	for len(b) < size {
		b = append(b, byte(lsn))
	}
	return b
}

// begin opens and activates the log at epoch 1 on the client's node.
func (c *client) begin(w *writer) {
	c.t.Helper()
	r, ok := c.call(w.open(1)).(*protocol.OpenReply)
	if !ok || r.Status != protocol.StatusOK || r.Incarnation != c.inc {
		c.t.Fatalf("open: %+v", r)
	}
	c.ack(w.activate(c.inc, 1, 1), protocol.StatusOK)
}

// logAt returns what a node's status says of a log, and in which shard.
func logAt(n *Node, log protocol.LogID) (LogStatus, int) {
	for _, s := range n.Status().Detail {
		for _, l := range s.Logs {
			if l.Log == log.String() {
				return l, s.Shard
			}
		}
	}
	return LogStatus{}, -1
}

// countingStore counts PUT requests below a prefix of keys.
type countingStore struct {
	objstore.Store
	part string
	puts atomic.Int64
	down atomic.Int64 // so many more fail
}

func (s *countingStore) Put(ctx context.Context, key string, body []byte, m map[string]string, c objstore.Condition) (objstore.Info, error) {
	if strings.Contains(key, s.part) {
		s.puts.Add(1)
		if s.down.Add(-1) >= 0 {
			return objstore.Info{}, &objstore.Error{Store: s.String(), Op: "put", Key: key, Kind: objstore.ErrUnavailable, Err: errors.New("test: down")}
		}
	}
	return s.Store.Put(ctx, key, body, m, c)
}

func newStore() *memory.Store { return memory.New(memory.Options{}) }

func httpGet(t testing.TB, n *Node, path string) (int, string) {
	t.Helper()
	resp, err := http.Get("http://" + n.Address() + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// runNode runs a node as a program does, and returns a client of it, what Run returned, and how to stop it.
func runNode(t testing.TB, cfg Config) (*client, <-chan error, context.CancelFunc) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		result <- Run(ctx, cfg)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	catalog, err := meta.New(cfg.Store, meta.Config{Root: cfg.Root, Random: random64, Now: time.Now, Sleep: sleep})
	if err != nil {
		t.Fatal(err)
	}
	var record meta.Node
	eventually(t, "the node's record", func() bool {
		record, err = catalog.LoadNode(ctx, cfg.Node)
		return err == nil
	})
	cluster, err := catalog.Cluster(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return dialAddress(t, record.Record.UDP, wire.ClusterID(cluster.ID), record.Record.Incarnation), result, cancel
}
