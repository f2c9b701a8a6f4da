// Package peers runs other Go storage engines as append-only logs beside lst, each in the durability class that it is shown
// to have.
package peers

import (
	"encoding/binary"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/dgraph-io/badger/v4"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftwal "github.com/hashicorp/raft-wal"
	tidwal "github.com/tidwall/wal"
	"go.etcd.io/bbolt"

	"github.com/btrlog/btrlog/lst"
)

// Log is an engine used as one log of records 1, 2, 3 …
type Log interface {
	// Append adds records behind the last one, all or none of them, and returns when the engine acknowledges. It may be
	// called from any goroutine; the order among concurrent calls is open. The engine does not keep the slices.
	Append(recs [][]byte) error
	// Read returns record i, counted from 1. The slice is valid until the next call.
	Read(i uint64) ([]byte, error)
	// Close releases the directory.
	Close() error
}

// Engine is a way to open a Log.
type Engine struct {
	Name string
	// Open opens or creates a log in dir. forced asks for acknowledgements that survive the loss of power; the others
	// are as weak as the engine offers.
	Open func(dir string, forced bool) (Log, error)
	// OnlyForced engines have no weaker way.
	OnlyForced bool
	// How says in a few words how the engine is configured, for the report.
	Unforced, Forced string
}

// LST is the engine that the others are compared with.
var LST = Engine{Name: "lst", Open: openLST, Unforced: "buffered, Acknowledged", Forced: "direct mode, Forced"}

// Others are the peers.
var Others = []Engine{
	{Name: "pebble", Open: openPebble, Unforced: "NoSync", Forced: "Sync"},
	{Name: "bbolt", Open: openBolt, Unforced: "NoSync, NoFreelistSync, FillPercent 1", Forced: "Batch, NoFreelistSync, FillPercent 1"},
	{Name: "badger", Open: openBadger, Unforced: "SyncWrites off", Forced: "SyncWrites on"},
	{Name: "tidwall/wal", Open: openTidwall, Unforced: "NoSync", Forced: "sync, callers combined into batches in front of it"},
	{Name: "raft-wal", Open: openRaftWAL, OnlyForced: true, Forced: "StoreLogs, callers combined into batches in front of it"},
}

func key(i uint64) []byte { return binary.BigEndian.AppendUint64(nil, i) }

// lstLog gives each concurrent caller a stream of its own, as a log node does; a single caller has the first one.
type lstLog struct {
	s       *lst.Store
	d       lst.Durability
	callers chan *lstCaller
	count   atomic.Int32
	buf     []byte
}

type lstCaller struct {
	b      lst.Batch
	stream lst.StreamID
	next   uint64
}

// maxCallers bounds the concurrent callers of a log.
const maxCallers = 256

func openLST(dir string, forced bool) (Log, error) {
	opt, d := lst.Options{}, lst.Acknowledged
	if forced {
		opt.Mode, d = lst.Direct, lst.Forced
	}
	s, _, err := lst.Open(dir, opt)
	if err != nil {
		return nil, err
	}
	return &lstLog{s: s, d: d, callers: make(chan *lstCaller, maxCallers)}, nil
}

func lstStream(n int) lst.StreamID { return lst.StreamID{1, byte(n >> 8), byte(n)} }

func (l *lstLog) Append(recs [][]byte) error {
	var c *lstCaller
	select {
	case c = <-l.callers:
	default:
		c = &lstCaller{stream: lstStream(int(l.count.Add(1)))}
		if st, ok := l.s.View().Stat(c.stream); ok {
			c.next = st.EOF
		}
	}
	c.b.Reset()
	for i, r := range recs {
		c.b.Append(c.stream, c.next+uint64(i), r)
	}
	_, err := l.s.Commit(&c.b, l.d)
	if err == nil {
		c.next += uint64(len(recs))
	}
	l.callers <- c
	return err
}

func (l *lstLog) Read(i uint64) ([]byte, error) {
	var err error
	l.buf, err = l.s.View().Get(lstStream(1), i-1, l.buf[:0])
	return l.buf, err
}

func (l *lstLog) Close() error { return l.s.Close() }

type pebbleLog struct {
	db   *pebble.DB
	opt  *pebble.WriteOptions
	next atomic.Uint64
	buf  []byte
}

type silent struct{}

func (silent) Infof(string, ...any)         {}
func (silent) Errorf(string, ...any)        {}
func (silent) Fatalf(f string, args ...any) { log.Fatalf(f, args...) }

func openPebble(dir string, forced bool) (Log, error) {
	db, err := pebble.Open(dir, &pebble.Options{Logger: silent{}, MemTableSize: 64 << 20})
	if err != nil {
		return nil, err
	}
	l := &pebbleLog{db: db, opt: pebble.NoSync}
	if forced {
		l.opt = pebble.Sync
	}
	it, err := db.NewIter(nil)
	if err != nil {
		return nil, err
	}
	if it.Last() {
		l.next.Store(binary.BigEndian.Uint64(it.Key()))
	}
	return l, it.Close()
}

func (l *pebbleLog) Append(recs [][]byte) error {
	b := l.db.NewBatch()
	defer b.Close()
	to := l.next.Add(uint64(len(recs)))
	var k [8]byte
	for i, r := range recs {
		binary.BigEndian.PutUint64(k[:], to-uint64(len(recs)-1-i))
		if err := b.Set(k[:], r, nil); err != nil {
			return err
		}
	}
	return b.Commit(l.opt)
}

func (l *pebbleLog) Read(i uint64) ([]byte, error) {
	v, c, err := l.db.Get(key(i))
	if err != nil {
		return nil, err
	}
	l.buf = append(l.buf[:0], v...)
	return l.buf, c.Close()
}

