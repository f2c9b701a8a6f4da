package lint

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/format"
	"path"
	"regexp"
	"slices"
	"strings"
)

// impureImports are what a pure state machine has no use for.
var impureImports = map[string]string{
	"os": "", "net": "", "sync": "", "syscall": "", "runtime": "", "log": "", "context": "", "unsafe": "", "crypto/rand": "", "io/ioutil": "",
}

// pureRand are the names of math/rand and math/rand/v2 that draw from a source that the caller seeded.
var pureRand = []string{"New", "NewSource", "NewPCG", "NewChaCha8", "NewZipf", "Rand", "Source", "Source64", "PCG", "ChaCha8", "Zipf"}

// Purity checks the packages below dir: no clock, goroutine, socket, file, lock or random source inside.
func Purity(t *Tree, dir string) []string {
	var problems []string
	for f := range t.golang {
		if !below(f.Dir(), dir) || f.Test() {
			continue
		}
		report := func(n ast.Node, format string, args ...any) {
			problems = append(problems, t.at(n, format, args...))
		}
		for _, s := range f.AST.Imports {
			p := strings.Trim(s.Path.Value, `"`)
			top, _, _ := strings.Cut(p, "/")
			_, whole := impureImports[p]
			if _, sub := impureImports[top]; whole || sub && top != "io" {
				report(s, "%s is pure and must not import %s; take what it needs as input, return what it wants as output", dir, p)
			}
		}
		selectors(f.AST, importName(f.AST, "time"), func(s *ast.SelectorExpr) {
			switch s.Sel.Name {
			case "Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker":
				report(s, "%s reads no clock: time.%s; use the now of the step's input", dir, s.Sel.Name)
			}
		})
		for _, p := range []string{"math/rand", "math/rand/v2"} {
			selectors(f.AST, importName(f.AST, p), func(s *ast.SelectorExpr) {
				if !slices.Contains(pureRand, s.Sel.Name) {
					report(s, "%s draws from the process's random source: rand.%s; take a seeded *rand.Rand or the random value as input", dir, s.Sel.Name)
				}
			})
		}
		ast.Inspect(f.AST, func(n ast.Node) bool {
			switch n.(type) {
			case *ast.GoStmt:
				report(n, "%s starts no goroutine; return an output and let the driver do it", dir)
			case *ast.ChanType, *ast.SelectStmt:
				report(n, "%s uses no channel; inputs and outputs are values", dir)
			}
			return true
		})
	}
	return problems
}

// bannedNames of packages and directories say nothing about what is inside, so everything ends there.
var bannedNames = []string{"common", "util", "utils", "types", "helper", "helpers", "misc", "shared"}

// PackageNames refuses names that say nothing.
func PackageNames(t *Tree) []string {
	var problems []string
	for _, f := range t.Files {
		if f.AST == nil {
			continue
		}
		for _, name := range []string{strings.TrimSuffix(f.AST.Name.Name, "_test"), path.Base(f.Dir())} {
			if slices.Contains(bannedNames, name) {
				problems = append(problems, t.at(f.AST.Name, "package name %q says nothing; a helper lives with its first user, name the package after what it provides", name))
				break
			}
		}
	}
	return problems
}

// MaxLines of a Go file that is no test.
const MaxLines = 600

// FileLength refuses files that nobody reads whole.
func FileLength(t *Tree) []string {
	var problems []string
	for _, f := range t.Files {
		if n := bytes.Count(f.Text, []byte("\n")); f.AST != nil && !f.Test() && n > MaxLines {
			problems = append(problems, fmt.Sprintf("%s:%d: the file has %d lines, the limit is %d; split it by subject", f.Path, n, n, MaxLines))
		}
	}
	return problems
}

// TestManners refuses sleeping and skipping in tests and in packages that support tests.
func TestManners(t *Tree) []string {
	var problems []string
	for _, f := range t.Files {
		if f.AST == nil || !f.Test() && importName(f.AST, "testing") == "" {
			continue
		}
		selectors(f.AST, importName(f.AST, "time"), func(s *ast.SelectorExpr) {
			if s.Sel.Name == "Sleep" {
				problems = append(problems, t.at(s, "a test must not sleep: wait for the condition, with a deadline and a message, or use testing/synctest"))
			}
		})
		ast.Inspect(f.AST, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if s, ok := call.Fun.(*ast.SelectorExpr); ok {
				switch s.Sel.Name {
				case "Skip", "Skipf", "SkipNow":
					problems = append(problems, t.at(s, "a skipped test proves nothing: make it run everywhere, or put it behind a build tag or a command that says so"))
				}
			}
			return true
		})
	}
	return problems
}

// The words are put together here so that this file does not hold them itself.
var (
	marker      = regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X|HA` + `CK)\b`)
	machinePath = regexp.MustCompile(`(?:^|[^\w./-])(/(?:wo` + `rk|fa` + `rm|ho` + `me/[a-z]\w*|Us` + `ers/[A-Za-z]\w*|ro` + `ot))(?:/|\W|$)`)
)

// Markers refuses notes of unfinished work.
func Markers(t *Tree) []string {
	return grep(t, func(line []byte) string {
		if m := marker.Find(line); m != nil {
			return fmt.Sprintf("%q marks unfinished work; finish it, or write what does not work into the docs and an issue", m)
		}
		return ""
	})
}

// MachinePaths refuses absolute paths of the machine that the code was written on. checkout is this checkout's directory.
func MachinePaths(t *Tree, checkout string) []string {
	return grep(t, func(line []byte) string {
		var m []byte
		if groups := machinePath.FindSubmatch(line); groups != nil {
			m = groups[1]
		}
		// A checkout in a short directory, such as /src, would match half of the world.
		if m == nil && strings.Count(checkout, "/") >= 2 && bytes.Contains(line, []byte(checkout)) {
			m = []byte(checkout)
		}
		if m != nil {
			return fmt.Sprintf("%q is a path of one machine; use a path relative to the module, t.TempDir() or an option", m)
		}
		return ""
	})
}

func grep(t *Tree, check func(line []byte) string) []string {
	var problems []string
	for _, f := range t.Files {
		if f.Path == "go.sum" {
			continue
		}
		n := 0
		for line := range bytes.Lines(f.Text) {
			n++
			if what := check(line); what != "" {
				problems = append(problems, fmt.Sprintf("%s:%d: %s", f.Path, n, what))
			}
		}
	}
	return problems
}

// Format refuses what gofmt would change.
func Format(t *Tree) []string {
	var problems []string
	for _, f := range t.Files {
		if f.AST == nil {
			continue
		}
		want, err := format.Source(f.Text)
		if err != nil {
			problems = append(problems, fmt.Sprintf("%s: %v", f.Path, err))
			continue
		}
		if !bytes.Equal(want, f.Text) {
			a, b := bytes.Split(f.Text, []byte("\n")), bytes.Split(want, []byte("\n"))
			line := 0
			for line < len(a) && line < len(b) && bytes.Equal(a[line], b[line]) {
				line++
			}
			problems = append(problems, fmt.Sprintf("%s:%d: not formatted; run gofmt -w %s", f.Path, line+1, f.Path))
		}
	}
	return problems
}
