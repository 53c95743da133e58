package tcpframe

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
)

// A flood of refusals writes a bounded number of lines. The first line of the next second
// says how many were suppressed.
func TestRefusalLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		l := &refusalLog{log: zerolog.New(&out)}
		peer := netip.MustParseAddrPort("192.0.2.1:700")
		for range 1000 {
			l.line("connection refused", "nfs", peer, reasonDenied, errors.New("tcpframe: address is not in the allow list"))
		}
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != refusalBurst {
			t.Errorf("%d lines for 1000 refusals in one second, want %d", len(lines), refusalBurst)
		}
		for _, want := range []string{`"listener":"nfs"`, `"peer":"192.0.2.1:700"`, `"reason":"denied"`, `"level":"warn"`, `"message":"connection refused"`} {
			if !strings.Contains(lines[0], want) {
				t.Errorf("line %s lacks %s", lines[0], want)
			}
		}
		out.Reset()
		time.Sleep(time.Second)
		l.line("connection closed", "nfs", peer, reasonIdle, nil)
		var said struct{ Suppressed int }
		if err := json.Unmarshal(out.Bytes(), &said); err != nil {
			t.Errorf("line %s: %v", &out, err)
		}
		if want := 1000 - refusalBurst; said.Suppressed != want {
			t.Errorf("the next line says that %d were suppressed, want %d", said.Suppressed, want)
		}
	})
}

func TestReasonsHaveTexts(t *testing.T) {
	for _, r := range reasons[6:] {
		if s := (&recordError{reason: r}).Error(); s == "tcpframe: "+string(r) {
			t.Errorf("reason %q has no text", r)
		}
	}
}
