package chaos

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// A loiterer takes connections and does not use them, or takes very many.
type loiterer struct {
	*crowd
	dice *rand.Rand
}

// run loiters until ctx ends.
func (g *loiterer) run(ctx context.Context) {
	for ctx.Err() == nil && !g.book.broken.Load() {
		f := oneOf(g.dice, silentTCP, silentMPA, throng)
		g.counts[f].Add(1)
		switch f {
		case silentTCP:
			g.silent(ctx, oneOf(g.dice, "quiet", "to-rdma", "to-tcp"))
		case silentMPA:
			g.setUps(ctx, oneOf(g.dice, "quiet over RDMA", "rdma-to-tcp"))
		case throng:
			g.throng(ctx)
		}
		pause(ctx, between(g.dice, 0, 2*time.Second))
	}
}

// dial makes n connections from one address to a listener, and has f use each.
func (g *loiterer) dial(ctx context.Context, n int, name string, from byte, f func(i int, c net.Conn)) (end func()) {
	d := net.Dialer{Timeout: 2 * time.Second, LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 6, from)}}
	var all []net.Conn
	for i := range n {
		c, err := d.DialContext(ctx, "tcp", g.addrs[name])
		if err != nil {
			break // the bridge is not there
		}
		all = append(all, c)
		f(i, c)
	}
	return func() {
		for _, c := range all {
			if g.dice.IntN(2) == 0 {
				_ = c.(*net.TCPConn).SetLinger(0)
			}
			c.Close()
		}
	}
}

// silent connects and sends nothing.
func (g *loiterer) silent(ctx context.Context, name string) {
	end := g.dial(ctx, 40, name, 1, func(int, net.Conn) {})
	defer end()
	pause(ctx, between(g.dice, 0, 2*time.Second))
}

// setUps begins set-ups of MPA and does not end them. The bridge must.
func (g *loiterer) setUps(ctx context.Context, name string) {
	request := append([]byte("MPA ID Req Frame"), 0x40, 2, 0, 32)
	var last net.Conn
	end := g.dial(ctx, 40, name, 2, func(i int, c net.Conn) {
		_, _ = c.Write(request[:min(i%24, len(request))])
		last = c
	})
	defer end()
	if last == nil || g.dice.IntN(2) == 0 {
		pause(ctx, between(g.dice, 0, time.Second))
		return
	}
	_ = last.SetReadDeadline(time.Now().Add(acceptTimeout + 2*patience))
	if _, err := io.Copy(io.Discard, last); timedOut(err) {
		g.book.wrong("a set-up of MPA that has stopped keeps its connection for %v", acceptTimeout+2*patience)
	}
}

// throng makes more connections than the listener may have, and uses some. The bridge must make
// room for a client with another address.
func (g *loiterer) throng(ctx context.Context) {
	r := &rogue{name: "throng", book: g.book, counts: &g.counts, dice: g.dice}
	var all []*outstanding
	end := g.dial(ctx, quietConnections+50, "quiet", 3, func(i int, c net.Conn) {
		if i%16 == 0 {
			o := r.call(getattr, 0)
			g.book.transmit(o.id)
			all = append(all, o)
			_ = testkit.WriteRecord(c, o.m)
		}
	})
	defer g.book.abandon(all)
	defer end()
	if g.dice.IntN(2) == 0 {
		pause(ctx, between(g.dice, 0, 3*time.Second))
		return
	}
	n := &rogue{name: "newcomer", book: g.book, counts: &g.counts, addr: g.addrs["quiet"], local: net.IPv4(127, 0, 6, 4), dice: g.dice}
	for began := time.Now(); ctx.Err() == nil && !n.welcome(); {
		if d := time.Since(began); d > 2*patience {
			g.book.wrong("a client is kept out for %v by the connections of one address", d)
			return
		}
		// The bridge may have closed some when it was started again.
		defer g.dial(ctx, quietConnections/4, "quiet", 3, func(int, net.Conn) {})()
		pause(ctx, 50*time.Millisecond)
	}
}

// welcome makes one Call on a connection of its own, and reports whether it is answered.
func (g *rogue) welcome() bool {
	c, err := g.dial()
	if err != nil {
		return false
	}
	defer c.Close()
	o := g.call(getattr, 0)
	defer g.book.abandon([]*outstanding{o})
	g.book.transmit(o.id)
	return testkit.WriteRecord(c, o.m) == nil && g.await(c, o)
}
