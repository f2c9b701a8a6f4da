// Command powercut takes the power from log nodes under load and compares what is there afterwards with what was acknowledged.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"
)

func main() {
	var set settings
	var nodes, engine int
	flag.StringVar(&set.dir, "dir", "", "directory for sockets and temporary files (required)")
	flag.StringVar(&set.kernel, "kernel", "", "directory with an unpacked linux-image package (required)")
	flag.StringVar(&set.agent, "agent", "", "the agent's binary (required)")
	flag.StringVar(&set.btrlog, "btrlog", "", "the node's binary (required)")
	flag.StringVar(&set.out, "out", "powercut.jsonl", "file for one JSON line for each cut")
	flag.StringVar(&set.fs, "fs", "ext4", "file system of all devices: ext4 or xfs")
	flag.Uint64Var(&set.seed, "seed", 1, "of everything that is drawn")
	flag.IntVar(&nodes, "nodes", 40, "cuts of nodes")
	flag.IntVar(&engine, "engine", 24, "cuts of the storage engine alone")
	flag.IntVar(&set.memory, "memory", 1024, "MiB of memory of the virtual machine")
	flag.Parse()
	ok, err := run(set, nodes, engine)
	if err != nil {
		fmt.Fprintln(os.Stderr, "powercut:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

func run(set settings, nodes, engine int) (ok bool, err error) {
	if err := os.MkdirAll(set.dir, 0o755); err != nil {
		return false, err
	}
	w, err := newWorld(set)
	if err != nil {
		return false, err
	}
	defer w.close()
	if w.out, err = newRecords(set.out); err != nil {
		return false, err
	}
	fmt.Printf("powercut: seed %d, %s, %d cuts of nodes, %d of the storage engine; console %s, records %s\n", set.seed, set.fs, nodes, engine, w.m.Console(), set.out)
	if err := w.boot(); err != nil {
		return false, err
	}
	n := 0
	// The control that breaks the nodes comes last, behind what must hold.
	err = w.nodeCuts(nodeCutPlan(nodes), &n)
	if err == nil {
		err = w.engineCuts(engine, &n)
	}
	if err == nil && nodes > 0 {
		err = w.nodeCuts([]kind{lyingNodes}, &n)
	}
	fmt.Println()
	w.out.table(os.Stdout)
	ok = err == nil && w.out.ok()
	fmt.Println(w.out.summary(ok))
	return ok, err
}

// nodeCutPlan is count cuts and the controls that break nothing.
func nodeCutPlan(count int) []kind {
	var plan []kind
	for i := range count {
		plan = append(plan, nodeKinds[i%len(nodeKinds)])
	}
	if count > 0 {
		plan = append(plan, memoryCache, memoryFlakey)
	}
	return plan
}

// nodeCuts cuts, and judges each cut with the takeover that follows it.
func (w *world) nodeCuts(plan []kind, n *int) error {
	if len(plan) == 0 {
		return nil
	}
	ctx := context.Background()
	if _, _, err := w.connect(ctx, true); err != nil {
		return err
	}
	for i, k := range plan {
		*n++
		rec := &record{N: *n, Seed: w.set.seed, Kind: string(k), Control: k.control(), Time: time.Now()}
		err := w.nodeCut(k, rec)
		if err == nil {
			rec.Verdicts, rec.Memory, err = w.connect(ctx, i == len(plan)-1)
		}
		if err == nil && w.late != nil {
			err = w.startNodes(w.late...)
			w.late = nil
		}
		if err := w.finish(rec, err); err != nil {
			return err
		}
	}
	return w.load.end()
}

func (w *world) engineCuts(count int, n *int) error {
	plan := make([]engineCut, 0, count)
	for i := range count {
		plan = append(plan, engineKinds[i%len(engineKinds)])
	}
	if count > 0 {
		plan = append(plan, engineControls...)
	}
	for i := range plan {
		e := &plan[i]
		*n++
		rec := &record{N: *n, Seed: w.set.seed, Kind: e.name(), Control: e.control(), Time: time.Now()}
		err := w.engineCut(e, rec)
		if err := w.finish(rec, err); err != nil {
			return err
		}
	}
	return nil
}

// finish notes a cut and says so. An error is one of the whole run.
func (w *world) finish(rec *record, err error) error {
	rec.TookMS = time.Since(rec.Time).Milliseconds()
	if err != nil {
		rec.Error = err.Error()
		rec.Refused = rec.Control && errors.Is(err, errRefused)
	}
	if e := w.out.add(rec); e != nil {
		return errors.Join(err, e)
	}
	word := "ok"
	if !rec.ok() {
		word = "FAILED"
	}
	switch {
	case rec.Refused:
		word = "refused: a loss, as it must be"
	case rec.Control && rec.lost() > 0:
		word = "lost, as it must"
	case rec.Control:
		word = "FAILED: nothing lost"
	}
	fmt.Printf("%3d %-34s %s load=%d", rec.N, rec.Kind, word, rec.LoadRecords)
	for _, v := range rec.Verdicts {
		fmt.Printf("  %s: lost=%d kept=%d/%d compared=%d", v.Name, v.Lost, v.Kept, v.Unknown, v.Compared)
		if v.Soft > 0 {
			fmt.Printf(" soft_lost=%d oldest=%.0fms", v.SoftLost, v.SoftOldestMS)
		}
	}
	if rec.Memory != nil {
		fmt.Printf("  memory: lost=%d of %d", rec.Memory.Lost, rec.Memory.Acknowledged)
	}
	fmt.Printf("  (%.1fs)\n", float64(rec.TookMS)/1000)
	for _, v := range rec.Verdicts {
		for _, p := range v.Problems {
			if !rec.Control {
				fmt.Printf("      %s: %s\n", v.Name, p)
			}
		}
	}
	if rec.Refused {
		return nil
	}
	return err
}
