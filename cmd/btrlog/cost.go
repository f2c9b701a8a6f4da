package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/btrlog/btrlog/internal/cost"
)

const costLong = `Reckon what a workload costs in a month, and for a million appends: with BtrLog, with block storage, and with each append an object of its
own. It is a calculation from a table of list prices, which 'btrlog cost prices' prints for editing and --prices takes back. It knows
nothing of your discounts and measures nothing.

With --measure the counters of running nodes are read, and once more after --for; what they asked of the object store is shown beside what is
predicted for the appends that they took, or for --rate and --size. Name all nodes, for a log's nodes share the work; --n, --logs,
--segment, --flush-age and --pack-every should be what the logs have. What clients ask of the store past the nodes is not counted, nor
what lies in it.

A BtrLog cluster is paid for in whole instances, unless --shared says that the workload takes its share of a larger one.`

func costCommand() *cobra.Command {
	w := cost.Workload{Rate: 10000, Size: 200, Logs: 10, N: 3, Zones: 1, PerIO: 4, Retain: 7 * 24 * time.Hour, FlushAge: 5 * time.Minute, PackEvery: 40 * time.Second,
		Instance: "c6id.xlarge", Use: 0.5}
	segment := byteSize(16 << 20)
	var prices string
	var asJSON, shared bool
	var measure costMeasure
	cmd := &cobra.Command{
		Use:   "cost",
		Short: "Reckon what a workload costs",
		Long:  costLong,
		Example: `  btrlog cost --rate 50000 --size 300 --zones 3 --n 6 --forward
  btrlog cost --rate 167 --logs 10000 --flush-age 1m     # ten thousand idle logs
  btrlog cost --measure 10.0.0.1:4460,10.0.0.2:4460,10.0.0.3:4460 --for 10m --logs 100
  btrlog cost prices > prices.json; btrlog cost --prices prices.json --json | jq '.bills[] | {name, month}'`,
		Args: noArgs,
	}
	f := cmd.Flags()
	f.Float64Var(&w.Rate, "rate", w.Rate, "appends a second, of all logs together")
	f.Float64Var(&w.Size, "size", w.Size, "bytes of a record")
	f.Float64Var(&w.Logs, "logs", w.Logs, "logs that share the rate evenly")
	f.IntVar(&w.N, "n", w.N, "nodes of each log")
	f.IntVar(&w.Zones, "zones", w.Zones, "zones that they are in; the writer is in one of them")
	f.BoolVar(&w.Forward, "forward", false, "one node of each zone passes the appends on to the others there")
	f.Float64Var(&w.PerIO, "per-io", w.PerIO, "appends that one forced write takes in, of a node as of a volume")
	f.DurationVar(&w.Retain, "retain", w.Retain, "how long archived records are kept")
	f.Var(&segment, "segment", "size at which a segment is archived")
	f.DurationVar(&w.FlushAge, "flush-age", w.FlushAge, "age at which it is archived although it is not full; 0: never")
	f.DurationVar(&w.PackEvery, "pack-every", w.PackEvery, "how often the short ones of all logs are archived in one object; 0: an object for each")
	f.Float64Var(&w.ReadShare, "read", 0, "how often what is archived is read, on average")
	f.StringVar(&w.Instance, "instance", w.Instance, "kind of instance of the log nodes, as the table of prices names it")
	f.Float64Var(&w.Use, "use", w.Use, "share of an instance's writes and network that is planned for")
	f.BoolVar(&shared, "shared", false, "count the share of the instances that the workload takes, not whole ones")
	f.DurationVar(&w.Batch, "object-batch", 0, "for an object for each append: appends of a log that come so close together go into one")
	f.StringVar(&prices, "prices", "", "file with the table of prices (default: the built-in one)")
	f.StringSliceVar(&measure.nodes, "measure", nil, "host:port of nodes: show what they ask of the object store, beside the prediction")
	f.DurationVar(&measure.time, "for", time.Minute, "how long to --measure")
	jsonFlag(cmd, &asJSON, "the workload and the bills as one JSON object")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		p, _ := cost.Default()
		if prices != "" {
			text, err := os.ReadFile(prices)
			if err != nil {
				return err
			}
			if p, err = cost.Parse(text); err != nil {
				return usagef("%s: %w", prices, err)
			}
		}
		w.Segment, w.Exclusive = float64(segment), !shared
		if err := w.Check(p); err != nil {
			return &usageError{err}
		}
		if len(measure.nodes) > 0 {
			return measure.run(cmd, p, w, asJSON)
		}
		bills := cost.Reckon(p, w)
		if asJSON {
			return printJSON(cmd.OutOrStdout(), struct {
				Prices   string        `json:"prices"`
				Currency string        `json:"currency"`
				Workload cost.Workload `json:"workload"`
				Bills    []cost.Bill   `json:"bills"`
			}{p.Name, p.Currency, w, bills})
		}
		return printBills(cmd.OutOrStdout(), p, bills)
	}
	cmd.AddCommand(&cobra.Command{
		Use:   "prices",
		Short: "Print the built-in table of prices, to be edited",
		Example: `  btrlog cost --measure 10.0.0.1:4460,10.0.0.2:4460,10.0.0.3:4460 --for 10m --logs 100
  btrlog cost prices > prices.json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, text := cost.Default()
			_, err := cmd.OutOrStdout().Write(text)
			return err
		},
	})
	return cmd
}

func printBills(w io.Writer, p cost.Prices, bills []cost.Bill) error {
	money := func(v float64) string {
		switch {
		case v == 0:
			return "0"
		case v < 0.01:
			return fmt.Sprintf("%.2g", v)
		case v < 100:
			return fmt.Sprintf("%.2f", v)
		}
		return fmt.Sprintf("%.0f", v)
	}
	rows := [][]string{{p.Currency + " A MONTH", "A MILLION APPENDS", "WAY", "FOR"}}
	for _, b := range bills {
		rows = append(rows, []string{money(b.Month), money(b.PerMillion), b.Name, orDash(b.Note)})
		for _, l := range b.Lines {
			rows = append(rows, []string{"  " + money(l.Month), "", "  " + l.What, l.How})
		}
	}
	if err := printRows(w, rows); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\nprices: %s\n", p.Name)
	return err
}
