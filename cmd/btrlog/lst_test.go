package main_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/btrlog/btrlog/lst"
)

func streamOf(n byte) lst.StreamID { return lst.StreamID{0: n, 15: n} }

// newStore makes a store with several segments, snapshots, holes, trims and key-values.
func newStore(t *testing.T, opt lst.Options) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "store")
	opt.SegmentBytes, opt.SnapshotRecords = 64<<10, 300
	s, _, err := lst.Open(dir, opt)
	if err != nil {
		t.Fatal(err)
	}
	var b lst.Batch
	for k := uint64(0); k < 1500; k++ {
		b.Reset()
		b.Append(streamOf(1), k, fmt.Appendf(nil, "record %d %0100d", k, k))
		b.Append(streamOf(2), 2*k, []byte("every second sequence"))
		b.Put([]byte("position"), fmt.Append(nil, k))
		if k%500 == 499 {
			b.Trim(streamOf(1), k/10)
			b.Put(fmt.Append(nil, "key", k), nil)
		}
		// What no later frame vouches for could be a torn tail.
		durability := lst.Acknowledged
		if k%50 == 49 {
			durability = lst.Forced
		}
		if _, err := s.Commit(&b, durability); err != nil {
			t.Fatal(err)
		}
	}
	b.Reset()
	b.Append(streamOf(3), 7, []byte("alone"))
	b.Replace(streamOf(1), 1000, []byte("replaced"))
	if _, err := s.Commit(&b, lst.Forced); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

// pictureOf is everything that a change of a directory would change: names, sizes, modes, times and bytes.
func pictureOf(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.Walk(dir, func(path string, st os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		sum := [32]byte{}
		if st.Mode().IsRegular() {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			sum = sha256.Sum256(data)
		}
		fmt.Fprintf(&b, "%s %v %d %d %x\n", path, st.Mode(), st.Size(), st.ModTime().UnixNano(), sum)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// unchanged runs the tools and demands that the directory is the same afterwards, to the byte and the time.
func unchanged(t *testing.T, dir string, tools func()) {
	t.Helper()
	before := pictureOf(t, dir)
	tools()
	if after := pictureOf(t, dir); after != before {
		t.Errorf("the directory was changed from\n%s\nto\n%s", before, after)
	}
}

func decode[T any](t *testing.T, line string) (v T) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(line))
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%v in %q", err, clip(line))
	}
	return v
}

type verifyResult struct {
	Sound       bool
	DamageCount int `json:"damage_count"`
	Damages     []struct {
		File   string
		Offset int64
		Reason string
	}
	NotCompared string `json:"not_compared"`
	Streams     int    `json:"streams_compared"`
	Keys        int    `json:"keys_compared"`
	Lost        int    `json:"unreadable_records"`
	Records     int64
	Torn        *struct{ Offset int64 } `json:"torn_tail"`
}

func TestLSTHealthy(t *testing.T) {
	t.Parallel()
	for _, mode := range []lst.Mode{lst.Buffered, lst.Direct} {
		dir := newStore(t, lst.Options{Mode: mode})
		unchanged(t, dir, func() {
			checkInfo(t, dir)
			text := good(t, "", "lst", "verify", dir)
			for _, want := range []string{"damages    none", "3 streams and 4 keys agree with a full scan", " batch, "} {
				if !strings.Contains(text, want) {
					t.Errorf("verify lacks %q:\n%s", want, text)
				}
			}
			v := decode[verifyResult](t, good(t, "", "lst", "verify", "--json", dir))
			if !v.Sound || v.DamageCount != 0 || v.Streams != 3 || v.Keys != 4 || v.Records != 3002 || v.Torn != nil {
				t.Errorf("verify: %+v", v)
			}
			checkStat(t, dir)
			checkLocate(t, dir)
			checkDump(t, dir)
		})
	}
}

