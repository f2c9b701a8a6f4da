package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// What is counted: every sync, and every write through a synced descriptor; each call once, also when strace splits its line.
func TestCountOfSyncs(t *testing.T) {
	file := filepath.Join(t.TempDir(), "strace")
	text := `11 pwrite64(7</d/a.lst>, ""..., 4096, 8192) = 4096
12 fdatasync(8</d/wal> <unfinished ...>
11 write(1</d/plain>, ""..., 3) = 3
12 <... fdatasync resumed>) = 0
21 fsync(9</d/other>)               = 0
21 pwrite64(7</d/a.lst>, ""..., 4096, 0) = 4096
99 fsync(9</d/other>) = 0
11 +++ exited with 0 +++
`
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := count(file, 2, map[int]int{11: 0, 12: 0, 21: 1}, map[string]bool{"0 /d/a.lst": true})
	if err != nil {
		t.Fatal(err)
	}
	if want := []int{2, 1}; !slices.Equal(got, want) {
		t.Errorf("%v, must be %v", got, want)
	}
}
