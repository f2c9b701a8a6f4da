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

const messagePath = "/btrlog/v1/message"

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
		Protocols:           &p,
		MaxIdleConnsPerHost: 2,
		IdleConnTimeout:     90 * time.Second,
		HTTP2:               &http.HTTP2Config{MaxReadFrameSize: 1 << 20, SendPingTimeout: 2 * time.Second, PingTimeout: 2 * time.Second},
	}
	c.http = &http.Client{Transport: c.transport}
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

		ctx, cancel := context.WithTimeout(k.ctx, k.c.cfg.Timeout)
		h, m, err := k.c.post(ctx, k.node, p.head[:], p.body)
		cancel()

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

// post sends one packet in a frame and returns the one message that answers it. err means that the outcome is unknown:
// every message may be sent again.
func (c *Client) post(ctx context.Context, n *node, head, body []byte) (wire.Header, protocol.Message, error) {
	p := n.place.Load()
	if p == nil {
		return wire.Header{}, nil, fmt.Errorf("the address of node %s is not known", n.id)
	}
	prefix := make([]byte, 4, 4+len(head))
	binary.LittleEndian.PutUint32(prefix, uint32(len(head)+len(body)))
	prefix = append(prefix, head...)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+p.http+messagePath, io.MultiReader(bytes.NewReader(prefix), bytes.NewReader(body)))
	if err != nil {
		return wire.Header{}, nil, err
	}
	req.ContentLength = int64(len(prefix) + len(body))
	req.GetBody = func() (io.ReadCloser, error) {
		return io.NopCloser(io.MultiReader(bytes.NewReader(prefix), bytes.NewReader(body))), nil
	}
	req.Header.Set("Content-Type", wire.FrameMediaType)
	resp, err := c.http.Do(req)
	if err != nil {
		return wire.Header{}, nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 512)) // only for the message
		return wire.Header{}, nil, fmt.Errorf("node %s at %s: %s: %s", n.id, p.http, resp.Status, bytes.TrimSpace(text))
	}
	return wire.ReadMessage(resp.Body, c.cluster, wire.MaxFrameBytes)
}

// ask posts one message and returns the answer.
func (c *Client) ask(ctx context.Context, n *node, m protocol.Message) (protocol.Message, error) {
	var w wire.Writer
	w.Reset(nil, wire.MaxFrameBytes, c.cluster, 0)
	if err := w.Message(m); err != nil {
		return nil, err
	}
	packet := w.Finish()
	_, reply, err := c.post(ctx, n, packet[:wire.HeaderBytes], packet[wire.HeaderBytes:])
	if err != nil && ctx.Err() == nil {
		c.refreshSoon(n)
	}
	return reply, err
}

func isUnavailable(err error) bool {
	kind, _, _ := kindOf(err)
	return errors.Is(kind, ErrUnavailable)
}
