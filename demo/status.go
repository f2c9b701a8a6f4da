package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// status is the part of a node's status page that the demo looks at.
type status struct {
	Ready      string `json:"ready"`
	Durability string `json:"durability"`
	Shards     []struct {
		Logs []struct {
			Name           string `json:"name"`
			DroppedThrough uint64 `json:"dropped_through"`
		} `json:"logs"`
	} `json:"shard_status"`
}

func getStatus(ctx context.Context, addr string) (status, error) {
	var st status
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/btrlog/v1/status", nil)
	if err != nil {
		return st, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return st, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return st, fmt.Errorf("status page of %s: %s", addr, resp.Status)
	}
	return st, json.NewDecoder(resp.Body).Decode(&st)
}

// poll asks a node for its status until ok says so.
func poll(ctx context.Context, addr, what string, gone <-chan struct{}, ok func(status) bool) (status, error) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		st, err := getStatus(ctx, addr)
		if err == nil && ok(st) {
			return st, nil
		}
		select {
		case <-tick.C:
		case <-gone:
			return st, fmt.Errorf("the node at %s ended while the demo waited for %s", addr, what)
		case <-ctx.Done():
			return st, fmt.Errorf("waiting for %s at %s (last answer: %q, %v): %w", what, addr, st.Ready, err, context.Cause(ctx))
		}
	}
}

// ready waits until a node serves.
func ready(ctx context.Context, p *process, addr string) (status, error) {
	return poll(ctx, addr, p.name+" to be ready", p.done, func(st status) bool { return st.Ready == "ready" })
}

// dropped waits until a node has archived and dropped a log at least up to want, and returns up to where.
func dropped(ctx context.Context, name, addr, log string, want uint64) (uint64, error) {
	through := uint64(0)
	_, err := poll(ctx, addr, fmt.Sprintf("node %s to archive the log up to LSN %d", name, want), nil, func(st status) bool {
		for _, s := range st.Shards {
			for _, l := range s.Logs {
				if l.Name == log {
					through = l.DroppedThrough
				}
			}
		}
		return through >= want
	})
	return through, err
}
