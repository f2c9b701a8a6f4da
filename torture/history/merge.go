//go:build linux

package history

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// Forever is the time of a return that never came.
const Forever = math.MaxInt64

// Operation is a call with its return.
type Operation struct {
	Client     int // which history file
	Op         Op
	Call, Ret  int64 // ns; Ret is Forever for what is open to the end
	LSN, Val   uint64
	Out        Outcome
	Err        string
	Bad        string
	hasReturn  bool
	resolution resolution
}

// Log is everything that happened to one log.
type Log struct {
	Name string
	Ops  []Operation // by call
	// Follows are what followers saw, each in the order in which it did. Finals are the scans in the end.
	Follows map[string][]Event
	Finals  map[string][]Event
	// Problems are contradictions within the history files.
	Problems []string
}

// Merge puts the events of all clients together, by log.
func Merge(clients [][]Event) []*Log {
	logs := make(map[string]*Log)
	for client, events := range clients {
		open := make(map[uint64]*Operation)
		order := []*Operation{}
		names := make(map[*Operation]string)
		for _, e := range events {
			l := logs[e.Log]
			if l == nil {
				l = &Log{Name: e.Log, Follows: make(map[string][]Event), Finals: make(map[string][]Event)}
				logs[e.Log] = l
			}
			switch {
			case e.Op == Follow:
				l.Follows[fmt.Sprintf("%s of client %d", e.Reader, client)] = append(l.Follows[fmt.Sprintf("%s of client %d", e.Reader, client)], e)
			case e.Op == Final:
				l.Finals[e.Reader] = append(l.Finals[e.Reader], e)
			case e.Out == "":
				o := &Operation{Client: client, Op: e.Op, Call: e.T, Ret: Forever, LSN: e.LSN, Val: e.Val, Out: Unknown}
				open[e.ID] = o
				order = append(order, o)
				names[o] = e.Log
			default:
				o := open[e.ID]
				if o == nil || o.hasReturn {
					l.Problems = append(l.Problems, fmt.Sprintf("client %d: a return of %s, number %d, without its call", client, e.Op, e.ID))
					continue
				}
				o.hasReturn = true
				if o.Op == Append && e.LSN != 0 {
					o.LSN = e.LSN
				}
				if o.Op == Tail || o.Op == Open {
					o.LSN = e.LSN
				}
				if o.Op == Read {
					o.Val = e.Val
				}
				o.Out, o.Err, o.Bad = e.Out, e.Err, e.Bad
				if e.Out != Unknown {
					o.Ret = e.T
				}
			}
		}
		for _, o := range order {
			l := logs[names[o]]
			l.Ops = append(l.Ops, *o)
		}
	}
	var out []*Log
	for _, l := range logs {
		slices.SortStableFunc(l.Ops, func(a, b Operation) int { return cmp.Compare(a.Call, b.Call) })
		out = append(out, l)
	}
	slices.SortFunc(out, func(a, b *Log) int { return cmp.Compare(a.Name, b.Name) })
	return out
}
