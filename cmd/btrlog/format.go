package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/btrlog/btrlog"
)

// printJSON prints v as one line. Nothing is escaped for HTML: the reader is a program.
func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// table aligns rows whose columns are separated by tabs.
func table(w io.Writer, rows func(w io.Writer)) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	rows(t)
	return t.Flush()
}

func printList(w io.Writer, logs []btrlog.LogInfo, asJSON bool) error {
	if asJSON {
		for _, l := range logs {
			if err := printJSON(w, describe(l)); err != nil {
				return err
			}
		}
		return nil
	}
	if len(logs) == 0 {
		return nil
	}
	return table(w, func(w io.Writer) {
		fmt.Fprintln(w, "NAME\tID\tEPOCH\tNODES\tQUORUM\tDURABILITY\tCREATED")
		for _, l := range logs {
			d := describe(l)
			fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%d/%d\t%s\t%s\n", d.Name, d.ID, d.Epoch, orDash(memberNames(d.Nodes, ",")), d.Qw, d.N, d.Durability, stamp(d.Created))
		}
	})
}

func printInfo(w io.Writer, d description) error {
	return table(w, func(w io.Writer) {
		row := func(key, format string, args ...any) { fmt.Fprintf(w, key+"\t"+format+"\n", args...) }
		row("log", "%s", d.Name)
		row("id", "%s", d.ID)
		if d.Epoch == 0 {
			row("epoch", "0: never opened")
		} else {
			row("epoch", "%d, opened by %s", d.Epoch, orDash(d.Opener))
		}
		if d.Tail == nil {
			row("tail", "unknown")
		} else {
			row("tail", "%d", *d.Tail)
		}
		if d.TrimBefore > 1 {
			row("trimmed", "LSN 1..%d", d.TrimBefore-1)
		} else {
			row("trimmed", "nothing")
		}
		row("nodes", "%s", orDash(memberNames(d.Nodes, ", ")))
		printDisks(row, d)
		row("quorum", "%d of %d", d.Qw, d.N)
		row("durability", "%s", d.Durability)
		row("segment", "%s", humanBytes(d.Segment))
		row("window", "%d records", d.Window)
		row("flush age", "%s", orElse(d.FlushAge > 0, millis(d.FlushAge), "never"))
		row("retain", "%s, %s", orElse(d.RetainAge > 0, millis(d.RetainAge), "any age"), orElse(d.RetainBytes > 0, humanBytes(d.RetainBytes), "any size"))
		for i, h := range d.History {
			row(orElse(i == 0, "history", ""), "epoch %d from LSN %d", h.Epoch, h.Start)
		}
		for i, l := range d.Lost {
			what := orElse(l.Skipped, "skipped, records may have been acknowledged there", "committed, and nowhere")
			row(orElse(i == 0, "lost", ""), "%s: %s; accepted at epoch %d, %s", lsnRange(l.From, l.To), what, l.Epoch, stamp(l.At))
		}
		row("created", "%s", stamp(d.Created))
		row("updated", "%s", stamp(d.Updated))
	})
}

// printDisks says whether the nodes still have the disks that the log counts on.
func printDisks(row func(key, format string, args ...any), d description) {
	key := "disks"
	for _, m := range d.Nodes {
		switch {
		case m.Current == nil:
			row(key, "unknown")
			return
		case *m.Current:
			continue
		case *m.Registered == "":
			row(key, "%s has no record in the cluster that can be read; 'btrlog log replace %s --node %s=OTHER' puts another in its place", m.Name, d.Name, m.Name)
		default:
			row(key, "%s is incarnation %s, the log knows %s; 'btrlog log replace %s --node %s=%s' adopts it", m.Name, *m.Registered, m.Incarnation,
				d.Name, m.Name, m.Name)
		}
		key = ""
	}
	if key != "" && len(d.Nodes) > 0 {
		row(key, "those that the log knows")
	}
}

func memberNames(ms []member, sep string) string {
	names := make([]string, len(ms))
	for i, m := range ms {
		names[i] = m.Name
		if m.Zone != "" {
			names[i] += "@" + m.Zone
		}
	}
	return strings.Join(names, sep)
}

func orDash(s string) string { return orElse(s != "", s, "-") }

func orElse(ok bool, s, otherwise string) string {
	if ok {
		return s
	}
	return otherwise
}

func millis(ms int64) string   { return (time.Duration(ms) * time.Millisecond).String() }
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05Z") }
func plural(n int64, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}

// lsnRange names the LSNs from first to last.
func lsnRange(first, last btrlog.LSN) string {
	if first == last {
		return fmt.Sprintf("LSN %d", first)
	}
	return fmt.Sprintf("LSN %d..%d", first, last)
}

var byteUnits = []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}

// humanBytes writes a size with at most one decimal and a binary unit; an exact multiple has no decimal.
func humanBytes(n int64) string {
	v, u := float64(n), 0
	for v >= 1024 && u < len(byteUnits)-1 {
		v, u = v/1024, u+1
	}
	if v == math.Trunc(v) {
		return fmt.Sprintf("%.0f %s", v, byteUnits[u])
	}
	return fmt.Sprintf("%.1f %s", v, byteUnits[u])
}

// byteSize is a flag such as 4096, 64KiB or 16MiB.
type byteSize int64

func (b *byteSize) String() string {
	if *b == 0 {
		return "" // not given; the help of each flag names its default
	}
	return strings.ReplaceAll(humanBytes(int64(*b)), " ", "")
}
func (b *byteSize) Type() string { return "size" }
func (b *byteSize) Set(s string) error {
	digits := strings.TrimRight(s, "BKMGTPEi")
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 {
		return fmt.Errorf("%q is no size; write for example 4096, 64KiB or 16MiB", s)
	}
	unit := s[len(digits):]
	if unit == "" {
		unit = "B"
	}
	for i, u := range byteUnits {
		if u == unit {
			if n > math.MaxInt64>>(10*i) {
				return fmt.Errorf("%q is too large", s)
			}
			*b = byteSize(n << (10 * i))
			return nil
		}
	}
	return fmt.Errorf("%q has no known unit; known are %s", s, strings.Join(byteUnits, ", "))
}

// checkHostPort says what is wrong with an address that a user gave.
func checkHostPort(s string) error {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return fmt.Errorf("address %q is not host:port", s)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("address %q has no port number from 0 to 65535", s)
	}
	_ = host // an empty one means every address, where one listens
	return nil
}

func printRows(w io.Writer, rows [][]string) error {
	return table(w, func(w io.Writer) {
		for _, r := range rows {
			fmt.Fprintln(w, strings.Join(r, "\t"))
		}
	})
}
