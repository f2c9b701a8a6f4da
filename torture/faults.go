//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/btrlog/btrlog/torture/fabric"
)

// takeoverAfter is how long after a client has failed the other host opens its logs: somebody has to notice.
const takeoverAfter = 300 * time.Millisecond

// replaceLimit is how long all logs together may take to adopt or replace a node.
const replaceLimit = 60 * time.Second

// hit brings a fault about. heal takes it back, and returns when the parts run again.
func (t *trial) hit(ctx context.Context, f fault) (heal func() error, err error) {
	c, net := t.cluster, t.cluster.net
	var hosts []*host
	for _, n := range f.Nodes {
		hosts = append(hosts, net.byName[n])
	}
	cut := fabric.Conditions{Cut: true}
	switch f.Kind {
	case nodeKill, nodeKillTakeover, allKill:
		// All get the signal before anybody is waited for.
		if err := c.each(f.Nodes, func(n string) error { c.nodes[n].kill(); return nil }); err != nil {
			return nil, err
		}
		restart := func() error {
			return c.each(f.Nodes, func(n string) error { return c.startNode(ctx, n) })
		}
		switch f.Kind {
		case allKill:
			return nothing, restart()
		case nodeKillTakeover:
			if err := t.wait(ctx, f.For/4); err != nil {
				return nil, err
			}
			t.takeAll("")
		}
		return restart, nil
	case nodePause, quorumPause:
		for _, n := range f.Nodes {
			c.nodes[n].process().pause()
		}
		return func() error {
			for _, n := range f.Nodes {
				c.nodes[n].process().resume()
			}
			return nil
		}, nil
	case nodeCut:
		net.set(hosts[0], cut)
		return func() error { net.set(hosts[0], fabric.Conditions{}); return nil }, nil
	case nodeDeaf, nodeMute:
		err := net.cut(ctx, hosts[0], f.Kind == nodeDeaf, f.Kind == nodeMute)
		return func() error { return net.cut(ctx, hosts[0], false, false) }, err
	case roughNetwork:
		net.set(nil, f.Rough)
		return func() error { net.set(nil, fabric.Conditions{}); return nil }, nil
	case duel, flapping, storm:
		net.set(nil, f.Rough)
		if f.Kind == storm {
			c.nodes[f.Nodes[0]].kill()
		}
		return func() error {
			net.set(nil, fabric.Conditions{})
			if f.Kind == storm {
				return c.startNode(ctx, f.Nodes[0])
			}
			return nil
		}, t.steps(ctx, f)
	case storeCut:
		net.set(net.byName["store"], cut)
		return func() error { net.set(net.byName["store"], fabric.Conditions{}); return nil }, nil
	case clientCut:
		h := net.byName[f.Client]
		net.set(h, cut)
		return func() error { net.set(h, fabric.Conditions{}); return nil }, t.afterClient(ctx, f.Client)
	case clientPause:
		p := c.clients[f.Client].process()
		p.pause()
		return func() error { p.resume(); return nil }, t.afterClient(ctx, f.Client)
	case clientKill:
		c.clients[f.Client].kill()
		return func() error {
			if err := c.startClient(ctx, f.Client); err != nil {
				return err
			}
			return t.readAll(ctx, f.Client)
		}, t.afterClient(ctx, f.Client)
	case takeover:
		t.takeAll("")
		return nothing, nil
	case wipeAdopt, wipeReplace, wipePause:
		return nothing, t.wipe(ctx, f)
	case diskFull:
		n := c.nodes[f.Nodes[0]]
		if err := n.fill(); err != nil {
			return nil, err
		}
		return func() error {
			if err := n.free(); err != nil {
				return err
			}
			return t.bulk(ctx, false)
		}, t.bulk(ctx, true)
	case clockJump:
		n := c.nodes[f.Nodes[0]]
		if err := n.process().clock.set(f.Jump); err != nil {
			return nil, fmt.Errorf("move the clock of %s: %w", f.Nodes[0], err)
		}
		return func() error { return n.process().clock.set(0) }, nil
	}
	return nil, fmt.Errorf("no such fault: %s", f.Kind)
}

