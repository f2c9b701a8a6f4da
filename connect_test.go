package btrlog_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/btrlog/btrlog"
)

// A program that starts together with its cluster waits for a node that says that it is starting, and says why if that takes too long.
func TestConnectWaitsForStartingNode(t *testing.T) {
	var asked atomic.Int32
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) < 3 {
			http.Error(w, "the node is starting: recovering", http.StatusServiceUnavailable)
			return
		}
		http.Error(w, "another kind of trouble", http.StatusTeapot)
	}))
	srv.Config.Protocols = new(http.Protocols)
	srv.Config.Protocols.SetUnencryptedHTTP2(true) // what nodes speak
	srv.Start()
	defer srv.Close()
	address := strings.TrimPrefix(srv.URL, "http://")
	_, err := btrlog.Connect(t.Context(), btrlog.Config{Nodes: []string{address}})
	if !errors.Is(err, btrlog.ErrUnavailable) || !strings.Contains(err.Error(), "another kind of trouble") || asked.Load() != 3 {
		t.Errorf("asked %d times: %v", asked.Load(), err)
	}

	asked.Store(-1 << 30)
	ctx, done := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer done()
	_, err = btrlog.Connect(ctx, btrlog.Config{Nodes: []string{address}})
	if !errors.Is(err, btrlog.ErrUnavailable) || !strings.Contains(err.Error(), "the node is starting: recovering") {
		t.Errorf("with a deadline: %v", err)
	}
}
