package main_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/btrlog/btrlog"
)

func randomBytes(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func TestLengthPrefixedRoundTrip(t *testing.T) {
	name := newLog(t)
	r := rand.New(rand.NewPCG(1, 2))
	var in, raw bytes.Buffer
	var records [][]byte
	for _, n := range []int{0, 1, 2, 3, 100, 1400, 1500, 9000, 65535, 65536, 1 << 20, 0, 0, 7} {
		rec := randomBytes(r, n)
		records = append(records, rec)
		var head [4]byte
		binary.BigEndian.PutUint32(head[:], uint32(n))
		in.Write(head[:])
		in.Write(rec)
		raw.Write(rec)
	}
	out := good(t, in.String(), onShared(t, "append", "--length-prefixed", name)...)
	if want := fmt.Sprintf("appended %d records, LSN 1..%d, committed\n", len(records), len(records)); out != want {
		t.Errorf("append says %q, want %q", out, want)
	}
	if got := good(t, "", onShared(t, "cat", "--length-prefixed", name)...); got != in.String() {
		t.Errorf("cat --length-prefixed gives %d bytes, not the %d of the input", len(got), in.Len())
	}
	if got := good(t, "", onShared(t, "cat", name)...); got != raw.String() {
		t.Errorf("cat gives %d bytes, not the %d of the records", len(got), raw.Len())
	}
	if got := good(t, "", onShared(t, "cat", "--from", "3", "--to", "11", name)...); got != string(bytes.Join(records[2:11], nil)) {
		t.Errorf("cat of LSN 3 to 11 gives %d other bytes", len(got))
	}
	dec := json.NewDecoder(strings.NewReader(good(t, "", onShared(t, "cat", "--json", name)...)))
	for i, want := range records {
		var got struct {
			LSN  int
			Size int `json:"size_bytes"`
			Data []byte
		}
		if err := dec.Decode(&got); err != nil {
			t.Fatal(err)
		}
		if got.LSN != i+1 || got.Size != len(want) || got.Data == nil || !bytes.Equal(got.Data, want) {
			t.Errorf("cat --json at %d: LSN %d, %d bytes, null %v", i+1, got.LSN, got.Size, got.Data == nil)
		}
	}
	if dec.More() {
		t.Error("cat --json gives more records than there are")
	}
}

func TestLinesRoundTrip(t *testing.T) {
	name := newLog(t)
	if got := good(t, "", onShared(t, "append", name)...); got != "appended 0 records\n" {
		t.Errorf("append of nothing says %q", got)
	}
	if got := good(t, "", onShared(t, "cat", name)...); got != "" {
		t.Errorf("an empty log prints %q", got)
	}
	if got := good(t, "one\n\nthree\r\nlast \x00\xff", onShared(t, "append", name)...); got != "appended 4 records, LSN 1..4, committed\n" {
		t.Errorf("append says %q", got)
	}
	if got := good(t, "\n", onShared(t, "append", name)...); got != "appended 1 record, LSN 5, committed\n" {
		t.Errorf("append of an empty line says %q", got)
	}
	if got := good(t, "", onShared(t, "cat", "--lines", name)...); got != "one\n\nthree\r\nlast \x00\xff\n\n" {
		t.Errorf("cat --lines gives %q", got)
	}
	if got := good(t, "", onShared(t, "cat", name)...); got != "onethree\rlast \x00\xff" {
		t.Errorf("cat gives %q", got)
	}
	if got := good(t, "", onShared(t, "cat", "--lines", "--from", "4", "--to", "4", name)...); got != "last \x00\xff\n" {
		t.Errorf("cat of one record gives %q", got)
	}
}

func TestManyLines(t *testing.T) {
	name := newLog(t)
	var in strings.Builder
	for i := range 20000 {
		fmt.Fprintf(&in, "%d\n", i)
	}
	good(t, in.String(), onShared(t, "append", name)...)
	if got := good(t, "", onShared(t, "cat", "--lines", name)...); got != in.String() {
		t.Errorf("cat gives %d bytes, not the %d that were appended", len(got), in.Len())
	}
}

func TestChunksRoundTrip(t *testing.T) {
	name := newLog(t)
	in := string(randomBytes(rand.New(rand.NewPCG(3, 4)), 1<<20+123))
	var got struct {
		Log                         string
		Epoch, Records, First, Last int
		Bytes                       int
		Committed                   bool
		CommittedTo                 int `json:"committed_to"`
	}
	out := good(t, in, onShared(t, "append", "--chunk", "64KiB", "--json", name)...)
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("%q: %v", out, err)
	}
	if got.Log != name || got.Epoch != 1 || got.Records != 17 || got.First != 1 || got.Last != 17 || got.Bytes != len(in) || !got.Committed || got.CommittedTo != 17 {
		t.Errorf("append --json says %q", out)
	}
	if got := good(t, "", onShared(t, "cat", name)...); got != in {
		t.Errorf("cat gives %d bytes, not the %d that were appended", len(got), len(in))
	}
	if got := good(t, "", onShared(t, "cat", "--from", "17", name)...); got != in[1<<20:] {
		t.Errorf("the last chunk has %d bytes, want 123", len(got))
	}
}

