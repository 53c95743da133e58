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

	"github.com/rdmabridge/rdmabridge/internal/loglimit"
)

// A flood of refusals writes a bounded number of lines. The next one says how many were suppressed.
func TestRefusalLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		l := (&counterSet{log: zerolog.New(&out), all: make(map[countersKey]*counters)}).of(ofListener, "nfs")
		peer := netip.MustParseAddrPort("192.0.2.1:700")
		for range 1000 {
			l.refuse(peer, netip.AddrPort{}, reasonDenied, errors.New("tcpframe: address is not in the allow list"))
		}
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != loglimit.Burst {
			t.Errorf("%d lines for 1000 refusals in one second, want %d", len(lines), loglimit.Burst)
		}
		for _, want := range []string{`"listener":"nfs"`, `"peer":"192.0.2.1:700"`, `"reason":"address"`, `"level":"warn"`, `"event":"client_refused"`, `"message":"connection refused"`} {
			if !strings.Contains(lines[0], want) {
				t.Errorf("line %s lacks %s", lines[0], want)
			}
		}
		out.Reset()
		time.Sleep(loglimit.Every)
		l.closed(peer, &recordError{reason: reasonIdle}) // another kind
		if !strings.Contains(out.String(), `"event":"client_closed"`) || strings.Contains(out.String(), "suppressed") {
			t.Errorf("the line about a connection that was closed: %s", &out)
		}
		out.Reset()
		l.refuse(peer, netip.AddrPort{}, reasonDenied, nil)
		var said struct{ Suppressed int }
		if err := json.Unmarshal(out.Bytes(), &said); err != nil {
			t.Errorf("line %s: %v", &out, err)
		}
		if want := 1000 - loglimit.Burst; said.Suppressed != want {
			t.Errorf("the next line says that %d were suppressed, want %d", said.Suppressed, want)
		}
	})
}

func TestReasonsHaveTexts(t *testing.T) {
	for _, r := range append([]reason{reasonTooShort, reasonMemory, reasonRecord}, connReasons...) {
		if s := (&recordError{reason: r}).Error(); s == "tcpframe: "+string(r) {
			t.Errorf("reason %q has no text", r)
		}
	}
}