func checkInfo(t *testing.T, dir string) {
	t.Helper()
	d := decode[struct {
		Opens     bool
		Format    int   `json:"format_version"`
		Files     int64 `json:"file_bytes"`
		Streams   int
		Keys      int
		Records   int
		Payload   int64 `json:"payload_bytes"`
		Segments  []struct{ State string }
		Snapshots []struct{ Base bool }
		Space     map[string]int64
	}](t, good(t, "", "lst", "info", "--json", dir))
	if !d.Opens || d.Format != lst.FormatVersion || d.Streams != 3 || d.Keys != 4 || d.Records != 1500-149+1500+1 || len(d.Segments) < 3 || len(d.Snapshots) == 0 {
		t.Errorf("info: %+v", d)
	}
	var onDisk, sum int64
	files, _ := filepath.Glob(filepath.Join(dir, "*.lst"))
	for _, f := range files {
		st, err := os.Stat(f)
		if err != nil {
			t.Fatal(err)
		}
		onDisk += st.Size()
	}
	for k, n := range d.Space {
		if k != "file_bytes" && k != "records_in_files" {
			sum += n
		}
	}
	if d.Files != onDisk || d.Space["file_bytes"] != onDisk || sum != onDisk || d.Space["payload_bytes"] != d.Payload || d.Space["index_bytes"] == 0 || d.Space["dead_payload_bytes"] == 0 {
		t.Errorf("space of %d bytes on disk, parts of %d: %v", onDisk, sum, d.Space)
	}
	text := good(t, "", "lst", "info", dir)
	for _, want := range []string{"3 with 2852 records", "keys       4", "00000001.lst  used", "active", "dead payload", "OVER PAYLOAD"} {
		if !strings.Contains(text, want) {
			t.Errorf("info lacks %q:\n%s", want, text)
		}
	}
	if quick := good(t, "", "lst", "info", "--quick", dir); strings.Contains(quick, "dead payload") || !strings.Contains(quick, "3 with 2852 records") {
		t.Errorf("info --quick:\n%s", quick)
	}
}

func checkStat(t *testing.T, dir string) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(good(t, "", "lst", "stat", "--by", "count", "--json", dir)), "\n")
	type stat struct {
		Stream                              string
		Count, First, Contiguous, EOF, Trim uint64
	}
	want := []stat{
		{streamOf(2).String(), 1500, 0, 1, 2999, 0},
		{streamOf(1).String(), 1351, 149, 1500, 1500, 149},
		{streamOf(3).String(), 1, 7, 8, 8, 0},
	}
	for i, line := range lines {
		if got := decode[stat](t, line); len(lines) != len(want) || got != want[i] {
			t.Errorf("stat: line %d of %d is %+v", i, len(lines), got)
		}
	}
	top := good(t, "", "lst", "stat", "--top", "1", dir)
	if !strings.Contains(top, streamOf(1).String()) || strings.Contains(top, streamOf(2).String()) || !strings.Contains(top, "3 streams") {
		t.Errorf("stat --top 1:\n%s", top)
	}
	if one := good(t, "", "lst", "stat", "--stream", streamOf(3).String(), dir); !strings.Contains(one, "1 stream") {
		t.Errorf("stat --stream:\n%s", one)
	}
	bad(t, run(t, "", "lst", "stat", "--stream", streamOf(9).String(), dir), 1, "not found", "btrlog lst stat")
	bad(t, run(t, "", "lst", "stat", "--stream", "xyz", dir), 2, "32 hexadecimal digits")
	bad(t, run(t, "", "lst", "stat", "--by", "size", dir), 2, "--by")
}

func checkLocate(t *testing.T, dir string) {
	t.Helper()
	at := decode[struct {
		File   string
		Offset int64
		Length int
	}](t, good(t, "", "lst", "locate", "--json", dir, streamOf(1).String(), "1000"))
	data, err := os.ReadFile(filepath.Join(dir, at.File))
	if err != nil {
		t.Fatal(err)
	}
	if got := string(data[at.Offset:][:at.Length]); got != "replaced" {
		t.Errorf("locate: at %+v stands %q", at, got)
	}
	if text := good(t, "", "lst", "locate", dir, streamOf(1).String(), "1000"); text != fmt.Sprintf("%s:%d:%d\n", at.File, at.Offset, at.Length) {
		t.Errorf("locate: %q", text)
	}
	bad(t, run(t, "", "lst", "locate", dir, streamOf(1).String(), "3"), 1, "trimmed; the stream begins at 149")
	bad(t, run(t, "", "lst", "locate", dir, streamOf(2).String(), "3"), 1, "not found; the stream has 1500 records")
	bad(t, run(t, "", "lst", "locate", dir, streamOf(8).String(), "3"), 1, "btrlog lst stat")
	bad(t, run(t, "", "lst", "locate", dir, streamOf(8).String()), 2, "sequence is missing")
	bad(t, run(t, "", "lst", "locate", dir, streamOf(8).String(), "-"), 2, "no sequence")
}

