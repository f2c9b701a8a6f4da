package lint

import (
	"fmt"
	"slices"
	"strings"
)

// Module is a dependency that was decided on.
type Module struct {
	Path    string
	Licence string // SPDX
	Why     string // why nothing of the standard library does
}

// Modules is everything that go.mod may require: nothing. Who embeds the client or the engine gets the standard library.
var Modules []Module

// ProgramModules is what the module of the program may require itself; what those require comes with them.
var ProgramModules = []Module{
	{"github.com/btrlog/btrlog", "Apache-2.0", "the program is around it"},
	{"github.com/btrlog/btrlog/compress/zstd", "Apache-2.0", "archived records that are compressed; it brings github.com/klauspost/compress (BSD-3-Clause)"},
	{"github.com/btrlog/btrlog/objstore/azure", "Apache-2.0", "az:// stores; it brings the official SDK"},
	{"github.com/btrlog/btrlog/objstore/gcs", "Apache-2.0", "gs:// stores; it brings the official SDK"},
	{"github.com/btrlog/btrlog/objstore/s3", "Apache-2.0", "s3:// stores; it brings the official SDK"},
	{"github.com/spf13/cobra", "Apache-2.0", "command tree, help and completion from one source"},
	{"github.com/spf13/pflag", "BSD-3-Clause", "flags of cobra's commands"},
}

// CompressModules is what the module of the compressor may require itself.
var CompressModules = []Module{
	{"github.com/btrlog/btrlog", "Apache-2.0", "it registers itself there"},
	{"github.com/klauspost/compress", "BSD-3-Clause", "zstd in Go; the standard library has none"},
}

// TortureModules is what the module of the torture test may require itself.
var TortureModules = []Module{
	{"github.com/btrlog/btrlog", "Apache-2.0", "it is what is tortured"},
	{"github.com/anishathalye/porcupine", "MIT", "a checker of linearizability that others wrote and use"},
	{"golang.org/x/sys", "BSD-3-Clause", "system calls and constants that syscall has not, on every architecture"},
}

// permissive are the licences that a user of the client can take without asking.
var permissive = []string{"Apache-2.0", "MIT", "BSD-2-Clause", "BSD-3-Clause", "ISC"}

// GoMod checks a go.mod against a list. In the root's, replace and exclude are refused: they do not reach those who import the
// module. In one below, what is required only indirectly is not looked at.
func GoMod(t *Tree, file string, allowed []Module) []string {
	var problems []string
	for _, m := range allowed {
		if !slices.Contains(permissive, m.Licence) || m.Why == "" {
			problems = append(problems, fmt.Sprintf("module %s has licence %q and reason %q; write a reason, and choose one of %v", m.Path, m.Licence, m.Why, permissive))
		}
	}
	required := make(map[string]bool)
	for _, f := range t.Files {
		if f.Path != file {
			continue
		}
		block := ""
		for i, line := range strings.Split(string(f.Text), "\n") {
			if f.Nested && strings.HasSuffix(line, "// indirect") {
				continue
			}
			line, _, _ = strings.Cut(line, "//")
			words := strings.Fields(line)
			switch {
			case len(words) == 0:
				continue
			case len(words) == 2 && words[1] == "(":
				block = words[0]
				continue
			case words[0] == ")":
				block = ""
				continue
			}
			if block != "" {
				words = slices.Insert(words, 0, block)
			}
			switch words[0] {
			case "replace", "exclude":
				if f.Nested {
					continue
				}
				problems = append(problems, fmt.Sprintf("%s:%d: %s does not reach those who import this module; require a version that works", file, i+1, words[0]))
			case "require":
				required[words[1]] = true
				if !slices.ContainsFunc(allowed, func(m Module) bool { return m.Path == words[1] }) {
					problems = append(problems, fmt.Sprintf("%s:%d: %s is not on the list; use the standard library, or add the module to "+
						"internal/lint/modules.go with its licence and reason", file, i+1, words[1]))
				}
			}
		}
	}
	for _, m := range allowed {
		if !required[m.Path] {
			problems = append(problems, fmt.Sprintf("%s does not require %s; remove it from internal/lint/modules.go", file, m.Path))
		}
	}
	return problems
}

// Weight bounds what a user of a package gets with it.
type Weight struct {
	Dir     string   // of the package, as go list takes it
	Modules []string // that it may depend on, besides this one
	Not     []string // packages that it must not depend on, with those below them
	Why     string
}

// Weights are the packages that others embed.
var Weights = []Weight{
	{Dir: ".", Not: []string{"github.com/btrlog/btrlog/lst", "github.com/btrlog/btrlog/internal/node", "github.com/btrlog/btrlog/internal/shard", "testing", "database/sql", "plugin"},
		Why: "a database that embeds the client gets the standard library and this module, nothing else; move the import into cmd/btrlog or a module of its own"},
	{Dir: "./lst", Not: []string{"net", "crypto/tls", "testing", "encoding/json", "database/sql", "plugin"},
		Why: "the engine is embedded alone and touches files only; move the import to its user"},
}

// Dependency is one line of go list -deps.
type Dependency struct {
	Package, Module string // Module is empty for the standard library
}

// Heavy checks the dependencies of one package.
func Heavy(w Weight, own string, deps []Dependency) []string {
	var problems []string
	for _, d := range deps {
		if d.Module != "" && d.Module != own && !slices.Contains(w.Modules, d.Module) {
			problems = append(problems, fmt.Sprintf("package %s depends on %s of module %s: %s", w.Dir, d.Package, d.Module, w.Why))
		}
		if slices.ContainsFunc(w.Not, func(n string) bool { return below(d.Package, n) }) {
			problems = append(problems, fmt.Sprintf("package %s depends on %s: %s", w.Dir, d.Package, w.Why))
		}
	}
	return problems
}
