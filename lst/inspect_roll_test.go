package lst

import (
	"testing"

	"github.com/btrlog/btrlog/lst/vfs"
)

// afterList runs something once, behind the first listing of a directory.
type afterList struct {
	vfs.FS
	then func()
}

func (f *afterList) List(dir string) ([]string, error) {
	names, err := f.FS.List(dir)
	if then := f.then; then != nil {
		f.then = nil
		then()
	}
	return names, err
}

// A writer rolls to a new segment while an inspection begins: its records are in the index, so its file must be in the scan.
func TestInspectWhileTheWriterRolls(t *testing.T) {
	d, opt := memStore(11, Buffered)
	s := mustOpen(t, "/db", opt)
	defer s.Close()
	seq := uint64(0)
	untilRoll := func() {
		for active := s.Stats().Active; s.Stats().Active == active; seq++ {
			appendOne(t, s, sid(1), seq, payload(1, int(seq), 700), Forced)
		}
		appendOne(t, s, sid(1), seq, payload(1, int(seq), 700), Forced)
		seq++
	}
	untilRoll()
	looked := opt
	looked.FS = &afterList{FS: d, then: func() {
		for range 3 { // the next segment's file may have been there, as a spare
			untilRoll()
		}
	}}
	in, err := Inspect("/db", looked)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	rep, err := in.Scan(nil)
	if err != nil {
		t.Fatal(err)
	}
	if rep.DamageCount != 0 || rep.NotCompared != "" {
		t.Errorf("a sound store is called damaged: %+v, not compared: %q", rep.Damages, rep.NotCompared)
	}
	if st, _ := (View{in.ix}).Stat(sid(1)); st.EOF != seq {
		t.Errorf("the inspection saw %d records of %d, so this test proves nothing", st.EOF, seq)
	}
}
