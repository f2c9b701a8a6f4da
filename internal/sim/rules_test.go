package sim

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// TestProductionCodeBreaksNoRule: protocol.Rules is zero wherever it is not set, and nothing but this package and tests sets it.
func TestProductionCodeBreaksNoRule(t *testing.T) {
	files, literals := 0, 0
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == ".git" || d.Name() == ".cache" || path == filepath.Join("../..", "internal", "sim")) {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		files++
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		name := func(e ast.Expr) string {
			switch e := e.(type) {
			case *ast.Ident:
				return e.Name
			case *ast.SelectorExpr:
				return e.Sel.Name
			}
			return ""
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CompositeLit:
				if name(n.Type) == "Rules" {
					literals++
					if len(n.Elts) > 0 {
						t.Errorf("%s sets a field of protocol.Rules", path)
					}
				}
			case *ast.AssignStmt:
				for _, l := range n.Lhs {
					if s, ok := l.(*ast.SelectorExpr); ok && strings.EqualFold(name(s.X), "rules") {
						t.Errorf("%s assigns to %s.%s", path, name(s.X), s.Sel.Name)
					}
				}
			}
			return true
		})
		return nil
	})
	if err != nil || files < 50 || literals == 0 {
		t.Fatalf("%d files, %d literals: %v", files, literals, err)
	}
}