// A record of the largest size goes in; one byte more is refused, and what came before it is committed.
func TestLargestRecord(t *testing.T) {
	name := newLog(t)
	largest := strings.Repeat("x", btrlog.MaxRecordBytes)
	good(t, largest, onShared(t, "append", name)...)
	res := run(t, "fits\n"+largest+"x\nlost\n", onShared(t, "append", name)...)
	bad(t, res, 1, "record 2 of the input", "longer than 8 MiB", "committed: LSN 2; nothing else was appended")
	if res.out != "" {
		t.Errorf("a failed append prints %q", clip(res.out))
	}
	huge := "\xff\xff\xff\xff"
	bad(t, run(t, huge, onShared(t, "append", "--length-prefixed", name)...), 1, "record 1 of the input", "4294967295 bytes", "nothing was appended")
	if got := good(t, "", onShared(t, "cat", name)...); got != largest+"fits" {
		t.Errorf("the log holds %d bytes, want %d", len(got), len(largest)+4)
	}
}

func TestCutInput(t *testing.T) {
	name := newLog(t)
	whole := "\x00\x00\x00\x02ok"
	bad(t, run(t, whole+"\x00\x00", onShared(t, "append", "--length-prefixed", name)...), 1,
		"record 2 of the input: the input ends within the length of a record; committed: LSN 1; nothing else was appended")
	bad(t, run(t, whole+"\x00\x00\x00\x09abc", onShared(t, "append", "--length-prefixed", name)...), 1,
		"record 2 of the input: the input ends after 3 of its 9 bytes; committed: LSN 2; nothing else was appended")
	res := run(t, whole+"\x00", onShared(t, "append", "--length-prefixed", "--json", name)...)
	bad(t, res, 1, "within the length")
	if !strings.Contains(res.out, `"committed":true`) || !strings.Contains(res.out, `"error":"record 2 of the input`) {
		t.Errorf("append --json of a cut input says %q", res.out)
	}
}

func TestInfoAndList(t *testing.T) {
	name := "info-" + newLog(t)
	good(t, "", onShared(t, "create", "--n", "1", "--segment", "1MiB", "--window", "64", "--flush-age", "-1s", "--retain-age", "48h", "--retain", "1GiB", name)...)
	deleteAfter(t, name)
	if got := good(t, "", onShared(t, "info", name)...); !strings.Contains(got, "epoch       0: never opened\n") || !strings.Contains(got, "tail        0\n") {
		t.Errorf("info of a new log:\n%s", got)
	}
	good(t, "a\nb\n", onShared(t, "append", name)...)
	good(t, "c\n", onShared(t, "append", name)...)
	text := good(t, "", onShared(t, "info", name)...)
	for _, want := range []string{"log         " + name + "\n", "epoch       2, opened by ", "tail        3\n", "trimmed     nothing\n", "quorum      1 of 1\n", "durability  disk\n",
		"segment     1 MiB\n", "window      64 records\n", "flush age   never\n", "retain      48h0m0s, 1 GiB\n", "history     epoch 1 from LSN 1\n            epoch 2 from LSN 3\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("info lacks %q:\n%s", want, text)
		}
	}
	var d struct {
		Name, ID   string
		Epoch      int
		Tail       *int
		TrimBefore int `json:"trim_before"`
		N, Qw      int
		Nodes      []struct{ Name, Incarnation string }
		Segment    int `json:"segment_bytes"`
		Window     int `json:"window_lsns"`
		FlushAge   int `json:"flush_age_ms"`
		RetainAge  int `json:"retain_age_ms"`
		History    []struct{ Epoch, Start int }
		Created    time.Time
	}
	if err := json.Unmarshal([]byte(good(t, "", onShared(t, "info", "--json", name)...)), &d); err != nil {
		t.Fatal(err)
	}
	if d.Name != name || len(d.ID) != 16 || d.Epoch != 2 || d.Tail == nil || *d.Tail != 3 || d.TrimBefore != 1 || d.N != 1 || d.Qw != 1 || len(d.Nodes) != 1 ||
		d.Segment != 1<<20 || d.Window != 64 || d.FlushAge >= 0 || d.RetainAge != 48*3600*1000 || len(d.History) != 2 || d.History[1].Start != 3 || d.Created.IsZero() {
		t.Errorf("info --json: %+v", d)
	}

	// The list is by name, whatever the order of creation.
	for _, n := range []string{"list-c", "list-a", "list-b"} {
		good(t, "", onShared(t, "create", n)...)
		deleteAfter(t, n)
	}
	var names []string
	for line := range strings.Lines(good(t, "", onShared(t, "list", "--prefix", "list-", "--json")...)) {
		if err := json.Unmarshal([]byte(line), &d); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		names = append(names, d.Name)
	}
	if got := strings.Join(names, " "); got != "list-a list-b list-c" {
		t.Errorf("list --json gives %q", got)
	}
	rows := strings.Split(good(t, "", onShared(t, "list")...), "\n")
	if !strings.HasPrefix(rows[0], "NAME ") || !strings.Contains(rows[0], "QUORUM") {
		t.Errorf("the table's head is %q", rows[0])
	}
	found := false
	for _, row := range rows {
		found = found || (strings.HasPrefix(row, name+" ") && strings.Contains(row, " 1/1 "))
	}
	if !found {
		t.Errorf("list lacks %s:\n%s", name, strings.Join(rows, "\n"))
	}
}

