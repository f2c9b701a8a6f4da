package btrlog

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/internal/wire"
)

// Paths of a node's HTTP port.
const (
	messagePath  = "/btrlog/v1/message"
	identityPath = "/btrlog/v1/identity"
)

// Bounds of what waits for HTTP per log and node (P15). Past them a message is dropped like a datagram; the protocol's
// timers send it again.
const (
	courierWorkers = 4
	courierItems   = 1024
	courierBytes   = 64 << 20
)

func (c *Client) makeHTTP() {
	// HTTP/2 with prior knowledge, and nothing else: the nodes speak it, and one connection per node carries all logs.
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	c.transport = &http.Transport{
		DialContext:         c.dialer.DialContext,
		Protocols:           &p,
		MaxIdleConnsPerHost: 2,
		IdleConnTimeout:     90 * time.Second,
		HTTP2:               &http.HTTP2Config{MaxReadFrameSize: 1 << 20, SendPingTimeout: 2 * time.Second, PingTimeout: 2 * time.Second},
	}
	c.http = &http.Client{Transport: c.transport}
}

// closeHTTP ends what makeHTTP began: no connection stays behind, whether or not it counts as idle yet.
func (c *Client) closeHTTP() {
	c.transport.CloseIdleConnections()
	c.dialer.CloseAll()
}

// parcel is one message for the HTTP path. body is shared between the nodes that get it and never written to.
type parcel struct {
	key  parcelKey
	head [wire.HeaderBytes]byte
	body []byte
}

// parcelKey tells whether the same message is under way already: then a repetition is dropped.
type parcelKey struct {
	kind wire.Kind
	a, b uint64
}

// courier carries messages of one endpoint to one node over HTTP.
type courier struct {
	c    *Client
	ctx  context.Context // ends with the endpoint
	node *node
	to   endpoint

	mu      sync.Mutex
	queue   []parcel
	bytes   int
	keys    map[parcelKey]struct{}
	workers int
}

func newCourier(ctx context.Context, c *Client, n *node, to endpoint) *courier {
	return &courier{c: c, ctx: ctx, node: n, to: to, keys: make(map[parcelKey]struct{})}
}

// send queues a parcel; replies go to the endpoint. It never blocks.
func (k *courier) send(p parcel) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, twice := k.keys[p.key]; twice || k.ctx.Err() != nil {
		return
	}
	if len(k.queue) >= courierItems || (k.bytes > 0 && k.bytes+len(p.body) > courierBytes) {
		return
	}
	k.keys[p.key] = struct{}{}
	k.queue = append(k.queue, p)
	k.bytes += len(p.body)
	if k.workers < courierWorkers {
		k.workers++
		if !k.c.spawn(k.work) {
			k.workers--
		}
	}
}

// message queues a message that is not shared between nodes.
func (k *courier) message(key parcelKey, m protocol.Message) error {
	var w wire.Writer
	w.Reset(nil, wire.MaxFrameBytes, k.c.cluster, 0)
	if err := w.Message(m); err != nil {
		return err
	}
	packet := w.Finish()
	p := parcel{key: key, body: packet[wire.HeaderBytes:]}
	copy(p.head[:], packet)
	k.send(p)
	return nil
}

func (k *courier) work() {
	for {
		k.mu.Lock()
		if len(k.queue) == 0 || k.ctx.Err() != nil {
			k.queue, k.bytes = nil, 0
			k.workers--
			k.mu.Unlock()
			return
		}
		p := k.queue[0]
		k.queue[0] = parcel{}
		k.queue = k.queue[1:]
		k.mu.Unlock()

		h, m, err := k.c.post(k.ctx, k.node, p.head[:], p.body, k.c.cfg.Timeout)

		k.mu.Lock()
		delete(k.keys, p.key)
		k.bytes -= len(p.body)
		k.mu.Unlock()
		switch {
		case err == nil:
			k.c.deliver(h, m, k.to)
		case k.ctx.Err() == nil:
			k.c.refreshSoon(k.node)
			k.c.log.Debug("btrlog: message not answered", "node", string(k.node.id), "kind", p.key.kind.String(), "error", err)
		}
	}
}

// silence bounds how long a peer makes no progress. A bound on the whole would make a large record unreadable over a slow
// path for ever, however often it is tried.
type silence struct {
	limit time.Duration
	timer *time.Timer
	body  io.Reader
}

func (s *silence) Read(p []byte) (int, error) {
	n, err := s.body.Read(p)
	s.timer.Reset(s.limit)
	return n, err
}

// post sends one packet in a frame and returns the one message that answers it. limit bounds the time without progress. err
// means that the outcome is unknown: every message may be sent again.
func (c *Client) post(ctx context.Context, n *node, head, body []byte, limit time.Duration) (wire.Header, protocol.Message, error) {
	p := n.place.Load()
	if p == nil {
		return wire.Header{}, nil, fmt.Errorf("the address of node %s is not known", n.id)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(limit, func() {
		cancel(fmt.Errorf("node %s at %s was silent for %v: %w", n.id, p.http, limit, context.DeadlineExceeded))
	})
	defer timer.Stop()
	prefix := make([]byte, 4, 4+len(head))
	binary.LittleEndian.PutUint32(prefix, uint32(len(head)+len(body)))
	prefix = append(prefix, head...)
	content := func() io.Reader {
		return &silence{limit, timer, io.MultiReader(bytes.NewReader(prefix), bytes.NewReader(body))}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+p.http+messagePath, content())
	if err != nil {
		return wire.Header{}, nil, err
	}
	req.ContentLength = int64(len(prefix) + len(body))
	req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(content()), nil }
	req.Header.Set("Content-Type", wire.FrameMediaType)
	resp, err := c.http.Do(req)
	if err != nil {
		return wire.Header{}, nil, because(ctx, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		if resp.StatusCode == http.StatusMisdirectedRequest {
			n.heed(errOtherCluster)
		}
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 512)) // only for the message
		return wire.Header{}, nil, fmt.Errorf("node %s at %s: %s: %s", n.id, p.http, resp.Status, bytes.TrimSpace(text))
	}
	h, m, err := wire.ReadMessage(&silence{limit, timer, resp.Body}, c.cluster, wire.MaxFrameBytes)
	n.heed(err)
	return h, m, because(ctx, err)
}

// because names the silence that ended a request, instead of the cancellation that it caused.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return cause
	}
	return err
}

// ask posts one message and returns the answer; limit bounds the time without progress.
func (c *Client) ask(ctx context.Context, n *node, m protocol.Message, limit time.Duration) (protocol.Message, error) {
	var w wire.Writer
	w.Reset(nil, wire.MaxFrameBytes, c.cluster, 0)
	if err := w.Message(m); err != nil {
		return nil, err
	}
	packet := w.Finish()
	_, reply, err := c.post(ctx, n, packet[:wire.HeaderBytes], packet[wire.HeaderBytes:], limit)
	if err != nil && ctx.Err() == nil {
		c.refreshSoon(n)
	}
	return reply, err
}

func isUnavailable(err error) bool {
	kind, _, _ := kindOf(err)
	return errors.Is(kind, ErrUnavailable)
}