func checkDump(t *testing.T, dir string) {
	t.Helper()
	type record struct {
		Sequence uint64
		Payload  []byte
		At       struct{ Offset int64 }
	}
	n := uint64(995)
	for line := range strings.Lines(good(t, "", "lst", "dump", "--stream", streamOf(1).String(), "--from", "995", "--to", "1005", "--bytes", "-1", "--json", dir)) {
		r := decode[record](t, line)
		want := fmt.Sprintf("record %d %0100d", n, n)
		if n == 1000 {
			want = "replaced"
		}
		if r.Sequence != n || string(r.Payload) != want || r.At.Offset == 0 {
			t.Errorf("dump: %+v, want %d %q", r, n, want)
		}
		n++
	}
	if n != 1005 {
		t.Errorf("dump ends at %d", n)
	}
	if text := good(t, "", "lst", "dump", "--stream", streamOf(3).String(), dir); !strings.Contains(text, `"alone"`) || strings.Count(text, "\n") != 1 {
		t.Errorf("dump --stream: %q", text)
	}
	end := int64(0)
	for line := range strings.Lines(good(t, "", "lst", "dump", "--segment", "1", "--json", "--ops", dir)) {
		f := decode[struct {
			Offset     int64
			Length     int64
			Kind       string
			Operations int
			List       []struct{ Kind string }
		}](t, line)
		if end != 0 && f.Offset != end || f.Kind == "" || f.Kind == "damage" || len(f.List) != f.Operations {
			t.Errorf("dump: %s, the frame before ends at %d", line, end)
		}
		end = f.Offset + f.Length
	}
	text := good(t, "", "lst", "dump", "--segment", "00000001.lst", "--ops", dir)
	for _, want := range []string{"link ", "batch ", "2 appends, 1 put", "table ", "root ", `put "position" = "0"`, "append " + streamOf(1).String() + " 0 at 00000001.lst:"} {
		if !strings.Contains(text, want) {
			t.Errorf("dump --segment lacks %q: %s", want, clip(text))
		}
	}
	bad(t, run(t, "", "lst", "dump", "--segment", "77", dir), 1, "0000004d.lst", "btrlog lst info")
	bad(t, run(t, "", "lst", "dump", dir), 2, "one of --segment and --stream")
	bad(t, run(t, "", "lst", "dump", "--segment", "x", dir), 2, "no segment")
}

// tools are all commands on a directory, for stores in any state.
func tools(dir string) [][]string {
	return [][]string{
		{"lst", "info", dir}, {"lst", "info", "--quick", "--json", dir}, {"lst", "verify", dir}, {"lst", "stat", dir}, {"lst", "dump", "--segment", "2", "--ops", dir},
		{"lst", "dump", "--stream", streamOf(1).String(), dir}, {"lst", "locate", dir, streamOf(1).String(), "1400"},
	}
}

// allTools runs every tool. Each answers, or fails with one line that names a file and says what to do.
func allTools(t *testing.T, dir, file, what string) {
	t.Helper()
	for _, args := range tools(dir) {
		res := run(t, "", args...)
		if res.code == 0 && res.err == "" {
			continue
		}
		if args[1] == "locate" && res.code == 1 && strings.Contains(res.err, "not found; the stream has ") {
			continue // it went with a tail that nothing vouches for
		}
		if res.code != 1 || strings.Count(res.err, "\n") != 1 || !strings.Contains(res.err, file) || !strings.Contains(res.err, "; ") || strings.Contains(res.err, "panic") {
			t.Errorf("%s, btrlog %s: code %d, %q", what, strings.Join(args, " "), res.code, clip(res.err))
		}
	}
}

