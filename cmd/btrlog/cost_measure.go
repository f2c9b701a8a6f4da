package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/btrlog/btrlog/internal/cost"
)

// costMeasure is --measure and --for of 'btrlog cost'.
type costMeasure struct {
	nodes []string
	time  time.Duration
}

// run reads the counters of the nodes twice and prints what they asked of the object store beside the prediction.
func (m *costMeasure) run(cmd *cobra.Command, p cost.Prices, w cost.Workload, asJSON bool) error {
	ctx := cmd.Context()
	for _, n := range m.nodes {
		if err := checkHostPort(n); err != nil {
			return usagef("--measure: %w", err)
		}
	}
	if m.time <= 0 {
		return usagef("--for is %v; it must be positive", m.time)
	}
	began := time.Now()
	before, err := m.counters(ctx)
	if err != nil {
		return err
	}
	done := noticeAfter(cmd.ErrOrStderr(), fmt.Sprintf("counting for %v what %s of the object store", m.time, orElse(len(m.nodes) == 1, "the node asks", "the nodes ask")), 0)
	err = sleepFor(ctx, m.time)
	done()
	if err != nil {
		return errInterrupted
	}
	after, err := m.counters(ctx)
	if err != nil {
		return err
	}
	sum := cost.Measured{Took: time.Since(began), Puts: after.Puts - before.Puts, Gets: after.Gets - before.Gets, Lists: after.Lists - before.Lists, Deletes: after.Deletes - before.Deletes,
		Stored: after.Stored - before.Stored, Read: after.Read - before.Read, Records: after.Records - before.Records, Bytes: after.Bytes - before.Bytes}
	if after.Puts < before.Puts || after.Gets < before.Gets || after.Lists < before.Lists || after.Records < before.Records {
		return fmt.Errorf("a node was started again meanwhile: its counters went back; measure again")
	}
	if !cmd.Flags().Changed("rate") {
		w.Rate = 0
	}
	if !cmd.Flags().Changed("size") {
		w.Size = 0
	}
	w, rows := cost.Compare(p, w, sum)
	if asJSON {
		return printJSON(cmd.OutOrStdout(), struct {
			Measured cost.Measured   `json:"measured"`
			Workload cost.Workload   `json:"workload"`
			Month    []cost.Compared `json:"month"`
			Currency string          `json:"currency"`
		}{sum, w, rows, p.Currency})
	}
	table := [][]string{{"A MONTH", "MEASURED", "PREDICTED", p.Currency + " MEASURED", p.Currency + " PREDICTED"}}
	for _, r := range rows {
		table = append(table, []string{r.What, fmt.Sprintf("%.0f", r.Measured), fmt.Sprintf("%.0f", r.Predicted), fmt.Sprintf("%.2f", r.MeasuredPrice), fmt.Sprintf("%.2f", r.PredictedPrice)})
	}
	if err := printRows(cmd.OutOrStdout(), table); err != nil {
		return err
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "\nmeasured for %v: %.0f records on %s, %s of them; stored %s, read %s\npredicted for %.1f appends a second of %.0f bytes, to %d nodes each; prices: %s\n",
		sum.Took.Round(time.Second), sum.Records, plural(int64(len(m.nodes)), "node"), humanBytes(int64(sum.Bytes)), humanBytes(int64(sum.Stored)), humanBytes(int64(sum.Read)), w.Rate, w.Size, w.N, p.Name)
	return err
}

// counters adds up those of all nodes.
func (m *costMeasure) counters(ctx context.Context) (sum cost.Measured, err error) {
	for _, n := range m.nodes {
		if err := addCounters(ctx, n, &sum); err != nil {
			return sum, fmt.Errorf("node %s: %w", n, err)
		}
	}
	return sum, nil
}

func addCounters(ctx context.Context, address string, sum *cost.Measured) error {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("its metrics: %s", resp.Status)
	}
	found := false
	lines := bufio.NewScanner(io.LimitReader(resp.Body, 64<<20))
	for lines.Scan() {
		line := lines.Text()
		name, labels := line, ""
		if i := strings.IndexByte(line, '{'); i >= 0 {
			j := strings.LastIndexByte(line, '}')
			if j < i {
				continue
			}
			name, labels, line = line[:i], line[i:j], line[j+1:]
		} else if i := strings.IndexByte(line, ' '); i >= 0 {
			name, line = line[:i], line[i:]
		}
		var to *float64
		request := func(kind string) bool { return strings.Contains(labels, `request="`+kind+`"`) }
		switch {
		case name == "btrlog_node_records_total":
			to, found = &sum.Records, true
		case name == "btrlog_node_record_bytes_total":
			to = &sum.Bytes
		case name == "btrlog_object_store_bytes_total" && request("put"):
			to = &sum.Stored
		case name == "btrlog_object_store_bytes_total" && request("get"):
			to = &sum.Read
		case name != "btrlog_object_store_requests_total":
		case request("put"):
			to = &sum.Puts
		case request("get"), request("head"):
			to = &sum.Gets
		case request("list"):
			to = &sum.Lists
		case request("delete"):
			to = &sum.Deletes
		}
		if to == nil {
			continue
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(line), 64)
		if err != nil {
			return fmt.Errorf("its metrics: %q", lines.Text())
		}
		*to += v
	}
	if err := lines.Err(); err != nil {
		return err
	}
	if !found {
		return fmt.Errorf("what answers there is no log node")
	}
	return nil
}
