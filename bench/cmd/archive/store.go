package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/btrlog/btrlog/objstore"
	"github.com/btrlog/btrlog/objstore/httpstore"
	"github.com/btrlog/btrlog/objstore/localdir"
)

// countsPath answers with the requests so far.
const countsPath = "/bench/counts"

// bucket is where a cluster is on an S3 server.
const bucket = "bench"

// counts are requests that arrived in front of the store, whatever became of them: "node PUT arch", "client GET pack", …
type counts map[string]int

func (c counts) since(old counts) counts {
	out := counts{}
	for k, n := range c {
		if n -= old[k]; n != 0 {
			out[k] = n
		}
	}
	return out
}

// sum adds what begins with prefix.
func (c counts) sum(prefix string) (n int) {
	for k, v := range c {
		if strings.HasPrefix(k, prefix) {
			n += v
		}
	}
	return n
}

// front is what a store process prints: where it is, for nodes and for clients, and for both behind the shaped link.
type front struct {
	Node, Client, ShapedNode, ShapedClient string
}

// storeProcess serves a store until its standard input ends: "dir:<path>", a directory on this machine, "http://…", another program's
// server, or "made:<bytes>", a log that is made up while it is read. It is a process of its own, so that its memory and its time are
// in nobody's figures, and it counts in front of the store.
func storeProcess(what string, rtt time.Duration, rate float64) error {
	var inner http.Handler
	kind, rest, _ := strings.Cut(what, ":")
	switch kind {
	case "dir":
		s, err := localdir.Open(rest, localdir.Options{})
		if err != nil {
			return err
		}
		inner = httpstore.Handler(s, "", httpstore.HandlerOptions{})
	case "made":
		s, err := newMade(rest)
		if err != nil {
			return err
		}
		inner = httpstore.Handler(s, "", httpstore.HandlerOptions{})
	default:
		u, err := url.Parse(what)
		if err != nil {
			return err
		}
		// The name that the client asked for is what it signed.
		inner = &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(u); r.Out.Host = r.In.Host },
			Transport:  &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true, WriteBufferSize: 64 << 10, ReadBufferSize: 64 << 10},
			BufferPool: copyBuffers{}}
	}
	var mu sync.Mutex
	c := counts{}
	serve := func(who string, l *link) (string, error) {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return "", err
		}
		srv := &http.Server{Protocols: new(http.Protocols), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			if r.URL.Path == countsPath {
				body, _ := json.Marshal(c) // a map of strings and numbers
				mu.Unlock()
				_, _ = w.Write(body)
				return
			}
			c[who+" "+describe(r)]++
			mu.Unlock()
			inner.ServeHTTP(w, r)
		})}
		srv.Protocols.SetHTTP1(true)
		srv.Protocols.SetUnencryptedHTTP2(true)
		go srv.Serve(shaped{listener, l})
		return "http://" + listener.Addr().String(), nil
	}
	wire := newLink(rtt, rate)
	var f front
	var errs [4]error
	f.Node, errs[0] = serve("node", nil)
	f.Client, errs[1] = serve("client", nil)
	f.ShapedNode, errs[2] = serve("node", wire)
	f.ShapedClient, errs[3] = serve("client", wire)
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(f); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// describe names a request by method, condition and the first part of its key.
func describe(r *http.Request) string {
	path := r.URL.EscapedPath()
	key, ok := strings.CutPrefix(path, httpstore.Path)
	if !ok {
		key, _ = strings.CutPrefix(path, "/"+bucket+"/")
	}
	if text, err := url.PathUnescape(key); err == nil {
		key = text
	}
	class, _, _ := strings.Cut(strings.TrimPrefix(key, "/"), "/")
	if class == "" || class == bucket || r.URL.Query().Has("list-type") {
		class = "list"
	}
	return fmt.Sprintf("%s %s", r.Method, class)
}

type copyBuffers struct{}

var proxied = sync.Pool{New: func() any { return make([]byte, 256<<10) }}

func (copyBuffers) Get() []byte  { return proxied.Get().([]byte) }
func (copyBuffers) Put(b []byte) { proxied.Put(b) }

var _ objstore.Store = (*made)(nil)