func (l *pebbleLog) Close() error { return l.db.Close() }

type boltLog struct {
	db     *bbolt.DB
	forced bool
	next   atomic.Uint64
	buf    []byte
}

var bucket = []byte("log")

func openBolt(dir string, forced bool) (Log, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	db, err := bbolt.Open(filepath.Join(dir, "bolt"), 0o644, &bbolt.Options{NoSync: !forced, NoFreelistSync: true, FreelistType: bbolt.FreelistMapType})
	if err != nil {
		return nil, err
	}
	db.MaxBatchSize = 64 // as many as there are callers: a batch never waits for its delay
	l := &boltLog{db: db, forced: forced}
	err = db.Update(func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucketIfNotExists(bucket)
		if err != nil {
			return err
		}
		if k, _ := b.Cursor().Last(); k != nil {
			l.next.Store(binary.BigEndian.Uint64(k))
		}
		return nil
	})
	return l, err
}

func (l *boltLog) Append(recs [][]byte) error {
	to := l.next.Add(uint64(len(recs)))
	put := func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucket)
		b.FillPercent = 1
		for i, r := range recs {
			if err := b.Put(key(to-uint64(len(recs)-1-i)), r); err != nil {
				return err
			}
		}
		return nil
	}
	if l.forced {
		return l.db.Batch(put)
	}
	return l.db.Update(put)
}

func (l *boltLog) Read(i uint64) ([]byte, error) {
	err := l.db.View(func(tx *bbolt.Tx) error {
		v := tx.Bucket(bucket).Get(key(i))
		if v == nil {
			return fmt.Errorf("record %d is absent", i)
		}
		l.buf = append(l.buf[:0], v...)
		return nil
	})
	return l.buf, err
}

func (l *boltLog) Close() error { return l.db.Close() }

type badgerLog struct {
	db   *badger.DB
	next atomic.Uint64
	buf  []byte
}

func openBadger(dir string, forced bool) (Log, error) {
	db, err := badger.Open(badger.DefaultOptions(dir).WithSyncWrites(forced).WithLogger(nil).WithDetectConflicts(false))
	if err != nil {
		return nil, err
	}
	l := &badgerLog{db: db}
	err = db.View(func(tx *badger.Txn) error {
		opt := badger.DefaultIteratorOptions
		opt.Reverse, opt.PrefetchValues = true, false
		it := tx.NewIterator(opt)
		defer it.Close()
		if it.Rewind(); it.Valid() {
			l.next.Store(binary.BigEndian.Uint64(it.Item().Key()))
		}
		return nil
	})
	return l, err
}

func (l *badgerLog) Append(recs [][]byte) error {
	tx := l.db.NewTransaction(true)
	defer tx.Discard()
	to := l.next.Add(uint64(len(recs)))
	for i, r := range recs {
		if err := tx.Set(key(to-uint64(len(recs)-1-i)), r); err != nil {
			return err
		}
	}
	return tx.Commit()
}

func (l *badgerLog) Read(i uint64) ([]byte, error) {
	err := l.db.View(func(tx *badger.Txn) error {
		it, err := tx.Get(key(i))
		if err == nil {
			l.buf, err = it.ValueCopy(l.buf[:0])
		}
		return err
	})
	return l.buf, err
}

func (l *badgerLog) Close() error { return l.db.Close() }

type tidwallLog struct {
	w     *tidwal.Log
	next  uint64
	batch tidwal.Batch
}

func openTidwall(dir string, forced bool) (Log, error) { return openTidwallCopy(dir, forced, true) }

// openTidwallCopy says whether a read copies the record, as it does unless told otherwise, or hands out its memory.
func openTidwallCopy(dir string, forced, copies bool) (Log, error) {
	opt := *tidwal.DefaultOptions
	opt.NoSync, opt.NoCopy = !forced, !copies
	w, err := tidwal.Open(dir, &opt)
	if err != nil {
		return nil, err
	}
	l := &tidwallLog{w: w}
	if l.next, err = w.LastIndex(); err != nil {
		return nil, err
	}
	if forced {
		return newCombined(l.Append, l.Read, l.Close), nil
	}
	return l, nil
}

func (l *tidwallLog) Append(recs [][]byte) error {
	l.batch.Clear()
	for i, r := range recs {
		l.batch.Write(l.next+1+uint64(i), r)
	}
	err := l.w.WriteBatch(&l.batch)
	if err == nil {
		l.next += uint64(len(recs))
	}
	return err
}

func (l *tidwallLog) Read(i uint64) ([]byte, error) { return l.w.Read(i) }
func (l *tidwallLog) Close() error                  { return l.w.Close() }

type raftLog struct {
	w    *raftwal.WAL
	next uint64
	logs []*raft.Log
}

func openRaftWAL(dir string, _ bool) (Log, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	w, err := raftwal.Open(dir, raftwal.WithLogger(hclog.New(&hclog.LoggerOptions{Output: io.Discard})))
	if err != nil {
		return nil, err
	}
	l := &raftLog{w: w}
	if l.next, err = w.LastIndex(); err != nil {
		return nil, err
	}
	return newCombined(l.append, l.read, w.Close), nil
}

func (l *raftLog) append(recs [][]byte) error {
	for len(l.logs) < len(recs) {
		l.logs = append(l.logs, new(raft.Log))
	}
	for i, r := range recs {
		*l.logs[i] = raft.Log{Index: l.next + 1 + uint64(i), Term: 1, Data: r}
	}
	err := l.w.StoreLogs(l.logs[:len(recs)])
	if err == nil {
		l.next += uint64(len(recs))
	}
	return err
}

func (l *raftLog) read(i uint64) ([]byte, error) {
	var r raft.Log
	err := l.w.GetLog(i, &r)
	return r.Data, err
}
