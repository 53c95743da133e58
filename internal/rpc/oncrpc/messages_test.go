package oncrpc

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// testdata/messages.txt holds whole messages made from the XDR of the RFCs by a
// generator that shares no code with this package, and confirmed with tshark.

type callVector struct {
	name                                string
	xid, program, version, proc, flavor uint32
	protection                          string
	args                                int
	message                             []byte
}

type replyVector struct {
	name    string
	message []byte
}

func load(t testing.TB) (calls []callVector, replies []replyVector) {
	t.Helper()
	f, err := os.Open("testdata/messages.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		line := s.Text()
		kind, rest, _ := strings.Cut(line, " ")
		var text string
		switch kind {
		case "call":
			var v callVector
			if _, err := fmt.Sscan(rest, &v.name, &v.xid, &v.program, &v.version, &v.proc, &v.flavor, &v.protection, &v.args, &text); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			v.message = testkit.Unhex(t, text)
			calls = append(calls, v)
		case "reply":
			var v replyVector
			if _, err := fmt.Sscan(rest, &v.name, &text); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			v.message = testkit.Unhex(t, text)
			replies = append(replies, v)
		}
	}
	if len(calls) != 48 || len(replies) != 56 {
		t.Fatalf("%d calls and %d replies, want 48 and 56", len(calls), len(replies))
	}
	return calls, replies
}
