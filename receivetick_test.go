package btrlog

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/internal/ring"
	"github.com/btrlog/btrlog/internal/wire"
)

// ticked is an endpoint that says when it was ticked.
type ticked struct {
	t  timer
	at chan struct{}
}

func (e *ticked) onAck(protocol.Time, wire.Header, *protocol.Ack)              {}
func (e *ticked) onMessage(protocol.Time, wire.Header, protocol.Message, bool) {}
func (e *ticked) settle(protocol.Time)                                         {}
func (e *ticked) tick(protocol.Time)                                           { close(e.at) }
func (e *ticked) clientClosed()                                                {}
func (e *ticked) timer() *timer                                                { return &e.t }

// A Sync that receives can be in the kernel for longer than a lost append may wait to be sent again: what is due by time is done beside it.
func TestTimersRunBesideASyncThatReceives(t *testing.T) {
	s, err := ring.Listen(netip.MustParseAddrPort("127.0.0.1:0"), ring.Config{})
	if err != nil {
		t.Fatal(err)
	}
	c := &Client{sock: s, begin: time.Now(), receiver: receiver{wake: make(chan struct{}, 1)}}
	c.ctx, c.cancel = context.WithCancelCause(t.Context())
	c.receiver.role.Lock() // as a Sync that receives has it
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.background()
	}()
	e := &ticked{at: make(chan struct{})}
	e.t = newTimer(e)
	c.arm(e, c.now())
	select {
	case <-e.at:
	case <-time.After(20 * time.Second):
		t.Error("what is due waits for a Sync that receives")
	}
	c.receiver.role.Unlock()
	c.cancel(nil)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Error("the receiver outlives its socket")
	}
}
