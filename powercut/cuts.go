package main

import (
	"context"
	"fmt"
	"time"

	"github.com/btrlog/btrlog"
	"github.com/btrlog/btrlog/powercut/disk"
	"github.com/btrlog/btrlog/powercut/guest"
	"github.com/btrlog/btrlog/powercut/judge"
)

// kind is one way to take the power.
type kind string

const (
	// allCache: the three nodes' devices at one instant; what was not flushed is lost in part.
	allCache kind = "all-cache"
	// allFlakey: the same with dm-flakey: what the kernel had not written is lost, what it had written stays.
	allFlakey kind = "all-flakey"
	// allStore: as allCache, with the object store's device.
	allStore kind = "all-store"
	// oneCache and oneFlakey: one node; the others go on for a while. Then a second one is killed, and the log must be whole on the one
	// that was cut and the third.
	oneCache  kind = "one-cache"
	oneFlakey kind = "one-flakey"
	// plug: the virtual machine is killed with all its devices: kernel, page cache and everything in memory.
	plug kind = "plug"
	// plugTwice pulls it again while the nodes recover from the first time.
	plugTwice kind = "plug-twice"
	// memoryCache and memoryFlakey are controls: only a log of memory durability is written, to nodes that go through the page
	// cache. Its acknowledged records may be lost, and if none is, the cuts cut nothing.
	memoryCache  kind = "control-memory-cache"
	memoryFlakey kind = "control-memory-flakey"
	// lyingNodes is a control on devices that answer flushes without doing them. What it leaves behind is not used again.
	lyingNodes kind = "control-lying"
)

// nodeKinds is the order in which cuts of nodes come, again and again.
var nodeKinds = []kind{allCache, oneCache, plug, allStore, oneFlakey, allFlakey, plugTwice, allCache, oneCache, allStore}

// control says that the cut must lose something of the logs that are judged.
func (k kind) control() bool { return k == lyingNodes }

func (k kind) memory() bool { return k == memoryCache || k == memoryFlakey }

// nodeCut does one cut of nodes and brings everything up again. Its verdicts come with the next connect.
func (w *world) nodeCut(k kind, rec *record) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if k.memory() {
		if err := w.onlyControl(ctx, fmt.Sprintf("memory-%d", rec.N)); err != nil {
			return err
		}
	}
	if k == lyingNodes {
		for _, d := range nodeDevices {
			w.disks[d].SetLying(true)
		}
	}
	before := w.load.committed()
	w.load.run(w.rng.Uint64())
	// Cut when the load is under way: after a time, and at a request.
	if err := within(2*time.Minute, func() bool { return w.load.committed() > before+50 }); err != nil {
		return fmt.Errorf("the load does not get under way: %w", err)
	}
	w.pause(ctx, 200*time.Millisecond, 2*time.Second)
	rec.LoadRecords = w.load.committed() - before
	var err error
	switch k {
	case allCache, memoryCache, lyingNodes:
		err = w.cutDevices(rec, nodeDevices, []int{0, 1, 2})
	case allStore:
		err = w.cutDevices(rec, append(append([]string{}, nodeDevices...), storeDevice), []int{0, 1, 2})
	case allFlakey, memoryFlakey:
		err = w.cutFlakey(rec, nodeDevices, []int{0, 1, 2})
	case plug, plugTwice:
		err = w.pullPlug(rec, k == plugTwice)
	case oneCache, oneFlakey:
		err = w.cutOne(rec, k)
	}
	return err
}

// onlyControl puts a new log of memory durability in the place of the others, on nodes that all go through the page cache: nothing
// that is forced writes back what stands in front of it.
func (w *world) onlyControl(ctx context.Context, name string) error {
	if err := w.load.end(); err != nil {
		return err
	}
	names := nodeNames(0, 1, 2)
	if err := w.do(guest.Order{Do: guest.DoKill, Names: names}); err != nil {
		return err
	}
	if err := w.do(guest.Order{Do: guest.DoWait, Names: names}); err != nil {
		return err
	}
	w.buffered = true
	err := w.startNodes(0, 1, 2)
	w.buffered = false
	if err != nil {
		return err
	}
	if err := w.dial(ctx); err != nil {
		return err
	}
	if _, err := w.load.client.Create(ctx, name, btrlog.LogOptions{Durability: btrlog.Memory}); err != nil {
		return fmt.Errorf("create log %s: %w", name, err)
	}
	writer, err := w.load.client.OpenWriter(ctx, name, btrlog.WriterOptions{})
	if err != nil {
		return fmt.Errorf("open log %s: %w", name, err)
	}
	w.control = judge.NewLog(name, 1<<32+w.rng.Uint64N(1<<31))
	w.load.logs = []*loadedLog{{judge: w.control, w: writer}}
	return nil
}

// freeze stops devices at one instant: one of the first three at a request, if it comes soon, the others with it.
func (w *world) freeze(rec *record, devices []string) {
	first := w.disks[devices[w.rng.IntN(min(len(devices), len(nodeDevices)))]]
	rec.AtRequest = 1 + w.rng.IntN(24)
	atFlush := w.rng.IntN(4) > 0 // where the cache is not empty
	select {
	case <-first.FreezeAfter(rec.AtRequest, atFlush):
	case <-time.After(time.Second):
		rec.AtRequest = 0
	}
	var cut []*disk.Disk
	for _, d := range devices {
		cut = append(cut, w.disks[d])
	}
	rec.cutAt = time.Now()
	rec.Devices = append(rec.Devices, disk.CutAll(w.rng, cut...)...)
}

