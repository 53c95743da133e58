package tap

import (
	"context"
	"errors"
	"io"
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/rdmabridge/rdmabridge/internal/names"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/proxy/observe"
)

// mostTaps is how many captures and other Taps there may be at a time. A bit of the answer of Wants stands for
// each.
const mostTaps = 8

// ErrBusy reports that there are as many captures as there may be.
var ErrBusy = errors.New("tap: as many captures are running as there may be")

// ErrNoNames reports that exports and paths are not known.
var ErrNoNames = errors.New("export and path need a bridge that learns names: set names.mode to on in its file")

// A Tapped is a proxy.
type Tapped interface {
	SetTap(t observe.Tap)
	Loops() int
}

// A Hub has the captures of a proxy, and other Taps. It is the Tap of the proxy. It is safe for concurrent use.
type Hub struct {
	from  Tapped
	names func() *names.Watch // who knows where files are; it may return nil

	taps [mostTaps]atomic.Pointer[tapped] // loops read them, and used
	used atomic.Uint32                    // a bit for each Tap

	mu sync.Mutex // guards changes of taps and used; a leaf
}

// A tapped is one Tap of a Hub.
type tapped struct {
	observe.Tap
	sampler observe.Sampler // the Tap, if it is one; nil: it looks at all Calls
}

// NewHub returns a Hub of p, which has no Tap while the Hub has none. Captures by export and path ask what names returns,
// which may be nil.
func NewHub(p Tapped, names func() *names.Watch) *Hub { return &Hub{from: p, names: names} }

// Running returns how many Taps there are.
func (h *Hub) Running() int { return bits.OnesCount32(h.used.Load()) }

// A Summary says what a capture has seen.
type Summary struct {
	Calls    int // Calls written
	Messages int // messages written, of both directions
	Dropped  uint64
	Unknown  int // Calls left out because it is not known where their files are
}

// Capture writes a capture to w until ctx is done, w fails, or the capture ends by itself. If flush is
// not nil, it is called whenever what was written is to reach its reader.
func (h *Hub) Capture(ctx context.Context, o Options, w io.Writer, flush func() error) (Summary, error) {
	if o.Place.Set() && h.names() == nil {
		return Summary{}, ErrNoNames
	}
	c, err := newCapture(o, h.from.Loops(), h.names, w, flush)
	if err != nil {
		return Summary{}, err
	}
	remove, err := h.Add(c)
	if err != nil {
		return Summary{}, err
	}
	err = c.run(ctx)
	remove()
	return c.summary(), err
}

// Add has t see messages, until remove is called. It is asked about each Call by itself, and any answer but 0 means that
// it wants the Call. A loop may use t for a little longer than until remove.
func (h *Hub) Add(t observe.Tap) (remove func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range h.taps {
		if h.taps[i].Load() == nil {
			s, _ := t.(observe.Sampler)
			h.taps[i].Store(&tapped{t, s})
			if h.used.Load() == 0 {
				h.from.SetTap(h)
			}
			h.used.Or(1 << i) // last: from now on, t sees all
			return func() { h.remove(i) }, nil
		}
	}
	return nil, ErrBusy
}

func (h *Hub) remove(at int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.taps[at].Store(nil)
	if h.used.And(^(1 << at)); h.used.Load() == 0 {
		h.from.SetTap(nil)
	}
}

// Looks is part of observe.Sampler.
func (h *Hub) Looks(loop int, now int64, o *ulb.Operation) (lookers uint32) {
	for m := h.used.Load(); m != 0; m &= m - 1 {
		t := h.taps[bits.TrailingZeros32(m)%mostTaps].Load()
		if t != nil && (t.sampler == nil || t.sampler.Looks(loop, now, o) != 0) {
			lookers |= m & -m
		}
	}
	return lookers
}

// Wants is part of observe.Tap.
func (h *Hub) Wants(q *observe.TapCall) (wanted uint32) {
	alone := uint32(observe.TapClientsAlone)
	ask := q.Lookers
	if ask == 0 {
		ask = h.used.Load()
	}
	h.each(ask, func(i int, t observe.Tap) {
		if w := t.Wants(q); w != 0 {
			wanted |= 1 << i
			alone &= w
		}
	})
	if wanted == 0 {
		return 0
	}
	return wanted | alone
}

// Message is part of observe.Tap.
func (h *Hub) Message(m *observe.TapMessage) {
	h.each(m.Wanted, func(_ int, t observe.Tap) { t.Message(m) })
}

// Over is part of observe.Tap.
func (h *Hub) Over(o *observe.TapOver) { h.each(o.Wanted, func(_ int, t observe.Tap) { t.Over(o) }) }

// Ended is part of observe.Tap.
func (h *Hub) Ended(conn *observe.TapConn, loop int, wanted uint32, err error) {
	h.each(wanted, func(_ int, t observe.Tap) { t.Ended(conn, loop, wanted, err) })
}

// each calls f for the Taps in wanted.
func (h *Hub) each(wanted uint32, f func(i int, t observe.Tap)) {
	for m := wanted & (1<<mostTaps - 1); m != 0; m &= m - 1 {
		i := bits.TrailingZeros32(m)
		if t := h.taps[i].Load(); t != nil {
			f(i, t.Tap)
		}
	}
}