// A producer that pauses within a line must not hold back the lines before it.
func TestSlowProducer(t *testing.T) {
	name := newLog(t)
	cmd := command(context.Background(), onShared(t, "append", name)...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p := mustStart(t, cmd)
	if _, err := in.Write([]byte("first\nsecond")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the first line is committed", func() bool { return tail(t, name) == 1 })
	if _, err := in.Write([]byte(" half\n")); err != nil {
		t.Fatal(err)
	}
	in.Close()
	if res := p.wait(); res.code != 0 || res.out != "appended 2 records, LSN 1..2, committed\n" {
		t.Errorf("code %d, stdout %q, stderr %q", res.code, res.out, res.err)
	}
	if got := good(t, "", onShared(t, "cat", "--lines", name)...); got != "first\nsecond half\n" {
		t.Errorf("cat gives %q", got)
	}
}

// What is committed in a log of memory durability is not on disk, and the command does not say less.
func TestMemoryDurability(t *testing.T) {
	name := "memory-" + t.Name()
	if got := good(t, "", onShared(t, "create", "--durability", "memory", name)...); !strings.HasSuffix(got, "durability memory\n2 of 3: a crash of 2 nodes at once may lose acknowledged records; takes more while 1 node is down\n") {
		t.Errorf("create says %q", got)
	}
	deleteAfter(t, name)
	if got := good(t, "a\n", onShared(t, "append", name)...); got != "appended 1 record, LSN 1, committed in memory\n" {
		t.Errorf("append says %q", got)
	}
	if got := good(t, "b\n", onShared(t, "append", "--json", name)...); !strings.Contains(got, `"durability":"memory"`) {
		t.Errorf("append --json says %q", got)
	}
	bad(t, run(t, "\x00", onShared(t, "append", "--length-prefixed", name)...), 1, "nothing was appended")
	if got := good(t, "", onShared(t, "cat", name)...); got != "ab" {
		t.Errorf("the log holds %q", got)
	}
}

func tail(t *testing.T, name string) int {
	t.Helper()
	var d struct{ Tail int }
	if err := json.Unmarshal([]byte(good(t, "", onShared(t, "info", "--json", name)...)), &d); err != nil {
		t.Fatal(err)
	}
	return d.Tail
}

func TestTrimmed(t *testing.T) {
	name := newLog(t)
	good(t, "1\n2\n3\n4\n5\n", onShared(t, "append", name)...)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	client, err := btrlog.Connect(ctx, btrlog.Config{Nodes: shared.server.Addresses})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := client.Trim(ctx, name, 3); err != nil {
		t.Fatal(err)
	}
	bad(t, run(t, "", onShared(t, "cat", "--from", "2", name)...), 1, `log "TestTrimmed" is trimmed up to LSN 2; --from 2 was removed; the first one left is LSN 3`)
	bad(t, run(t, "", onShared(t, "cat", "--to", "1", name)...), 1, `log "TestTrimmed" is trimmed up to LSN 2; --to 1 was removed`)
	if got := good(t, "", onShared(t, "cat", "--lines", name)...); got != "3\n4\n5\n" {
		t.Errorf("cat of a trimmed log gives %q", got)
	}
	if got := good(t, "", onShared(t, "info", name)...); !strings.Contains(got, "trimmed     LSN 1..2\n") {
		t.Errorf("info of a trimmed log:\n%s", got)
	}
}
