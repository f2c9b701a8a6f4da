//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"time"

	"github.com/btrlog/btrlog/torture/history"
)

// window is a part of the run in which one thing was so: no fault, or one.
type window struct {
	Kind  kind
	Start int64 // ns of the histories' clock
	End   int64 // the settling included
	Fault int   // number in the plan, from 1; 0 of controls
	Logs  []*activeLog
}

// activeLog is a log of the workload.
type activeLog struct {
	Name    string
	owner   string // the client that writes it, or is about to
	Stopped int64  // when it was told to end; 0 while it is written
}

// trial is a run of the plan.
type trial struct {
	plan    plan
	cluster *cluster
	out     io.Writer
	members []string
	windows []window
	logs    []*activeLog
	active  []*activeLog
	began   int64
	stalls  []stall
}

const (
	createLimit = 30 * time.Second
	endLimit    = 30 * time.Second
	settleLimit = 60 * time.Second
	verifyLimit = 2 * time.Minute
)

func (t *trial) say(format string, args ...any) {
	fmt.Fprintf(t.out, "%7.1fs  %s\n", time.Duration(history.Now()-t.began).Seconds(), fmt.Sprintf(format, args...))
}

func (t *trial) wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// run goes through the plan, ends the workload, and has every log read whole by both clients.
func (t *trial) run(ctx context.Context) error {
	t.began = history.Now()
	t.members = slices.Clone(allNodes[:3])
	pr, err := startProbe(filepath.Join(t.cluster.dir, "probe"))
	if err != nil {
		return err
	}
	defer func() { t.stalls = pr.close() }()
	if err := t.rotate(ctx); err != nil {
		return err
	}
	if err := t.wait(ctx, time.Second); err != nil { // the first window is no start
		return err
	}
	for i, f := range t.plan.Faults {
		if err := t.window(control, 0, func() error { return t.wait(ctx, controlTime) }); err != nil {
			return err
		}
		t.say("fault %d: %v", i+1, f)
		err := t.window(f.Kind, i+1, func() error {
			over := time.Now().Add(f.For)
			began := time.Now()
			heal, err := t.hit(ctx, f)
			if err != nil {
				return err
			}
			hit := time.Since(began)
			if err := t.wait(ctx, time.Until(over)); err != nil {
				return err
			}
			began = time.Now()
			if err := heal(); err != nil {
				return err
			}
			// Of all-kill and of wiped disks the first is the time until everything runs again, of the others the second.
			t.say("fault %d: took %v to bring about, %v to take back", i+1, hit.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
			return t.wait(ctx, settleTime)
		})
		if err != nil {
			return fmt.Errorf("fault %d, %s: %w", i+1, f.Kind, err)
		}
		if f.Rotate {
			if err := t.rotate(ctx); err != nil {
				return err
			}
		}
	}
	if err := t.window(control, 0, func() error { return t.wait(ctx, controlTime) }); err != nil {
		return err
	}
	t.say("the workload ends; every log is read whole by both clients")
	return t.finish(ctx)
}

func (t *trial) window(k kind, number int, body func() error) error {
	w := window{Kind: k, Start: history.Now(), Fault: number, Logs: slices.Clone(t.active)}
	err := body()
	w.End = history.Now()
	t.windows = append(t.windows, w)
	return err
}

// rotate begins two logs, one written by each client and both read by both, and ends those before.
func (t *trial) rotate(ctx context.Context) error {
	old := t.active
	t.active = nil
	for i, client := range clients {
		l := &activeLog{Name: fmt.Sprintf("log-%03d", len(t.logs)+1), owner: client}
		create := command{Do: "create", Log: l.Name, Nodes: slices.Clone(t.members)}
		if err := t.cluster.clients[clients[i]].tell(ctx, createLimit, create); err != nil {
			return err
		}
		if err := t.cluster.clients[client].tell(ctx, createLimit, command{Do: "write", Log: l.Name}); err != nil {
			return err
		}
		t.logs = append(t.logs, l)
		t.active = append(t.active, l)
	}
	if err := t.cluster.each(clients, func(client string) error { return t.readAll(ctx, client) }); err != nil {
		return err
	}
	return t.end(ctx, old)
}

func (t *trial) readAll(ctx context.Context, client string) error {
	for _, l := range t.active {
		if err := t.cluster.clients[client].tell(ctx, createLimit, command{Do: "read", Log: l.Name}); err != nil {
			return err
		}
	}
	return nil
}

func (t *trial) end(ctx context.Context, logs []*activeLog) error {
	for _, l := range logs {
		l.Stopped = history.Now()
	}
	return t.cluster.each(clients, func(client string) error {
		for _, l := range logs {
			if err := t.cluster.clients[client].tell(ctx, endLimit, command{Do: "end", Log: l.Name}); err != nil {
				return err
			}
		}
		return nil
	})
}

// finish ends the workload and reads all logs.
func (t *trial) finish(ctx context.Context) error {
	if err := t.end(ctx, t.active); err != nil {
		return err
	}
	slots := make(chan struct{}, 4)
	names := make([]string, len(t.logs))
	for i, l := range t.logs {
		names[i] = l.Name
	}
	err := t.cluster.each(names, func(log string) error {
		slots <- struct{}{}
		defer func() { <-slots }()
		if err := t.cluster.clients[clients[0]].tell(ctx, settleLimit, command{Do: "settle", Log: log}); err != nil {
			return err
		}
		for _, client := range clients {
			if err := t.cluster.clients[client].tell(ctx, verifyLimit, command{Do: "verify", Log: log}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return t.cluster.each(clients, func(client string) error {
		return t.cluster.clients[client].tell(ctx, 10*time.Second, command{Do: "check"})
	})
}
