package archive

import (
	"errors"
	"sync/atomic"

	"github.com/btrlog/btrlog/objstore"
)

// OpCounters counts the requests of one kind by outcome; every try counts.
type OpCounters struct {
	OK          uint64
	NotFound    uint64
	Exists      uint64 // 412
	Conflict    uint64 // 409
	Unavailable uint64 // 503, no connection: not applied
	Unknown     uint64 // may have been applied
	Damaged     uint64
	Other       uint64
	Bytes       uint64 // of bodies that went through
}

// Attempts is the number of requests, whatever their outcome.
func (c OpCounters) Attempts() uint64 {
	return c.OK + c.NotFound + c.Exists + c.Conflict + c.Unavailable + c.Unknown + c.Damaged + c.Other
}

// Counters is a snapshot of what an Archive asked of its store.
type Counters struct {
	Put, Get, Head, List, Delete OpCounters
	// Flushed counts Flush calls that created their object, Found those that the store already covered.
	Flushed, Found uint64
	// Fallbacks counts reads that another object served because the first was damaged or gone.
	Fallbacks uint64
}

type op int

const (
	opPut op = iota
	opGet
	opHead
	opList
	opDelete
	ops
)

const outcomes = 8

// counts holds the live counters. Each is exact; a snapshot may fall between two of one call.
type counts struct {
	byOp                      [ops][outcomes]atomic.Uint64
	bytes                     [ops]atomic.Uint64
	flushed, found, fallbacks atomic.Uint64
}

func outcomeOf(err error) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, objstore.ErrNotFound):
		return 1
	case errors.Is(err, objstore.ErrPrecondition):
		return 2
	case errors.Is(err, objstore.ErrConflict):
		return 3
	case errors.Is(err, objstore.ErrUnavailable):
		return 4
	case errors.Is(err, objstore.ErrUnknown):
		return 5
	case errors.Is(err, objstore.ErrDamaged):
		return 6
	}
	return 7
}

func (c *counts) add(o op, err error, bytes int) {
	c.byOp[o][outcomeOf(err)].Add(1)
	if err == nil {
		c.bytes[o].Add(uint64(bytes))
	}
}

// Counters returns the counters since New.
func (a *Archive) Counters() Counters {
	one := func(o op) OpCounters {
		n := func(i int) uint64 { return a.counts.byOp[o][i].Load() }
		return OpCounters{OK: n(0), NotFound: n(1), Exists: n(2), Conflict: n(3), Unavailable: n(4), Unknown: n(5), Damaged: n(6), Other: n(7),
			Bytes: a.counts.bytes[o].Load()}
	}
	return Counters{Put: one(opPut), Get: one(opGet), Head: one(opHead), List: one(opList), Delete: one(opDelete),
		Flushed: a.counts.flushed.Load(), Found: a.counts.found.Load(), Fallbacks: a.counts.fallbacks.Load()}
}
