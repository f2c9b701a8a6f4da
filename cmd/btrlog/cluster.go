package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/btrlog/btrlog"
	"github.com/btrlog/btrlog/internal/node"
	"github.com/btrlog/btrlog/internal/protocol"
)

const clusterStatusLong = `Ask every registered node how it is, all at the same time, and judge from the answers which logs have fewer copies than they should.

A node that does not answer within the timeout is named and not waited for. A log is under-protected while one of its nodes does not count: it does
not answer, has another disk than the log knows, or lacks records that are committed and not archived yet. At risk are the bytes of such records,
as far as the nodes that answer know; what is archived is not at risk. A log below its quorum takes no appends, and one of which too few
nodes answer cannot be opened.

The exit code is 0 also when something is wrong, unless --check is given.`

// answerLimit is the longest wait for one node's answer, whatever --timeout allows.
const answerLimit = 5 * time.Second

func clusterCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cluster",
		Short: "See how a cluster is and what is at risk, and retire nodes",
		Long: `See how a cluster is and what is at risk, and take nodes out of it.

Without --store and --nodes the commands speak to the node at ` + defaultListen + `, which is where 'btrlog dev' listens.`,
	}
	group(cmd)
	var c connection
	c.flags(cmd)
	cmd.AddCommand(clusterStatus(&c), clusterRetire(&c))
	return cmd
}

func clusterStatus(c *connection) *cobra.Command {
	var check, all, asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the nodes and the logs that are under-protected",
		Long:  clusterStatusLong,
		Example: `  btrlog cluster status
  btrlog cluster status --check > /dev/null    # exit code 1 when something is wrong
  btrlog cluster status --json | jq -r '.under_protected[].log'`,
		Args: noArgs,
	}
	f := cmd.Flags()
	f.BoolVar(&check, "check", false, "exit with 1 when a node is not well or a log is under-protected")
	f.BoolVar(&all, "all", false, fmt.Sprintf("list all logs that are under-protected, not only the first %d", firstLogs))
	jsonFlag(cmd, &asJSON, "one JSON object, with all logs that are under-protected")
	cmd.RunE = c.with(func(ctx context.Context, cmd *cobra.Command, client *btrlog.Client, _ []string) error {
		done := slowNotice(cmd.ErrOrStderr(), "asking the nodes")
		rep, err := survey(ctx, client, min(c.timeout, answerLimit))
		done()
		if err != nil {
			return err
		}
		if asJSON {
			err = printJSON(cmd.OutOrStdout(), rep)
		} else {
			err = rep.print(cmd.OutOrStdout(), all)
		}
		if wrong := rep.wrong(); err == nil && check && wrong != "" {
			err = &hinted{errors.New(wrong), "the table says more"}
		}
		return err
	})
	return cmd
}

// report is what 'cluster status' found, and prints as JSON.
type clusterReport struct {
	Cluster string        `json:"cluster_id,omitempty"` // absent: no node answered
	Nodes   []*nodeReport `json:"nodes"`
	Logs    int           `json:"logs"`
	// Under lists the logs with fewer copies than they should have, the worst first.
	Under []*logReport `json:"under_protected"`
	// AtRisk is the sum over Under, of those where it is known.
	AtRisk     uint64   `json:"at_risk_bytes"`
	Unreadable []string `json:"unreadable_logs"` // logs whose record cannot be read, with the reason
}

// nodeReport is one registered node.
type nodeReport struct {
	Name        string `json:"name"`
	Zone        string `json:"zone,omitempty"`
	Address     string `json:"address"`
	Incarnation string `json:"incarnation"` // as it is registered
	State       string `json:"state"`
	Answers     bool   `json:"answers"`
	// Problem is why the node does not count, or takes no appends; empty: it is well.
	Problem    string `json:"problem,omitempty"`
	Shards     int    `json:"shards"`
	Logs       int    `json:"logs"`
	Disk       int64  `json:"disk_bytes"`
	Budget     int64  `json:"disk_budget_bytes"` // 0: none but the disk
	Unarchived uint64 `json:"unarchived_bytes"`
	// FlushError is the last failure of archiving, and how long ago it was; it may be over.
	FlushError string `json:"flush_error,omitempty"`
	FlushAgo   int64  `json:"flush_error_ago_ms,omitempty"`

	logs map[string]*node.LogStatus // by id; nil where the node does not count
}

