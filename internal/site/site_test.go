package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSite builds small sites whose documents have one mistake each, or none.
func TestSite(t *testing.T) {
	for _, tc := range []struct{ text, want string }{
		{"# A\n\n[b](docs/b.md#more-of-it-1) [c](configs) ![d](docs/images/d.png) [self](#a) [out](https://example.com)\n", ""},
		{"# A\n\n[b](docs/none.md)\n", "the link to docs/none.md leads nowhere"},
		{"# A\n\n[b](../b.md)\n", "the link to ../b.md leads nowhere"},
		{"# A\n\n[b](docs/b.md#none)\n", "docs/b.html#none: no such section"},
		{"# A\n\n[b](#none)\n", "#none: no such section"},
		{"# A\n\n![b](https://example.com/b.png)\n", "loads https://example.com/b.png from another host"},
		{"A\n", "README.md has no heading"},
	} {
		root, out := t.TempDir(), filepath.Join(t.TempDir(), "site")
		for _, g := range menu {
			for _, p := range g.Pages {
				write(t, filepath.Join(root, p), "# "+p+"\n")
			}
		}
		write(t, filepath.Join(root, "README.md"), tc.text)
		write(t, filepath.Join(root, "docs/b.md"), "# B\n\n## More of `it`\n\n## More of it\n\n[a](../README.md#a)\n")
		write(t, filepath.Join(root, "docs/images/d.png"), "a picture")
		write(t, filepath.Join(root, "configs/c.yaml"), "c: <1>\n```\n")
		err := run(root, out)
		switch {
		case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
			t.Errorf("%q: %v, want %s", tc.text, err, tc.want)
		case tc.want == "" && err != nil:
			t.Errorf("%q: %v", tc.text, err)
		case tc.want == "":
			for file, want := range map[string]string{
				"index.html":                `<a href="docs/b.html#more-of-it-1">`,
				"docs/b.html":               `<li><a href="../docs/b.html" aria-current="page">B</a></li>`, // in the menu, under More
				"configs/index.html":        `<a href="../configs/c.yaml.html">`,
				"configs/c.yaml.html":       "c: &lt;1&gt;\n```\n",
				"docs/images/d.png":         "a picture",
				"docs/troubleshooting.html": `<link rel="stylesheet" href="../site.css">`,
			} {
				if text, err := os.ReadFile(filepath.Join(out, file)); err != nil || !strings.Contains(string(text), want) {
					t.Errorf("%v; %s has no %s:\n%s", err, file, want, text)
				}
			}
		}
	}
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
