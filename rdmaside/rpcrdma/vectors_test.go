package rpcrdma

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// A vector is one message of testdata/messages.hex.
type vector struct {
	name  string
	octet []byte
	says  string
}

func vectors(tb testing.TB) []vector {
	tb.Helper()
	text, err := os.ReadFile("testdata/messages.hex")
	if err != nil {
		tb.Fatal(err)
	}
	var list []vector
	var v vector
	for line := range strings.Lines(string(text)) {
		line, _, _ = strings.Cut(strings.TrimSuffix(line, "\n"), "#")
		switch {
		case strings.HasPrefix(line, "= "):
			v.says = line[2:]
			list = append(list, v)
			v = vector{}
		case strings.HasPrefix(line, "\t"):
			v.octet = append(v.octet, testkit.Unhex(tb, line)...)
		case line != "":
			v.name = line
		}
	}
	if len(list) < 30 {
		tb.Fatalf("only %d vectors", len(list))
	}
	return list
}

// say formats h as messages.hex does.
func say(h *Header) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v xid %x credits %d", h.Proc, h.XID, h.Credits)
	if h.Version != Version {
		fmt.Fprintf(&b, " version %d", h.Version)
	}
	switch h.Proc {
	case MsgP:
		fmt.Fprintf(&b, " align %d thresh %d", h.Align, h.Thresh)
	case Error:
		fmt.Fprintf(&b, " %v", h.Err)
		if h.Err == ErrVers {
			fmt.Fprintf(&b, " %d-%d", h.Low, h.High)
		}
	}
	for _, r := range h.Reads {
		fmt.Fprintf(&b, " read %d:%s", r.Position, saySegments([]Segment{r.Segment}))
	}
	for _, w := range h.Writes {
		fmt.Fprintf(&b, " write [%s]", saySegments(w.Segments))
	}
	if h.Reply != nil {
		fmt.Fprintf(&b, " reply [%s]", saySegments(h.Reply.Segments))
	}
	return b.String()
}

func saySegments(list []Segment) string {
	var words []string
	for _, s := range list {
		words = append(words, fmt.Sprintf("%x:%d@%x", s.Handle, s.Length, s.Offset))
	}
	return strings.Join(words, " ")
}