// survey asks the nodes and reads the records of all logs.
func survey(ctx context.Context, client *btrlog.Client, limit time.Duration) (*clusterReport, error) {
	registered, err := client.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	rep := &clusterReport{Under: []*logReport{}, Unreadable: []string{}}
	rep.ask(ctx, registered, limit)
	// The logs are read after the nodes were asked: a record that is older than an answer could name nodes that the log has left.
	var logs []btrlog.LogInfo
	for info, err := range client.Logs(ctx, "") {
		switch {
		case err != nil && !damagedRecord(err):
			return nil, err
		case err != nil:
			rep.Unreadable = append(rep.Unreadable, oneLine(message(err)))
		default:
			logs = append(logs, info)
		}
	}
	rep.Logs = len(logs) + len(rep.Unreadable)
	first := rep.judgeAll(logs, nil)
	if lagging(first) {
		// A log that is written to has moved on between the answers of its nodes, which then look as if they lagged. What a node still lacks
		// at a second look, of what was committed at the first, it does lack.
		select {
		case <-ctx.Done():
		case <-time.After(secondLook):
		}
		rep.ask(ctx, registered, limit)
		first = rep.judgeAll(logs, first)
	}
	rep.add(first)
	return rep, ctx.Err()
}

// damagedRecord: the record of one log cannot be used, and no waiting helps.
func damagedRecord(err error) bool {
	var e *btrlog.Error
	return errors.As(err, &e) && e.Log != "" && !e.Retryable && !errors.Is(err, btrlog.ErrClosed)
}

// secondLook is after how long nodes that seem to lack records are asked again: longer than a client waits before it sends a record again.
const secondLook = 300 * time.Millisecond

// ask asks all nodes but those that are retired.
func (rep *clusterReport) ask(ctx context.Context, registered []btrlog.NodeInfo, limit time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	hc := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // one question each
	rep.Nodes = make([]*nodeReport, len(registered))
	clusters := make([]string, len(registered))
	var wg sync.WaitGroup
	for i, n := range registered {
		r := &nodeReport{Name: n.Name, Zone: n.Zone, Address: n.HTTP, Incarnation: incarnation(n.Incarnation), State: n.State, Shards: n.Shards}
		if r.Address == "" {
			r.Address = n.UDP // the same port number
		}
		rep.Nodes[i] = r
		if n.State == "retired" {
			continue
		}
		wg.Go(func() {
			s, err := askStatus(ctx, hc, r.Address)
			if err == nil {
				clusters[i] = s.Cluster
				r.take(s)
				return
			}
			r.Problem = oneLine(err.Error())
			if ctx.Err() != nil {
				r.Problem = fmt.Sprintf("no answer from %s within %v", r.Address, limit)
			}
		})
	}
	wg.Wait()
	for _, c := range clusters {
		if c != "" {
			rep.Cluster = c
		}
	}
}

// maxStatusBytes bounds a node's answer; ten thousand logs take some MiB.
const maxStatusBytes = 1 << 30

func askStatus(ctx context.Context, hc *http.Client, address string) (*node.Status, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+node.StatusPath, nil)
	if err != nil {
		return nil, err
	}
	resp, err := hc.Do(req)
	var asked *url.Error
	if errors.As(err, &asked) {
		err = asked.Err // the address is in it
	}
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 512)) // only for the message
		return nil, fmt.Errorf("%s answers %s: %s", address, resp.Status, text)
	}
	s := new(node.Status)
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxStatusBytes)).Decode(s); err != nil {
		return nil, fmt.Errorf("%s answers what is no status: %w", address, err)
	}
	return s, nil
}

// take notes what a node said.
func (r *nodeReport) take(s *node.Status) {
	if string(s.Node) != r.Name || s.Incarnation != r.Incarnation {
		r.Problem = fmt.Sprintf("node %s with incarnation %s answers at its address", s.Node, s.Incarnation)
		return
	}
	r.Answers, r.Shards, r.Budget, r.FlushError = true, s.Shards, s.DiskBudget, s.Flush.LastError
	if at := s.Flush.LastErrorAt; at != nil {
		r.FlushAgo = time.Since(*at).Milliseconds()
	}
	var problems []string
	if s.Ready != "ready" {
		problems = append(problems, s.Ready)
	}
	r.logs = map[string]*node.LogStatus{}
	for i := range s.Detail {
		d := &s.Detail[i]
		if d.Problem != "" {
			problems = append(problems, fmt.Sprintf("shard %d: %s", d.Shard, d.Problem))
		}
		if d.Core.Full && s.Ready == "ready" {
			problems = append(problems, fmt.Sprintf("shard %d: its disk budget is used up, appends are refused", d.Shard))
		}
		r.Disk += d.Store.SegmentBytes
		for j := range d.Logs {
			l := &d.Logs[j]
			if !l.Deleted {
				r.logs[l.Log] = l
				r.Logs++
				r.Unarchived += l.Unarchived
			}
		}
	}
	r.Problem = strings.Join(problems, "; ")
}

