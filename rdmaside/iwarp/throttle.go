package iwarp

import (
	"errors"
	"io"
	"sync"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// logEnd logs the error of a connection that the ULP did not close.
func (p *Provider) logEnd(c *conn, err error) {
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, loop.ErrStopped) || errors.Is(err, fabric.ErrClosed) {
		return
	}
	ok, dropped := p.logs.allow(time.Now())
	if !ok {
		return
	}
	e := p.opts.Log.Warn().Stringer("peer", c.info.Peer).Err(err)
	if dropped > 0 {
		e = e.Int("suppressed", dropped)
	}
	e.Msg("connection ended")
}

// A throttle bounds the log lines that peers can cause: logBurst at once, and one more
// each logEvery.
type throttle struct {
	mu      sync.Mutex // guards the rest; a leaf
	tokens  float64
	last    time.Time
	dropped int
}

const (
	logBurst = 10
	logEvery = 500 * time.Millisecond
)

// allow reports whether a line may be written now, and how many lines were suppressed
// since the last one.
func (t *throttle) allow(now time.Time) (ok bool, dropped int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.last.IsZero() {
		t.tokens = logBurst
	}
	t.tokens = min(logBurst, t.tokens+float64(now.Sub(t.last))/float64(logEvery))
	t.last = now
	if t.tokens < 1 {
		t.dropped++
		return false, 0
	}
	t.tokens--
	dropped, t.dropped = t.dropped, 0
	return true, dropped
}
