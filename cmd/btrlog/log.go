package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/btrlog/btrlog"
)

func logCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "log",
		Short: "Create, list, read and write logs",
		Long: `Create, list, read and write the logs of a cluster.

Without --store and --nodes the commands speak to the node at ` + defaultListen + `, which is where 'btrlog dev' listens.`,
	}
	group(cmd)
	var c connection
	c.flags(cmd)
	grouped(cmd, "Logs", logCreate(&c), logList(&c), logInfo(&c), logDelete(&c))
	grouped(cmd, "Records", logAppend(&c), logCat(&c), logExport(&c), logFollow(&c), logTrim(&c), logSet(&c))
	grouped(cmd, "Who writes a log, and where it is", logFence(&c), logReplace(&c), logRecover(&c))
	return cmd
}

func logCreate(c *connection) *cobra.Command {
	var o btrlog.LogOptions
	var segment, retain byteSize
	var durability string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Create a log",
		Long: `Create a log. Its name has 1 to 128 letters, digits, '.', '_' and '-', and begins and ends with a letter or digit.

What is not given takes its default: three nodes, of which two must have a record on disk before it is committed.`,
		Example: `  btrlog log create orders
  btrlog log create --n 5 --qw 3 --segment 64MiB --retain-age 168h audit`,
		Args: oneArg("the log's name"), ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := cmd.Flags()
	f.IntVar(&o.N, "n", 0, "nodes that hold the log (default 3)")
	f.IntVar(&o.Qw, "qw", 0, "nodes that must have a record before it is committed (default 2 of 3; else the majority)")
	f.IntVar(&o.Zones, "zones", 0, "zones that the nodes must span at least (default: as many as there are, without insisting)")
	f.StringSliceVar(&o.Nodes, "on", nil, "names of the nodes to take, instead of leaving the choice")
	f.Var(&segment, "segment", "size at which a segment is cut and archived, such as 16MiB (default 16MiB)")
	f.IntVar(&o.Window, "window", 0, "records that may be given out and not committed (default 1024)")
	f.StringVar(&durability, "durability", string(btrlog.Disk), "when a node acknowledges: disk, or memory (a power cut of a quorum then loses records)")
	f.DurationVar(&o.FlushAge, "flush-age", 0, "age at which a segment is archived although it is not full; negative is never (default 5m)")
	f.DurationVar(&o.RetainAge, "retain-age", 0, "trim what was archived longer ago than this, such as 168h, in whole segments, every ten minutes (default: keep everything)")
	f.Var(&retain, "retain", "trim the oldest records beyond so many archived bytes, such as 100GiB, in whole segments, every ten minutes (default: keep everything)")
	jsonFlag(cmd, &asJSON, "the new log as one JSON object, as 'log info' prints it")
	run := c.with(func(ctx context.Context, cmd *cobra.Command, client *btrlog.Client, args []string) error {
		o.SegmentBytes, o.RetainBytes, o.Durability = int64(segment), int64(retain), btrlog.Durability(durability)
		info, err := client.Create(ctx, args[0], o)
		if err != nil {
			return err
		}
		if asJSON {
			return printJSON(cmd.OutOrStdout(), describe(info))
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "created log %s, id %v: %s, %d must have a record, durability %s\n%s\n",
			info.Name, info.ID, plural(int64(info.Options.N), "node"), info.Options.Qw, info.Options.Durability, survives(info.Options))
		return err
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if twice := repeated(o.Nodes); twice != "" { // before anything is tried
			return usagef("--on names %s twice; a log has each node once", twice)
		}
		return run(cmd, args)
	}
	return cmd
}

// survives says what the quorum of a log is worth: up to Qw - 1 disks may be lost at once, and N - Qw nodes may be down.
func survives(o btrlog.LogOptions) string {
	quorum := fmt.Sprintf("%d of %d: ", o.Qw, o.N)
	kept := fmt.Sprintf("keeps all acknowledged records when %s is lost", plural(int64(o.Qw-1), "disk"))
	switch {
	case o.Durability == btrlog.Memory:
		kept = fmt.Sprintf("a crash of %s at once may lose acknowledged records", plural(int64(o.Qw), "node"))
	case o.Qw == 1:
		kept = "one lost disk may lose acknowledged records"
	case o.Qw > 2:
		kept = fmt.Sprintf("keeps all acknowledged records when %d disks are lost at once", o.Qw-1)
	}
	switch down := o.N - o.Qw; down {
	case 0:
		return quorum + kept + "; takes none while a node is down"
	case 1:
		return quorum + kept + "; takes more while 1 node is down"
	default:
		return quorum + kept + fmt.Sprintf("; takes more while %d nodes are down", down)
	}
}

// repeated returns a name that is in the list more than once, or "".
func repeated(names []string) string {
	seen := map[string]bool{}
	for _, n := range names {
		if seen[n] {
			return n
		}
		seen[n] = true
	}
	return ""
}

func logList(c *connection) *cobra.Command {
	var asJSON bool
	var prefix string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the logs, by name",
		Example: `  btrlog log list
  btrlog log list --json | jq -r 'select(.epoch == 0) | .name'    # never opened`,
		Args: noArgs,
	}
	cmd.Flags().StringVar(&prefix, "prefix", "", "only logs whose name begins with this")
	jsonFlag(cmd, &asJSON, "one JSON object per log and line, as 'log info' prints it")
	cmd.RunE = c.with(func(ctx context.Context, cmd *cobra.Command, client *btrlog.Client, _ []string) error {
		// One that cannot be read does not hide the others.
		var logs []btrlog.LogInfo
		var failed error
		for info, err := range client.Logs(ctx, prefix) {
			switch {
			case err == nil:
				logs = append(logs, info)
			case failed == nil:
				failed = err
			}
		}
		return errors.Join(printList(cmd.OutOrStdout(), logs, asJSON), failed)
	})
	return cmd
}

