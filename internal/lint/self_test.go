package lint

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
)

// parseTree reads a tree from one text: "-- path --" begins a file, "want: text" lines before the first file are
// the problems that are expected, in any order. A "^" stands for nothing, so that the words that the
// rules refuse do not stand in this module.
func parseTree(text string) (wants []string, fsys fs.FS) {
	files := fstest.MapFS{"go.mod": {Data: []byte("module github.com/btrlog/btrlog\n")}}
	name := ""
	for line := range strings.Lines(text) {
		trimmed := strings.TrimSpace(line)
		if n, ok := strings.CutPrefix(trimmed, "-- "); ok && strings.HasSuffix(n, " --") {
			name = strings.TrimSuffix(n, " --")
			files[name] = &fstest.MapFile{}
			continue
		}
		if name == "" {
			if w, ok := strings.CutPrefix(trimmed, "want: "); ok {
				wants = append(wants, strings.ReplaceAll(w, "^", ""))
			}
			continue
		}
		files[name].Data = append(files[name].Data, strings.ReplaceAll(line, "^", "")...)
	}
	return wants, files
}

// Each rule finds exactly what its trees are bad for, and nothing in the tree that is good for all.
func TestRulesCanFail(t *testing.T) {
	seen := make(map[string]bool)
	paths, err := filepath.Glob("testdata/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range paths {
		text, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		wants, fsys := parseTree(string(text))
		tree, err := Load(fsys)
		if err != nil {
			t.Fatalf("%s: %v", p, err)
		}
		name := strings.TrimSuffix(filepath.Base(p), ".txt")
		if name == "good" {
			for name, rule := range rules {
				if strings.HasSuffix(name, "GoMod") {
					continue // the good tree requires nothing
				}
				for _, problem := range rule(tree) {
					t.Errorf("%s on %s: %s", name, p, problem)
				}
			}
			continue
		}
		rule := rules[name]
		if rule == nil {
			t.Fatalf("%s is named after no rule", p)
		}
		seen[name] = true
		compare(t, name, rule(tree), wants)
	}
	for name := range rules {
		if !seen[name] && name != "FileLength" && !strings.HasSuffix(name, "GoMod") {
			t.Errorf("rule %s has no tree in testdata that it finds fault with", name)
		}
	}
}

// compare demands one problem for each want, and no other.
func compare(t *testing.T, rule string, problems, wants []string) {
	t.Helper()
	if len(wants) == 0 {
		t.Errorf("%s: its tree wants no problem", rule)
	}
	left := append([]string(nil), problems...)
	for _, w := range wants {
		found := -1
		for i, p := range left {
			if strings.Contains(p, w) {
				found = i
				break
			}
		}
		if found < 0 {
			t.Errorf("%s did not find %q", rule, w)
			continue
		}
		left = append(left[:found], left[found+1:]...)
	}
	for _, p := range left {
		t.Errorf("%s also found: %s", rule, p)
	}
}

func tree(t *testing.T, files map[string]string) *Tree {
	t.Helper()
	m := make(fstest.MapFS)
	for name, text := range files {
		m[name] = &fstest.MapFile{Data: []byte(text)}
	}
	tr, err := Load(m)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func TestFileLengthCanFail(t *testing.T) {
	lines := func(n int) string { return "package a\n" + strings.Repeat("\n", n-1) }
	tr := tree(t, map[string]string{"go.mod": "module m\n", "a/long.go": lines(MaxLines + 1), "a/fits.go": lines(MaxLines), "a/long_test.go": lines(2000)})
	compare(t, "FileLength", FileLength(tr), []string{"a/long.go:601: the file has 601 lines"})
}

func TestGoModCanFail(t *testing.T) {
	allowed := []Module{{"good.example/a", "MIT", "reason"}, {"good.example/gone", "MIT", "reason"}, {"bad.example/gpl", "GPL-3.0", "reason"}, {"good.example/mute", "MIT", ""}}
	tr := tree(t, map[string]string{"go.mod": `module m

require good.example/a v1.0.0 // indirect
require (
	heavy.example/sdk v1.2.3
	bad.example/gpl v1.0.0
	good.example/mute v1.0.0 // not: heavy.example/other
)
replace good.example/a => ../a
`})
	compare(t, "GoMod", GoMod(tr, "go.mod", allowed), []string{
		"go.mod:5: heavy.example/sdk is not on the list", "go.mod:9: replace does not reach", "does not require good.example/gone",
		`bad.example/gpl has licence "GPL-3.0"`, `good.example/mute has licence "MIT" and reason ""`,
	})
}

// What the program's module gets indirectly is not on the list, and its replace reaches nobody.
func TestProgramGoModCanFail(t *testing.T) {
	tr := tree(t, map[string]string{"go.mod": "module m\n", program + "/go.mod": `module m/cmd

replace m => ../..
require (
	m v0.0.0
	heavy.example/sdk v1.2.3
	any.example/thing v1.0.0 // indirect
)`})
	compare(t, "ProgramGoMod", GoMod(tr, program+"/go.mod", []Module{{"m", "MIT", "reason"}, {"good.example/gone", "MIT", "reason"}}), []string{
		program + "/go.mod:6: heavy.example/sdk is not on the list", program + "/go.mod does not require good.example/gone",
	})
}

func TestWeightCanFail(t *testing.T) {
	w := Weight{Dir: "./x", Modules: []string{"ok.example/m"}, Not: []string{"net"}, Why: "because"}
	deps := []Dependency{{"fmt", ""}, {"netip", ""}, {"net/http", ""}, {"ok.example/m/p", "ok.example/m"}, {"heavy.example/sdk/p", "heavy.example/sdk"}, {"own/p", "own"}}
	compare(t, "Heavy", Heavy(w, "own", deps), []string{"./x depends on net/http: because", "heavy.example/sdk/p of module heavy.example/sdk: because"})
	// And against the real go list: the binary is heavier than the client may be.
	bad := Weights[0]
	bad.Dir = "."
	if len(Heavy(bad, "github.com/btrlog/btrlog", list(t, filepath.Join(root(t), program), bad.Dir))) == 0 {
		t.Error("the weight of cmd/btrlog passes as that of the client")
	}
}

func TestPackageTableCanFail(t *testing.T) {
	doc := "# A\n\n| package | what it holds | may import |\n|---|---|---|\n| `btrlog` (root) | x | y |\n| `lst` | x | y |\n| `internal/gone` | x | y |\n"
	tr := tree(t, map[string]string{"go.mod": "module m\n", "docs/ARCHITECTURE.md": doc})
	compare(t, "PackageTable", missingRows(tr, []Row{{Dir: "."}, {Dir: "lst"}}), []string{"internal/gone"})
	if got := missingRows(tree(t, map[string]string{"go.mod": "module m\n"}), Table); len(got) != 1 {
		t.Errorf("without a table: %q", got)
	}
}

// Files that do not parse, and a tree without a module, must not pass silently.
func TestLoadCanFail(t *testing.T) {
	for name, files := range map[string]fstest.MapFS{
		"syntax": {"go.mod": {Data: []byte("module m\n")}, "a.go": {Data: []byte("package\n")}},
		"module": {"a.go": {Data: []byte("package a\n")}},
	} {
		if _, err := Load(files); err == nil {
			t.Errorf("%s: Load succeeded", name)
		}
	}
}
