package rpcbind

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/rdmabridge/rdmabridge/internal/arrival"
	"github.com/rdmabridge/rdmabridge/internal/loglimit"
	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/ratelimit"
)

// Limits of the Replies on UDP. Every Reply counts against replyRate. A Reply that is more
// than slack octets longer than its question also counts against excessRate; this can only
// happen to DUMP, GETADDRLIST and GETSTAT. All clients share both limits, so forged source
// addresses gain at most excessRate octets a second. The Server does not answer a question
// over a limit: the client asks again, or over TCP.
const (
	replyRate   = 2000 // a second
	replyBurst  = 4000
	slack       = 32       // octets: GETADDR's IPv6 address against no netid at all
	excessRate  = 16 << 10 // octets a second
	excessBurst = 32 << 10
)

// datagrams are the UDP port. Its goroutine reads one datagram, answers it, and reads the
// next. It sends the Reply from the address that the question was sent to.
type datagrams struct {
	s    *Server
	conn *net.UDPConn
	done chan struct{} // closed when the goroutine has ended; nil before start

	// Owned by the goroutine.
	replies, excess ratelimit.Meter
}

// sameHost returns address with another port. free reports whether the port of address is
// 0.
func sameHost(address string, port uint16) (at string, free bool, err error) {
	host, asked, err := net.SplitHostPort(address)
	if err != nil {
		return "", false, err
	}
	return net.JoinHostPort(host, strconv.Itoa(int(port))), asked == "0", nil
}

// listenDatagrams opens the port. The goroutine that reads it begins with start.
func listenDatagrams(s *Server, address string) (*datagrams, error) {
	lc := net.ListenConfig{Control: arrival.Want}
	c, err := lc.ListenPacket(context.Background(), loop.Network("udp", address), address)
	if err != nil {
		return nil, err
	}
	return newDatagrams(s, c.(*net.UDPConn)), nil
}

func newDatagrams(s *Server, c *net.UDPConn) *datagrams {
	return &datagrams{s: s, conn: c}
}

// take reports whether n more may go now, if most go in a second and at most burst at once.
func take(m *ratelimit.Meter, n, most, burst int, now time.Time) bool {
	cost := func(n int) int64 { return int64(n) * int64(time.Second) / int64(most) }
	return m.Take(ratelimit.At(now), cost(n), cost(burst))
}

func (d *datagrams) start() {
	d.done = make(chan struct{})
	go func() {
		defer close(d.done)
		d.serve()
	}()
}

// close ends the goroutine and waits for it.
func (d *datagrams) close() error {
	err := d.conn.Close()
	if d.done != nil {
		<-d.done
	}
	if errors.Is(err, net.ErrClosed) {
		return nil // twice
	}
	return err
}

// readBackoff is the pause after a failed read.
const readBackoff = 50 * time.Millisecond

func (d *datagrams) serve() {
	message := make([]byte, maxMessage)
	oob := make([]byte, 256)
	var failures loglimit.Seldom
	for {
		n, oobn, flags, from, err := d.conn.ReadMsgUDPAddrPort(message, oob)
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			failures.Line(&d.s.log, zerolog.ErrorLevel, "rpcbind_failed").Err(err).Msg("rpcbind: reading datagrams")
			time.Sleep(readBackoff)
			continue
		}
		a := arrival.Parse(oob[:oobn])
		reply, why := d.question(message[:n], flags, a, from, time.Now())
		if why != refusedNot {
			d.s.series.refuse(why, true)
		}
		if reply == nil {
			continue
		}
		if _, _, err := d.conn.WriteMsgUDPAddrPort(reply, a.Control(), from); err != nil {
			d.s.log.Debug().Str("event", "rpcbind_not_answered").Stringer("peer", from).Err(err).Msg("rpcbind: reply not sent")
		}
	}
}

// question returns the Reply to one datagram, or nil to send none. why is the reason of a
// refusal that answer has not counted.
func (d *datagrams) question(m []byte, flags int, a arrival.Arrival, from netip.AddrPort, now time.Time) (reply []byte, why refusal) {
	switch {
	case !d.allowed(from.Addr().Unmap().WithZone("")):
		return nil, refusedDenied
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0:
		return nil, refusedLong
	case a.Group || !a.Local.IsValid():
		return nil, refusedGroup // broadcasts are for BCAST, which fails silently
	}
	reply, _ = d.s.answer(m, question{local: a.Local, datagram: true})
	if reply == nil {
		return nil, refusedNot
	}
	if excess := len(reply) - len(m) - slack; excess > 0 && !take(&d.excess, excess, excessRate, excessBurst, now) {
		return nil, refusedRate
	}
	if !take(&d.replies, 1, replyRate, replyBurst, now) {
		return nil, refusedRate
	}
	return reply, refusedNot
}

func (d *datagrams) allowed(a netip.Addr) bool {
	allow := d.s.allow.Load()
	return allow == nil || len(*allow) == 0 || slices.ContainsFunc(*allow, func(p netip.Prefix) bool { return p.Contains(a) })
}
