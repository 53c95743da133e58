// Site makes a static site from README.md, docs and what they link to: make site. It is a module of its own, so that the
// bridge does not depend on what only the site needs.
//
//	go run . ROOT OUT
//
// Goldmark renders the pages, and every link of the finished HTML is checked: to pages, to their sections, and that no
// page loads anything from another host.
package main

import (
	"fmt"
	"os"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: site ROOT OUT")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(root, out string) error {
	if err := os.RemoveAll(out); err != nil {
		return err
	}
	b := builder{root: root, out: out, known: make(map[string]bool)}
	if err := b.build(); err != nil {
		return err
	}
	links, err := checkLinks(out)
	if err != nil {
		return err
	}
	fmt.Printf("%s: %d pages and files; %d links lead somewhere\n", out, len(b.known), links)
	return nil
}
