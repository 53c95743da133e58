package chaos

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
)

// A rogue is a client over TCP that breaks the rules for clients. The Replies to it must
// be right all the same.
type rogue struct {
	name   string
	book   *book
	counts *counts
	addr   string
	local  net.IP
	dice   *rand.Rand
	xid    uint32
}

// stallTimeout is how long the bridge waits for the rest of a record.
const stallTimeout = 2 * time.Second

// patience is added to the bridge's own times, for a busy machine.
const patience = 10 * time.Second

// run misbehaves until ctx ends.
func (g *rogue) run(ctx context.Context) {
	acts := map[fault]func(context.Context, net.Conn){
		rogueReset: g.reset, rogueDeaf: g.deaf, rogueTrickle: g.trickle, rogueTwice: g.twice,
		rogueGarbage: g.garbage, rogueHalfRecord: g.halfRecord, rogueHalfClose: g.halfClose,
		rogueAnnounce: g.announce,
	}
	for ctx.Err() == nil && !g.book.broken.Load() {
		f := rogueReset + fault(g.dice.IntN(len(acts)))
		c, err := g.dial()
		if err != nil {
			time.Sleep(10 * time.Millisecond)
			continue
		}
		g.counts[f].Add(1)
		acts[f](ctx, c)
		c.Close()
		g.pause(ctx, between(g.dice, 0, 50*time.Millisecond))
	}
}

func (g *rogue) pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (g *rogue) dial() (net.Conn, error) {
	return g.dialFrom(&net.TCPAddr{IP: g.local}, g.addr)
}

// dialFrom connects to addr from the port of local, or from any if that is 0.
func (g *rogue) dialFrom(local net.Addr, addr string) (net.Conn, error) {
	d := net.Dialer{Timeout: 2 * time.Second, LocalAddr: local, Control: proxytest.SharePort}
	return d.Dial("tcp", addr)
}

// call is a Call of the kind given, noted in the book as sent once.
func (g *rogue) call(k kind, n int) *outstanding {
	g.xid++
	o := &outstanding{kind: k, id: g.book.next.Add(1)}
	o.m = newCall(k, g.xid, o.id, n)
	g.book.begin(g.name, k, o.id, o.m)
	return o
}

// any is a Call of any kind.
func (g *rogue) any() *outstanding {
	return g.call(kind(g.dice.IntN(int(echoGSS))), g.dice.IntN(8<<10))
}

// check compares a Reply to o.
func (g *rogue) check(o *outstanding, m []byte) {
	g.book.judge(g.name, o, m)
}

// reset sends some Calls and a part of one, and resets.
func (g *rogue) reset(_ context.Context, c net.Conn) {
	var b []byte
	var all []*outstanding
	for range 1 + g.dice.IntN(4) {
		o := g.any()
		g.book.transmit(o.id)
		all = append(all, o)
		b = append(b, testkit.Record(o.m)...)
	}
	_, _ = c.Write(b[:g.dice.IntN(len(b)+1)])
	if g.dice.IntN(2) == 0 {
		time.Sleep(between(g.dice, 0, 5*time.Millisecond))
	}
	c.(*net.TCPConn).SetLinger(0)
	c.Close()
	g.book.abandon(all)
}

// deaf asks for much and reads nothing for a while.
func (g *rogue) deaf(ctx context.Context, c net.Conn) {
	_ = c.(*net.TCPConn).SetReadBuffer(4096)
	_ = c.SetWriteDeadline(time.Now().Add(between(g.dice, 100*time.Millisecond, time.Second)))
	var all []*outstanding
	for range 40 {
		o := g.call([]kind{read, echo}[g.dice.IntN(2)], g.dice.IntN(1<<20))
		g.book.transmit(o.id)
		all = append(all, o)
		if testkit.WriteRecord(c, o.m) != nil {
			break
		}
	}
	g.pause(ctx, between(g.dice, 0, 2*time.Second))
	if g.dice.IntN(2) == 0 {
		c.(*net.TCPConn).SetLinger(0)
	}
	c.Close()
	g.book.abandon(all)
}

