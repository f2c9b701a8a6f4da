package lst_test

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/btrlog/btrlog/lst"
)

// scratch is a directory for one example.
func scratch() string {
	dir, err := os.MkdirTemp("", "lst-example")
	if err != nil {
		panic(err)
	}
	return dir
}

// commit commits b and leaves it empty.
func commit(s *lst.Store, b *lst.Batch, d lst.Durability) {
	if _, err := s.Commit(b, d); err != nil {
		panic(err)
	}
	b.Reset()
}

func open(dir string) *lst.Store {
	s, _, err := lst.Open(dir, lst.Options{SegmentBytes: 1 << 20})
	if err != nil {
		panic(err)
	}
	return s
}

func Example() {
	dir := scratch()
	defer os.RemoveAll(dir)
	s, report, err := lst.Open(dir, lst.Options{SegmentBytes: 1 << 20})
	if err != nil {
		panic(err)
	}
	defer s.Close()
	fmt.Println("new:", report.Created)

	orders := lst.StreamID{1}
	var b lst.Batch
	b.Append(orders, 0, []byte("first"))
	b.Append(orders, 1, []byte("second"))
	b.Put([]byte("state"), []byte("open"))
	if _, err := s.Commit(&b, lst.Acknowledged); err != nil {
		panic(err)
	}

	v := s.View()
	payload, err := v.Get(orders, 1, nil)
	st, _ := v.Stat(orders)
	fmt.Printf("%s %v, EOF %d, %d records of %d bytes\n", payload, err, st.EOF, st.Count, st.Bytes)
	// Output:
	// new: true
	// second <nil>, EOF 2, 2 records of 11 bytes
}

// Acknowledged survives the end of the process, Forced the loss of power. A forced commit covers everything committed
// before it.
func ExampleStore_Commit() {
	dir := scratch()
	defer os.RemoveAll(dir)
	s := open(dir)
	defer s.Close()

	stream := lst.StreamID{1}
	var b lst.Batch
	for seq := range uint64(3) {
		b.Append(stream, seq, fmt.Append(nil, "event ", seq))
		commit(s, &b, lst.Acknowledged)
	}
	b.Append(stream, 3, []byte("payment"))
	at, err := s.Commit(&b, lst.Forced) // all four are on the device now
	fmt.Println(at.Segment, at.Length > 0, err)
	// Output: 1 true <nil>
}

// A publisher that does not know whether its last batch arrived sends it again and is told.
func ExampleBatch_Append() {
	dir := scratch()
	defer os.RemoveAll(dir)
	s := open(dir)
	defer s.Close()

	stream := lst.StreamID{1}
	var b lst.Batch
	b.Append(stream, 0, []byte("once"))
	commit(s, &b, lst.Acknowledged)

	b.Append(stream, 0, []byte("once"))
	_, err := s.Commit(&b, lst.Acknowledged)
	var exists *lst.Exists
	fmt.Println(errors.Is(err, lst.ErrExists), errors.As(err, &exists), exists.Seq, exists.EOF)
	// Output: true true 0 1
}

func ExampleView_Range() {
	dir := scratch()
	defer os.RemoveAll(dir)
	s := open(dir)
	defer s.Close()

	stream := lst.StreamID{1}
	var b lst.Batch
	for _, seq := range []uint64{10, 11, 13} { // any order, with holes
		b.Append(stream, seq, fmt.Append(nil, "payload ", seq))
	}
	commit(s, &b, lst.Acknowledged)

	v := s.View()
	it := v.Range(stream, 11, 20)
	for it.Next() {
		fmt.Println(it.Seq(), string(it.Value()))
	}
	if err := it.Err(); err != nil {
		panic(err)
	}
	fmt.Println(v.Extents(stream, nil))
	// Output:
	// 11 payload 11
	// 13 payload 13
	// [{10 12} {13 14}]
}

// Key-values are in the same index, and in the same batch if they belong together.
func ExampleBatch_Put() {
	dir := scratch()
	defer os.RemoveAll(dir)
	s := open(dir)
	defer s.Close()

	var b lst.Batch
	b.Append(lst.StreamID{1}, 0, []byte("record"))
	b.Put([]byte("cursor/a"), []byte("0"))
	b.Put([]byte("cursor/b"), []byte("7"))
	commit(s, &b, lst.Acknowledged)
	b.Put([]byte("cursor/a"), []byte("1"))
	b.Delete([]byte("cursor/b"))
	commit(s, &b, lst.Acknowledged)

	v := s.View()
	v.KVs([]byte("cursor/"), func(key, value []byte) bool {
		fmt.Printf("%s = %s\n", key, value)
		return true
	})
	_, err := v.GetKV([]byte("cursor/b"), nil)
	fmt.Println(errors.Is(err, lst.ErrNotFound))
	// Output:
	// cursor/a = 1
	// true
}

