package main

import (
	"cmp"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/rdmabridge/rdmabridge/internal/cli/clitest"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// notInWord reports whether r separates words. A regular expression would take seconds in a race
// build.
func notInWord(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) }

// architecture are the documents that name the code.
var architecture = []string{"ARCHITECTURE.md", "docs/internals.md"}

// TestArchitecture checks that the functions, files, packages and metrics that the documents of the architecture name
// exist.
func TestArchitecture(t *testing.T) {
	root := filepath.Join("..", "..")
	words, paths := make(map[string]bool), make(map[string]bool)
	tests := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist): // a temporary file of another process
			return nil
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "testdata"): // .git of a worktree is a file
			return filepath.SkipDir
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		for paths[rel], paths[filepath.Base(rel)] = true, true; rel != "."; {
			_, rest, ok := strings.Cut(rel, "/")
			if !ok {
				break
			}
			paths[rest], rel = true, rest
		}
		if filepath.Ext(path) != ".go" {
			return nil
		}
		b, err := os.ReadFile(path)
		if strings.HasSuffix(path, "_test.go") {
			for _, m := range tests.FindAllSubmatch(b, -1) {
				words[string(m[1])] = true
			}
			return err
		}
		for w := range strings.FieldsFuncSeq(string(b), notInWord) {
			if !strings.HasSuffix(path, "_test.go") || strings.HasPrefix(w, "Test") {
				words[w] = true
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	known := make(map[string]bool)
	for _, d := range metrics.All() {
		known[d.FullName()] = true
	}
	last := regexp.MustCompile(`[A-Za-z_]+$`)
	for _, file := range architecture {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile("`([^`\n]+)`").FindAllStringSubmatch(string(text), -1) {
			name := m[1]
			metric, _, _ := strings.Cut(name, "{")
			switch {
			case paths[name], strings.HasPrefix(name, "/"), name == "code":
			case known[metric], known["rdmabridge_"+metric]:
			case strings.HasPrefix(name, "limits.") || strings.HasPrefix(name, "chunks."): // YAML paths, which package configs tests
			default:
				if word := last.FindString(name); !words[word] {
					t.Errorf("%s names %s, which does not exist", file, name)
				}
			}
		}
	}
}

// TestArchitectureNamesTests: each row of a table of the documents of the architecture whose last column is for tests names
// one.
func TestArchitectureNamesTests(t *testing.T) {
	rows := 0
	for _, file := range architecture {
		text, err := os.ReadFile(filepath.Join("..", "..", file))
		if err != nil {
			t.Fatal(err)
		}
		inTable := false
		for line := range strings.Lines(string(text)) {
			cells := strings.Split(strings.TrimSpace(line), "|")
			if len(cells) < 3 {
				inTable = false
				continue
			}
			switch last := strings.TrimSpace(cells[len(cells)-2]); {
			case last == "Test":
				inTable = true
			case inTable && !strings.HasPrefix(last, "---"):
				if rows++; !strings.HasPrefix(last, "`Test") {
					t.Errorf("%s: no test holds the row: %s", file, line)
				}
			}
		}
	}
	if rows < 20 {
		t.Errorf("%d rows name tests", rows)
	}
}

// TestArchitectureOfLocks: each mutex of the packages that carry Calls is a leaf, as its comment says, or the order of locks
// in ARCHITECTURE.md has it.
func TestArchitectureOfLocks(t *testing.T) {
	root := filepath.Join("..", "..")
	text, err := os.ReadFile(filepath.Join(root, "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, order, _ := strings.Cut(string(text), "\n## The order of locks\n")
	order, _, _ = strings.Cut(order, "\n## ")
	files, leaves, named := token.NewFileSet(), 0, 0
	look := func(path string) {
		f, err := parser.ParseFile(files, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		owner := ""
		ast.Inspect(f, func(n ast.Node) bool {
			switch x := n.(type) {
			case *ast.TypeSpec:
				owner = x.Name.Name
			case *ast.ValueSpec:
				owner = x.Names[0].Name
			case *ast.Field:
				s, ok := x.Type.(*ast.SelectorExpr)
				if !ok || len(x.Names) == 0 || s.Sel.Name != "Mutex" && s.Sel.Name != "RWMutex" {
					break
				}
				switch name := f.Name.Name + " `" + owner + "." + x.Names[0].Name + "`"; {
				case strings.Contains(x.Comment.Text()+x.Doc.Text(), "a leaf"):
					leaves++
				case strings.Contains(order, name):
					named++
				default:
					t.Errorf("%s: the mutex %s is no leaf, and ARCHITECTURE.md does not have it", files.Position(x.Pos()), name)
				}
			}
			return true
		})
	}
	for _, dir := range []string{"proxy", "pool", "tcpframe", "rdmaside", "internal/regmem", "metrics"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && strings.HasSuffix(d.Name(), "test"): // for tests of others
				return fs.SkipDir
			case filepath.Ext(path) == ".go" && !strings.HasSuffix(path, "_test.go"):
				look(path)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if leaves < 20 || named < 10 {
		t.Errorf("%d leaves and %d other mutexes", leaves, named)
	}
}

// TestManPages: each command has a page with all its flags, and groff has nothing to say against it.
func TestManPages(t *testing.T) { clitest.ManPages(t, newCommand, 20) }

// TestPagesThatTextsName: the pages of docs that messages, manual pages, configurations and comments name exist.
func TestPagesThatTextsName(t *testing.T) {
	root := filepath.Join("..", "..")
	page := regexp.MustCompile(`\bdocs/[A-Za-z0-9_-]+\.md\b`)
	n := 0
	for _, dir := range []string{"cmd", "configs", "deploy", "internal", "metrics", "pool", "proxy", "rdmaside", "tcpframe"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			text, err := os.ReadFile(path)
			for _, name := range page.FindAll(text, -1) {
				n++
				if _, err := os.Stat(filepath.Join(root, string(name))); err != nil {
					t.Errorf("%s: %v", path, err)
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if n < 100 {
		t.Errorf("%d pages are named", n)
	}
}

// TestLinksInDocs checks that the links of the documents to files here, and to their sections, lead somewhere. The tests of
// packages run it with the documents of a package, at RDMABRIDGE_DOCUMENTS.
func TestLinksInDocs(t *testing.T) {
	root := cmp.Or(os.Getenv("RDMABRIDGE_DOCUMENTS"), filepath.Join("..", ".."))
	var files []string
	for _, pattern := range []string{"*.md", "docs/*.md", "deploy/*/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	n := 0
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			path, section, _ := strings.Cut(m[1], "#")
			if strings.Contains(path, "://") || strings.HasPrefix(path, "mailto:") {
				continue
			}
			n++
			to := f
			if path != "" {
				to = filepath.Join(filepath.Dir(f), path)
			}
			b, err := os.ReadFile(to)
			if err != nil && section == "" {
				_, err = os.Stat(to) // a directory
			}
			if err != nil {
				t.Errorf("%s: %s: %v", f, m[1], err)
			} else if section != "" && !hasSection(string(b), section) {
				t.Errorf("%s: %s: no such section", f, m[1])
			}
		}
	}
	if n < 50 {
		t.Errorf("%d links", n)
	}
}

// TestDocsIndex: README.md stays short, and docs/README.md has each page, so that a reader finds it.
func TestDocsIndex(t *testing.T) {
	root := filepath.Join("..", "..")
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(readme), "\n"); n > 120 {
		t.Errorf("README.md has %d lines; move some to a page of docs", n)
	}
	index, err := os.ReadFile(filepath.Join(root, "docs", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		if name := filepath.Base(page); name != "README.md" && !strings.Contains(string(index), "]("+name+")") {
			t.Errorf("docs/README.md lacks %s", name)
		}
	}
}

// hasSection reports whether the Markdown text has a heading whose anchor is section.
func hasSection(text, section string) bool {
	for line := range strings.Lines(text) {
		title := strings.TrimLeft(line, "#")
		if len(title) == len(line) {
			continue
		}
		anchor := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || !notInWord(r):
				return unicode.ToLower(r)
			}
			return -1
		}, strings.TrimSpace(title))
		if anchor == section {
			return true
		}
	}
	return false
}

// TestChangelog checks that CHANGELOG.md has Unreleased and then the releases with their dates, the newest one first, and
// that the last tag, from which deploy/package/version.sh has the version, is one of them.
func TestChangelog(t *testing.T) {
	root := filepath.Join("..", "..")
	text, err := os.ReadFile(filepath.Join(root, "CHANGELOG.md"))
	if err != nil {
		t.Fatal(err)
	}
	var headings []string
	for _, m := range regexp.MustCompile(`(?m)^## (.*)$`).FindAllStringSubmatch(string(text), -1) {
		headings = append(headings, m[1])
	}
	if len(headings) < 2 || headings[0] != "[Unreleased]" {
		t.Fatalf("the headings are %q; the first one must be [Unreleased]", headings)
	}
	release := regexp.MustCompile(`^\[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)$`)
	tags := make(map[string]bool)
	for i, last := 1, (time.Time{}); i < len(headings); i++ {
		m := release.FindStringSubmatch(headings[i])
		if m == nil {
			t.Fatalf("%q is not [VERSION] - DATE", headings[i])
		}
		date, err := time.Parse(time.DateOnly, m[2])
		if err != nil || i > 1 && date.After(last) {
			t.Errorf("%q: %v; the date must be no later than %s", headings[i], err, last.Format(time.DateOnly))
		}
		tags["v"+m[1]], last = true, date
	}
	out, err := exec.CommandContext(t.Context(), "git", "-C", root, "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*").Output()
	if tag := strings.TrimSpace(string(out)); err == nil && !tags[tag] { // an error: there is no tag, or no repository
		t.Errorf("CHANGELOG.md does not have the release %s", tag)
	}
}
