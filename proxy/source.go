package proxy

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/pool"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// Source ports
//
// A server's duplicate request cache knows a Call by its XID and by where it came
// from, the port included. A Call that comes again on another connection, because the
// first was lost, is executed again if that has another port. So each seat of a TCP
// upstream keeps the port that its first connection had for those that follow.
//
// A port that was in use a moment ago may not be had at once: the kernel keeps what it
// knows of a connection until the peer has acknowledged its end. It is asked for again
// for a while. When that does not help, or another process has the port meanwhile, the
// seat moves to another one, and that is counted.

// A Source says where the connections to a TCP upstream come from. The zero Source is
// the kernel's choice.
type Source struct {
	Address   netip.Addr // of this host
	Low, High uint16     // ports; 0 for any
}

const (
	// samePortFor is how long a seat's port is asked for before another one is taken.
	samePortFor = 2 * time.Second
	// samePortEvery is the pause between.
	samePortEvery = 50 * time.Millisecond
)

var errPorts = errors.New("every source port is in use")

// sources are the source ports of one upstream.
type sources struct {
	Source
	moved *metrics.Counter
	quiet quiet

	mu    sync.Mutex          // guards the rest; a leaf
	taken map[uint16]struct{} // ports of the range that a seat has, connected or not
	next  uint16              // to be tried first
}

func newSources(s Source, moved *metrics.Counter) *sources {
	o := &sources{Source: s, moved: moved, taken: make(map[uint16]struct{})}
	if s.Low > 0 {
		// Not the same after each start: what the last process had may be remembered.
		o.next = s.Low + uint16(rand.N(int(s.High-s.Low)+1))
	}
	return o
}

// A seatPort is the source port of a seat; 0 before its first connection.
type seatPort struct{ port uint16 }

// take finds a port of the range that no seat has, after the n-th tried. It reports
// false when all have been tried.
func (o *sources) take(n int) (uint16, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	size := int(o.High-o.Low) + 1
	for ; n < size; n++ {
		port := o.next
		// Downwards, as Linux does.
		if o.next--; o.next < o.Low || o.next > o.High {
			o.next = o.High
		}
		if _, ok := o.taken[port]; !ok {
			o.taken[port] = struct{}{}
			return port, true
		}
	}
	return 0, false
}

func (o *sources) release(port uint16) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.taken, port)
}

// leave gives the port of s back. No connection will be made for s any more.
func (o *sources) leave(s *pool.Seat) {
	if s == nil {
		return
	}
	if p, ok := s.Data.(*seatPort); ok {
		o.release(p.port)
	}
}

// dialFrom makes a connection for seat s with connect, from the port that s has had, or
// from another one. connect may be called several times.
func (u *upstream) dialFrom(ctx context.Context, s *pool.Seat, connect func(netip.AddrPort) (*tcpframe.Conn, error)) error {
	o := u.source
	p, ok := s.Data.(*seatPort)
	if !ok {
		p = &seatPort{}
		s.Data = p
	}
	if p.port != 0 {
		err := samePort(ctx, func() error { return o.from(p.port, connect) })
		if !errors.Is(err, tcpframe.ErrPortTaken) || ctx.Err() != nil {
			return err
		}
		o.moved.Inc()
		if n := o.quiet.line(); n > 0 {
			u.log.Warn().Err(err).Int("connections", n).
				Msg("the source port of the last connection cannot be had; the server may not know repeated Calls")
		}
		defer o.release(p.port)
		p.port = 0
	}
	if o.Low == 0 {
		c, err := connect(netip.AddrPortFrom(o.Address, 0))
		if err == nil {
			p.port = c.LocalAddr().Port()
		}
		return err
	}
	for n := 0; ; n++ {
		port, ok := o.take(n)
		if !ok {
			return fmt.Errorf("proxy: %w: %d to %d", errPorts, o.Low, o.High)
		}
		err := o.from(port, connect)
		if errors.Is(err, tcpframe.ErrPortTaken) && ctx.Err() == nil {
			o.release(port)
			continue
		}
		p.port = port // whether the server is there or not
		return err
	}
}

// from connects from a port.
func (o *sources) from(port uint16, connect func(netip.AddrPort) (*tcpframe.Conn, error)) error {
	_, err := connect(netip.AddrPortFrom(o.Address, port))
	if errors.Is(err, tcpframe.ErrPortForbidden) {
		return fmt.Errorf("proxy: source port %d needs CAP_NET_BIND_SERVICE: %w", port, err)
	}
	return err
}

// samePort calls f until the port is free, or for too long.
func samePort(ctx context.Context, f func() error) error {
	end := time.Now().Add(samePortFor)
	if last, ok := ctx.Deadline(); ok {
		if half := time.Now().Add(time.Until(last) / 2); half.Before(end) {
			end = half // the rest is for another port
		}
	}
	for {
		err := f()
		if !errors.Is(err, tcpframe.ErrPortTaken) || time.Now().After(end) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(samePortEvery):
		}
	}
}
