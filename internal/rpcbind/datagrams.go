package rpcbind

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/rdmabridge/rdmabridge/internal/arrival"
	"github.com/rdmabridge/rdmabridge/internal/crowd"
	"github.com/rdmabridge/rdmabridge/internal/loglimit"
	"github.com/rdmabridge/rdmabridge/internal/loop"
)

// datagrams are the UDP port. Its goroutine reads one datagram, answers it, and reads the
// next. It sends the Reply from the address that the question was sent to.
type datagrams struct {
	s    *Server
	conn *net.UDPConn
	done chan struct{} // closed when the goroutine has ended; nil before start

	// Owned by the goroutine.
	answers arrival.Answers
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
	case !d.allowed(from.Addr().Unmap()):
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
	if !d.answers.May(len(reply)-len(m), now) {
		return nil, refusedRate // the client asks again, or over TCP
	}
	return reply, refusedNot
}

func (d *datagrams) allowed(a netip.Addr) bool {
	allow := d.s.allow.Load()
	return allow == nil || len(*allow) == 0 || crowd.Within(*allow, a)
}
