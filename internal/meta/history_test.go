package meta

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"

	"github.com/btrlog/btrlog/internal/protocol"
)

// TestHistoryAsJSON: the short ways of a history write and read what encoding/json does, also of a record in which any byte is another
// one or is missing, or behind which the bytes end.
func TestHistoryAsJSON(t *testing.T) {
	long := protocol.History{{Epoch: 3, Start: 1}, {Epoch: 5, Start: 20}, {Epoch: 1 << 63, Start: protocol.MaxLSN}}
	for i, h := range []protocol.History{nil, {}, {{Epoch: 1, Start: 1}}, long, long} {
		j := logJSON{Format: 1, Name: "orders", Opener: "host-1", History: h}
		if i == 3 {
			j.Opener = `a "history": [{"epoch": 1, "start": 1}] of "history": null` // the escapes send it the long way
		}
		want, err := json.MarshalIndent(j, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		got, err := marshalHistory(j)
		var indented bytes.Buffer
		if err != nil || json.Indent(&indented, got, "", " ") != nil || !bytes.Equal(indented.Bytes(), want) {
			t.Fatalf("%v:\n%s\nwant, but for spaces,\n%s", err, got, want)
		}
		same := func(body []byte) {
			t.Helper()
			var fast, slow logJSON
			err1, err2 := strictHistory(body, &fast), strict(body, &slow, &slow.Format, FormatVersion)
			if (err1 == nil) != (err2 == nil) || err1 == nil && !reflect.DeepEqual(fast, slow) {
				t.Fatalf("%s\nis %+v, %v; want %+v, %v", body, fast, err1, slow, err2)
			}
		}
		for _, body := range [][]byte{want, got} {
			same(body)
			for i := range body {
				same(body[:i])
				same(append(bytes.Clone(body[:i]), body[i+1:]...))
				for _, b := range []byte(`0a"{}[],: -.`) {
					other := bytes.Clone(body)
					other[i] = b
					same(other)
				}
			}
		}
		same(bytes.Replace(want, []byte(`"history"`), []byte(`"history": [{"epoch": 2, "start": 2}], "history"`), 1))
		same(bytes.Replace(want, []byte(`"options"`), []byte(`"HISTORY": null, "options"`), 1))
		// encoding/json takes these for the history too, and the last one counts; they used to be overlooked.
		for _, name := range []string{`"hi\u017ftory"`, "\"hi\u017ftory\"", `"h\u0069story"`, `"HISTOR\u0059"`} {
			same(bytes.Replace(got, []byte(`"options"`), []byte(name+`: null, "options"`), 1))
			same(bytes.Replace(got, []byte(`"options"`), []byte(name+`: [{"epoch": 2, "start": 2}], "options"`), 1))
		}
		same(bytes.Replace(want, []byte(`"epoch": 3`), []byte(`"epoch": 18446744073709551616`), 1))
	}
}

// A record with the history of a thousand takeovers costs an open little more than one with a short history.
func BenchmarkLogRecord(b *testing.B) {
	r := sampleRecord()
	r.Epoch, r.History = 2000, nil
	for i := range 1000 {
		r.History = append(r.History, protocol.HistoryEntry{Epoch: protocol.Epoch(i + 1), Start: protocol.LSN(4*i + 1)})
	}
	body, err := r.encode()
	if err != nil {
		b.Fatal(err)
	}
	b.Run("encode", func(b *testing.B) {
		for b.Loop() {
			if _, err := r.encode(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("decode", func(b *testing.B) {
		for b.Loop() {
			var back LogRecord
			if err := back.decode(body); err != nil {
				b.Fatal(err)
			}
		}
	})
}
