package lst_test

import (
	"fmt"
	"os"

	"github.com/btrlog/btrlog/lst"
)

func Example() {
	dir, err := os.MkdirTemp("", "lst-example")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	s, _, err := lst.Open(dir, lst.Options{SegmentBytes: 1 << 20})
	if err != nil {
		panic(err)
	}
	defer s.Close()

	orders := lst.StreamID{1}
	var b lst.Batch
	b.Append(orders, 0, []byte("first"))
	b.Append(orders, 1, []byte("second"))
	b.Put([]byte("state"), []byte("open"))
	if _, err := s.Commit(&b, lst.Forced); err != nil {
		panic(err)
	}

	v := s.View()
	for it := v.Range(orders, 0, 10); it.Next(); {
		fmt.Println(it.Seq(), string(it.Value()))
	}
	st, _ := v.Stat(orders)
	fmt.Println("EOF", st.EOF, "count", st.Count)
	// Output:
	// 0 first
	// 1 second
	// EOF 2 count 2
}

// The split-phase form: the owner of the event loop does the write.
func ExampleStore_Prepare() {
	dir, err := os.MkdirTemp("", "lst-example")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	s, _, err := lst.Open(dir, lst.Options{Mode: lst.Direct, SegmentBytes: 1 << 20})
	if err != nil {
		panic(err)
	}
	defer s.Close()

	var b lst.Batch
	b.Append(lst.StreamID{7}, 1, []byte("payload"))
	w, err := s.Prepare(&b)
	if err != nil {
		panic(err)
	}
	// pwrite(w.File.Fd(), w.Buffer, w.Offset), or let the store do it:
	if err := s.Complete(w, w.Execute()); err != nil {
		panic(err)
	}
	fmt.Println(s.Completed() >= w.Ticket, s.View().Has(lst.StreamID{7}, 1))
	// Output: true true
}