// steps goes through the steps of a fault.
func (t *trial) steps(ctx context.Context, f fault) error {
	began := time.Now()
	for _, s := range f.Steps {
		if err := t.wait(ctx, time.Until(began.Add(s.After))); err != nil {
			return err
		}
		switch {
		case s.Both:
			for _, l := range t.active {
				for _, client := range clients {
					t.later(client, command{Do: "write", Log: l.Name})
				}
			}
		case s.Take:
			t.takeAll("")
		default:
			cond := f.Rough
			cond.Cut = s.Cut
			t.cluster.net.sw.Set(t.cluster.net.byName[s.From].port, t.cluster.net.byName[s.To].port, cond)
		}
	}
	return nil
}

func nothing() error { return nil }

// afterClient has the other host take over what a client that failed wrote.
func (t *trial) afterClient(ctx context.Context, client string) error {
	if err := t.wait(ctx, takeoverAfter); err != nil {
		return err
	}
	t.takeAll(client)
	return nil
}

// takeAll moves the logs of one client, or all, to the other client. It does not wait for the opens.
func (t *trial) takeAll(from string) {
	for _, l := range t.active {
		if from != "" && l.owner != from {
			continue
		}
		old := l.owner
		l.owner = other(old)
		// Told without waiting: the one that loses the log may be paused or dead.
		t.later(l.owner, command{Do: "write", Log: l.Name})
		t.later(old, command{Do: "yield", Log: l.Name})
	}
}

func other(client string) string {
	if client == clients[0] {
		return clients[1]
	}
	return clients[0]
}

// later gives a command whose answer says nothing.
func (t *trial) later(client string, cmd command) {
	ch := t.cluster.clients[client]
	if !ch.process().alive() {
		return
	}
	ch.send(time.Minute, cmd)
}

// wipe removes a node's directory, as a disk that is gone, and restores what the logs have lost of their redundancy by the
// product's own means before it returns: at most one disk is gone at a time, less than the write quorum.
func (t *trial) wipe(ctx context.Context, f fault) error {
	name := f.Nodes[0]
	n := t.cluster.nodes[name]
	n.kill()
	if err := os.RemoveAll(n.dir); err != nil {
		return err
	}
	if f.Kind == wipePause {
		// Of three nodes one knows nothing and one is silent: a takeover must wait, whatever the empty node says.
		paused := t.cluster.nodes[f.Nodes[1]].process()
		paused.pause()
		defer paused.resume()
	}
	to := name
	if f.Kind == wipeReplace {
		to = f.To
	} else if err := t.cluster.startNode(ctx, name); err != nil {
		return err
	}
	if f.Kind == wipePause {
		t.takeAll("")
		if err := t.wait(ctx, f.For/2); err != nil {
			return err
		}
		t.cluster.nodes[f.Nodes[1]].process().resume()
	}
	// Each active log by its writer, where it is open; the others by a writer for the purpose.
	byClient := map[string][]string{}
	for _, l := range t.logs {
		byClient[l.owner] = append(byClient[l.owner], l.Name)
	}
	err := t.cluster.each(clients, func(client string) error {
		if len(byClient[client]) == 0 {
			return nil
		}
		return t.cluster.clients[client].tell(ctx, replaceLimit, command{Do: "replace", Logs: byClient[client], From: name, To: to})
	})
	if err != nil {
		return fmt.Errorf("replace %s by %s: %w", name, to, err)
	}
	if f.Kind == wipeReplace {
		for i, m := range t.members {
			if m == name {
				t.members[i] = to
			}
		}
		return t.cluster.startNode(ctx, name)
	}
	return nil
}

func (t *trial) bulk(ctx context.Context, on bool) error {
	return t.cluster.each(clients, func(client string) error {
		return t.cluster.clients[client].tell(ctx, 10*time.Second, command{Do: "bulk", On: on})
	})
}
