package tcpframe

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

// A flood of refusals writes a bounded number of lines, and says how many it
// did not write.
func TestRefusalLog(t *testing.T) {
	var out bytes.Buffer
	l := &refusalLog{log: zerolog.New(&out)}
	peer := netip.MustParseAddrPort("192.0.2.1:700")
	began := time.Now().Unix()
	for range 1000 {
		l.line("connection refused", "nfs", peer, reasonDenied, errors.New("tcpframe: address not allowed"))
	}
	seconds := int(time.Now().Unix()-began) + 1 // the second may turn
	n := strings.Count(out.String(), "\n")
	if n < refusalBurst || n > seconds*refusalBurst {
		t.Errorf("%d lines for 1000 refusals in %d s", n, seconds)
	}
	first, _, _ := strings.Cut(out.String(), "\n")
	for _, want := range []string{`"listener":"nfs"`, `"peer":"192.0.2.1:700"`, `"reason":"denied"`, `"level":"warn"`} {
		if !strings.Contains(first, want) {
			t.Errorf("line %s lacks %s", first, want)
		}
	}
	l.second--
	l.line("connection refused", "nfs", peer, reasonDenied, nil)
	suppressed := 0
	for line := range strings.Lines(out.String()) {
		var said struct{ Suppressed int }
		if err := json.Unmarshal([]byte(line), &said); err != nil {
			t.Errorf("line %s: %v", line, err)
		}
		suppressed += said.Suppressed
	}
	if n+1+suppressed != 1001 {
		t.Errorf("%d lines and %d suppressed for 1001 refusals", n+1, suppressed)
	}
}

func TestReasonsHaveTexts(t *testing.T) {
	for _, r := range reasons[5:] {
		if s := (&recordError{reason: r}).Error(); s == "tcpframe: "+string(r) {
			t.Errorf("reason %q has no text", r)
		}
	}
}
