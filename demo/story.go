package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/btrlog/btrlog"
	"github.com/btrlog/btrlog/demo/pgwal"
	"github.com/btrlog/btrlog/objstore"
)

// segmentBytes is small, so that the sample of 14 MB of records fills several segments and the cold path has something
// to read.
const segmentBytes = 2 << 20

func story(ctx context.Context, o options) error {
	if o.dir == "" {
		if err := os.MkdirAll(".cache", 0o755); err != nil {
			return err
		}
		dir, err := os.MkdirTemp(".cache", "demo-")
		if err != nil {
			return err
		}
		if o.dir = dir; !o.keep {
			defer os.RemoveAll(dir)
		}
	} else if err := os.MkdirAll(o.dir, 0o755); err != nil {
		return err
	}
	dir, err := filepath.Abs(o.dir)
	if err != nil {
		return err
	}
	o.dir, o.store, o.acks = dir, "file://"+filepath.Join(dir, "store"), filepath.Join(dir, "acknowledged")
	m, err := pgwal.SampleManifest()
	if err != nil {
		return err
	}
	fmt.Printf("input: %s, %d records, %d bytes\n", m.Server, m.Records, m.RecordBytes)
	fmt.Printf("directory: %s (%s)\n", dir, fileSystem(dir))

	ports, err := freePorts(len(nodeNames))
	if err != nil {
		return err
	}
	nodes, err := startNodes(ctx, o, ports)
	defer func() {
		for _, n := range nodes {
			n.stop()
		}
	}()
	if err != nil {
		return err
	}
	if err := create(ctx, o); err != nil {
		return err
	}
	res, err := write(ctx, o, m, nodes)
	if err != nil {
		return keepLogs(o, err)
	}
	if nodes[0], err = restart(ctx, o, ports[0]); err != nil {
		return keepLogs(o, err)
	}
	read, err := readBack(ctx, o, m, ports)
	if err != nil {
		return keepLogs(o, err)
	}
	fmt.Printf("demo: ok appended=%d acknowledged=%d lost=0 p50_us=%.0f p99_us=%.0f failover_ms=%.1f\n",
		read.Records, read.Checked, res.P50US, res.P99US, res.FailMS)
	return nil
}

// keepLogs prints the ends of the children's logs before the directory goes.
func keepLogs(o options, err error) error {
	logs, _ := filepath.Glob(filepath.Join(o.dir, "*.log"))
	for _, name := range logs {
		b, rerr := os.ReadFile(name)
		if rerr != nil || len(b) == 0 {
			continue
		}
		fmt.Fprintf(os.Stderr, "--- %s\n%s\n", filepath.Base(name), b[max(0, len(b)-2000):])
	}
	return err
}

var nodeNames = []string{"a", "b", "c"}

func startNodes(ctx context.Context, o options, ports []int) ([]*process, error) {
	var nodes []*process
	for i, name := range nodeNames {
		p, err := startNode(o, name, ports[i])
		if err != nil {
			return nodes, err
		}
		nodes = append(nodes, p)
	}
	for i, p := range nodes {
		st, err := ready(ctx, p, address(ports[i]))
		if err != nil {
			return nodes, keepLogs(o, err)
		}
		fmt.Printf("node %s: pid %d, %s, to disk by %s\n", nodeNames[i], p.pid(), address(ports[i]), st.Durability)
	}
	return nodes, nil
}

