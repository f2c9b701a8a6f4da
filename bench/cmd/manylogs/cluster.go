package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/btrlog/btrlog"
	"github.com/btrlog/btrlog/objstore/httpstore"
	"github.com/btrlog/btrlog/objstore/memory"
)

// storeRole makes this program the object store's process.
const storeRole = "store-process"

// countsPath answers with the number of requests by method, condition and kind of key, and of each log's record.
const countsPath = "/manylogs/counts"

// counts are requests that arrived in front of the store, whatever became of them. Clients have a port of their own.
type counts struct {
	Total  map[string]int            `json:"total"`   // "client PUT if-match logs", "node PUT if-absent arch", …
	PerLog map[string]map[string]int `json:"per_log"` // of clients: name of the log, then "swaps" (PUT with If-Match) and "reads"
}

// storeProcess serves a store in memory until its standard input ends. It is a process of its own, so that its memory is in
// nobody's figures, and it counts in front of the store.
func storeProcess() {
	nodes, err1 := net.Listen("tcp", "127.0.0.1:0")
	clients, err2 := net.Listen("tcp", "127.0.0.1:0")
	if err := errors.Join(err1, err2); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	var mu sync.Mutex
	c := counts{Total: map[string]int{}, PerLog: map[string]map[string]int{}}
	inner := httpstore.Handler(memory.New(memory.Options{}), "", httpstore.HandlerOptions{})
	handler := func(who string, w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		if r.URL.Path == countsPath {
			body, _ := json.Marshal(c) // maps of strings and numbers
			mu.Unlock()
			_, _ = w.Write(body)
			return
		}
		c.note(who, r)
		mu.Unlock()
		inner.ServeHTTP(w, r)
	}
	for who, l := range map[string]net.Listener{"node": nodes, "client": clients} {
		srv := &http.Server{Protocols: new(http.Protocols), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handler(who, w, r) })}
		srv.Protocols.SetHTTP1(true)
		srv.Protocols.SetUnencryptedHTTP2(true)
		go srv.Serve(l)
	}
	fmt.Printf("http://%s http://%s\n", nodes.Addr(), clients.Addr())
	_, _ = io.Copy(io.Discard, os.Stdin)
}

func (c *counts) note(who string, r *http.Request) {
	key, err := url.PathUnescape(strings.TrimPrefix(r.URL.EscapedPath(), httpstore.Path))
	if err != nil {
		key = r.URL.Path
	}
	what := r.Method
	if r.Header.Get("If-None-Match") != "" {
		what += " if-absent"
	} else if r.Header.Get("If-Match") != "" {
		what += " if-match"
	}
	class, rest, _ := strings.Cut(key, "/")
	if key == "" {
		class = "list"
	}
	c.Total[who+" "+what+" "+class]++
	if class != "logs" || who != "client" {
		return
	}
	name := strings.TrimSuffix(rest, ".json")
	if c.PerLog[name] == nil {
		c.PerLog[name] = map[string]int{}
	}
	switch {
	case strings.HasSuffix(what, "if-match"):
		c.PerLog[name]["swaps"]++
	case r.Method == http.MethodGet:
		c.PerLog[name]["reads"]++
	default:
		c.PerLog[name]["others"]++
	}
}

// since returns what came after an earlier look.
func (c *counts) since(old *counts) *counts {
	out := &counts{Total: map[string]int{}, PerLog: map[string]map[string]int{}}
	for k, n := range c.Total {
		if n -= old.Total[k]; n != 0 {
			out.Total[k] = n
		}
	}
	for name, m := range c.PerLog {
		out.PerLog[name] = map[string]int{}
		for k, n := range m {
			out.PerLog[name][k] = n - old.PerLog[name][k]
		}
	}
	return out
}

// cluster is the processes.
type cluster struct {
	storeURL  string
	clientURL string
	nodes     []*nodeProcess
	stops     []func()
}

type nodeProcess struct {
	id, dir, address string
	cmd              *exec.Cmd
}

func (o *options) start(ctx context.Context, nodes, shards int) (*cluster, error) {
	c := &cluster{}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	store := exec.Command(self, storeRole)
	input, err1 := store.StdinPipe()
	output, err2 := store.StdoutPipe()
	if err := errors.Join(err1, err2, store.Start()); err != nil {
		return nil, err
	}
	c.stops = append(c.stops, func() { input.Close(); _ = store.Wait() })
	line, err := bufio.NewReader(output).ReadString('\n')
	if err != nil {
		return nil, errors.Join(err, c.stop())
	}
	if _, err := fmt.Sscan(line, &c.storeURL, &c.clientURL); err != nil {
		return nil, errors.Join(err, c.stop())
	}
	for i := range nodes {
		n := &nodeProcess{id: fmt.Sprintf("n%d", i+1)}
		n.dir = filepath.Join(o.dir, n.id)
		n.cmd = exec.CommandContext(ctx, o.binary, "node", "--id", n.id, "--dir", n.dir, "--listen", "127.0.0.1:0", "--store", c.storeURL,
			"--shards", strconv.Itoa(shards), "--json")
		n.cmd.Stderr = os.Stderr
		out, err := n.cmd.StdoutPipe()
		if err == nil {
			err = n.cmd.Start()
		}
		if err != nil {
			return nil, errors.Join(err, c.stop())
		}
		c.stops = append(c.stops, func() {
			_ = n.cmd.Process.Signal(syscall.SIGTERM)
			_ = n.cmd.Wait()
		})
		var ready struct{ Address string }
		if err := json.NewDecoder(out).Decode(&ready); err != nil {
			return nil, errors.Join(fmt.Errorf("node %s: %w", n.id, err), c.stop())
		}
		n.address = ready.Address
		c.nodes = append(c.nodes, n)
	}
	return c, nil
}

