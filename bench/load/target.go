// Package load offers appends to a log service at a rate that does not depend on the answers, and measures each from the moment at which it
// was due: an open loop. What it measures is behind Target; the client that appends is a process of its own (ServeClient, Client), bound to
// processors of its own choosing, so that it cannot take from the nodes more than these.
package load

import (
	"context"
	"errors"
	"time"
)

// Completion is told the result of an append, once, by any goroutine. It returns soon.
type Completion interface{ Done(err error) }

// Target is a client of what is measured.
type Target interface {
	// Open sees to it that there are so many logs, numbered from 0. It is called again with larger numbers.
	Open(ctx context.Context, logs int) error
	// Append begins to append a copy of record to a log and does not wait. An error says that nothing was begun, and c is not called.
	// ErrRefused is the service's own bound; any other error ends the run.
	Append(log int, record []byte, c Completion) error
	// Closed makes so many appends to log 0, each after the answer to the one before, in the way that is quickest for one caller,
	// and returns how long each took.
	Closed(ctx context.Context, count int, record []byte) ([]time.Duration, error)
	// Close ends the client.
	Close() error
}

// ErrRefused is the answer to an append that the client would have to wait for: a window or a bounded queue is full.
var ErrRefused = errors.New("refused: too many appends are under way")

// ClosedLoop is Target.Closed for a client whose call returns when the record is durable.
func ClosedLoop(count int, appendOne func() error) ([]time.Duration, error) {
	took := make([]time.Duration, 0, count)
	for range count {
		begin := time.Now()
		if err := appendOne(); err != nil {
			return nil, err
		}
		took = append(took, time.Since(begin))
	}
	return took, nil
}