// Another process reads the directory while the writer goes on. It changes nothing in it and takes no lock; a plain copy of
// the segment files opens in the same way.
func ExampleOpenReadOnly() {
	dir := scratch()
	defer os.RemoveAll(dir)
	s := open(dir) // the writer, somewhere else
	defer s.Close()
	stream := lst.StreamID{1}
	var b lst.Batch
	b.Append(stream, 0, []byte("a"))
	commit(s, &b, lst.Acknowledged)

	r, err := lst.OpenReadOnly(dir, lst.Options{})
	if err != nil {
		panic(err)
	}
	defer r.Close()
	b.Append(stream, 1, []byte("b"))
	commit(s, &b, lst.Acknowledged)

	before, _ := r.View().Stat(stream)
	if err := r.Refresh(); err != nil {
		panic(err)
	}
	after, _ := r.View().Stat(stream)
	fmt.Println(before.Count, after.Count)
	// Output: 1 2
}

// A snapshot that is still on disk can be read as the store was then.
func ExampleReader_At() {
	dir := scratch()
	defer os.RemoveAll(dir)
	s := open(dir)
	defer s.Close()
	stream := lst.StreamID{1}
	var b lst.Batch
	b.Append(stream, 0, []byte("before"))
	commit(s, &b, lst.Acknowledged)
	if err := s.Snapshot(); err != nil {
		panic(err)
	}
	b.Append(stream, 1, []byte("after"))
	commit(s, &b, lst.Acknowledged)

	r, err := lst.OpenReadOnly(dir, lst.Options{})
	if err != nil {
		panic(err)
	}
	defer r.Close()
	points, err := r.Snapshots(1)
	if err != nil {
		panic(err)
	}
	then, err := r.At(points[0].Number)
	if err != nil {
		panic(err)
	}
	defer then.Close()
	now, _ := r.View().Stat(stream)
	old, _ := then.View().Stat(stream)
	fmt.Println(now.Count, old.Count)
	// Output: 2 1
}

// The split-phase form: the owner of an event loop does the write, in whatever way it does I/O.
func ExampleStore_Prepare() {
	dir := scratch()
	defer os.RemoveAll(dir)
	s, _, err := lst.Open(dir, lst.Options{Mode: lst.Direct, SegmentBytes: 1 << 20})
	if err != nil {
		panic(err)
	}
	defer s.Close()

	var b lst.Batch
	b.Append(lst.StreamID{7}, 1, []byte("payload"))
	w, err := s.Prepare(&b) // reserves and encodes; nothing is visible yet
	if err != nil {
		panic(err)
	}
	// A ring would submit pwrite(w.File.Fd(), w.Buffer, w.Offset) here; Execute does the same and waits.
	if err := s.Complete(w, w.Execute()); err != nil {
		panic(err)
	}
	// In Direct mode a completed write is durable. Several may be in flight: one is done when all before it are.
	fmt.Println(s.Completed() >= w.Ticket, s.View().Has(lst.StreamID{7}, 1))
	// Output: true true
}

// Space comes back in whole files, from the front: trim what is not needed any more, then reclaim. Options.DropOldest and
// Options.RetainAge do both by themselves.
func ExampleStore_Reclaim() {
	dir := scratch()
	defer os.RemoveAll(dir)
	s, _, err := lst.Open(dir, lst.Options{SegmentBytes: 64 << 10, DiskBudgetBytes: 1 << 20})
	if err != nil {
		panic(err)
	}
	defer s.Close()

	stream, idle := lst.StreamID{1}, lst.StreamID{2}
	var b lst.Batch
	b.Append(idle, 0, []byte("the only one"))
	for seq := range uint64(1000) {
		b.Append(stream, seq, []byte(strings.Repeat("x", 200)))
		commit(s, &b, lst.Acknowledged)
	}
	b.Trim(stream, 990)
	b.Trim(idle, 1) // one record would hold its segment, and all behind it
	commit(s, &b, lst.Acknowledged)
	dropped, err := s.Reclaim()
	st, _ := s.View().Stat(idle)
	fmt.Println(dropped > 0, err, s.Retention().State, "EOF of the emptied stream:", st.EOF)
	// Output: true <nil> ok EOF of the emptied stream: 1
}

// What the tools are made of: every byte checked, nothing changed.
func ExampleInspect() {
	dir := scratch()
	defer os.RemoveAll(dir)
	s := open(dir)
	var b lst.Batch
	b.Append(lst.StreamID{1}, 0, []byte("payload"))
	commit(s, &b, lst.Forced)
	if err := s.Close(); err != nil {
		panic(err)
	}

	in, err := lst.Inspect(dir, lst.Options{})
	if err != nil {
		panic(err)
	}
	defer in.Close()
	report, err := in.Scan(nil)
	if err != nil {
		panic(err)
	}
	fmt.Println(in.Damage, report.DamageCount, report.Records, report.Space.LivePayload)
	// Output: <nil> 0 1 7
}
