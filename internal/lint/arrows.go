package lint

import (
	"fmt"
	"slices"
	"strings"
)

// Row says what one directory, and those below it, may import of this module.
type Row struct {
	Dir string // relative to the root; "." is the root package alone
	// May lists directories; each admits those below it too. Its own subtree is always admitted.
	May []string
	// Std lists packages of the standard library that are forbidden, with those below them.
	Std []string
	// Tests says that the row binds tests too; otherwise a test may import anything but the simulator.
	Tests bool
	// Why is printed with a problem.
	Why string
}

// Table is the package table of docs/ARCHITECTURE.md. Arrows point down only.
var Table = []Row{
	{Dir: ".", May: []string{"internal/protocol", "internal/wire", "internal/ring", "internal/meta", "internal/archive", "internal/sparselog", "internal/stagetrace", "internal/storecount", "metrics", "objstore"},
		Why: "the client must stay light for the databases that embed it: neither engine nor node; talk to nodes by internal/wire"},
	{Dir: "lst", Tests: true, Std: []string{"net"},
		Why: "the engine is embedded alone, it knows nothing of replication; pass what it needs as an argument or an option"},
	{Dir: "objstore", Tests: true,
		Why: "the store is used alone, it knows nothing of logs; what is about logs belongs into internal/archive or internal/meta"},
	{Dir: "metrics", Tests: true, Std: []string{"net", "os"},
		Why: "it holds values and writes them as text; what they are of, and where they go, is its users'"},
	{Dir: "internal/storecount", May: []string{"metrics", "objstore"},
		Why: "it counts requests to any store for any user"},
	{Dir: "internal/sparselog", Tests: true, Why: "it writes fewer lines to a log, whatever they say"},
	{Dir: "internal/stagetrace", Tests: true, May: []string{"internal/protocol"}, Std: []string{"net", "os", "time"},
		Why: "it picks by numbers alone, so that writers and nodes pick the same"},
	{Dir: "internal/cost", Tests: true, Std: []string{"net", "os"}, Why: "it calculates with what it is given"},
	{Dir: "internal/protocol", Tests: true,
		Why: "the protocol is a pure state machine that the node, the simulator and the explorer drive alike; return an output instead"},
	{Dir: "internal/wire", May: []string{"internal/protocol"}, Std: []string{"net", "os"},
		Why: "wire turns messages into bytes and back; sockets belong into internal/ring and internal/node"},
	{Dir: "internal/ring", Why: "the ring moves bytes between a thread and its socket; what they mean belongs into its user"},
	{Dir: "internal/archive", May: []string{"internal/protocol", "objstore"},
		Why: "the archive reads records through an interface; the engine behind it belongs into internal/node"},
	{Dir: "internal/meta", May: []string{"internal/protocol", "objstore"},
		Why: "metadata is records in an object store and nothing else"},
	{Dir: "internal/collect", May: []string{"internal/protocol", "internal/archive", "internal/meta"}, Std: []string{"net", "os"},
		Why: "it decides by records and objects alone, so that the simulator runs it on its own clock"},
	{Dir: "internal/shard", May: []string{"internal/protocol", "lst"}, Std: []string{"net"},
		Why: "a shard is the protocol on one engine; the simulator runs it as it is, without sockets and object stores"},
	{Dir: "internal/node", May: []string{"internal", "lst", "metrics", "objstore"},
		Why: "a node serves the client and must not be one"},
	{Dir: "internal/sim", Std: []string{"net", "net/http"},
		May: []string{"internal/protocol", "internal/wire", "internal/archive", "internal/collect", "internal/meta", "internal/shard", "lst", "objstore"},
		Why: "the simulator runs the product's code on simulated parts; a real socket or a real node would escape its seed"},
	{Dir: "internal/acktrace", Tests: true, May: []string{"internal/protocol", "internal/wire", "."},
		Why: "it observes a built node from outside"},
	{Dir: "internal/e2e", Tests: true, May: []string{"metrics", "objstore", "internal/node", "internal/archive", "internal/protocol", "."},
		Why: "it runs nodes as processes and counts in front of their store; what it needs to know it asks the processes, and the store by what archive verify does"},
	{Dir: "internal/lint", Tests: true, Why: "the rules must run while the rest does not compile"},
	{Dir: "cmd/btrlog", May: []string{".", "compress", "internal", "lst", "metrics", "objstore"}, Why: "nothing is above the binary but nothing may import it"},
	{Dir: "examples", Tests: true, May: []string{".", "metrics", "objstore"}, Why: "an example shows what a user can do with the public packages"},
	{Dir: "demo", Tests: true, May: []string{".", "objstore"}, Why: "the demo shows what a user can do with the public packages"},
}

