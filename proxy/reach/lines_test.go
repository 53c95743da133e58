package reach

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
)

// TestFlappingLines: two endpoints that accept every connection and close it at once, and that are
// ejected and return all the time, make few lines, and the last of each kind says how it is.
func TestFlappingLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := zerolog.New(zerolog.SyncWriter(&out))
		l := NewLines(&log, new(atomic.Bool))
		endpoints := []string{"192.0.2.1:20049", "192.0.2.2:20049"}
		for range 660 { // 66 s
			for _, e := range endpoints {
				l.Connected(e)
				l.Failed(e, io.EOF, time.Second)
				l.ejected(e, time.Second, io.EOF)
				l.returned(e)
			}
			time.Sleep(100 * time.Millisecond)
		}
		for _, e := range endpoints {
			l.Connected(e)
			l.ejected(e, time.Second, errors.New("the end"))
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		text := out.String()
		for event, most := range map[string]int{"upstream_connected": 12, "upstream_lost": 12, "endpoint_ejected": 8, "endpoint_returned": 8} {
			if n := strings.Count(text, `"event":"`+event+`"`); n == 0 || n > most {
				t.Errorf("%d lines of %s, want at most %d", n, event, most)
			}
		}
		for _, e := range endpoints {
			var connection, ejection string
			for line := range strings.Lines(text) {
				switch {
				case !strings.Contains(line, e):
				case strings.Contains(line, "upstream_"):
					connection = line
				default:
					ejection = line
				}
			}
			if !strings.Contains(connection, "upstream_connected") {
				t.Errorf("%s is connected, and its last line says %s", e, connection)
			}
			if !strings.Contains(ejection, "the end") || !strings.Contains(ejection, `"suppressed":`) {
				t.Errorf("%s is ejected, and its last line says %s", e, ejection)
			}
		}
		l.Keep()
		if len(l.endpoints) != 0 {
			t.Errorf("%d endpoints are left", len(l.endpoints))
		}
	})
}

// A connection to another endpoint, or one more to this, is no line.
func TestConnectedOnce(t *testing.T) {
	var out bytes.Buffer
	log := zerolog.New(&out)
	l := NewLines(&log, new(atomic.Bool))
	for range 64 {
		l.Connected("a")
		l.Connected("b")
	}
	l.Failed("a", ErrIdleClosed, 0)
	l.Connected("a")
	if n := strings.Count(out.String(), "upstream_connected"); n != 2 {
		t.Errorf("%d lines, want one for each endpoint:\n%s", n, out.String())
	}
}
