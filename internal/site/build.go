package main

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
)

// A group is a part of the menu.
type group struct {
	Title string
	Pages []string
}

// menu is the list beside each page. Files of docs that are not here come after it.
var menu = []group{
	{"Start", []string{"README.md", "docs/getting-started.md", "docs/install.md", "docs/configuration.md", "docs/faq.md"}},
	{"Set up", []string{"docs/kubernetes.md", "docs/scaling.md", "docs/addresses.md", "docs/programs.md", "docs/rules.md", "docs/limits.md", "docs/tls.md", "docs/sessions.md", "docs/memory.md", "docs/ibverbs.md"}},
	{"Operate", []string{"docs/cli.md", "docs/status-page.md", "docs/troubleshooting.md", "docs/doctor.md", "docs/metrics.md", "docs/logs.md", "docs/tracing.md", "docs/capture.md", "docs/faults.md"}},
	{"Measure", []string{"docs/performance.md", "docs/bench.md", "docs/bench-peers.md", "docs/bench-chain.md", "docs/bench-gateways.md", "docs/conformance.md", "docs/fault-server.md"}},
	{"Project", []string{"CHANGELOG.md", "SECURITY.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CODE_OF_CONDUCT.md"}},
}

//go:embed page.html
var pageHTML string

//go:embed site.css
var siteCSS []byte

var page = template.Must(template.New("page").Parse(pageHTML))

// A builder makes the site of the files under root. Names of files have slashes and start at root.
type builder struct {
	root, out string
	menu      []group
	titles    map[string]string // of the files in menu
	known     map[string]bool   // the files and directories that are on the site, or that waiting has
	waiting   []string
}

