package localdir

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"time"
)

// lockTable is the 256 lock files of a store. Within the process a one-place channel
// stands before each file, so that waiting goroutines queue and can be cancelled; between processes the
// file is tried again and again with growing pauses, because a blocking flock could not be cancelled.
type lockTable struct {
	dir     string
	buckets [256]lockBucket
}

type lockBucket struct {
	turn chan struct{} // holds one token while the bucket is free
	file *os.File      // owned by who holds the token; nil until first used
}

func (t *lockTable) init(dir string) {
	t.dir = dir
	for i := range t.buckets {
		t.buckets[i].turn = make(chan struct{}, 1)
		t.buckets[i].turn <- struct{}{}
	}
}

func bucketOf(key string) byte {
	h := fnv.New32a()
	h.Write([]byte(key))
	return byte(h.Sum32() ^ h.Sum32()>>16)
}

// lock takes the key's lock or gives up after timeout or when ctx ends.
func (t *lockTable) lock(ctx context.Context, key string, timeout time.Duration) (unlock func(), err error) {
	n := bucketOf(key)
	b := &t.buckets[n]
	path := filepath.Join(t.dir, fmt.Sprintf("%02x", n))

	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	busy := func() error {
		return fmt.Errorf("lock file %s was held by others for %v: is a process that uses the store stopped, or its disk stuck?", path, timeout)
	}
	select {
	case <-b.turn:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-deadline.C:
		return nil, busy()
	}
	pause := 100 * time.Microsecond
	for {
		ok, err := b.try(path)
		if err != nil {
			b.turn <- struct{}{}
			return nil, err
		}
		if ok {
			return func() {
				if err := unlockFile(b.file); err != nil {
					// Closing drops the lock too.
					b.file.Close()
					b.file = nil
				}
				b.turn <- struct{}{}
			}, nil
		}
		wait := time.NewTimer(pause)
		select {
		case <-wait.C:
		case <-ctx.Done():
			err = ctx.Err()
		case <-deadline.C:
			err = busy()
		}
		wait.Stop()
		if err != nil {
			b.turn <- struct{}{}
			return nil, err
		}
		pause = min(2*pause, 5*time.Millisecond)
	}
}

// try opens the bucket's file if need be and tries to lock it.
func (b *lockBucket) try(path string) (bool, error) {
	if b.file == nil {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, fileMode)
		if err != nil {
			return false, err
		}
		b.file = f
	}
	ok, err := tryLock(b.file)
	if err == nil && ok && unlinked(b.file) {
		// The lock directory was cleared by hand. A lock on a nameless file excludes nobody who comes later.
		err = b.file.Close()
		b.file = nil
		return false, err
	}
	return ok, err
}

func (t *lockTable) close() error {
	var errs []error
	for i := range t.buckets {
		b := &t.buckets[i]
		<-b.turn
		if b.file != nil {
			errs = append(errs, b.file.Close())
			b.file = nil
		}
		b.turn <- struct{}{}
	}
	return errors.Join(errs...)
}
