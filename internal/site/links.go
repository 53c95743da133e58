package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"

	"golang.org/x/net/html"
)

// A link is one of a page's: to where, and whether the browser loads it with the page.
type link struct {
	page, to string
	loaded   bool
}

// checkLinks reads all pages under dir and returns how many links they have. Links to other hosts count only if the
// browser would load them, and are an error then.
func checkLinks(dir string) (int, error) {
	var links []link
	sections := make(map[string]map[string]bool) // by file
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		sections[name] = map[string]bool{"": true}
		if filepath.Ext(name) != ".html" {
			return nil
		}
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		doc, err := html.Parse(f)
		if err != nil {
			return err
		}
		for n := range doc.Descendants() {
			for _, a := range n.Attr {
				switch a.Key {
				case "id":
					sections[name][a.Val] = true
				case "href", "src", "srcset", "data":
					links = append(links, link{name, a.Val, n.Data != "a"})
				}
			}
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	var problems []error
	n := 0
	for _, l := range links {
		u, err := url.Parse(l.to)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", l.page, err))
			continue
		}
		if u.IsAbs() || u.Host != "" {
			if l.loaded {
				problems = append(problems, fmt.Errorf("%s loads %s from another host", l.page, l.to))
			}
			continue
		}
		n++
		to := l.page
		if u.Path != "" {
			to = filepath.Join(filepath.Dir(l.page), u.Path)
		}
		switch found, ok := sections[to]; {
		case !ok:
			problems = append(problems, fmt.Errorf("%s: %s leads nowhere", l.page, l.to))
		case !found[u.Fragment]:
			problems = append(problems, fmt.Errorf("%s: %s: no such section", l.page, l.to))
		}
	}
	return n, errors.Join(problems...)
}
