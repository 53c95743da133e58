package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// notOfTheBridge are directories whose lines are not in docs/logs.md: they are tests, or write the log of
// another command.
var notOfTheBridge = []string{"internal/chaos", "internal/testkit", "internal/tools", "internal/bench", "internal/faults", "rdmaside/fabric/fabrictest"}

// eventName is what an event is called.
var eventName = regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`)

// TestEvents: each line of the log has a key event, docs/logs.md has each event with its levels, and has
// no other.
func TestEvents(t *testing.T) {
	found := make(map[string]map[string]bool) // levels by event; "" for a level that is not a constant
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel("../..", path)
		switch {
		case err != nil:
			return err
		case d.IsDir() && (strings.HasPrefix(d.Name(), ".") && rel != "." || slices.Contains(notOfTheBridge, filepath.ToSlash(rel))):
			return fs.SkipDir
		case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		if rel != "internal/loglimit/limit.go" {
			eventsOf(t, set, f, found)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile("../../docs/logs.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(doc), "\n## Events\n")
	table, _, _ = strings.Cut(table, "\n## ")
	listed := make(map[string]bool)
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| ([a-z, ]+) \\|").FindAllStringSubmatch(table, -1) {
		event, levels := m[1], strings.Split(m[2], ", ")
		listed[event] = true
		if found[event] == nil {
			t.Errorf("docs/logs.md has %s, and no line has it", event)
			continue
		}
		for level := range found[event] {
			if level != "" && !slices.Contains(levels, level) {
				t.Errorf("docs/logs.md: %s is of level %v, and the source has %s too", event, levels, level)
			}
		}
		for _, level := range levels {
			if !found[event][level] && !found[event][""] {
				t.Errorf("docs/logs.md: no line of %s is of level %s", event, level)
			}
		}
	}
	for event := range found {
		if !listed[event] && event != "call" {
			t.Errorf("docs/logs.md lacks the event %s", event)
		}
	}
	if len(listed) < 50 {
		t.Errorf("%d events were found in the table", len(listed))
	}
}

// eventsOf adds the events of the lines that f writes. A line is a chain of calls from one that gives a
// level to one that writes; other chains begin with Line of package loglimit.
func eventsOf(t *testing.T, set *token.FileSet, f *ast.File, found map[string]map[string]bool) {
	add := func(event, level string) {
		if !eventName.MatchString(event) {
			t.Errorf("%q is no name for an event", event)
		}
		if found[event] == nil {
			found[event] = make(map[string]bool)
		}
		found[event][level] = true
	}
	ast.Inspect(f, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		method := selected(call)
		switch {
		case method == "Line" || method == "logChanges" || isIdent(call.Fun, "logChanges"):
			// Line(log, level, event[, suppressed]), logChanges(log, level, event, ...)
			if len(call.Args) >= 3 {
				if event, ok := literal(call.Args[2]); ok {
					add(event, levelOf(call.Args[1]))
				} else if isIdent(call.Args[2], "event") {
					for _, event := range assigned(f, "event") {
						add(event, levelOf(call.Args[1]))
					}
				}
			}
		case method == "Str" && len(call.Args) == 2:
			if key, _ := literal(call.Args[0]); key == "event" {
				if event, ok := literal(call.Args[1]); ok {
					add(event, chainLevel(call))
				}
			}
		case (method == "Msg" || method == "Msgf" || method == "Send") && !chainHas(call):
			if level := chainLevel(call); level != "" && level != "trace" {
				t.Errorf("%s: a line of level %s without the key event", set.Position(call.Pos()), level)
			}
		}
		return true
	})
}

// selected is the name of the method or function that call calls.
func selected(call *ast.CallExpr) string {
	if s, ok := call.Fun.(*ast.SelectorExpr); ok {
		return s.Sel.Name
	}
	return ""
}

func isIdent(e ast.Expr, name string) bool {
	id, ok := e.(*ast.Ident)
	return ok && id.Name == name
}

func literal(e ast.Expr) (string, bool) {
	l, ok := e.(*ast.BasicLit)
	if !ok || l.Kind != token.STRING {
		return "", false
	}
	s, err := strconv.Unquote(l.Value)
	return s, err == nil
}

// levelOf is the level that e names, such as zerolog.WarnLevel, or "".
func levelOf(e ast.Expr) string {
	if s, ok := e.(*ast.SelectorExpr); ok {
		if name, ok := strings.CutSuffix(s.Sel.Name, "Level"); ok {
			return strings.ToLower(name)
		}
	}
	return ""
}

// chain calls visit for call and the calls that it is chained to, until visit returns false.
func chain(call *ast.CallExpr, visit func(*ast.CallExpr) bool) {
	for visit(call) {
		s, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return
		}
		if call, ok = s.X.(*ast.CallExpr); !ok {
			return
		}
	}
}

// chainLevel is the level with which the chain of call begins, or "" if that is not in the chain.
func chainLevel(call *ast.CallExpr) (level string) {
	chain(call, func(c *ast.CallExpr) bool {
		switch name := selected(c); name {
		case "Debug", "Info", "Warn", "Error", "Trace":
			if len(c.Args) == 0 {
				level = strings.ToLower(name)
			}
		case "WithLevel":
			level = levelOf(c.Args[0])
		}
		return level == ""
	})
	return level
}

// chainHas reports whether the chain of call has the key event.
func chainHas(call *ast.CallExpr) (has bool) {
	chain(call, func(c *ast.CallExpr) bool {
		if selected(c) == "Str" && len(c.Args) == 2 {
			key, _ := literal(c.Args[0])
			has = has || key == "event"
		}
		return !has
	})
	return has
}

// assigned are the strings that f assigns to variables of that name.
func assigned(f *ast.File, name string) (all []string) {
	ast.Inspect(f, func(n ast.Node) bool {
		a, ok := n.(*ast.AssignStmt)
		if !ok {
			return true
		}
		for i := range a.Lhs {
			if i < len(a.Rhs) && isIdent(a.Lhs[i], name) {
				if s, ok := literal(a.Rhs[i]); ok {
					all = append(all, s)
				}
			}
		}
		return true
	})
	return all
}