func (b *builder) build() error {
	for _, g := range menu {
		for _, name := range g.Pages {
			b.add(name)
		}
	}
	docs, err := filepath.Glob(filepath.Join(b.root, "docs", "*.md"))
	if err != nil {
		return err
	}
	more := group{Title: "More"}
	for _, d := range docs {
		if name := "docs/" + filepath.Base(d); !b.known[name] {
			more.Pages = append(more.Pages, name)
			b.add(name)
		}
	}
	b.menu = menu
	if len(more.Pages) > 0 {
		b.menu = append(slices.Clone(menu), more)
	}
	b.titles = make(map[string]string)
	for _, g := range b.menu {
		for _, name := range g.Pages {
			if b.titles[name], err = b.title(name); err != nil {
				return err
			}
		}
	}
	if err := os.MkdirAll(b.out, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(b.out, "site.css"), siteCSS, 0o644); err != nil {
		return err
	}
	for len(b.waiting) > 0 {
		name := b.waiting[0]
		b.waiting = b.waiting[1:]
		if err := b.write(name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// add puts a file or a directory on the site.
func (b *builder) add(name string) {
	if !b.known[name] {
		b.known[name] = true
		b.waiting = append(b.waiting, name)
	}
}

// address returns where a file or a directory is on the site.
func (b *builder) address(name string) string {
	info, err := os.Stat(filepath.Join(b.root, name))
	switch ext := path.Ext(name); {
	case err == nil && info.IsDir():
		return path.Join(name, "index.html")
	case name == "README.md":
		return "index.html"
	case ext == ".md":
		return strings.TrimSuffix(name, ext) + ".html"
	case ext == ".png" || ext == ".svg":
		return name
	}
	return name + ".html"
}

// write makes what is on the site of a file or a directory.
func (b *builder) write(name string) error {
	file := filepath.Join(b.root, name)
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	address := b.address(name)
	if info.IsDir() {
		entries, err := os.ReadDir(file)
		if err != nil {
			return err
		}
		var list strings.Builder
		fmt.Fprintf(&list, "# %s\n\n", name)
		for _, e := range entries {
			fmt.Fprintf(&list, "- [%s](%[1]s)\n", e.Name())
		}
		return b.writePage(path.Join(name, "index"), address, []byte(list.String()))
	}
	source, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	switch {
	case path.Ext(name) == ".md":
		return b.writePage(name, address, source)
	case address == name:
		return writeFile(filepath.Join(b.out, name), source)
	}
	fence := "````````"
	return b.writePage(name, address, fmt.Appendf(nil, "# %s\n\n%s\n%s\n%s\n", name, fence, source, fence))
}

// writePage renders Markdown. Its links start where name is.
func (b *builder) writePage(name, address string, source []byte) error {
	md := goldmark.New(goldmark.WithExtensions(extension.GFM), goldmark.WithParserOptions(parser.WithAutoHeadingID()))
	doc := md.Parser().Parse(text.NewReader(source), parser.WithContext(parser.NewContext(parser.WithIDs(make(ids)))))
	if err := ast.Walk(doc, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		var err error
		switch n := n.(type) {
		case *ast.Link:
			n.Destination, err = b.link(name, address, string(n.Destination))
		case *ast.Image:
			n.Destination, err = b.link(name, address, string(n.Destination))
		}
		return ast.WalkContinue, err
	}); err != nil {
		return err
	}
	var body bytes.Buffer
	if err := md.Renderer().Render(&body, source, doc); err != nil {
		return err
	}
	type entry struct {
		Title, Address string
		Here           bool
	}
	type entries struct {
		Title string
		Pages []entry
	}
	var groups []entries
	for _, m := range b.menu {
		g := entries{Title: m.Title}
		for _, p := range m.Pages {
			g.Pages = append(g.Pages, entry{b.titles[p], relative(address, b.address(p)), p == name})
		}
		groups = append(groups, g)
	}
	var out bytes.Buffer
	title, _, _ := strings.Cut(strings.TrimPrefix(string(source), "# "), "\n")
	if err := page.Execute(&out, map[string]any{
		"Title": title, "Body": template.HTML(body.String()), "Groups": groups, "CSS": relative(address, "site.css"),
	}); err != nil {
		return err
	}
	return writeFile(filepath.Join(b.out, address), out.Bytes())
}

// title returns the first heading of a document.
func (b *builder) title(name string) (string, error) {
	source, err := os.ReadFile(filepath.Join(b.root, name))
	m := regexp.MustCompile(`(?m)^# (.*)$`).FindSubmatch(source)
	if m == nil {
		return "", errors.Join(err, fmt.Errorf("%s has no heading", name))
	}
	return string(m[1]), err
}

// link returns what a link in the document becomes on the site, and puts what it leads to on the site.
func (b *builder) link(document, address, to string) ([]byte, error) {
	if strings.Contains(to, "://") || strings.HasPrefix(to, "mailto:") || strings.HasPrefix(to, "#") {
		return []byte(to), nil
	}
	to, section, found := strings.Cut(to, "#")
	name := path.Join(path.Dir(document), to)
	if _, err := os.Stat(filepath.Join(b.root, name)); err != nil || !filepath.IsLocal(name) {
		return nil, fmt.Errorf("the link to %s leads nowhere", to)
	}
	b.add(name)
	to = relative(address, b.address(name))
	if found {
		to += "#" + section
	}
	return []byte(to), nil
}

// relative returns the link from one page to another.
func relative(from, to string) string {
	return strings.Repeat("../", strings.Count(from, "/")) + to
}

// ids makes the names of sections as GitHub does, with which the documents link to each other.
type ids map[string]int

func (i ids) Generate(value []byte, _ ast.NodeKind) []byte {
	id := strings.ToLower(string(regexp.MustCompile(`[^\pL\pN_ -]`).ReplaceAll(bytes.TrimSpace(value), nil)))
	id = strings.ReplaceAll(id, " ", "-")
	n := i[id]
	i[id]++
	if n > 0 {
		id = fmt.Sprintf("%s-%d", id, n)
	}
	return []byte(id)
}

func (i ids) Put(value []byte) { i[string(value)]++ }

func writeFile(name string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	if _, err := os.Stat(name); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is there already", name)
	}
	return os.WriteFile(name, text, 0o644)
}
