package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/btrlog/btrlog/bench/load"
)

// etcd: three members, each a process of its own. Every put is in the synced write-ahead logs of two before it is answered, which is so unless
// unsafe-no-fsync is set. A log is a prefix of keys. The client talks to the leader, so that no put is forwarded.
func startEtcd(o *options, dir string) (*running, error) {
	r := &running{}
	var members []string
	ports := make([][2]int, 3)
	for i := range ports {
		for k := range ports[i] {
			var err error
			if ports[i][k], err = freePort(); err != nil {
				return nil, err
			}
		}
		members = append(members, fmt.Sprintf("m%d=http://127.0.0.1:%d", i, ports[i][1]))
	}
	var endpoints []string
	for i, p := range ports {
		m := etcdMember{fmt.Sprintf("m%d", i), filepath.Join(dir, fmt.Sprintf("m%d", i)), p[0], p[1], strings.Join(members, ",")}
		text, err := json.Marshal(m)
		if err != nil {
			return nil, err
		}
		// A member is ready when a majority is, so nobody waits for one of them here.
		if err := r.node(dir, o.self, nil, etcdRole, string(text)); err != nil {
			return nil, errors.Join(err, r.stop())
		}
		endpoints = append(endpoints, fmt.Sprintf("127.0.0.1:%d", p[0]))
	}
	for _, n := range r.nodes {
		if _, err := n.Line(); err != nil {
			return nil, errors.Join(err, r.stop())
		}
	}
	r.kind, r.words = "etcd", endpoints
	return r, nil
}

const etcdRole = "etcd-member"

type etcdMember struct {
	Name, Dir    string
	Client, Peer int
	Cluster      string
}

func serveEtcd(ctx context.Context, text string) error {
	var m etcdMember
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		return err
	}
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir, cfg.LogLevel, cfg.Logger = m.Name, m.Dir, "error", "zap"
	cfg.LogOutputs = []string{"stderr"}
	client, peer := url.URL{Scheme: "http", Host: fmt.Sprintf("127.0.0.1:%d", m.Client)}, url.URL{Scheme: "http", Host: fmt.Sprintf("127.0.0.1:%d", m.Peer)}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	cfg.InitialCluster = m.Cluster
	cfg.QuotaBackendBytes = 8 << 30 // what is put is never compacted in a run
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return err
	}
	defer e.Close()
	select {
	case <-e.Server.ReadyNotify():
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	fmt.Println("ready")
	select {
	case <-ctx.Done():
		return nil
	case err := <-e.Err():
		return err
	}
}

// underWay is how many appends of a peer are under way at most; what is above is refused.
const underWay = 8192

type etcdTarget struct {
	c       *clientv3.Client
	seq     atomic.Uint64
	pending chan struct{}
}

func connectEtcd(ctx context.Context, words []string) (load.Target, error) {
	c, err := clientv3.New(clientv3.Config{Endpoints: words, DialTimeout: 10 * time.Second})
	if err != nil {
		return nil, err
	}
	for _, endpoint := range words {
		s, err := c.Status(ctx, endpoint)
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}
		if s.Leader == s.Header.MemberId {
			c.SetEndpoints(endpoint)
			return &etcdTarget{c: c, pending: make(chan struct{}, underWay)}, nil
		}
	}
	return nil, errors.Join(errors.New("etcd has no leader"), c.Close())
}

func (t *etcdTarget) Open(context.Context, int) error { return nil }

func (t *etcdTarget) put(ctx context.Context, log int, value string) error {
	_, err := t.c.Put(ctx, fmt.Sprintf("log/%d/%016x", log, t.seq.Add(1)), value)
	return err
}

func (t *etcdTarget) Append(log int, record []byte, c load.Completion) error {
	select {
	case t.pending <- struct{}{}:
	default:
		return load.ErrRefused
	}
	value := string(record)
	go func() {
		err := t.put(context.Background(), log, value)
		<-t.pending
		c.Done(err)
	}()
	return nil
}

func (t *etcdTarget) Closed(ctx context.Context, count int, record []byte) ([]time.Duration, error) {
	value := string(record)
	return load.ClosedLoop(count, func() error { return t.put(ctx, 0, value) })
}

func (t *etcdTarget) Close() error { return t.c.Close() }
