// Package lint enforces the rules of the house that a compiler does not know. Each rule is a function from
// a source tree to problems; the tests run all of them on this module, and each on small trees in testdata that it must
// find fault with: a check that cannot fail is no check.
//
// A problem names the file, the line, and what to do instead.
package lint

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"strings"
	"unicode/utf8"
)

// Tree is the part of a checkout that the rules look at.
type Tree struct {
	Module string // the module path of the root's go.mod
	Files  []*File
	fset   *token.FileSet
	// scripts are the paths of the scenario scripts.
	scripts []string
}

// File is one text file of a tree.
type File struct {
	Path string // relative to the root, with slashes
	Text []byte
	// Nested says that the file belongs to a module of its own below the root.
	Nested bool
	// AST is nil for what is not Go.
	AST *ast.File
}

// Test reports whether the file is a Go test.
func (f *File) Test() bool { return strings.HasSuffix(f.Path, "_test.go") }

// Dir is the file's directory, "." for the root.
func (f *File) Dir() string { return path.Dir(f.Path) }

// maxTextBytes: a larger file is data, not text that people wrote.
const maxTextBytes = 1 << 20

// Load reads all text files below fsys, without testdata, build output and hidden directories other than .ci and .github. A Go
// file that does not parse is an error.
func Load(fsys fs.FS) (*Tree, error) {
	t := &Tree{fset: token.NewFileSet()}
	nested := make(map[string]bool)
	err := fs.WalkDir(fsys, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			hidden := strings.HasPrefix(name, ".") && name != "." && name != ".ci" && name != ".github"
			if hidden || name == "testdata" || p == "bin" || name == "node_modules" {
				return fs.SkipDir
			}
			nested[p] = nested[path.Dir(p)]
			if _, err := fs.Stat(fsys, path.Join(p, "go.mod")); err == nil && p != "." {
				nested[p] = true
			}
			return nil
		}
		info, err := d.Info()
		if err != nil || !info.Mode().IsRegular() || info.Size() > maxTextBytes {
			return err
		}
		text, err := fs.ReadFile(fsys, p)
		if err != nil {
			return err
		}
		if bytes.IndexByte(text, 0) >= 0 || !utf8.Valid(text) {
			return nil
		}
		f := &File{Path: p, Text: text, Nested: nested[path.Dir(p)]}
		if strings.HasSuffix(p, ".go") {
			if f.AST, err = parser.ParseFile(t.fset, p, text, parser.ParseComments|parser.SkipObjectResolution); err != nil {
				return err
			}
		}
		if p == "go.mod" {
			line, _, _ := strings.Cut(string(text), "\n")
			t.Module = strings.TrimSpace(strings.TrimPrefix(line, "module"))
		}
		t.Files = append(t.Files, f)
		return nil
	})
	if err == nil {
		t.scripts, err = fs.Glob(fsys, scripts+"*.txt")
	}
	if err == nil && t.Module == "" {
		err = fmt.Errorf("no go.mod that begins with its module line at the root")
	}
	return t, err
}

// at formats a problem of a syntax node.
func (t *Tree) at(n ast.Node, format string, args ...any) string {
	p := t.fset.Position(n.Pos())
	return fmt.Sprintf("%s:%d: ", p.Filename, p.Line) + fmt.Sprintf(format, args...)
}

// program is the directory of the program: a module of its own for which the rules hold all the same.
const program = "cmd/btrlog"

// golang yields the Go files of the root module and of the program.
func (t *Tree) golang(yield func(*File) bool) {
	for _, f := range t.Files {
		if f.AST != nil && (!f.Nested || below(f.Path, program)) && !yield(f) {
			return
		}
	}
}

// importName returns the name under which a file uses an import path; "" if it does not import it.
func importName(f *ast.File, importPath string) string {
	for _, s := range f.Imports {
		if strings.Trim(s.Path.Value, `"`) != importPath {
			continue
		}
		if s.Name != nil {
			return s.Name.Name
		}
		base := path.Base(importPath)
		if base == "v2" {
			base = path.Base(path.Dir(importPath))
		}
		return base
	}
	return ""
}

// selectors visits every use of the form name.selector in a file.
func selectors(f *ast.File, name string, visit func(*ast.SelectorExpr)) {
	if name == "" || name == "_" {
		return
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := s.X.(*ast.Ident); ok && x.Name == name {
				visit(s)
			}
		}
		return true
	})
}
