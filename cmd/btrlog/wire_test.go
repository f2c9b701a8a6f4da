package main_test

import (
	"bytes"
	"encoding/json"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/btrlog/btrlog/internal/node"
	"github.com/btrlog/btrlog/internal/wire"
)

// versionAt is where a packet has its version, in all versions (W2).
const versionAt = 4

// aged is a way to a real node on which every packet, in both directions, gets another version: the node looks like one of an older or newer
// release, and so does its client to it. It has one address for UDP and for HTTP, as a node does.
type aged struct {
	address string
	node    string       // host:port of the node
	version atomic.Int32 // −1: as it is
	udp     *net.UDPConn
	mu      sync.Mutex
	clients map[string]net.Conn // by the client's address
}

func newAged(t *testing.T) *aged {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a := &aged{address: l.Addr().String(), node: closedPort(t), clients: map[string]net.Conn{}}
	a.version.Store(-1)
	if a.udp, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(l.Addr().(*net.TCPAddr).AddrPort())); err != nil {
		t.Fatal(err)
	}
	var both http.Protocols
	both.SetHTTP1(true)
	both.SetUnencryptedHTTP2(true)
	var h2 http.Protocols
	h2.SetUnencryptedHTTP2(true)
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: a.node})
	proxy.ErrorLog = log.New(io.Discard, "", 0) // clients give up, which is what they are to do
	proxy.Transport = &http.Transport{Protocols: &h2}
	proxy.ModifyResponse = func(r *http.Response) error {
		if r.Request.URL.Path != node.MessagePath || r.StatusCode != http.StatusOK {
			return nil
		}
		body, err := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(a.age(body, 4)))
		return err
	}
	srv := &http.Server{Protocols: &both, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == node.MessagePath {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return // the client is gone
			}
			r.Body = io.NopCloser(bytes.NewReader(a.age(body, 4)))
		}
		proxy.ServeHTTP(w, r)
	})}
	go srv.Serve(l)
	go a.forward()
	t.Cleanup(func() {
		srv.Close()
		a.udp.Close()
		a.mu.Lock()
		defer a.mu.Unlock()
		for _, c := range a.clients {
			c.Close()
		}
	})
	return a
}

// age sets the version of the packet that begins at off.
func (a *aged) age(packet []byte, off int) []byte {
	if v := a.version.Load(); v >= 0 && len(packet) > off+versionAt {
		packet[off+versionAt] = byte(v)
	}
	return packet
}

// forward carries datagrams until the socket is closed.
func (a *aged) forward() {
	buf := make([]byte, 1<<16)
	for {
		n, client, err := a.udp.ReadFromUDP(buf)
		if err != nil {
			return
		}
		a.mu.Lock()
		c := a.clients[client.String()]
		if c == nil {
			if c, err = net.Dial("udp", a.node); err == nil {
				a.clients[client.String()] = c
				go a.back(c, client)
			}
		}
		a.mu.Unlock()
		if err == nil {
			_, _ = c.Write(a.age(buf[:n], 0)) // lost, as UDP may
		}
	}
}

func (a *aged) back(c net.Conn, client *net.UDPAddr) {
	buf := make([]byte, 1<<16)
	for {
		n, err := c.Read(buf)
		if err != nil && !strings.Contains(err.Error(), "refused") {
			return
		}
		_, _ = a.udp.WriteToUDP(a.age(buf[:n], 0), client) // lost, as UDP may
	}
}

// A node that speaks an older or a newer version of the protocol is not called silent: the message says which side is to be upgraded, nothing
// is written, and what was there is there.
func TestOtherVersions(t *testing.T) {
	t.Parallel()
	way, store, dir := newAged(t), storeURL(t), t.TempDir()
	nodeProcess(t, "n", filepath.Join(dir, "n"), store, "--listen", way.node, "--advertise", way.address)
	log := func(args ...string) []string { return append([]string{"log", "--store", store}, args...) }
	hasty := func(args ...string) []string { return append(log("--timeout", "1s"), args...) }
	good(t, "", log("create", "--n", "1", "l")...)
	good(t, "kept\n", log("append", "l")...)
	for version, who := range map[int]string{wire.Version + 1: "this program", wire.OldestVersion - 1: "the node"} {
		verbs := []string{"append", "cat", "fence"}
		if version > wire.Version {
			verbs = append(verbs, "info", "follow")
		}
		way.version.Store(int32(version))
		said := "n: speaks version " + strconv.Itoa(version) + " of the protocol, this program " + strconv.Itoa(wire.Version) + "; upgrade " + who + "\n"
		for _, verb := range verbs {
			res := run(t, "lost\n", hasty(verb, "l")...)
			bad(t, res, 1, `log "l": unavailable`, strings.TrimSuffix(said, "\n"))
			if strings.Contains(res.err, "no answer from") || strings.Contains(res.err, "start the missing") {
				t.Errorf("%s calls a node silent that answers: %q", verb, res.err)
			}
			if verb != "info" && res.out != "" {
				t.Errorf("%s prints %q", verb, res.out)
			}
		}
	}
	way.version.Store(-1)
	good(t, "next\n", log("append", "l")...)
	if got := good(t, "", log("cat", "--lines", "l")...); got != "kept\nnext\n" {
		t.Errorf("the log holds %q", got)
	}
	var s struct {
		Shards []struct {
			Counters struct{ OtherVersion int }
		} `json:"shard_status"`
	}
	nodeStatus(t, way.node, &s)
	if len(s.Shards) != 1 || s.Shards[0].Counters.OtherVersion == 0 {
		t.Errorf("the node counts no packet of another version: %+v", s)
	}
}

func nodeStatus(t *testing.T, address string, into any) {
	t.Helper()
	resp, err := http.Get("http://" + address + node.StatusPath)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
		t.Fatal(err)
	}
}

// At the address of a node a node of another cluster answers: it is told, and neither cluster is touched.
func TestWrongCluster(t *testing.T) {
	t.Parallel()
	dir, mine, other := t.TempDir(), storeURL(t), storeURL(t)
	at := closedPort(t)
	serve := func(id, store string) *process {
		p, _ := nodeProcess(t, id, filepath.Join(dir, id), store, "--listen", at)
		return p
	}
	log := func(args ...string) []string { return append([]string{"log", "--store", mine}, args...) }
	hasty := func(args ...string) []string { return append(log("--timeout", "1s"), args...) }
	p := serve("mine", mine)
	good(t, "", log("create", "--n", "1", "l")...)
	good(t, "kept\n", log("append", "l")...)
	p.end(syscall.SIGTERM)
	p = serve("other", other)
	for _, verb := range []string{"append", "cat", "fence"} {
		bad(t, run(t, "lost\n", hasty(verb, "l")...), 1, `log "l": unavailable`, "mine: a node of another cluster answers at its address")
	}
	res := run(t, "", "cluster", "status", "--store", mine, "--check")
	bad(t, res, 1, "1 of 1 node not well; 1 log under-protected")
	if !strings.Contains(res.out, "mine: node other with incarnation ") {
		t.Errorf("cluster status:\n%s", res.out)
	}
	if got := good(t, "", "log", "--store", other, "list"); got != "" {
		t.Errorf("the other cluster has logs:\n%s", got)
	}
	if res := p.end(syscall.SIGTERM); res.code != 0 {
		t.Errorf("the other node ended with code %d, stderr %q", res.code, res.err)
	}
	serve("mine", mine)
	good(t, "next\n", log("append", "l")...)
	if got := good(t, "", log("cat", "--lines", "l")...); got != "kept\nnext\n" {
		t.Errorf("the log holds %q", got)
	}
}