// begin starts three nodes and connects a client to them. The caller closes the client, then stops the cluster.
func (o *options) begin(ctx context.Context) (*cluster, *btrlog.Client, error) {
	c, err := o.start(ctx, 3, o.shards)
	if err != nil {
		return nil, nil, err
	}
	client, err := c.connect(ctx)
	if err != nil {
		return nil, nil, errors.Join(err, c.stop())
	}
	return c, client, nil
}

func (c *cluster) stop() error {
	for i := len(c.stops) - 1; i >= 0; i-- {
		c.stops[i]()
	}
	return nil
}

func (c *cluster) connect(ctx context.Context) (*btrlog.Client, error) {
	return btrlog.Connect(ctx, btrlog.Config{StoreURL: c.clientURL, Name: "manylogs", Timeout: time.Minute})
}

func get(address, path string) ([]byte, error) {
	resp, err := http.Get("http://" + address + path)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s%s: %s", address, path, resp.Status)
	}
	return body, err
}

// requests looks at the counts in front of the store.
func (c *cluster) requests() (*counts, error) {
	body, err := get(strings.TrimPrefix(c.storeURL, "http://"), countsPath)
	if err != nil {
		return nil, err
	}
	out := new(counts)
	return out, json.Unmarshal(body, out)
}

// metrics returns a node's metrics as it writes them: "name{labels}" to value.
func (n *nodeProcess) metrics() (map[string]float64, error) {
	body, err := get(n.address, "/metrics")
	if err != nil {
		return nil, err
	}
	out := map[string]float64{}
	for line := range strings.Lines(string(body)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		i := strings.LastIndexByte(strings.TrimSpace(line), ' ')
		if v, err := strconv.ParseFloat(strings.TrimSpace(line[i+1:]), 64); err == nil {
			out[line[:i]] = v
		}
	}
	return out, nil
}

// shards returns in which shard each log is.
func (n *nodeProcess) shards() (map[string]int, error) {
	body, err := get(n.address, "/btrlog/v1/status")
	if err != nil {
		return nil, err
	}
	var s struct {
		Shards []struct {
			Shard int
			Logs  []struct{ Name string }
		} `json:"shard_status"`
	}
	if err := json.Unmarshal(body, &s); err != nil {
		return nil, err
	}
	out := map[string]int{}
	for _, sh := range s.Shards {
		for _, l := range sh.Logs {
			out[l.Name] = sh.Shard
		}
	}
	return out, nil
}

// memoryOf reads a process's resident memory and its peak, in bytes.
func memoryOf(pid int) (resident, peak int64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		kb, _ := strconv.ParseInt(fields[1], 10, 64)
		switch fields[0] {
		case "VmRSS:":
			resident = kb << 10
		case "VmHWM:":
			peak = kb << 10
		}
	}
	return resident, peak, nil
}

// processorTime reads how long a process has run on a processor. The kernel counts in hundredths of a second.
func processorTime(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat: %q", pid, text)
	}
	user, err1 := strconv.ParseInt(fields[11], 10, 64)
	system, err2 := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * 10 * time.Millisecond, errors.Join(err1, err2)
}

// segmentFiles counts the files of the engine below a node's directory, by shard.
func (n *nodeProcess) segmentFiles() (map[string]int, error) {
	out := map[string]int{}
	files, err := filepath.Glob(filepath.Join(n.dir, "shard-*", "*.lst"))
	for _, f := range files {
		out[filepath.Base(filepath.Dir(f))]++
	}
	return out, err
}

// each runs f for 0 to n−1, some at a time, and returns the first error.
func each(ctx context.Context, n, width int, f func(i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan int)
	var wg sync.WaitGroup
	for range width {
		wg.Go(func() {
			for i := range next {
				if err := f(i); err != nil {
					cancel(err)
				}
			}
		})
	}
	for i := 0; i < n && ctx.Err() == nil; i++ {
		select {
		case next <- i:
		case <-ctx.Done():
		}
	}
	close(next)
	wg.Wait()
	return context.Cause(ctx)
}
