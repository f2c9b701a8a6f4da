//go:build linux

package history

import (
	"time"

	"github.com/anishathalye/porcupine"
)

// register is the state of a log: how many records it has, and the newest with a way to those before. It is immutable.
type register struct {
	length uint64
	hash   uint64 // of all values, in order
	newest *entry
}

type entry struct {
	value uint64
	lsn   uint64
	prev  *entry
	skip  *entry // to a multiple of skipStep
}

const skipStep = 64

func (r register) append(v uint64) register {
	e := &entry{value: v, lsn: r.length + 1, prev: r.newest}
	if r.newest != nil {
		e.skip = r.newest.skip
		if r.newest.lsn%skipStep == 0 {
			e.skip = r.newest
		}
	}
	return register{length: r.length + 1, hash: mix(r.hash ^ mix(v)), newest: e}
}

func (r register) at(lsn uint64) uint64 {
	e := r.newest
	for e != nil && e.lsn > lsn {
		if e.skip != nil && e.skip.lsn >= lsn {
			e = e.skip
		} else {
			e = e.prev
		}
	}
	if e == nil {
		return 0
	}
	return e.value
}

// mix is the finaliser of splitmix64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// model is a log as one object: append gives the next LSN, a read sees what is there, the tail is the length. An append of
// unknown outcome may do nothing at any time, and what it may do it does at its LSN, if it got one.
var model = porcupine.Model{
	Init: func() any { return register{} },
	Step: func(state, input, _ any) (bool, any) {
		r, o := state.(register), input.(*Operation)
		switch {
		case o.Op == Append && o.Out == OK:
			return o.LSN == r.length+1, r.append(o.Val)
		case o.Op == Append: // unknown: it does something only where its LSN is the next one
			if o.LSN == 0 || o.LSN == r.length+1 {
				return true, r.append(o.Val)
			}
			return o.resolution != inLog, r
		case o.Op == Read && o.Out == Absent:
			return o.LSN > r.length, r
		case o.Op == Read:
			return o.LSN <= r.length && r.at(o.LSN) == o.Val, r
		default: // tail, open
			return o.LSN == r.length, r
		}
	},
	Equal: func(a, b any) bool {
		x, y := a.(register), b.(register)
		return x.length == y.length && x.hash == y.hash
	},
	Hash: func(s any) uint64 { return mix(s.(register).hash ^ s.(register).length) },
}

// resolution says what the scan in the end knows about an append of unknown outcome.
type resolution int

const (
	unresolved resolution = iota
	inLog
	notInLog
)

// Linearizable asks porcupine about one log. What cannot have had an effect is left out: failed appends, reads without an
// answer, and appends of unknown outcome that the log does not hold in the end, for nothing leaves a log. Those that it does
// hold have a known LSN but an open end.
func (l *Log) Linearizable(limit time.Duration) (porcupine.CheckResult, int) {
	where := make(map[uint64]uint64)
	for _, scan := range l.Finals {
		for _, e := range scan {
			if e.Val != 0 {
				where[e.Val] = e.LSN
			}
		}
	}
	var ops []porcupine.Operation
	for i := range l.Ops {
		o := l.Ops[i]
		switch {
		case o.Op == Append && o.Out == Failed, o.Op != Append && (o.Out == Failed || o.Out == Unknown):
			continue
		case o.Op == Append && o.Out == Unknown && len(l.Finals) > 0:
			lsn, ok := where[o.Val]
			if !ok {
				continue
			}
			o.LSN, o.resolution = lsn, inLog
		}
		ops = append(ops, porcupine.Operation{ClientId: o.Client, Input: &o, Call: o.Call, Return: o.Ret})
	}
	for _, scan := range l.Finals { // the tail that each found
		for _, e := range scan {
			if e.Val == 0 && e.Bad == "" && e.Out == OK {
				ops = append(ops, porcupine.Operation{Input: &Operation{Op: Tail, Out: OK, LSN: e.LSN}, Call: e.T, Return: e.T + 1})
			}
		}
	}
	return porcupine.CheckOperationsTimeout(model, ops, limit), len(ops)
}
