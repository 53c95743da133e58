package metrics

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestTable: the definitions keep the rules of Prometheus and of this table.
func TestTable(t *testing.T) {
	snake := regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)
	seen := make(map[string]bool)
	for _, d := range All() {
		wrong := func(format string, args ...any) {
			t.Helper()
			t.Errorf(d.Name+": "+format, args...)
		}
		if seen[d.Name] || !snake.MatchString(d.Name) || strings.HasPrefix(d.Name, prefix) {
			wrong("not a name, or there twice")
		}
		seen[d.Name] = true
		if strings.HasSuffix(d.Name, "_total") != (d.Kind == KindCounter) {
			wrong("a counter ends with _total, and nothing else does")
		}
		for _, word := range []string{"octets", "milliseconds", "ms", "kilobytes", "count", "sum", "bucket", "ramp", "number"} {
			if strings.Contains("_"+d.Name+"_", "_"+word+"_") {
				wrong("%q is no unit, or not the word for it", word)
			}
		}
		if strings.Contains(d.Name, "_bytes_") && !strings.HasSuffix(d.Name, "_bytes_total") || strings.Contains(d.Name, "_seconds_") && !strings.HasSuffix(d.Name, "_seconds_total") {
			wrong("the unit is not at the end")
		}
		if d.scale != 0 && d.Unit() == "" {
			wrong("a scale, and no unit")
		}
		if !strings.HasSuffix(d.Help, ".") || strings.Contains(d.Help, "octet") || strings.ContainsAny(d.Help, "\n|") {
			wrong("help: %q", d.Help)
		}
		names := make(map[string]bool)
		for _, l := range d.Labels {
			if names[l.Name] || !snake.MatchString(l.Name) || l.Name == "le" || l.Name == "quantile" || l.Name == "name" {
				wrong("label %q", l.Name)
			}
			names[l.Name] = true
			if l.Help == "" || strings.HasSuffix(l.Help, ".") {
				wrong("label %s: help %q", l.Name, l.Help)
			}
			values := make(map[string]bool)
			for _, v := range l.Values {
				if v.Name == "" || values[v.Name] || strings.HasSuffix(v.Help, ".") {
					wrong("label %s: value %q, help %q", l.Name, v.Name, v.Help)
				}
				values[v.Name] = true
			}
		}
		if names["listener"] && names["upstream"] && !strings.HasPrefix(d.Name, "operation_") {
			wrong("of a listener or of an upstream?")
		}
		if strings.HasPrefix(d.Name, "listener_") != (len(d.Labels) > 0 && d.Labels[0].Name == "listener" && !names["upstream"]) ||
			strings.HasPrefix(d.Name, "upstream_") != (len(d.Labels) > 0 && d.Labels[0].Name == "upstream") {
			wrong("the name and the labels do not agree on whose it is")
		}
	}
	if len(seen) < 100 {
		t.Errorf("%d definitions", len(seen))
	}
}

// TestUsed: the code of the bridge uses every definition.
func TestUsed(t *testing.T) {
	used := make(map[string]bool)
	err := filepath.WalkDir("..", func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && (path == "../metrics" || path == "../out" || strings.HasPrefix(e.Name(), ".") && path != ".."):
			return fs.SkipDir
		case e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := s.X.(*ast.Ident); ok && x.Name == "metrics" {
					used[s.Sel.Name] = true
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, s := range sections(t) {
		for _, v := range s.definitions {
			n++
			if !used[v.variable] {
				t.Errorf("nothing uses %s, %s", v.variable, v.name)
			}
		}
	}
	if n != len(All()) {
		t.Errorf("%d definitions in the source, %d in the table", n, len(All()))
	}
}

// A section is a group of definitions in the source.
type section struct {
	title       string // the comment before it
	definitions []sourceDefinition
}

type sourceDefinition struct{ variable, name string }

// sections reads the definitions from the source of this package.
func sections(t *testing.T) (all []section) {
	t.Helper()
	for _, file := range []string{"process.go", "listeners.go", "tenants.go", "operations.go", "upstreams.go", "rdma.go", "memory.go"} {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range f.Decls {
			g, ok := decl.(*ast.GenDecl)
			if !ok || g.Tok != token.VAR {
				continue
			}
			s := section{title: strings.Join(strings.Fields(g.Doc.Text()), " ")}
			for _, spec := range g.Specs {
				v := spec.(*ast.ValueSpec)
				call, ok := v.Values[0].(*ast.CallExpr)
				if !ok || len(call.Args) != 1 {
					continue
				}
				lit, ok := call.Args[0].(*ast.CompositeLit)
				if !ok {
					continue
				}
				for _, e := range lit.Elts {
					if kv := e.(*ast.KeyValueExpr); kv.Key.(*ast.Ident).Name == "Name" {
						s.definitions = append(s.definitions, sourceDefinition{v.Names[0].Name, strings.Trim(kv.Value.(*ast.BasicLit).Value, `"`)})
					}
				}
			}
			if len(s.definitions) > 0 {
				all = append(all, s)
			}
		}
	}
	return all
}
