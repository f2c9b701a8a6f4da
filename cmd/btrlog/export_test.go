package main_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// An export is what the log is; one that was cut is gone on with, to the same bytes; what is no such export is left alone.
func TestExport(t *testing.T) {
	name := newLog(t)
	other := name + "-other"
	good(t, "", onShared(t, "create", other)...)
	var lines strings.Builder
	for i := range 400 {
		lines.WriteString(strings.Repeat("r", i) + "\n")
	}
	good(t, lines.String(), onShared(t, "append", name)...)
	good(t, "one\n", onShared(t, "append", other)...)
	file := filepath.Join(t.TempDir(), "export")
	if out := good(t, "", onShared(t, "export", "--output", file, name)...); !strings.Contains(out, "holds 400 records") {
		t.Errorf("%q", out)
	}
	want := strings.ReplaceAll(lines.String(), "\n", "")
	if got := good(t, "", "log", "export", "--read", file); got != want {
		t.Errorf("the export holds %d bytes of records, want %d", len(got), len(want))
	}
	if got := good(t, "", "log", "export", "--read", file, "--json"); !strings.Contains(got, `"records":400`) || !strings.Contains(got, `"whole":true`) {
		t.Errorf("%q", got)
	}
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got := good(t, "", onShared(t, "export", name)...); got != string(whole) {
		t.Errorf("standard output has %d bytes, the file %d", len(got), len(whole))
	}
	for _, at := range []int{0, 5, 24, 25, 1000, len(whole) / 2, len(whole) - 24, len(whole) - 1, len(whole)} {
		if err := os.WriteFile(file, whole[:at], 0o666); err != nil {
			t.Fatal(err)
		}
		if at < len(whole) && at > 24 {
			bad(t, run(t, "", "log", "export", "--read", file, "--json"), 1, "not whole")
		}
		good(t, "", onShared(t, "export", "--resume", "--output", file, name)...)
		if got, err := os.ReadFile(file); err != nil || string(got) != string(whole) {
			t.Fatalf("cut at %d of %d and resumed: %d bytes, %v", at, len(whole), len(got), err)
		}
	}
	bad(t, run(t, "", onShared(t, "export", "--output", file, name)...), 1, "exists")
	bad(t, run(t, "", onShared(t, "export", "--resume", "--output", file, other)...), 1, "export of the log with id")
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("precious"), 0o666); err != nil {
		t.Fatal(err)
	}
	bad(t, run(t, "", onShared(t, "export", "--resume", "--output", text, name)...), 1, "no export of a log")
	if got, err := os.ReadFile(text); err != nil || string(got) != "precious" {
		t.Errorf("%q, %v", got, err)
	}
	bad(t, run(t, "", "log", "export", "--read", text), 1, "no export of a log")
	bad(t, run(t, "", onShared(t, "export", "--resume", name)...), 2, "--resume needs --output")
	bad(t, run(t, "", onShared(t, "export", "--from", "401", name)...), 1, "ends at LSN 400")
	if got := good(t, "", onShared(t, "export", "--from", "399", "--to", "399", name)...); len(got) != 24+24+398+24 {
		t.Errorf("one record makes an export of %d bytes", len(got))
	}
}
