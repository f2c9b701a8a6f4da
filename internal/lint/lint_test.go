package lint

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// root is the module's directory: the nearest one above with a go.mod.
func root(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if filepath.Dir(dir) == dir {
			t.Fatal("no go.mod above the test's directory")
		}
		dir = filepath.Dir(dir)
	}
}

// exampleCheckout is where the trees in testdata pretend to lie.
const exampleCheckout = "/checkout/of/" + "btrlog"

// rules are all that run on a tree alone.
var rules = map[string]func(*Tree) []string{
	"Arrows":        func(t *Tree) []string { return Arrows(t, Table) },
	"Purity":        func(t *Tree) []string { return Purity(t, "internal/protocol") },
	"PackageNames":  PackageNames,
	"FileLength":    FileLength,
	"TestManners":   TestManners,
	"Markers":       Markers,
	"MachinePaths":  func(t *Tree) []string { return MachinePaths(t, exampleCheckout) },
	"Format":        Format,
	"DocComments":   DocComments,
	"NamedTests":    NamedTests,
	"GoMod":         func(t *Tree) []string { return GoMod(t, "go.mod", Modules) },
	"ProgramGoMod":  func(t *Tree) []string { return GoMod(t, program+"/go.mod", ProgramModules) },
	"CompressGoMod": func(t *Tree) []string { return GoMod(t, "compress/zstd/go.mod", CompressModules) },
	"TortureGoMod":  func(t *Tree) []string { return GoMod(t, "torture/go.mod", TortureModules) },
}

// TestHouse is the lint of this module.
func TestHouse(t *testing.T) {
	dir := root(t)
	tree, err := Load(os.DirFS(dir))
	if err != nil {
		t.Fatal(err)
	}
	if len(tree.Files) < 50 {
		t.Fatalf("only %d files found below %s: the lint would see nothing", len(tree.Files), dir)
	}
	for name, rule := range rules {
		t.Run(name, func(t *testing.T) {
			for _, p := range rule(tree) {
				t.Error(p)
			}
		})
	}
	t.Run("CheckoutPath", func(t *testing.T) {
		for _, p := range MachinePaths(tree, filepath.ToSlash(dir)) {
			t.Error(p)
		}
	})
	t.Run("PackageTable", func(t *testing.T) {
		for _, p := range missingRows(tree, Table) {
			t.Error(p)
		}
	})
}

// TestWeight runs go list, whose answer needs no network.
func TestWeight(t *testing.T) {
	dir := root(t)
	tree, err := Load(os.DirFS(dir))
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range Weights {
		deps := list(t, dir, w.Dir)
		if len(deps) < 10 {
			t.Fatalf("go list names only %d dependencies of %s", len(deps), w.Dir)
		}
		for _, p := range Heavy(w, tree.Module, deps) {
			t.Error(p)
		}
	}
}

func list(t *testing.T, dir, pkg string) []Dependency {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "list", "-deps", "-f", "{{.ImportPath}} {{with .Module}}{{.Path}}{{end}}", pkg)
	cmd.Dir = dir
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list %s: %v\n%s", pkg, err, stderr.String())
	}
	var deps []Dependency
	for line := range strings.Lines(string(out)) {
		var d Dependency
		fmt.Sscan(line, &d.Package, &d.Module)
		deps = append(deps, d)
	}
	return deps
}