func address(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

// restart brings the killed node back on its old directory.
func restart(ctx context.Context, o options, port int) (*process, error) {
	begin := time.Now()
	p, err := startNode(o, nodeNames[0], port)
	if err != nil {
		return nil, err
	}
	if _, err := ready(ctx, p, address(port)); err != nil {
		return p, err
	}
	fmt.Printf("node %s: back as pid %d after %.0f ms\n", nodeNames[0], p.pid(), ms(time.Since(begin)))
	return p, nil
}

func startNode(o options, name string, port int) (*process, error) {
	return start(o.dir, "node-"+name, o.bin, "node", "--id", name, "--dir", filepath.Join(o.dir, "node-"+name),
		"--listen", address(port), "--store", o.store)
}

func create(ctx context.Context, o options) error {
	client, err := btrlog.Connect(ctx, btrlog.Config{StoreURL: o.store})
	if err != nil {
		return err
	}
	defer client.Close()
	info, err := client.Create(ctx, o.log, btrlog.LogOptions{SegmentBytes: segmentBytes})
	if err != nil {
		return err
	}
	fmt.Printf("log %s: %d nodes, write quorum %d, durability %q (forced to the device by a quorum before it is acknowledged)\n",
		info.Name, info.Options.N, info.Options.Qw, info.Options.Durability)
	return nil
}

// write is the part with the deaths: the first writer loses a node, then its life; the second one takes over with two of
// three nodes and finishes.
func write(ctx context.Context, o options, m pgwal.Manifest, nodes []*process) (progress, error) {
	self, err := os.Executable()
	if err != nil {
		return progress{}, err
	}
	total := uint64(m.Records)
	args := []string{"writer", "-store", o.store, "-log", o.log, "-acks", o.acks, "-single", fmt.Sprint(o.single)}
	begin := time.Now()
	first, err := start(o.dir, "writer-1", self, args...)
	if err != nil {
		return progress{}, err
	}
	defer first.kill()
	fmt.Printf("writer 1: pid %d\n", first.pid())
	if _, err := first.until(ctx, "a third of the records", func(p progress) bool { return p.Acked >= total/3 }); err != nil {
		return progress{}, err
	}
	nodes[0].kill()
	fmt.Printf("node %s: kill -9 after %d acknowledged records\n", nodeNames[0], first.state().Acked)
	if _, err := first.until(ctx, "two thirds of the records", func(p progress) bool { return p.Acked >= total*2/3 }); err != nil {
		return progress{}, err
	}
	first.kill()
	took := time.Since(begin)
	acked, err := readAcks(o.acks)
	if err != nil {
		return progress{}, err
	}
	fmt.Printf("writer 1: kill -9; %d records acknowledged in %.1f s, the last third of the way without node %s\n", len(acked), took.Seconds(), nodeNames[0])

	second, err := start(o.dir, "writer-2", self, args...)
	if err != nil {
		return progress{}, err
	}
	defer second.kill()
	open, err := second.until(ctx, "its open", func(p progress) bool { return p.Event != "" })
	if err != nil {
		return progress{}, err
	}
	fmt.Printf("writer 2: pid %d, epoch %d, two of three nodes up, open took %.1f ms, found tail %d\n", second.pid(), open.Epoch, open.OpenMS, open.Tail)
	if open.Tail < uint64(len(acked)) {
		return progress{}, fmt.Errorf("writer 2 found tail %d, but %d records were acknowledged", open.Tail, len(acked))
	}
	if err := second.wait(ctx); err != nil {
		return progress{}, err
	}
	res := second.state()
	if res.Event != "done" || res.Acked != total {
		return progress{}, fmt.Errorf("writer 2 ended with %d of %d records acknowledged", res.Acked, total)
	}
	fmt.Printf("writer 2: %d records pipelined in %.2f s (%.0f/s), then %d synced one by one: p50 %.0f us, p99 %.0f us\n",
		res.Pipelined, res.PipelineS, float64(res.Pipelined)/max(res.PipelineS, 1e-9), res.Singles, res.P50US, res.P99US)
	fmt.Printf("failover: %.1f ms for the second writer's open and its first acknowledged record\n", res.FailMS)
	return res, nil
}

// readBack waits until every node has moved a good part of the log to the object store and dropped it, so that both paths
// have something to read, and lets a reader process compare everything.
func readBack(ctx context.Context, o options, m pgwal.Manifest, ports []int) (progress, error) {
	for i, port := range ports {
		through, err := dropped(ctx, nodeNames[i], address(port), o.log, uint64(m.Records)/4)
		if err != nil {
			return progress{}, err
		}
		fmt.Printf("node %s: everything up to LSN %d is archived and dropped here\n", nodeNames[i], through)
	}
	fmt.Printf("(node %s was away for the rest: the others hold and archive it)\n", nodeNames[0])
	objects, err := objects(ctx, o)
	if err != nil {
		return progress{}, err
	}
	fmt.Printf("archive: %d segment objects in the store\n", objects)
	self, err := os.Executable()
	if err != nil {
		return progress{}, err
	}
	p, err := start(o.dir, "reader", self, "reader", "-store", o.store, "-log", o.log, "-acks", o.acks)
	if err != nil {
		return progress{}, err
	}
	defer p.kill()
	if err := p.wait(ctx); err != nil {
		return progress{}, err
	}
	res := p.state()
	fmt.Printf("reader: pid %d, %d records (%d bytes) in %.2f s, then the last %d once more; %d reads came from the object store, %d from log nodes; all equal the input, %d records checked against the acknowledgements\n",
		p.pid(), res.Records, res.Bytes, res.Seconds, hotRecords, res.Cold, res.Hot, res.Checked)
	if res.Records != uint64(m.Records) {
		return res, errors.New("the log and the input differ in length")
	}
	return res, nil
}

// objects counts the segment objects in the store.
func objects(ctx context.Context, o options) (int, error) {
	store, err := objstore.Open(ctx, o.store)
	if err != nil {
		return 0, err
	}
	defer store.Close()
	n := 0
	for _, err := range objstore.All(ctx, store, "arch/") {
		if err != nil {
			return 0, err
		}
		n++
	}
	return n, nil
}