// simUsers may import the simulator.
var simUsers = []string{"internal/sim", "cmd/btrlog"}

// Arrows checks the imports of the root module against a table.
func Arrows(t *Tree, table []Row) []string {
	var problems []string
	for f := range t.golang {
		row := rowOf(table, f.Dir())
		if row == nil {
			problems = append(problems, t.at(f.AST.Name, "package %s is not in the table; add it to docs/ARCHITECTURE.md and internal/lint/arrows.go, "+
				"or put the code into the package of its first user", f.Dir()))
			continue
		}
		for _, s := range f.AST.Imports {
			p := strings.Trim(s.Path.Value, `"`)
			dir, ours := strings.CutPrefix(p, t.Module)
			if dir = strings.TrimPrefix(dir, "/"); ours && dir == "" {
				dir = "."
			}
			switch {
			case !ours:
				if (!f.Test() || row.Tests) && slices.ContainsFunc(row.Std, func(d string) bool { return below(p, d) }) {
					problems = append(problems, t.at(s, "%s must not import %s: %s", f.Dir(), p, row.Why))
				}
			case below(dir, "internal/sim") && !slices.Contains(simUsers, row.Dir):
				problems = append(problems, t.at(s, "nothing imports the simulator; put what both need into a package below it"))
			case f.Test() && !row.Tests, below(dir, row.Dir):
			case !slices.ContainsFunc(row.May, func(d string) bool { return below(dir, d) }):
				problems = append(problems, t.at(s, "%s must not import %s: %s", f.Dir(), dir, row.Why))
			}
		}
	}
	return problems
}

func rowOf(table []Row, dir string) *Row {
	for i := range table {
		if below(dir, table[i].Dir) {
			return &table[i]
		}
	}
	return nil
}

// below reports whether path p is d or lies below it. Below "." is only the root itself.
func below(p, d string) bool { return p == d || strings.HasPrefix(p, d+"/") }

// missingRows compares the table with the one that people read: every package named there must have its row here.
func missingRows(t *Tree, table []Row) []string {
	const doc = "docs/ARCHITECTURE.md"
	var problems []string
	rows := 0
	for _, f := range t.Files {
		if f.Path != doc {
			continue
		}
		for i, line := range strings.Split(string(f.Text), "\n") {
			name, ok := strings.CutPrefix(line, "| `")
			if !ok {
				continue
			}
			name, _, _ = strings.Cut(name, "`")
			if name == "btrlog" {
				name = "."
			}
			if !strings.HasPrefix(name, "internal/") && !strings.HasPrefix(name, "cmd/") && name != "." && name != "lst" && name != "objstore" {
				continue // another table
			}
			rows++
			if !slices.ContainsFunc(table, func(r Row) bool { return r.Dir == name }) {
				problems = append(problems, fmt.Sprintf("%s:%d: package %s has no row in internal/lint/arrows.go", doc, i+1, name))
			}
		}
	}
	if rows == 0 {
		problems = append(problems, doc+" has no package table; the rules in internal/lint/arrows.go must be readable there")
	}
	return problems
}