// copyStore is what a backup does: a plain copy of the segment files.
func copyStore(t *testing.T, dir string) string {
	t.Helper()
	to := t.TempDir()
	files, _ := filepath.Glob(filepath.Join(dir, "*.lst"))
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err == nil {
			err = os.WriteFile(filepath.Join(to, filepath.Base(f)), data, 0o444)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return to
}

func TestLSTPlainCopy(t *testing.T) {
	dir := copyStore(t, newStore(t, lst.Options{}))
	if err := os.Chmod(dir, 0o555); err != nil {
		t.Fatal(err)
	}
	defer os.Chmod(dir, 0o755)
	unchanged(t, dir, func() {
		good(t, "", "lst", "verify", dir)
		checkStat(t, dir)
		checkLocate(t, dir)
	})
}

func TestLSTTruncated(t *testing.T) {
	t.Parallel()
	whole := newStore(t, lst.Options{})
	active, _ := activeSegment(whole)
	files, _ := filepath.Glob(filepath.Join(whole, "*.lst"))
	for i, f := range files {
		if i > 0 && f != active {
			continue // what is done to each file and at each place is tested in package lst, by TestInspectEveryTruncation
		}
		st, err := os.Stat(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, size := range []int64{63, 65 + int64(i+1)*1001, st.Size() - 1} {
			if size >= st.Size() {
				continue
			}
			dir := copyStore(t, whole)
			name := filepath.Base(f)
			if err := cutFile(filepath.Join(dir, name), size); err != nil {
				t.Fatal(err)
			}
			what := fmt.Sprintf("%s cut to %d bytes", name, size)
			unchanged(t, dir, func() { allTools(t, dir, ".lst", what) })
			if f >= active {
				continue // a tail that nothing vouches for may be cut off, and a spare file be missing
			}
			bad(t, run(t, "", "lst", "verify", dir), 1, "damage", name, " at offset ")
		}
	}
}

// activeSegment is the last file that holds more than its header.
func activeSegment(dir string) (path string, size int64) {
	files, _ := filepath.Glob(filepath.Join(dir, "*.lst"))
	for _, f := range files {
		if st, err := os.Stat(f); err == nil && st.Size() > 64 {
			path, size = f, st.Size()
		}
	}
	return path, size
}

func cutFile(path string, size int64) error {
	if err := os.Chmod(path, 0o644); err != nil {
		return err
	}
	return os.Truncate(path, size)
}

func TestLSTFlipped(t *testing.T) {
	t.Parallel()
	whole := newStore(t, lst.Options{})
	for _, c := range []struct {
		segment int
		offset  int64
	}{{1, 33}, {1, 5000}, {2, 88}, {3, 61}} {
		dir := copyStore(t, whole)
		name := fmt.Sprintf("%08x.lst", c.segment)
		path := filepath.Join(dir, name)
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		data[c.offset] ^= 0x10
		if err := os.Chmod(path, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
		unchanged(t, dir, func() {
			allTools(t, dir, name, fmt.Sprintf("%s flipped at %d", name, c.offset))
			res := run(t, "", "lst", "verify", "--json", dir)
			bad(t, res, 1, "1 damage; the first: ", path, " at offset ", "restore the file")
			v := decode[verifyResult](t, res.out)
			if v.Sound || v.DamageCount != 1 || len(v.Damages) != 1 || v.Damages[0].File != path || v.Damages[0].Offset > c.offset {
				t.Errorf("%s flipped at %d: %+v", name, c.offset, v)
			}
		})
	}
}

// One flipped byte in a record: the damage is named, and so are the records that it took.
func TestLSTUnreadable(t *testing.T) {
	dir := newStore(t, lst.Options{})
	at := decode[struct {
		File   string
		Offset int64
	}](t, good(t, "", "lst", "locate", "--json", dir, streamOf(1).String(), "300"))
	path := filepath.Join(dir, at.File)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[at.Offset+9] ^= 1
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	res := run(t, "", "lst", "verify", "--json", dir)
	bad(t, res, 1, "1 damage; the first: ", path)
	if v := decode[verifyResult](t, res.out); v.Lost != 1 {
		t.Errorf("%d records are unreadable: %+v", v.Lost, v)
	}
	bad(t, run(t, "", "lst", "dump", "--stream", streamOf(1).String(), dir), 1, path, fmt.Sprintf("at offset %d", at.Offset), "btrlog lst verify")
	if text := good(t, "", "lst", "dump", "--segment", at.File, dir); strings.Count(text, " damage ") != 1 || !strings.Contains(text, "fails its checksum") {
		t.Errorf("dump does not show the damage: %s", clip(text))
	}
}

func TestLSTTornTail(t *testing.T) {
	dir := newStore(t, lst.Options{})
	active, size := activeSegment(dir)
	f, err := os.OpenFile(active, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("half a frame"); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	unchanged(t, dir, func() {
		v := decode[verifyResult](t, good(t, "", "lst", "verify", "--json", dir))
		if !v.Sound || v.Torn == nil || v.Torn.Offset != size {
			t.Errorf("torn at %d: %+v", size, v)
		}
		if text := good(t, "", "lst", "info", dir); !strings.Contains(text, "torn tail") || !strings.Contains(text, fmt.Sprintf("at offset %d, 12 bytes", size)) {
			t.Errorf("info:\n%s", text)
		}
	})
}

func TestLSTForeignFiles(t *testing.T) {
	dir := newStore(t, lst.Options{})
	write := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("notes.txt", "mine")
	write("1.lst", "not a segment's name")
	unchanged(t, dir, func() {
		if text := good(t, "", "lst", "info", dir); !strings.Contains(text, "notes.txt") || !strings.Contains(text, "1.lst\n") {
			t.Errorf("info does not name the foreign files:\n%s", text)
		}
		good(t, "", "lst", "verify", dir)
	})
	write("000000ff.lst", strings.Repeat("no segment ", 100))
	unchanged(t, dir, func() {
		allTools(t, dir, "000000ff.lst", "a foreign segment")
		bad(t, run(t, "", "lst", "verify", dir), 1, "000000ff.lst at offset 0", "header is missing")
	})
	empty := t.TempDir()
	bad(t, run(t, "", "lst", "info", empty), 1, empty, "00000001.lst", "name the directory that holds the files *.lst")
	bad(t, run(t, "", "lst", "info", filepath.Join(empty, "absent")), 1, "absent")
	bad(t, run(t, "", "lst", "info", filepath.Join(dir, "notes.txt")), 1, "notes.txt")
	bad(t, run(t, "", "lst", "info"), 2, "directory is missing")
}

// A writer that appends, rolls, trims and drops as fast as it can, by its own trims or by its budget: each verify sees one
// moment, and it is sound.
func TestLSTBesideWriter(t *testing.T) {
	t.Parallel()
	for _, opt := range []lst.Options{
		{SegmentBytes: 256 << 10, SnapshotRecords: 1000},
		{SegmentBytes: 256 << 10, SnapshotRecords: 1000, Mode: lst.Direct, DiskBudgetBytes: 4 << 20, DropOldest: true},
	} {
		besideWriter(t, opt)
	}
}

func besideWriter(t *testing.T, opt lst.Options) {
	t.Helper()
	dir := newStore(t, lst.Options{})
	s, _, err := lst.Open(dir, opt)
	if err != nil {
		t.Fatal(err)
	}
	stop, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- keepWriting(s, !opt.DropOldest, stop) }()
	for round := 0; round < 3 || s.Stats().Dropped == 0; round++ {
		if round == 300 {
			t.Fatalf("the writer drops nothing: %+v", s.Retention())
		}
		v := decode[verifyResult](t, good(t, "", "lst", "verify", "--json", dir))
		if !v.Sound || v.NotCompared != "" || v.Records == 0 {
			t.Errorf("beside a writer: %+v", v)
		}
		good(t, "", "lst", "stat", dir)
		good(t, "", "lst", "info", "--quick", dir)
	}
	close(stop)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	unchanged(t, dir, func() { good(t, "", "lst", "verify", dir) })
}

func keepWriting(s *lst.Store, trim bool, stop chan struct{}) error {
	var b lst.Batch
	payload := bytes.Repeat([]byte("x"), 200)
	for k := uint64(0); ; k++ {
		select {
		case <-stop:
			return nil
		default:
		}
		b.Reset()
		for i := range uint64(20) {
			b.Append(streamOf(5), 20*k+i, payload)
		}
		b.Put([]byte("position"), fmt.Append(nil, k))
		if trim && k%256 == 255 {
			b.Trim(streamOf(5), 20*(k-128))
			b.Trim(streamOf(1), 1500)
			b.Trim(streamOf(2), 2999)
			b.Trim(streamOf(3), 8)
		}
		if _, err := s.Commit(&b, lst.Acknowledged); err != nil {
			return err
		}
		if trim && k%256 == 255 {
			if _, err := s.Reclaim(); err != nil {
				return err
			}
		}
	}
}

func TestLSTVersions(t *testing.T) {
	v := decode[struct {
		LST     int `json:"lst_format"`
		Archive int `json:"archive_format"`
	}](t, good(t, "", "version", "--json"))
	if v.LST != lst.FormatVersion || v.Archive < 1 {
		t.Errorf("version --json: %+v", v)
	}
	if text := good(t, "", "version"); !strings.Contains(text, "lst format") || !strings.Contains(text, "archive format") {
		t.Errorf("version:\n%s", text)
	}
	if id := streamOf(1).String(); id != hex.EncodeToString([]byte{1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}) {
		t.Errorf("a stream's id is %s", id)
	}
}
