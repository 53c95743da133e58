package reach

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/pool"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// A connect makes a connection from an address and port of this host; port 0 is any.
type connect = func(netip.AddrPort) (*tcpframe.Conn, error)

// Dial makes a connection for seat s with connect, from the seat's port or from another one, and begins with first
// if the seat has none. It may call connect several times.
func (o *Ports) Dial(ctx context.Context, s *pool.Seat, first FirstPort, connect connect) error {
	at, ok := s.Data.(*seatPort)
	if !ok {
		at = &seatPort{}
		s.Data = at
	}
	r := o.order(first)
	at.first = o.first(&r)
	if s.Improving() {
		if at.port == 0 && !o.claim(at.first) {
			return errAstray
		}
		at.port = at.first
		return o.from(at.port, connect)
	}
	if at.port != 0 {
		err := samePort(ctx, func() error { return o.from(at.port, connect) })
		if !errors.Is(err, tcpframe.ErrPortTaken) || ctx.Err() != nil {
			return err
		}
		o.moved.Inc()
		o.quiet.Line(o.log, zerolog.WarnLevel, "source_port_moved").Err(err).
			Msg("the source port of the last connection cannot be had; the server may not know repeated Calls")
		defer o.release(at.port)
		at.port = 0
	}
	if o.Low > 0 {
		for n := uint64(0); ; {
			port, ok := o.take(&r, &n)
			if !ok {
				break
			}
			err := o.from(port, connect)
			if errors.Is(err, tcpframe.ErrPortTaken) && ctx.Err() == nil {
				o.release(port)
				continue
			}
			at.port = port // the seat's from now on, even if the server is not there
			return err
		}
		if !o.any {
			return fmt.Errorf("proxy/reach: %w: %d to %d", errPorts, o.Low, o.High)
		}
	}
	c, err := connect(netip.AddrPortFrom(o.Address, 0))
	if err == nil {
		at.port = c.LocalAddr().Port()
	}
	return err
}

// from connects from port.
func (o *Ports) from(port uint16, connect connect) error {
	_, err := connect(netip.AddrPortFrom(o.Address, port))
	if errors.Is(err, tcpframe.ErrPortForbidden) {
		return fmt.Errorf("proxy/reach: source port %d needs CAP_NET_BIND_SERVICE: %w", port, err)
	}
	return err
}

// samePort calls f until the port is free, for at most samePortFor.
func samePort(ctx context.Context, f func() error) error {
	end := time.Now().Add(samePortFor)
	if last, ok := ctx.Deadline(); ok {
		if half := time.Now().Add(time.Until(last) / 2); half.Before(end) {
			end = half // the rest of the time is for another port
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
