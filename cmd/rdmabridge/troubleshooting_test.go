package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/status"
)

// anchors returns the anchors of the headings of a page, as GitHub makes them.
func anchors(page string) (all []string) {
	other := regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	for line := range strings.Lines(page) {
		if title, ok := strings.CutPrefix(line, "#"); ok {
			title = strings.ToLower(strings.TrimSpace(strings.TrimLeft(title, "#")))
			all = append(all, strings.ReplaceAll(other.ReplaceAllString(title, ""), " ", "-"))
		}
	}
	return all
}

// TestTroubleshooting: docs/troubleshooting.md has a section for each problem that the bridge names, and each
// link to a section, from the page itself and from alerts, leads somewhere.
func TestTroubleshooting(t *testing.T) {
	root := filepath.Join("..", "..")
	b, err := os.ReadFile(filepath.Join(root, "docs", "troubleshooting.md"))
	if err != nil {
		t.Fatal(err)
	}
	page := string(b)
	have := anchors(page)
	for _, code := range status.Codes {
		if !slices.Contains(have, code) {
			t.Errorf("there is no section ## %s", code)
		}
		if !strings.Contains(page, "["+code+"](#"+code+")") {
			t.Errorf("the list at the top has no link to %s", code)
		}
	}
	for _, m := range regexp.MustCompile(`\]\(#([^)]*)\)`).FindAllStringSubmatch(page, -1) {
		if !slices.Contains(have, m[1]) {
			t.Errorf("a link to #%s, which is no section", m[1])
		}
	}
	// Links from elsewhere: alert rules, dashboards, other pages.
	link := regexp.MustCompile(`troubleshooting\.md#([\w-]+)`)
	err = filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return nil // a temporary file of another process
		}
		if d.IsDir() {
			if n := d.Name(); n == ".git" || n == "out" || n == "testdata" {
				return filepath.SkipDir
			}
			return nil
		}
		if !slices.Contains([]string{".md", ".yaml", ".yml", ".json", ".go", ".html", ".js"}, filepath.Ext(path)) {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return nil
		}
		for _, m := range link.FindAllSubmatch(text, -1) {
			if !slices.Contains(have, string(m[1])) {
				t.Errorf("%s: a link to troubleshooting.md#%s, which is no section", path, m[1])
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