func logInfo(c *connection) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "info NAME",
		Short: "Show one log: its nodes, its tail, its history and options",
		Long: `Show one log: its nodes, its tail, its history and options.

The tail is asked of the log's nodes and does not disturb the writer. When too few nodes answer, the rest is shown all the same, and
the tail is given as unknown with the reason; the exit code is then 1.

A node whose disk was replaced is another incarnation than the one that the log knows, and does not count for it until the log adopts it
('btrlog log replace').`,
		Example: `  btrlog log info orders
  btrlog log info --json orders | jq .tail`,
		Args: oneArg("the log's name"), ValidArgsFunction: c.completeName,
	}
	jsonFlag(cmd, &asJSON, "one JSON object")
	cmd.RunE = c.with(func(ctx context.Context, cmd *cobra.Command, client *btrlog.Client, args []string) error {
		info, err := client.Info(ctx, args[0])
		if err != nil {
			return err
		}
		d := describe(info)
		tail, tailErr := tailOf(ctx, client, args[0])
		if tailErr == nil {
			d.Tail = &tail
		}
		registered, nodesErr := client.Nodes(ctx)
		if nodesErr == nil {
			d.compare(registered)
		}
		if asJSON {
			err = printJSON(cmd.OutOrStdout(), d)
		} else {
			err = printInfo(cmd.OutOrStdout(), d)
		}
		return errors.Join(err, tailErr, nodesErr)
	})
	return cmd
}

func tailOf(ctx context.Context, client *btrlog.Client, name string) (btrlog.LSN, error) {
	r, err := client.OpenReader(ctx, name)
	if err != nil {
		return 0, err
	}
	return r.Tail(ctx)
}

