package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/btrlog/btrlog/bench/load"
)

// NATS JetStream: three servers, each a process of its own, streams with three replicas on files, sync_interval always. With "nats" every log
// is a stream; with "nats-one" all are subjects of one stream. The client talks to the server that leads the first stream.
func startNATS(o *options, dir string, oneStream bool) (*running, error) {
	r := &running{}
	var routes, urls []string
	ports := make([][2]int, 3)
	for i := range ports {
		for k := range ports[i] {
			var err error
			if ports[i][k], err = freePort(); err != nil {
				return nil, err
			}
		}
		routes = append(routes, fmt.Sprintf("nats://127.0.0.1:%d", ports[i][1]))
		urls = append(urls, fmt.Sprintf("nats://127.0.0.1:%d", ports[i][0]))
	}
	for i, p := range ports {
		text, err := json.Marshal(natsServer{fmt.Sprintf("s%d", i), filepath.Join(dir, fmt.Sprintf("s%d", i)), p[0], p[1], routes})
		if err != nil {
			return nil, err
		}
		if err := r.node(dir, o.self, nil, natsRole, string(text)); err != nil {
			return nil, errors.Join(err, r.stop())
		}
	}
	for _, n := range r.nodes {
		if _, err := n.Line(); err != nil {
			return nil, errors.Join(err, r.stop())
		}
	}
	r.kind, r.words = "nats", append([]string{strconv.FormatBool(oneStream)}, urls...)
	return r, nil
}

const natsRole = "nats-server"

type natsServer struct {
	Name, Dir       string
	Client, Cluster int
	Routes          []string
}

func serveNATS(ctx context.Context, text string) error {
	var n natsServer
	if err := json.Unmarshal([]byte(text), &n); err != nil {
		return err
	}
	opts := &server.Options{ServerName: n.Name, Host: "127.0.0.1", Port: n.Client, JetStream: true, StoreDir: n.Dir, SyncAlways: true, NoSigs: true,
		JetStreamMaxStore: 64 << 30, JetStreamMaxMemory: 1 << 30,
		Cluster: server.ClusterOpts{Name: "peers", Host: "127.0.0.1", Port: n.Cluster}}
	for _, r := range n.Routes {
		u, err := url.Parse(r)
		if err != nil {
			return err
		}
		opts.Routes = append(opts.Routes, u)
	}
	s, err := server.NewServer(opts)
	if err != nil {
		return err
	}
	go s.Start()
	defer s.Shutdown()
	if !s.ReadyForConnections(30 * time.Second) {
		return errors.New("the server was not ready within 30 s")
	}
	fmt.Println("ready")
	<-ctx.Done()
	return nil
}

type natsTarget struct {
	urls      []string
	oneStream bool
	conn      *nats.Conn
	js        jetstream.JetStream
	logs      int

	mu      sync.Mutex
	pending map[*nats.Msg]load.Completion
}

func connectNATS(ctx context.Context, words []string) (load.Target, error) {
	if len(words) < 2 {
		return nil, errors.New("nats wants a bool and URLs")
	}
	one, err := strconv.ParseBool(words[0])
	if err != nil {
		return nil, err
	}
	t := &natsTarget{urls: words[1:], oneStream: one, pending: map[*nats.Msg]load.Completion{}}
	return t, t.connect(t.urls[0])
}

func (t *natsTarget) connect(address string) (err error) {
	if t.conn, err = nats.Connect(address, nats.NoReconnect()); err != nil {
		return err
	}
	t.js, err = jetstream.New(t.conn, jetstream.WithPublishAsyncMaxPending(2*underWay),
		jetstream.WithPublishAsyncAckHandler(func(_ jetstream.JetStream, m *nats.Msg, _ *jetstream.PubAck) { t.done(m, nil) }),
		jetstream.WithPublishAsyncErrHandler(func(_ jetstream.JetStream, m *nats.Msg, err error) { t.done(m, err) }))
	return err
}

func (t *natsTarget) done(m *nats.Msg, err error) {
	t.mu.Lock()
	c := t.pending[m]
	delete(t.pending, m)
	t.mu.Unlock()
	if c != nil {
		c.Done(err)
	}
}

// askTime is how long one request waits: without a leader nobody answers it.
const askTime = 2 * time.Second

// leaderTime is what a cluster has to elect those who lead.
const leaderTime = 60 * time.Second

func (t *natsTarget) Open(ctx context.Context, logs int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, leaderTime, errors.New("NATS elected no leader in time"))
	defer cancel()
	first := t.logs == 0
	for ; t.logs < logs; t.logs++ {
		if t.oneStream && t.logs > 0 {
			continue
		}
		cfg := jetstream.StreamConfig{Name: fmt.Sprintf("log%d", t.logs), Subjects: []string{fmt.Sprintf("log.%d", t.logs)}, Replicas: 3, Storage: jetstream.FileStorage}
		if t.oneStream {
			cfg.Subjects = []string{"log.*"}
		}
		if err := t.create(ctx, cfg); err != nil {
			return err
		}
	}
	if !first {
		return nil
	}
	s, err := t.js.Stream(ctx, "log0")
	if err != nil {
		return err
	}
	info := s.CachedInfo()
	if info.Cluster == nil || len(info.Cluster.Leader) < 2 {
		return errors.New("the stream says no leader")
	}
	n, err := strconv.Atoi(info.Cluster.Leader[1:]) // s0, s1, s2
	if err != nil {
		return err
	}
	t.conn.Close()
	return t.connect(t.urls[n])
}

// create asks again while the cluster has no leader for its metadata.
func (t *natsTarget) create(ctx context.Context, cfg jetstream.StreamConfig) error {
	again := time.NewTicker(200 * time.Millisecond)
	defer again.Stop()
	for {
		once, cancel := context.WithTimeout(ctx, askTime)
		_, err := t.js.CreateOrUpdateStream(once, cfg)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

func (t *natsTarget) Append(log int, record []byte, c load.Completion) error {
	m := &nats.Msg{Subject: fmt.Sprintf("log.%d", log), Data: append([]byte(nil), record...)}
	t.mu.Lock()
	if len(t.pending) >= underWay {
		t.mu.Unlock()
		return load.ErrRefused
	}
	t.pending[m] = c
	t.mu.Unlock()
	if _, err := t.js.PublishMsgAsync(m); err != nil {
		t.mu.Lock()
		delete(t.pending, m)
		t.mu.Unlock()
		return err
	}
	return nil
}

func (t *natsTarget) Closed(ctx context.Context, count int, record []byte) ([]time.Duration, error) {
	return load.ClosedLoop(count, func() error {
		_, err := t.js.Publish(ctx, "log.0", record)
		return err
	})
}

func (t *natsTarget) Close() error { t.conn.Close(); return nil }
