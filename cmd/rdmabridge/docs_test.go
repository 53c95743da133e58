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
