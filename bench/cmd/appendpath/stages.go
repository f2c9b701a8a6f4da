package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"text/tabwriter"

	"github.com/btrlog/btrlog"
	"github.com/btrlog/btrlog/internal/node"
	"github.com/btrlog/btrlog/internal/stagetrace"
)

// stages is where the time of one append went, in µs, on the way that committed it: through the node whose acknowledgement made the
// quorum whole.
type stages struct {
	Commit  float64 // from the LSN to the commit: the sum of the others but First
	Hold    float64 // until it was put into a datagram
	Network float64 // there and back, with both kernels and the calls that send
	Apply   float64 // at the node, until the batch was whole
	Write   float64 // the batch's commit
	Rest    float64 // from that acknowledgement to the commit: records before it, and those of which the answer came in the same datagram
	First   float64 // how much earlier the first of the quorum's acknowledgements was there
	Batch   float64 // append requests in the node's batch
}

var stageColumns = []struct {
	name string
	of   func(*stages) float64
}{
	{"commit", func(s *stages) float64 { return s.Commit }},
	{"held", func(s *stages) float64 { return s.Hold }},
	{"network", func(s *stages) float64 { return s.Network }},
	{"apply", func(s *stages) float64 { return s.Apply }},
	{"write", func(s *stages) float64 { return s.Write }},
	{"rest", func(s *stages) float64 { return s.Rest }},
	{"quorum over first", func(s *stages) float64 { return s.First }},
	{"batch", func(s *stages) float64 { return s.Batch }},
}

// traced puts together what a writer and the nodes of its log noted.
func traced(ctx context.Context, c *btrlog.Client, w *btrlog.Writer, qw int, after btrlog.LSN) ([]stages, error) {
	type key struct {
		node  string
		epoch uint64
		lsn   btrlog.LSN
	}
	at := map[key]*stagetrace.Node{}
	id := fmt.Sprintf("%016x", uint64(w.Info().ID))
	nodes, err := c.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	for _, n := range nodes {
		traces, err := nodeTraces(ctx, n.HTTP)
		if err != nil {
			return nil, err
		}
		for i := range traces {
			if x := &traces[i]; x.Log == id {
				at[key{n.Name, x.Epoch, btrlog.LSN(x.LSN)}] = x
			}
		}
	}
	var all []stages
	for _, t := range w.Traces() {
		if t.LSN <= after || len(t.Acks) < qw {
			continue
		}
		last := t.Acks[qw-1]
		x := at[key{last.Node, uint64(t.Epoch), t.LSN}]
		if x == nil {
			continue // it came in a batch with another one that is traced
		}
		s := stages{Commit: micro(t.Commit), Hold: micro(t.Hold), Apply: float64(x.Apply) / 1e3, Write: float64(x.Write) / 1e3, Batch: float64(x.Appends),
			Rest: micro(t.Commit - t.Hold - last.After), First: micro(last.After - t.Acks[0].After)}
		s.Network = micro(last.After) - s.Apply - s.Write
		all = append(all, s)
	}
	return all, nil
}

func nodeTraces(ctx context.Context, address string) (traces []stagetrace.Node, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+node.TracesPath, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("node at %s: %s", address, resp.Status)
	}
	err = json.NewDecoder(io.LimitReader(resp.Body, 16<<20)).Decode(&traces)
	return traces, err
}

// measureStages says where the time goes at some depths, and what it costs to know.
func measureStages(ctx context.Context, o *options) error {
	const every = 16
	o.flags = append(o.flags, "--trace-every", fmt.Sprint(every))
	c, p, err := o.begin(ctx, false)
	if err != nil {
		return err
	}
	defer c.stop()
	if _, err := p.order(order{Do: "open", Log: "wal", Count: 1, Window: o.window, TraceEvery: every}); err != nil {
		return err
	}
	for _, depth := range []int{1, 16, 256} {
		var all []stages
		for range o.blocks {
			a, err := p.order(order{Do: "pipeline", Log: "wal", Depth: depth, For: o.length, Traces: true})
			if err != nil {
				return err
			}
			all = append(all, a.Traces...)
		}
		if len(all) < 100 {
			return fmt.Errorf("%d in flight: %d traces only", depth, len(all))
		}
		stageTable(fmt.Sprintf("%d in flight, %d traces, µs", depth, len(all)), all)
	}
	// The cost, at the default distance: two writers of one client, one of which traces nothing.
	for name, every := range map[string]int{"none": -1, "traced": 0} {
		if _, err := p.order(order{Do: "open", Log: name, Count: 1, Window: o.window, TraceEvery: every}); err != nil {
			return err
		}
	}
	for _, depth := range []int{1, 64} {
		var ss []*series
		for _, name := range []string{"none", "traced"} {
			ss = append(ss, &series{name: name, run: func() (*answer, error) {
				return p.order(order{Do: "pipeline", Log: name, Depth: depth, For: o.length})
			}})
		}
		if err := o.turns(c, ss); err != nil {
			return err
		}
		table(fmt.Sprintf("what tracing costs the writer, %d in flight", depth), ss)
		processor := func(a *answer) float64 { return a.Processor }
		const most = 1.01
		low, _ := ss[1].quartiles(ss[0], processor)
		v := verdict(ss[1].median(processor) <= most*ss[0].median(processor))
		if v == "missed" && low <= most {
			v = "void, the blocks differ by more than that: more or longer ones"
		}
		fmt.Printf("processor time of the client per append, traced over none, must be %.2f at most: %s: %s\n\n", most, ss[1].over(ss[0], processor), v)
	}
	return nil
}

// stageTable prints the median stages of all traces and of the slowest hundredth.
func stageTable(what string, all []stages) {
	slices.SortFunc(all, func(a, b stages) int { return int(a.Commit*1e3) - int(b.Commit*1e3) })
	fmt.Println(what)
	w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "\t")
	for _, col := range stageColumns {
		fmt.Fprintf(w, "%s\t", col.name)
	}
	fmt.Fprintln(w)
	for _, part := range []struct {
		name string
		of   []stages
	}{{"the middle half", all[len(all)/4 : 3*len(all)/4]}, {"the slowest hundredth", all[len(all)-max(1, len(all)/100):]}} {
		fmt.Fprintf(w, "%s\t", part.name)
		for _, col := range stageColumns {
			sum := 0.0
			for i := range part.of {
				sum += col.of(&part.of[i])
			}
			fmt.Fprintf(w, "%.1f\t", sum/float64(len(part.of)))
		}
		fmt.Fprintln(w)
	}
	w.Flush() // to standard output; nobody is there to be told
	fmt.Println()
}
