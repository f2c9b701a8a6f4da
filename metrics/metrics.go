// Package metrics holds measured values and writes them in the text format that Prometheus and its kin read. It needs the
// standard library alone, so that neither a client nor a node pulls a metrics library into its users' programs; the module
// integrations/prometheus adapts these values to a prometheus.Registerer for programs that have one.
//
// A value is counted where it happens, in an atomic or a Histogram; nothing here locks or allocates then. Who is asked for
// values collects them into a List.
package metrics

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

// Kind is what a metric is.
type Kind uint8

const (
	// Counter only rises, from zero at the start of the process or client.
	Counter Kind = iota
	// Gauge goes up and down.
	Gauge
	// Distribution is a histogram of times.
	Distribution
)

func (k Kind) String() string { return [...]string{"counter", "gauge", "histogram"}[k] }

// Desc describes a metric. It is part of what operators build on: a name keeps its meaning.
type Desc struct {
	Name   string // in full; units are in it, counters end in _total
	Kind   Kind
	Unit   string // of its values: seconds, bytes, records, …
	Help   string // one sentence
	Labels []string
}

// Sample is one value of a metric.
type Sample struct {
	Labels    []string // values, in the order of Desc.Labels
	Value     float64  // of a Counter or Gauge
	Histogram *Snapshot
}

// Family is a metric with its values.
type Family struct {
	*Desc
	Samples []Sample
}

// List collects values. The zero List is empty. It belongs to one goroutine.
type List struct {
	families []Family
	index    map[*Desc]int
}

// Add adds a value. Labels that do not fit the description are a bug of the caller and panic.
func (l *List) Add(d *Desc, value float64, labels ...string) {
	l.add(d, Sample{Labels: labels, Value: value})
}

// AddHistogram adds a distribution.
func (l *List) AddHistogram(d *Desc, s *Snapshot, labels ...string) {
	l.add(d, Sample{Labels: labels, Histogram: s})
}

func (l *List) add(d *Desc, s Sample) {
	if len(s.Labels) != len(d.Labels) || (s.Histogram != nil) != (d.Kind == Distribution) {
		panic(fmt.Sprintf("metrics: %s takes labels %q, was given %q", d.Name, d.Labels, s.Labels))
	}
	i, ok := l.index[d]
	if !ok {
		if l.index == nil {
			l.index = make(map[*Desc]int)
		}
		i = len(l.families)
		l.index[d] = i
		l.families = append(l.families, Family{Desc: d})
	}
	l.families[i].Samples = append(l.families[i].Samples, s)
}

// Families returns what was added, in the order in which the metrics came first. It shares its memory with the list.
func (l *List) Families() []Family { return l.families }

// ContentType is that of what Write writes.
const ContentType = "text/plain; version=0.0.4; charset=utf-8"

// Write writes families in the text exposition format, version 0.0.4.
func Write(w io.Writer, families []Family) error {
	b := bufio.NewWriter(w)
	for i := range families {
		f := &families[i]
		fmt.Fprintf(b, "# HELP %s %s\n# TYPE %s %s\n", f.Name, escape(f.Help, false), f.Name, f.Kind)
		for j := range f.Samples {
			s := &f.Samples[j]
			if s.Histogram == nil {
				line(b, f.Name, f.Labels, s.Labels, "", s.Value)
				continue
			}
			writeHistogram(b, f, s)
		}
	}
	return b.Flush()
}

func writeHistogram(b *bufio.Writer, f *Family, s *Sample) {
	total := uint64(0)
	for i, n := range s.Histogram.Counts {
		total += n
		le := "+Inf"
		if i < Buckets-1 {
			le = number(Bound(i).Seconds())
		}
		line(b, f.Name+"_bucket", f.Labels, s.Labels, le, float64(total))
	}
	line(b, f.Name+"_sum", f.Labels, s.Labels, "", s.Histogram.Sum.Seconds())
	line(b, f.Name+"_count", f.Labels, s.Labels, "", float64(total))
}

func line(b *bufio.Writer, name string, labels, values []string, le string, value float64) {
	b.WriteString(name)
	sep := byte('{')
	for i, l := range labels {
		b.WriteByte(sep)
		sep = ','
		b.WriteString(l + `="` + escape(values[i], true) + `"`)
	}
	if le != "" {
		b.WriteByte(sep)
		sep = ','
		b.WriteString(`le="` + le + `"`)
	}
	if sep == ',' {
		b.WriteByte('}')
	}
	b.WriteByte(' ')
	b.WriteString(number(value))
	b.WriteByte('\n')
}

// number writes integers without an exponent, as far as a float64 holds them, so that people can read counters.
func number(v float64) string {
	if v == math.Trunc(v) && math.Abs(v) < 1<<53 {
		return strconv.FormatInt(int64(v), 10)
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}

var (
	helpEscapes  = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	labelEscapes = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
)

func escape(s string, label bool) string {
	if label {
		return labelEscapes.Replace(strings.ToValidUTF8(s, "?"))
	}
	return helpEscapes.Replace(s)
}