// wrong says in one line what --check fails for, or nothing.
func (rep *clusterReport) wrong() string {
	var parts []string
	ill := 0
	for _, n := range rep.Nodes {
		if n.Problem != "" {
			ill++
		}
	}
	if ill > 0 {
		parts = append(parts, fmt.Sprintf("%d of %s not well", ill, plural(int64(len(rep.Nodes)), "node")))
	}
	if n := int64(len(rep.Under)); n > 0 {
		parts = append(parts, fmt.Sprintf("%s under-protected, %s at risk", plural(n, "log"), humanBytes(int64(rep.AtRisk))))
	}
	if n := int64(len(rep.Unreadable)); n > 0 {
		parts = append(parts, plural(n, "log")+" cannot be read")
	}
	return strings.Join(parts, "; ")
}

// firstLogs is how many under-protected logs a table names.
const firstLogs = 20

func (rep *clusterReport) print(w io.Writer, all bool) error {
	rows := [][]string{{"NODE", "ZONE", "ADDRESS", "STATE", "ANSWERS", "SHARDS", "LOGS", "DISK", "BUDGET", "UNARCHIVED"}}
	for _, n := range rep.Nodes {
		row := []string{n.Name, orDash(n.Zone), n.Address, n.State, "no", fmt.Sprint(n.Shards), "-", "-", "-", "-"}
		if n.Answers {
			row = []string{n.Name, orDash(n.Zone), n.Address, n.State, "yes", fmt.Sprint(n.Shards), fmt.Sprint(n.Logs), humanBytes(n.Disk),
				orElse(n.Budget > 0, humanBytes(n.Budget), "the disk"), humanBytes(int64(n.Unarchived))}
		}
		rows = append(rows, row)
	}
	if err := printRows(w, rows); err != nil {
		return err
	}
	var b strings.Builder
	for _, n := range rep.Nodes {
		if n.Problem != "" {
			fmt.Fprintf(&b, "%s: %s\n", n.Name, n.Problem)
		}
		if n.FlushError != "" {
			fmt.Fprintf(&b, "%s: archiving failed %v ago, and may have succeeded since: %s\n", n.Name, (time.Duration(n.FlushAgo) * time.Millisecond).Round(time.Second), n.FlushError)
		}
	}
	for _, u := range rep.Unreadable {
		fmt.Fprintln(&b, u)
	}
	if len(rep.Under) == 0 {
		fmt.Fprintf(&b, "\n%s, none under-protected\n", plural(int64(rep.Logs), "log"))
	} else {
		fmt.Fprintf(&b, "\n%s, %d under-protected, %s at risk\n", plural(int64(rep.Logs), "log"), len(rep.Under), humanBytes(int64(rep.AtRisk)))
	}
	if _, err := io.WriteString(w, b.String()); err != nil || len(rep.Under) == 0 {
		return err
	}
	rows = [][]string{{"LOG", "COPIES", "QUORUM", "AT RISK", "WHY"}}
	for i, l := range rep.Under {
		if i == firstLogs && !all {
			break
		}
		risk := "unknown"
		if l.AtRisk != nil {
			risk = humanBytes(int64(*l.AtRisk))
		}
		rows = append(rows, []string{l.Log, fmt.Sprintf("%d/%d", l.Copies, l.N), fmt.Sprint(l.Qw), risk, l.why()})
	}
	err := printRows(w, rows)
	if rest := len(rep.Under) - firstLogs; err == nil && rest > 0 && !all {
		_, err = fmt.Fprintf(w, "and %d more; --all lists them\n", rest)
	}
	return err
}

// logID is how a node's status names a log.
func logID(info *btrlog.LogInfo) string { return protocol.LogID(info.ID).String() }
