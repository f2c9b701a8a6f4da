package lint

import (
	"fmt"
	"go/ast"
	"go/token"
	"slices"
	"strings"
)

// knownMethods implement interfaces of the standard library; what they do is said there.
var knownMethods = []string{"String", "GoString", "Error", "Unwrap", "Is", "As", "Len", "Less", "Swap", "Push", "Pop",
	"MarshalJSON", "UnmarshalJSON", "MarshalText", "UnmarshalText", "Format"}

// DocComments refuses packages and exported identifiers without a comment, and comments that only repeat the name. Programs
// are not looked into, nor are methods that implement an interface of the standard library. A comment covers the
// declarations on the lines directly below the one it stands at.
func DocComments(t *Tree) []string {
	var problems []string
	packages := make(map[string][]*File)
	var dirs []string
	for f := range t.golang {
		if f.Test() {
			continue
		}
		if packages[f.Dir()] == nil {
			dirs = append(dirs, f.Dir())
		}
		packages[f.Dir()] = append(packages[f.Dir()], f)
	}
	for _, dir := range dirs {
		d := &docs{t: t}
		files := packages[dir]
		if !slices.ContainsFunc(files, func(f *File) bool { return f.AST.Doc != nil }) {
			problems = append(problems, t.at(files[0].AST.Name, "package %s has no comment; say in one file what it is for and its invariants", files[0].AST.Name.Name))
		}
		if files[0].AST.Name.Name == "main" {
			continue
		}
		for _, f := range files {
			d.file(f.AST)
		}
		problems = append(problems, d.problems...)
	}
	return problems
}

type docs struct {
	t *Tree
	// covered is the line behind the last declaration that has a comment: one that stands there, without an empty line
	// between them, belongs to the same comment.
	covered  int
	problems []string
}

func (d *docs) file(f *ast.File) {
	d.covered = 0
	for _, decl := range f.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			d.function(decl)
		case *ast.GenDecl:
			switch decl.Tok {
			case token.TYPE:
				d.types(decl)
			case token.CONST, token.VAR:
				d.values(decl)
			}
		}
	}
}

func (d *docs) check(n ast.Node, what, name string, comments ...*ast.CommentGroup) {
	line := d.t.fset.Position(n.Pos()).Line
	cover := func() { d.covered = d.t.fset.Position(n.End()).Line + 1 }
	for _, c := range comments {
		text := strings.TrimSpace(c.Text())
		if text == "" {
			continue
		}
		if strings.EqualFold(strings.Trim(text, " ."), name) {
			d.problems = append(d.problems, d.t.at(n, "the comment of %s %s repeats its name; say what it promises, its units, limits and errors", what, name))
		}
		cover()
		return
	}
	if line == d.covered {
		cover()
		return
	}
	d.problems = append(d.problems, d.t.at(n, "exported %s %s has no comment; say what it promises, its units, limits and errors, or do not export it", what, name))
}

func (d *docs) types(g *ast.GenDecl) {
	for _, s := range g.Specs {
		ts := s.(*ast.TypeSpec)
		if ts.Name.IsExported() {
			d.check(ts, "type", ts.Name.Name, ts.Doc, ts.Comment, g.Doc)
		}
	}
}

func (d *docs) function(f *ast.FuncDecl) {
	if !f.Name.IsExported() {
		return
	}
	if f.Recv == nil {
		d.check(f, "function", f.Name.Name, f.Doc)
		return
	}
	recv := receiver(f.Recv.List[0].Type)
	if ast.IsExported(recv) && !slices.Contains(knownMethods, f.Name.Name) {
		d.check(f, "method", fmt.Sprintf("%s.%s", recv, f.Name.Name), f.Doc)
	}
}

func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// values accepts one comment for a group, and none for the enumeration of a type, whose comment covers it.
func (d *docs) values(g *ast.GenDecl) {
	if g.Doc != nil {
		return
	}
	enumeration := false
	for _, s := range g.Specs {
		vs := s.(*ast.ValueSpec)
		if id, ok := vs.Type.(*ast.Ident); ok && g.Tok == token.CONST {
			enumeration = ast.IsExported(id.Name)
		} else if vs.Type != nil || len(vs.Values) > 0 {
			enumeration = enumeration && len(vs.Values) > 0 && usesOnly(vs.Values)
		}
		for _, name := range vs.Names {
			if name.IsExported() && !enumeration {
				d.check(vs, strings.ToLower(g.Tok.String()), name.Name, vs.Doc, vs.Comment)
			}
		}
	}
}

// usesOnly reports whether the values are made of other names, such as the sums of an enumeration's flags.
func usesOnly(values []ast.Expr) bool {
	ok := true
	for _, v := range values {
		ast.Inspect(v, func(n ast.Node) bool {
			if _, lit := n.(*ast.BasicLit); lit {
				ok = false
			}
			return true
		})
	}
	return ok
}
