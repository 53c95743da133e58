package admit

import (
	"net/netip"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/loglimit"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// A Population weighs all clients of the bridge. It calls see for each, on the client's loop, with what says what the
// client sends now, and then done with those for which see has returned more than 0. Any goroutine.
type Population func(see func(g *Client, sends func() Sending) int64, done func(found []Burden))

// A Burden is a client that holds so many octets of memory too long.
type Burden struct {
	Client   *Client
	Held     int64 // octets
	Listener string
	Peer     netip.AddrPort
}

// A shedder closes clients that hold memory too long.
type shedder struct {
	clients Population      // constant, as the next five
	log     *zerolog.Logger // has a line for each
	closed  *metrics.Counter
	reason  string // in the log, and of closed
	text    string
	err     error
	lines   loglimit.Limit
}

// shed closes clients, the first of found first, until they have freed octets. It returns how many.
func (s *shedder) shed(found []Burden, octets int64) (n int) {
	for ; n < len(found) && octets > 0; n++ {
		b := &found[n]
		octets -= b.Held
		s.closed.Inc()
		s.lines.Line(s.log, zerolog.WarnLevel, "client_closed").Str("reason", s.reason).
			Str("listener", b.Listener).Stringer("peer", b.Peer).Int64("octets", b.Held).Msg(s.text)
		b.Client.waiter.Conn().Close(s.err)
	}
	return n
}