// completeName completes the name of an existing log. It must be quick, and where there is no cluster there is no completion.
func (c *connection) completeName(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
	const none = cobra.ShellCompDirectiveNoFileComp
	if len(args) > 0 {
		return nil, none
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), 2*time.Second)
	defer cancel()
	if settle(cmd) != nil { // completion runs without what runs before a command
		return nil, none
	}
	client, err := c.connect(ctx, cmd)
	if err != nil {
		return nil, none
	}
	defer client.Close() // nothing depends on its error
	var names []string
	for info, err := range client.Logs(ctx, begin) {
		if err == nil {
			names = append(names, info.Name)
		}
	}
	return names, none
}

func jsonFlag(cmd *cobra.Command, p *bool, what string) {
	cmd.Flags().BoolVar(p, "json", false, "print "+what)
}

// description is a log as --json prints it. Keys with a unit have it last in their names.
type description struct {
	Name        string      `json:"name"`
	ID          string      `json:"id"`
	Epoch       uint64      `json:"epoch"`
	Opener      string      `json:"opener,omitempty"`
	Tail        *btrlog.LSN `json:"tail,omitempty"` // absent where nobody asked or too few nodes answered
	TrimBefore  btrlog.LSN  `json:"trim_before"`
	Nodes       []member    `json:"nodes"`
	N           int         `json:"n"`
	Qw          int         `json:"qw"`
	Zones       int         `json:"zones"`
	Durability  string      `json:"durability"`
	Segment     int64       `json:"segment_bytes"`
	Window      int         `json:"window_lsns"`
	FlushAge    int64       `json:"flush_age_ms"` // -1: never
	RetainAge   int64       `json:"retain_age_ms"`
	RetainBytes int64       `json:"retain_bytes"`
	History     []reign     `json:"history"`
	// Lost is what the owner of the log gave up and what is not trimmed since.
	Lost    []lostFields `json:"lost"`
	Created time.Time    `json:"created"`
	Updated time.Time    `json:"updated"`
}

type member struct {
	Name        string `json:"name"`
	Incarnation string `json:"incarnation"`
	Zone        string `json:"zone,omitempty"`
	// Registered is the incarnation under which the node is registered now, and Current says whether it is the one that the log knows;
	// both are absent where nobody asked. Registered is empty for a node without a record that can be read.
	Registered *string `json:"registered_incarnation,omitempty"`
	Current    *bool   `json:"current,omitempty"`
}

// compare notes for each node of the log whether it still is the one that the log knows.
func (d *description) compare(registered []btrlog.NodeInfo) {
	for i := range d.Nodes {
		m := &d.Nodes[i]
		now := ""
		for _, n := range registered {
			if n.Name == m.Name {
				now = incarnation(n.Incarnation)
			}
		}
		current := now == m.Incarnation
		m.Registered, m.Current = &now, &current
	}
}

func incarnation(i uint64) string { return fmt.Sprintf("%016x", i) }

type reign struct {
	Epoch btrlog.Epoch `json:"epoch"`
	Start btrlog.LSN   `json:"start"`
}

func membersOf(nodes []btrlog.NodeInfo) []member {
	ms := make([]member, len(nodes))
	for i, n := range nodes {
		ms[i] = member{Name: n.Name, Incarnation: incarnation(n.Incarnation), Zone: n.Zone}
	}
	return ms
}

func describe(i btrlog.LogInfo) description {
	o := i.Options
	d := description{Name: i.Name, ID: i.ID.String(), Epoch: uint64(i.Epoch), Opener: i.Opener, TrimBefore: i.TrimBefore, Nodes: membersOf(i.Nodes), N: o.N, Qw: o.Qw,
		Zones: o.Zones, Durability: string(o.Durability), Segment: o.SegmentBytes, Window: o.Window, FlushAge: o.FlushAge.Milliseconds(),
		RetainAge: o.RetainAge.Milliseconds(), RetainBytes: o.RetainBytes, History: []reign{}, Lost: lostOf(i.Lost), Created: i.Created, Updated: i.Updated}
	if o.FlushAge < 0 {
		d.FlushAge = -1
	}
	for _, h := range i.History {
		d.History = append(d.History, reign{h.Epoch, h.Start})
	}
	return d
}
