package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strings"
)

// writeNotices writes the licences and notices of everything of others that is in b.
func (b *binary) writeNotices(to io.Writer) error {
	w := bufio.NewWriter(to)
	fmt.Fprintf(w, "%s contains software of others. This file has their licences and notices.\n\n", b.name)
	for _, m := range b.modules {
		fmt.Fprintf(w, "  %s %s: %s\n", m.title(), m.version, strings.Join(m.licences(), ", "))
	}
	for _, m := range b.modules {
		for _, f := range m.files {
			fmt.Fprintf(w, "\n%s\n%s %s: %s\n%[1]s\n\n", strings.Repeat("=", 80), m.title(), m.version, f.name)
			fmt.Fprintf(w, "%s\n", bytes.TrimRight(f.text, "\n"))
		}
	}
	return w.Flush()
}

// title is the name of m for readers.
func (m *module) title() string {
	if m.path == standard {
		return "Go's standard library"
	}
	return m.path
}
