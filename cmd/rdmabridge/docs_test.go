package main

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode"
)

// notInWord reports whether r separates words. A regular expression would take seconds in a race
// build.
func notInWord(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) }

// TestArchitecture checks that the functions, files and packages that ARCHITECTURE.md
// names exist.
func TestArchitecture(t *testing.T) {
	root := filepath.Join("..", "..")
	text, err := os.ReadFile(filepath.Join(root, "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	words, paths := make(map[string]bool), make(map[string]bool)
	tests := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
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
	last := regexp.MustCompile(`[A-Za-z_]+$`)
	for _, m := range regexp.MustCompile("`([^`\n]+)`").FindAllStringSubmatch(string(text), -1) {
		name := m[1]
		switch {
		case paths[name], strings.HasPrefix(name, "/"), name == "code":
		case strings.HasPrefix(name, "limits.") || strings.HasPrefix(name, "chunks."): // YAML paths, which package configs tests
		default:
			if word := last.FindString(name); !words[word] {
				t.Errorf("ARCHITECTURE.md names %s, which does not exist", name)
			}
		}
	}
}

// TestArchitectureNamesTests: each row of a table of ARCHITECTURE.md whose last column is for tests names one.
func TestArchitectureNamesTests(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	inTable, rows := false, 0
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
				t.Errorf("no test holds the row: %s", line)
			}
		}
	}
	if rows < 20 {
		t.Errorf("%d rows name tests", rows)
	}
}

// TestCommandLinesInDocs checks that the command lines of README.md and docs are such that the command would run.
func TestCommandLinesInDocs(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("..", "..", "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	least := map[string]int{"cli.md": 15, "getting-started.md": 8, "README.md": 3}
	for _, f := range append(files, filepath.Join("..", "..", "README.md")) {
		t.Run(filepath.Base(f), func(t *testing.T) { testCommandLines(t, f, least[filepath.Base(f)]) })
	}
}

// testCommandLines checks those of a file, which must have at least so many.
func testCommandLines(t *testing.T, file string, least int) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text = regexp.MustCompile(`\$\([^)\n]*\)`).ReplaceAll(text, []byte("1")) // what a shell would put there
	n := 0
	for _, m := range regexp.MustCompile("(?m)^(?:    +|\\$ )(?:\\$ )?(?:\\./)?rdmabridge ((?:[a-z]|-)[^>|#;\n(]+)").FindAllStringSubmatch(string(text), -1) {
		n++
		root := newCommand()
		root.InitDefaultCompletionCmd()
		cmd, args, err := root.Find(strings.Fields(m[1]))
		if err == nil {
			cmd.InitDefaultHelpFlag()
			err = cmd.ParseFlags(args)
		}
		if err == nil && cmd.HasParent() && cmd.Args != nil {
			err = cmd.ValidateArgs(cmd.Flags().Args())
		}
		if err != nil || !cmd.HasParent() {
			t.Errorf("rdmabridge %s: %v", m[1], err)
		}
	}
	if n < least {
		t.Errorf("%d command lines", n)
	}
}

// TestLinksInDocs checks that the links of the documents to files here, and to their sections, lead somewhere.
func TestLinksInDocs(t *testing.T) {
	root := filepath.Join("..", "..")
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
