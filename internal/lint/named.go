package lint

import (
	"fmt"
	"go/ast"
	"regexp"
	"slices"
	"strings"
)

var (
	namedTest = regexp.MustCompile(`(-run '?)?\b(Test[A-Z][A-Za-z0-9_]*)(/[A-Za-z0-9_]+)?\b`)
	testFunc  = regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9_]+)\(`)
)

// scripts is where the scenario scripts lie: TestScripts/NAME runs scripts + NAME + ".txt".
const scripts = "internal/protocol/testdata/"

// NamedTests refuses documents that name a test or a script that does not exist. Behind -run the beginning of a name is enough.
func NamedTests(t *Tree) []string {
	tests := map[string]bool{}
	for _, f := range t.Files {
		switch {
		case !f.Test():
		case f.AST == nil:
			for _, m := range testFunc.FindAllSubmatch(f.Text, -1) {
				tests[string(m[1])] = true
			}
		default:
			for _, d := range f.AST.Decls {
				if d, ok := d.(*ast.FuncDecl); ok && d.Recv == nil {
					tests[d.Name.Name] = true
				}
			}
		}
	}
	begins := func(prefix string) bool {
		for name := range tests {
			if strings.HasPrefix(name, prefix) {
				return true
			}
		}
		return false
	}
	var problems []string
	for _, f := range t.Files {
		if !strings.HasSuffix(f.Path, ".md") {
			continue
		}
		for i, line := range strings.Split(string(f.Text), "\n") {
			for _, m := range namedTest.FindAllStringSubmatch(line, -1) {
				run, name, sub := m[1], m[2], m[3]
				switch {
				case tests[name] && sub != "" && name == "TestScripts" && !slices.Contains(t.scripts, scripts+sub[1:]+".txt"):
					problems = append(problems, fmt.Sprintf("%s:%d: no script %s; record it, or name another", f.Path, i+1, scripts+sub[1:]+".txt"))
				case !tests[name] && !(run != "" && begins(name)):
					problems = append(problems, fmt.Sprintf("%s:%d: there is no test %s; write it, or name the one that took its place", f.Path, i+1, name))
				}
			}
		}
	}
	return problems
}
