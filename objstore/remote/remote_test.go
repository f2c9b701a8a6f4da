package remote

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/btrlog/btrlog/objstore"
)

func TestContentRange(t *testing.T) {
	for h, want := range map[string]string{"bytes 0-9/100": "0 10 100", "bytes 99-99/100": "99 100 100", "bytes 100-99/100": "100 100 100",
		"": "bad", "bytes */100": "bad", "bytes 5-3/100": "bad", "bytes 0-100/100": "bad", "bytes -1-3/100": "bad", "items 0-9/100": "bad"} {
		from, to, size, err := ContentRange(h)
		got := fmt.Sprint(from, to, size)
		if err != nil {
			got = "bad"
		}
		if got != want {
			t.Errorf("%q: %s, %v; want %s", h, got, err, want)
		}
	}
}

func TestArrived(t *testing.T) {
	for _, c := range []struct {
		r              objstore.Range
		from, to, size int64
		want           error
	}{
		{objstore.Whole, 0, 10, 10, nil},
		{objstore.Whole, 0, 0, 0, nil},
		{objstore.Range{Offset: 2, Length: 3}, 2, 5, 10, nil},
		{objstore.Range{Offset: 2, Length: 30}, 2, 10, 10, nil},
		{objstore.Range{Offset: 2}, 2, 10, 10, nil},
		{objstore.Range{Offset: 2, Length: 3}, 0, 10, 10, objstore.ErrUnavailable},
		{objstore.Range{Offset: 2, Length: 3}, 2, 4, 10, objstore.ErrUnavailable},
		{objstore.Range{Offset: 10}, 10, 10, 10, objstore.ErrInvalid},
		{objstore.Range{Offset: 11, Length: 1}, 0, 10, 10, objstore.ErrInvalid},
	} {
		if kind, err := Arrived(c.r, c.from, c.to, c.size); kind != c.want || (err == nil) != (kind == nil) {
			t.Errorf("%+v: %v, %v", c, kind, err)
		}
	}
}

func TestBody(t *testing.T) {
	for _, c := range []struct {
		sent string
		want int64
		ok   bool
	}{{"12345", 5, true}, {"", 0, true}, {"1234", 5, false}, {"", 1, false}, {"123456", 5, false}} {
		b := NewBody("s", "k", io.NopCloser(strings.NewReader(c.sent)), c.want)
		got, err := io.ReadAll(b)
		if c.ok != (err == nil) || c.ok && string(got) != c.sent || !c.ok && !errors.Is(err, objstore.ErrUnavailable) {
			t.Errorf("%+v: %q, %v", c, got, err)
		}
	}
}

func TestTracker(t *testing.T) {
	long := strings.Repeat("x", 3*notFoundBytes)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/absent" {
			w.WriteHeader(http.StatusNotFound)
		}
		fmt.Fprint(w, "no such thing "+long)
	}))
	client := &http.Client{Transport: Tracker{Base: NewTransport()}}
	defer client.CloseIdleConnections()
	do := func(path string, most int) (*Fate, string, error) {
		ctx, f := TrackAtMost(t.Context(), most)
		for {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, srv.URL+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := client.Do(req)
			if err != nil {
				return f, "", err
			}
			body, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if most == 0 || err != nil {
				return f, string(body), err
			}
		}
	}
	f, body, err := do("/absent", 0)
	if err != nil || body != "no such thing "+long || !strings.HasPrefix(f.NotFound(), "no such thing") || len(f.NotFound()) != notFoundBytes || !f.Sent() {
		t.Errorf("%d bytes, %v; noted %d bytes, sent %v", len(body), err, len(f.NotFound()), f.Sent())
	}
	if f, _, err = do("/there", 0); err != nil || f.NotFound() != "" {
		t.Errorf("%q, %v", f.NotFound(), err)
	}
	if f, _, err = do("/there", 3); err == nil || f.requests.Load() != 4 || !strings.Contains(err.Error(), "3 requests") {
		t.Errorf("%d requests, %v", f.requests.Load(), err)
	}
	srv.Close()
	client.CloseIdleConnections() // a connection that was open may have taken the request with it
	if f, _, err = do("/there", 0); err == nil || f.Sent() {
		t.Errorf("sent %v to nobody, %v", f.Sent(), err)
	}
}
