package pgwal_test

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/btrlog/btrlog/demo/pgwal"
	"github.com/btrlog/btrlog/demo/testdata"
)

func padded(l pgwal.LSN) string { return fmt.Sprintf("%X/%08X", uint32(l>>32), uint32(l)) }

// The reader and pg_waldump agree about every record of the sample.
func TestSampleAgreesWithPgWaldump(t *testing.T) {
	m, err := pgwal.SampleManifest()
	if err != nil {
		t.Fatal(err)
	}
	log, err := pgwal.Sample()
	if err != nil {
		t.Fatal(err)
	}
	streamSum, listSum := sha256.New(), sha256.New()
	r, err := pgwal.Open(io.TeeReader(log, streamSum))
	if err != nil {
		t.Fatal(err)
	}
	var sizes []int
	var first, last pgwal.Record
	var total int64
	above := 0
	for {
		rec, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(sizes) == 0 {
			first = rec
		}
		last = rec
		sizes = append(sizes, len(rec.Raw))
		total += int64(len(rec.Raw))
		if len(rec.Raw) > 8192 {
			above++
		}
		fmt.Fprintf(listSum, "%s %s %d %d\n", padded(rec.LSN), padded(rec.Prev), rec.XID, len(rec.Raw))
	}
	slices.Sort(sizes)
	end, err := pgwal.ParseLSN(m.EndLSN)
	if err != nil {
		t.Fatal(err)
	}
	start, err := pgwal.ParseLSN(m.FirstLSN)
	if err != nil {
		t.Fatal(err)
	}
	start -= pgwal.LSN(uint64(start) % r.SegmentSize())
	for _, c := range []struct {
		what      string
		got, want any
	}{
		{"records", len(sizes), m.Records},
		{"bytes of records", total, m.RecordBytes},
		{"median size", sizes[(len(sizes)-1)/2], m.RecordSizeP50},
		{"99th percentile of size", sizes[(len(sizes)*99+99)/100-1], m.RecordSizeP99},
		{"greatest size", sizes[len(sizes)-1], m.RecordSizeMax},
		{"records above 8192 bytes", above, m.RecordsAbove8192},
		{"first record", padded(first.LSN), m.FirstLSN},
		{"last record", padded(last.LSN), m.LastLSN},
		{"last record is the switch", last.IsSwitch(), true},
		{"end", last.LSN + pgwal.LSN(last.Length), end},
		{"bytes of the stream", int64(end - start), m.StreamBytes},
		{"segment size", int64(r.SegmentSize()), m.SegmentSizeBytes},
		{"compressed bytes", int64(len(testdata.PgbenchWAL)), m.CompressedBytes},
		{"list of all records", hex.EncodeToString(listSum.Sum(nil)), m.RecordsListSHA256},
		{"stream", hex.EncodeToString(streamSum.Sum(nil)), m.StreamSHA256},
	} {
		if c.got != c.want {
			t.Errorf("%s: read %v, the manifest says %v", c.what, c.got, c.want)
		}
	}
}

// Real segments, cut and damaged at random places: never a panic, never a record that
// was not written, and damage inside a record is always found.
func TestSampleCutAndDamaged(t *testing.T) {
	m, err := pgwal.SampleManifest()
	if err != nil {
		t.Fatal(err)
	}
	log, err := pgwal.Sample()
	if err != nil {
		t.Fatal(err)
	}
	const prefix = 1 << 20
	stream := make([]byte, m.SegmentSizeBytes+prefix)
	if _, err := io.ReadFull(log, stream); err != nil {
		t.Fatal(err)
	}
	const seed = 20
	rnd := rand.New(rand.NewPCG(seed, 0))
	for name, part := range map[string][]byte{"first segment": stream[:prefix], "second segment": stream[m.SegmentSizeBytes:]} {
		want := lsns(t, part, nil)
		if len(want) < 50 {
			t.Fatalf("%s: %d records in its first %d bytes", name, len(want), prefix)
		}
		for range 60 {
			cut := rnd.IntN(len(part))
			if got := lsns(t, part[:cut], nil); !slices.Equal(got, want[:len(got)]) {
				t.Errorf("%s, seed %d, cut at %d: other records than in the whole", name, seed, cut)
			}
			// A byte of the header of a random record, or of the page header that falls there.
			victim := want[1+rnd.IntN(len(want)-2)]
			i := int(uint64(victim)%uint64(m.SegmentSizeBytes)) + 8
			part[i] ^= 0x40
			got := lsns(t, part, pgwal.ErrCorrupt)
			part[i] ^= 0x40
			if at := slices.Index(want, victim); !slices.Equal(got, want[:at]) {
				t.Errorf("%s, seed %d, record at %v damaged: %d records read, %d are before it", name, seed, victim, len(got), at)
			}
		}
	}
}

// A server that was killed inside a large record declares that record void when it
// recovers. The reader passes over it as pg_waldump does, and says so.
func TestLogOfACrashedServer(t *testing.T) {
	z, err := gzip.NewReader(bytes.NewReader(mustRead(t, "testdata/crash-wal.gz")))
	if err != nil {
		t.Fatal(err)
	}
	r, err := pgwal.Open(z)
	if err != nil {
		t.Fatal(err)
	}
	var records, abandoned strings.Builder
	for {
		rec, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&records, "%s %s %d %d\n", padded(rec.LSN), padded(rec.Prev), rec.XID, len(rec.Raw))
		if rec.Abandoned != 0 {
			fmt.Fprintf(&abandoned, "%v %s\n", rec.Abandoned, padded(rec.LSN))
		}
	}
	if want := string(mustRead(t, "testdata/crash-wal.records")); records.String() != want {
		t.Errorf("records read:\n%s\nas pg_waldump prints them:\n%s", &records, want)
	}
	want := string(mustRead(t, "testdata/crash-wal.abandoned"))
	if abandoned.String() != want || want == "" {
		t.Errorf("abandoned records:\n%s\nas the server recorded them:\n%s", &abandoned, want)
	}
}

func mustRead(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// lsns reads a log, which must end with the given kind of error (nil: in a clean end
// or a cut), and returns where its records are.
func lsns(t *testing.T, log []byte, kind error) (all []pgwal.LSN) {
	t.Helper()
	r, err := pgwal.Open(bytes.NewReader(log))
	for err == nil {
		var rec pgwal.Record
		if rec, err = r.Next(); err == nil {
			all = append(all, rec.LSN)
		}
	}
	if kind != nil && !errors.Is(err, kind) {
		t.Fatalf("error %v, want %v", err, kind)
	}
	if kind == nil && err != io.EOF && !errors.Is(err, pgwal.ErrTruncated) {
		t.Fatal(err)
	}
	return all
}

func BenchmarkReader(b *testing.B) {
	log, err := pgwal.Sample()
	if err != nil {
		b.Fatal(err)
	}
	stream, err := io.ReadAll(log)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(stream)))
	b.ReportAllocs()
	for b.Loop() {
		r, err := pgwal.Open(bytes.NewReader(stream))
		for err == nil {
			_, err = r.Next()
		}
		if err != io.EOF {
			b.Fatal(err)
		}
	}
}

func Example() {
	log, err := pgwal.Sample()
	if err != nil {
		fmt.Println(err)
		return
	}
	r, err := pgwal.Open(log)
	if err != nil {
		fmt.Println(err)
		return
	}
	commits := 0
	for {
		rec, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			fmt.Println(err)
			return
		}
		if rec.RmgrName() == "Transaction" {
			commits++
		}
	}
	fmt.Println(commits >= 9600) // what pgbench ran
	// Output: true
}
