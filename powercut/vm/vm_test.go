package vm

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// parse reads an archive back, by the rules of the format: every header and every file begin at a multiple of four.
func parse(t *testing.T, b []byte) (names []string, files map[string]string, modes map[string]uint64) {
	t.Helper()
	files, modes = make(map[string]string), make(map[string]uint64)
	round := func(n int) int { return (n + 3) &^ 3 }
	for at := 0; ; {
		if string(b[at:at+6]) != "070701" {
			t.Fatalf("no header at %d", at)
		}
		field := func(i int) int {
			v, err := strconv.ParseUint(string(b[at+6+8*i:at+14+8*i]), 16, 32)
			if err != nil {
				t.Fatal(err)
			}
			return int(v)
		}
		size, nameSize := field(6), field(11)
		name := string(b[at+110 : at+110+nameSize-1])
		data := round(at + 110 + nameSize)
		if name == "TRAILER!!!" {
			return names, files, modes
		}
		names = append(names, name)
		files[name], modes[name] = string(b[data:data+size]), uint64(field(1))
		at = round(data + size)
	}
}

func TestArchive(t *testing.T) {
	var a Archive
	a.Add("bin", ModeDir|0o755, nil)
	a.Add("bin/x", ModeFile|0o755, []byte("seven b"))
	a.Add("empty", ModeFile|0o644, nil)
	names, files, modes := parse(t, a.Bytes())
	if !slices.Equal(names, []string{"bin", "bin/x", "empty"}) || files["bin/x"] != "seven b" || files["empty"] != "" {
		t.Fatalf("%q %q", names, files)
	}
	if modes["bin"] != ModeDir|0o755 || modes["bin/x"] != ModeFile|0o755 {
		t.Fatalf("modes %v", modes)
	}
}

func TestFindKernel(t *testing.T) {
	dir := t.TempDir()
	if _, err := FindKernel(dir); err == nil || !strings.Contains(err.Error(), "linux-image") {
		t.Fatalf("in an empty directory: %v", err)
	}
	for _, p := range []string{"boot/vmlinuz-6.1.0-1-amd64", "boot/vmlinuz-6.1.0-2-amd64", "lib/modules/6.1.0-2-amd64/kernel/md/dm-flakey.ko"} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(p)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, p), []byte("no module"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	k, err := FindKernel(dir)
	if err != nil || k.Release != "6.1.0-2-amd64" {
		t.Fatalf("%+v, %v", k, err)
	}
	if files, err := k.Modules("built_in"); err != nil || len(files) != 0 {
		t.Fatalf("a module without a file: %v, %v", files, err)
	}
	if _, err := k.Modules("dm_flakey"); err == nil {
		t.Fatal("a file that is no module was taken")
	}
}