// cutDevices cuts devices of the host, with the nodes on them, and mounts what is left.
func (w *world) cutDevices(rec *record, devices []string, nodes []int) error {
	w.freeze(rec, devices)
	w.load.quiesce()
	names := nodeNames(nodes...)
	if err := w.do(guest.Order{Do: guest.DoKill, Names: names}); err != nil {
		return err
	}
	if err := w.load.end(); err != nil {
		return err
	}
	// A killed program that waits for the device ends as soon as that answers, and learns nothing from it.
	for _, d := range devices {
		w.disks[d].Release()
	}
	if err := w.do(guest.Order{Do: guest.DoWait, Names: names}); err != nil {
		return err
	}
	if err := w.unmount(devices...); err != nil {
		return err
	}
	for _, d := range devices {
		w.disks[d].PowerOn()
	}
	if err := w.mount(devices...); err != nil {
		return err
	}
	return w.startNodes(nodes...)
}

// cutFlakey cuts mapped devices of the guest.
func (w *world) cutFlakey(rec *record, devices []string, nodes []int) error {
	if err := w.dropWrites(rec, devices, nodes); err != nil {
		return err
	}
	if err := w.load.end(); err != nil {
		return err
	}
	if err := w.remountDropped(devices, nodes); err != nil {
		return err
	}
	return w.startNodes(nodes...)
}

func (w *world) dropWrites(rec *record, devices []string, nodes []int) error {
	rec.cutAt = time.Now()
	if err := w.do(guest.Order{Do: guest.DoSuspend, Names: devices}); err != nil {
		return err
	}
	w.load.quiesce()
	if err := w.do(guest.Order{Do: guest.DoKill, Names: nodeNames(nodes...)}); err != nil {
		return err
	}
	return w.do(guest.Order{Do: guest.DoDrop, Names: devices})
}

func (w *world) remountDropped(devices []string, nodes []int) error {
	if err := w.do(guest.Order{Do: guest.DoWait, Names: nodeNames(nodes...)}); err != nil {
		return err
	}
	if err := w.unmount(devices...); err != nil {
		return err
	}
	if err := w.do(guest.Order{Do: guest.DoPass, Names: devices}); err != nil {
		return err
	}
	return w.mount(devices...)
}

// pullPlug ends the machine, and starts it again; twice: it is ended a second time while it starts.
func (w *world) pullPlug(rec *record, twice bool) error {
	devices := append(append([]string{}, nodeDevices...), storeDevice, lstDevice)
	w.freeze(rec, devices)
	w.load.quiesce()
	if err := w.off(devices); err != nil {
		return err
	}
	if err := w.load.end(); err != nil {
		return err
	}
	if twice {
		if err := w.switchOn(); err != nil {
			return err
		}
		for i := range nodeDevices {
			if err := w.launch(i); err != nil {
				return err
			}
		}
		w.freeze(rec, devices)
		if err := w.off(devices); err != nil {
			return err
		}
	}
	return w.boot()
}

// off kills the machine, whose devices are silent, and makes them what the cut left.
func (w *world) off(devices []string) error {
	w.m.Kill()
	for _, d := range devices {
		w.disks[d].Release()
	}
	w.srv.Drop()
	if err := w.srv.Idle(func(cond func() bool) error { return within(20*time.Second, cond) }); err != nil {
		return fmt.Errorf("the machine is off and its devices are still used: %w", err)
	}
	for _, d := range devices {
		w.disks[d].PowerOn()
	}
	return nil
}

// cutOne cuts one node, lets the others go on, kills a second one, and brings the first one back.
func (w *world) cutOne(rec *record, k kind) error {
	x := w.rng.IntN(3)
	y := (x + 1 + w.rng.IntN(2)) % 3
	rec.Node, rec.Killed = nodeName(x), nodeName(y)
	devices, nodes := nodeDevices[x:x+1], []int{x}
	if k == oneCache {
		w.freeze(rec, devices)
	} else {
		if err := w.dropWrites(rec, devices, nodes); err != nil {
			return err
		}
	}
	at := w.load.committed()
	if err := within(2*time.Minute, func() bool { return w.load.committed() > at+100 }); err != nil {
		return fmt.Errorf("with %s cut the other two acknowledge nothing: %w", nodeName(x), err)
	}
	// The second one dies before the first comes back, so that what the first had acknowledged must be on its own disk.
	if err := w.do(guest.Order{Do: guest.DoKill, Names: nodeNames(x, y)}); err != nil {
		return err
	}
	if err := w.load.end(); err != nil {
		return err
	}
	if k == oneCache {
		w.disks[devices[0]].Release()
	}
	if k == oneFlakey {
		if err := w.remountDropped(devices, nodes); err != nil {
			return err
		}
	} else {
		if err := w.do(guest.Order{Do: guest.DoWait, Names: nodeNames(x)}); err != nil {
			return err
		}
		if err := w.unmount(devices...); err != nil {
			return err
		}
		w.disks[devices[0]].PowerOn()
		if err := w.mount(devices...); err != nil {
			return err
		}
	}
	if err := w.do(guest.Order{Do: guest.DoWait, Names: nodeNames(y)}); err != nil {
		return err
	}
	w.late = []int{y}
	return w.startNodes(x)
}
