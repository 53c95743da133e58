package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
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
		if filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		b, err := os.ReadFile(path)
		for w := range strings.FieldsFuncSeq(string(b), notInWord) {
			words[w] = true
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

// TestCommandLinesInDocs checks that the command lines of docs/cli.md are such that the command would run.
func TestCommandLinesInDocs(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "cli.md"))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, m := range regexp.MustCompile("(?m)^    (?:\\$ )?rdmabridge ([^>|\n(]+)").FindAllStringSubmatch(string(text), -1) {
		if strings.HasPrefix(m[1], "(devel)") {
			continue // an output
		}
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
	if n < 15 {
		t.Errorf("%d command lines", n)
	}
}
