package tcpframe

import (
	"bytes"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/rs/zerolog"
)

// A flood of refusals writes a bounded number of lines, and says how many it
// did not write.
func TestRefusalLog(t *testing.T) {
	var out bytes.Buffer
	l := &refusalLog{log: zerolog.New(&out)}
	peer := netip.MustParseAddrPort("192.0.2.1:700")
	for range 1000 {
		l.line("nfs", peer, ReasonDenied, errors.New("tcpframe: address not allowed"))
	}
	n := strings.Count(out.String(), "\n")
	if n < refusalBurst || n > 2*refusalBurst { // the second may turn
		t.Errorf("%d lines for 1000 refusals", n)
	}
	first, _, _ := strings.Cut(out.String(), "\n")
	for _, want := range []string{`"listener":"nfs"`, `"peer":"192.0.2.1:700"`, `"reason":"denied"`, `"level":"warn"`} {
		if !strings.Contains(first, want) {
			t.Errorf("line %s lacks %s", first, want)
		}
	}
	out.Reset()
	l.second--
	l.line("nfs", peer, ReasonDenied, nil)
	if !strings.Contains(out.String(), `"suppressed":9`) {
		t.Errorf("line %s does not say what was suppressed", out.String())
	}
}

func TestReasonsHaveTexts(t *testing.T) {
	for _, r := range reasons[5:] {
		if s := (&RecordError{Reason: r}).Error(); s == "tcpframe: "+string(r) {
			t.Errorf("reason %q has no text", r)
		}
	}
}