// trickle sends a Call octet by octet.
func (g *rogue) trickle(_ context.Context, c net.Conn) {
	o := g.call(kind(g.dice.IntN(int(echoGSS))), 60)
	g.book.transmit(o.id)
	defer g.book.abandon([]*outstanding{o})
	for _, b := range testkit.Record(o.m) {
		if _, err := c.Write([]byte{b}); err != nil {
			return
		}
		if g.dice.IntN(8) == 0 {
			time.Sleep(time.Millisecond)
		}
	}
	g.await(c, o)
}

// await waits for the Reply to o or the end of the connection, and reports which.
func (g *rogue) await(c net.Conn, o *outstanding) (answered bool) {
	_ = c.SetReadDeadline(time.Now().Add(bound))
	m, err := readReply(c)
	switch {
	case err == nil:
		g.check(o, m)
		return true
	case timedOut(err):
		g.book.wrong("%s: call %#x (%v) has waited %v on a live connection", g.name, o.id, o.kind, bound)
	}
	return false
}

// readReply reads a record that is no Call of the server's: those are not answered.
func readReply(c net.Conn) ([]byte, error) {
	for {
		if m, err := testkit.ReadRecord(c); err != nil || !proxytest.IsCall(m) {
			return m, err
		}
	}
}

func timedOut(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

// twice sends one Call that must not be executed twice on several connections,
// some of them at the same time.
func (g *rogue) twice(_ context.Context, c net.Conn) {
	o := g.call([]kind{mkdir, echo}[g.dice.IntN(2)], g.dice.IntN(3000))
	defer g.book.abandon([]*outstanding{o})
	for range 1 + g.dice.IntN(5) {
		g.book.transmit(o.id)
		if testkit.WriteRecord(c, o.m) != nil {
			break
		}
		if g.dice.IntN(4) == 0 { // on the same connection as well
			g.book.transmit(o.id)
			_ = testkit.WriteRecord(c, o.m)
		}
		time.Sleep(between(g.dice, 0, 3*time.Millisecond))
		switch g.dice.IntN(4) {
		case 0:
			c.(*net.TCPConn).SetLinger(0)
			c.Close()
		case 1:
			c.Close()
		case 2:
			_ = c.(*net.TCPConn).CloseWrite()
			defer c.Close()
		case 3:
			defer c.Close() // it stays open, and the client does not read it
		}
		next, err := g.dial()
		if err != nil {
			return
		}
		g.book.moved(o.id)
		c = next
	}
	defer func() { c.Close() }()
	// To the end, as a client that means it.
	for range 20 {
		g.book.transmit(o.id)
		if testkit.WriteRecord(c, o.m) == nil && g.await(c, o) {
			return
		}
		c.Close()
		next, err := g.dial()
		if err != nil {
			return
		}
		g.book.moved(o.id)
		c = next
	}
}

// garbage sends octets that are no Call. The connection must be closed. A Call whose credential has no end is answered.
func (g *rogue) garbage(_ context.Context, c net.Conn) {
	_ = c.SetDeadline(time.Now().Add(stallTimeout + patience))
	noise := make([]byte, 64+g.dice.IntN(4096))
	testkit.FillPattern(noise, g.dice.Uint32())
	what := g.dice.IntN(5)
	switch what {
	case 0: // a record of noise
		binary.BigEndian.PutUint32(noise[4:], 0x77)
		_, _ = c.Write(testkit.Record(noise))
	case 1: // a record of 2 GiB
		_, _ = c.Write(testkit.Words(1<<31 | 0x7fffffff))
	case 2: // empty fragments
		zeros := make([]byte, 8192)
		_, _ = c.Write(zeros)
	case 3: // neither a Call nor a Reply
		m := proxytest.GetattrCall(1)
		m[7] = 2
		_, _ = c.Write(testkit.Record(m))
	case 4: // a Call whose credential has no end
		m := proxytest.GetattrCall(1)
		binary.BigEndian.PutUint32(m[28:], 0xfffffff0)
		_, _ = c.Write(testkit.Record(m))
		if r, err := testkit.ReadRecord(c); err == nil && !bytes.Equal(r, oncrpc.AppendAuthError(nil, 1, oncrpc.AuthBadCredential)) || timedOut(err) {
			g.book.wrong("%s: a Call whose credential has no end is answered with %x, %v", g.name, r, err)
		}
		return
	}
	if _, err := io.Copy(io.Discard, c); timedOut(err) {
		g.book.wrong("%s: the connection is still open %v after garbage number %d", g.name, stallTimeout+patience, what)
	}
}

// halfRecord begins a record and stays. The connection must be closed.
func (g *rogue) halfRecord(ctx context.Context, c net.Conn) {
	b := testkit.Record(newCall(write, 1, 1, 4096))
	_, _ = c.Write(b[:1+g.dice.IntN(len(b)-1)])
	if g.dice.IntN(3) > 0 { // most do not wait for it
		g.pause(ctx, between(g.dice, 0, stallTimeout))
		return
	}
	_ = c.SetDeadline(time.Now().Add(stallTimeout + patience))
	if _, err := io.Copy(io.Discard, c); timedOut(err) {
		g.book.wrong("%s: a record that was begun keeps its connection open for %v", g.name, stallTimeout+patience)
	}
}

// announceTimeout is longer than a connection may last that does not send what it has announced:
// the bridge sees that within some stallTimeouts, or when it has waited for memory.
const announceTimeout = 60 * time.Second

// announce announces a long record and sends a part of it, and then octet by octet. The connection
// must be closed.
func (g *rogue) announce(ctx context.Context, c net.Conn) {
	b := testkit.Record(newCall(write, 1, 1, 4<<20))
	b = b[:1+g.dice.IntN(256<<10)]
	_ = c.SetWriteDeadline(time.Now().Add(announceTimeout)) // the bridge need not read while it has no memory
	if _, err := c.Write(b); err != nil {
		return
	}
	stay := announceTimeout
	if g.dice.IntN(3) > 0 { // most do not wait for it
		stay = between(g.dice, 0, stallTimeout)
	}
	for end := time.Now().Add(stay); time.Now().Before(end); {
		if _, err := c.Write([]byte{0}); err != nil || ctx.Err() != nil {
			return
		}
		g.pause(ctx, 20*time.Millisecond)
	}
	if stay == announceTimeout {
		g.book.wrong("%s: a record that comes octet by octet keeps its connection for %v", g.name, stay)
	}
}

// halfClose sends Calls and FIN, and reads the Replies.
func (g *rogue) halfClose(_ context.Context, c net.Conn) {
	var b []byte
	all := make(map[uint32]*outstanding)
	var list []*outstanding
	for range 1 + g.dice.IntN(4) {
		o := g.any()
		g.book.transmit(o.id)
		all[binary.BigEndian.Uint32(o.m)] = o
		list = append(list, o)
		b = append(b, testkit.Record(o.m)...)
	}
	defer g.book.abandon(list)
	_, _ = c.Write(b)
	_ = c.(*net.TCPConn).CloseWrite()
	_ = c.SetReadDeadline(time.Now().Add(bound))
	for {
		m, err := readReply(c)
		if timedOut(err) {
			g.book.wrong("%s: a client that sent FIN has waited for %v", g.name, bound)
		}
		if err != nil {
			return
		}
		o := all[binary.BigEndian.Uint32(m)]
		if o == nil {
			g.book.wrong("%s: a Reply to XID %#x, which is not outstanding", g.name, binary.BigEndian.Uint32(m))
			return
		}
		g.check(o, m)
		delete(all, binary.BigEndian.Uint32(m))
	}
}
