package tap

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdmabridge/rdmabridge/proxy/observe"
)

// mostCaptures is how many captures there may be at a time. A bit of the answer of Wants stands for
// each.
const mostCaptures = 8

// ErrBusy reports that there are as many captures as there may be.
var ErrBusy = errors.New("tap: as many captures are running as there may be")

// A Tapped is a proxy.
type Tapped interface {
	SetTap(t observe.Tap)
	Loops() int
}

// A Hub has the captures of a proxy. It is safe for concurrent use.
type Hub struct {
	from Tapped

	captures [mostCaptures]atomic.Pointer[capture] // loops read them

	mu    sync.Mutex // guards count, and changes of captures; a leaf
	count int
}

// NewHub returns a Hub of p, which has no Tap while there is no capture.
func NewHub(p Tapped) *Hub { return &Hub{from: p} }

// Running returns how many captures there are.
func (h *Hub) Running() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.count
}

// A Summary says what a capture has seen.
type Summary struct {
	Calls    int // Calls written
	Messages int // messages written, of both directions
	Dropped  uint64
}

// Capture writes a capture to w until ctx is done, w fails, or the capture ends by itself. If flush is
// not nil, it is called whenever what was written is to reach its reader.
func (h *Hub) Capture(ctx context.Context, o Options, w io.Writer, flush func() error) (Summary, error) {
	c, err := newCapture(o, h.from.Loops(), w, flush)
	if err != nil {
		return Summary{}, err
	}
	at, err := h.add(c)
	if err != nil {
		return Summary{}, err
	}
	err = c.run(ctx)
	h.remove(at)
	return c.summary(), err
}

func (h *Hub) add(c *capture) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range h.captures {
		if h.captures[i].Load() == nil {
			h.captures[i].Store(c)
			if h.count++; h.count == 1 {
				h.from.SetTap(h)
			}
			return i, nil
		}
	}
	return 0, ErrBusy
}

func (h *Hub) remove(at int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.captures[at].Store(nil)
	if h.count--; h.count == 0 {
		h.from.SetTap(nil)
	}
}

// Wants is part of observe.Tap.
func (h *Hub) Wants(q *observe.TapCall) (wanted uint32) {
	for i := range h.captures {
		if c := h.captures[i].Load(); c != nil && !c.closing.Load() && c.opts.wants(q) {
			wanted |= 1 << i
		}
	}
	return wanted
}

// Message is part of observe.Tap.
func (h *Hub) Message(m *observe.TapMessage) {
	for i := range h.captures {
		if m.Wanted&(1<<i) == 0 {
			continue
		}
		if c := h.captures[i].Load(); c != nil {
			c.message(m)
		}
	}
}

// Over is part of observe.Tap.
func (h *Hub) Over(o *observe.TapOver) {
	e := event{kind: eventOver, call: o.Call, at: o.At, text: o.Result, status: o.Status, failed: o.Failed}
	h.tell(o.Loop, o.Wanted, &e)
}

// Ended is part of observe.Tap.
func (h *Hub) Ended(conn *observe.TapConn, loop int, wanted uint32, err error) {
	e := event{kind: eventEnded, conn: conn, at: time.Now()}
	if err != nil && !errors.Is(err, io.EOF) {
		e.text = err.Error()
	}
	h.tell(loop, wanted, &e)
}

// tell gives e to the captures in wanted.
func (h *Hub) tell(loop int, wanted uint32, e *event) {
	for i := range h.captures {
		if wanted&(1<<i) == 0 {
			continue
		}
		if c := h.captures[i].Load(); c != nil {
			c.put(loop, e, nil, 0)
		}
	}
}
