package nlm_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/nlmtest"
)

var strangerAddr = netip.MustParseAddr("127.91.0.99")

func (w *world) stranger() *nlmtest.Host {
	w.t.Helper()
	h, err := nlmtest.NewHost(strangerAddr, w.rpcbind)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(h.Stop)
	return h
}

// tell calls the bridge from h. Whether it refuses is up to it.
func (w *world) tell(h *nlmtest.Host, network string, program, version, procedure uint32, args []byte) (results []byte) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	b, err := h.Call(ctx, network, w.bridge.Addr(), program, version, procedure, args)
	if err != nil && !errors.Is(err, nlmtest.ErrRefused) {
		w.t.Fatal(err)
	}
	return b
}

// crossed returns when the bridge has done all that a Call before it can have caused: it has freed the lock of a client
// that restarted later.
func (w *world) crossed(c *nlmtest.Client) {
	w.t.Helper()
	a := nlmtest.Args{FH: []byte("another file"), Exclusive: true}
	w.do(c, nlmtest.Lock, a, nlmtest.StatGranted)
	c.Stop()
	w.restartClient(c)
	testkit.Eventually(w.t, "the lock of a client that restarted is free", func() bool {
		held, _ := w.server.Held(string(a.FH))
		return len(held) == 0
	})
}

// TestForgedNotice: a stranger's SM_NOTIFY frees nobody's locks, and makes nobody reclaim, whatever name it has. Nor does
// one client's speak for another.
func TestForgedNotice(t *testing.T) {
	w := newWorld(t, nlmtest.Linux, nlmtest.Linux, nlmtest.Linux)
	w.do(w.clients[0], nlmtest.Lock, exclusive(0), nlmtest.StatGranted)
	for _, h := range []*nlmtest.Host{w.stranger(), w.clients[1].Host} {
		for _, name := range []string{"client0", clientAddr(0).String(), "storage.example", serverAddr.String(), "bridge.example", bridgeAddr.String(), ""} {
			for _, network := range []string{"udp", "tcp"} {
				w.tell(h, network, nlmtest.ProgramNSM, 1, nlmtest.SMNotify, nlmtest.Notice{Name: name, State: 99}.Append(nil))
			}
		}
	}
	w.crossed(w.clients[2])
	w.settled(1, 0)
	for _, c := range w.clients {
		if n := len(c.Notices()); n > 0 {
			t.Errorf("%s is told %d times that the server has restarted", c.Name, n)
		}
	}
}

// TestForgedGranted: nobody but the server gives a client the lock that it waits for.
func TestForgedGranted(t *testing.T) {
	w := newWorld(t, nlmtest.Linux, nlmtest.Linux, nlmtest.Linux)
	c, other := w.clients[0], w.clients[1]
	w.do(c, nlmtest.Lock, exclusive(0), nlmtest.StatGranted)
	held, _ := w.server.Held(string(file))
	w.do(c, nlmtest.Unlock, exclusive(0), nlmtest.StatGranted)
	w.do(other, nlmtest.Lock, exclusive(0), nlmtest.StatGranted)
	granted := w.wait(c, exclusive(0))
	for _, h := range []*nlmtest.Host{w.stranger(), other.Host, c.Host} {
		for _, svid := range []uint32{held[0].SVID, 0} {
			for _, procedure := range []uint32{nlmtest.Granted, nlmtest.Granted + nlmtest.ToMsg} {
				a := exclusive(svid)
				a.Cookie = []byte{1, 2, 3, 4}
				b := w.tell(h, "tcp", nlmtest.ProgramNLM, 4, procedure, a.Append(nil, 4, procedure))
				if r, ok := nlmtest.ParseResults(b, 4, nlmtest.Granted); ok && r.Stat == nlmtest.StatGranted {
					t.Errorf("GRANTED of %v is accepted", h.Addr)
				}
			}
		}
	}
	w.crossed(w.clients[2])
	if n := c.Grants(); n > 0 {
		t.Fatalf("the client was granted %d locks", n)
	}
	w.do(other, nlmtest.Unlock, exclusive(0), nlmtest.StatGranted)
	w.granted(c, granted)
}

// TestUnknownGrant: the server grants a lock to nobody that the bridge knows.
func TestUnknownGrant(t *testing.T) {
	w := newWorld(t, nlmtest.Linux)
	a := exclusive(12345)
	a.Cookie = []byte{1, 2, 3, 4}
	b := w.tell(w.server.Host, "tcp", nlmtest.ProgramNLM, 4, nlmtest.Granted, a.Append(nil, 4, nlmtest.Granted))
	if r, ok := nlmtest.ParseResults(b, 4, nlmtest.Granted); !ok || r.Stat != nlmtest.StatDenied {
		t.Errorf("the results are %x, want LCK_DENIED", b)
	}
}

// TestNoticeTwice: a status monitor repeats its notice until it has an answer, and after a restart of the bridge. The
// repeats free nothing and make nobody reclaim.
func TestNoticeTwice(t *testing.T) {
	w := newWorld(t, nlmtest.Linux, nlmtest.Linux, nlmtest.Linux)
	c, other := w.clients[0], w.clients[1]
	w.do(c, nlmtest.Lock, exclusive(0), nlmtest.StatGranted)
	c.Stop()
	w.restartClient(c)
	w.settled(0, 0)
	w.do(c, nlmtest.Lock, exclusive(0), nlmtest.StatGranted)
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	c.Renotify(ctx)
	w.restartBridge()
	c.Renotify(ctx)
	w.crossed(w.clients[2])
	w.settled(1, 0)

	if err := w.server.Restart(); err != nil {
		t.Fatal(err)
	}
	<-c.Notices()
	a := exclusive(0)
	a.Reclaim = true
	w.do(c, nlmtest.Lock, a, nlmtest.StatGranted)
	w.server.EndGrace()
	w.do(other, nlmtest.Lock, nlmtest.Args{FH: []byte("other")}, nlmtest.StatGranted)
	w.server.Notify(bridgeAddr)
	w.restartBridge()
	w.server.Notify(bridgeAddr)
	w.crossed(w.clients[2])
	w.settled(2, 0)
	if n := len(c.Notices()); n > 0 {
		t.Errorf("the client is told %d times more", n)
	}
}

// TestManyOwners: a client locks as more owners than the bridge remembers for it. It is denied, and others are not. When it
// restarts, all its locks go.
func TestManyOwners(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes some seconds")
	}
	owners, bound := 20000, 16384
	if os.Getenv("RDMABRIDGE_LOCKS") != "" {
		owners = 100000
	}
	w := newWorld(t, nlmtest.Linux, nlmtest.Linux)
	greedy, other := w.clients[0], w.clients[1]
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	conn, err := greedy.Dial(ctx, "tcp", w.bridge.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	window := make(chan struct{}, 100)
	during(func() {
		for i := range uint32(owners) {
			window <- struct{}{}
			a := nlmtest.Args{Cookie: []byte{1, 2, 3, 4}, Caller: greedy.Name, State: 1, SVID: i, FH: binary.BigEndian.AppendUint32(nil, i), OH: []byte("x")}
			if testkit.WriteRecord(conn, nlmtest.Message(i+1, nlmtest.ProgramNLM, 4, nlmtest.Lock, a.Append(nil, 4, nlmtest.Lock))) != nil {
				return
			}
		}
	}, func() {
		stats := make(map[nlmtest.Stat]int)
		for i := range owners {
			m, err := testkit.ReadRecord(conn)
			var h oncrpc.Reply
			if err != nil || oncrpc.ParseReply(m, &h) != nil || !h.Succeeded() {
				conn.Close()
				for len(window) > 0 {
					<-window
				}
				t.Errorf("Reply %d is %x and %v", i, m, err)
				return
			}
			r, _ := nlmtest.ParseResults(m[h.Results:], 4, nlmtest.Lock)
			stats[r.Stat]++
			<-window
			if i%5000 == 0 {
				w.do(other, nlmtest.Lock, exclusive(0), nlmtest.StatGranted)
				w.do(other, nlmtest.Unlock, exclusive(0), nlmtest.StatGranted)
			}
		}
		// The bound does not count LOCKs under way.
		if got := stats[nlmtest.StatGranted]; got < bound || got > bound+cap(window) || stats[nlmtest.StatNoLocks] != owners-got {
			t.Errorf("results by status: %v, want %d granted, and LCK_DENIED_NOLOCKS", stats, bound)
		}
	})
	w.do(other, nlmtest.Lock, exclusive(0), nlmtest.StatGranted)
	greedy.Stop()
	w.restartClient(greedy)
	w.settled(1, 0)
}

// mute makes the client's rpcbind one that takes questions and does not answer.
func (w *world) mute(c *nlmtest.Client) {
	w.t.Helper()
	c.Stop()
	at := netip.AddrPortFrom(c.Addr, w.rpcbind)
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { l.Close() })
	u, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { u.Close() })
}

// TestMuteRPCBind: a client whose rpcbind does not answer can not be told that it has its locks. It gets them when it asks
// again, and others are told at once.
func TestMuteRPCBind(t *testing.T) {
	w := newWorld(t, nlmtest.Linux, nlmtest.Linux, nlmtest.Linux)
	mute, other, third := w.clients[0], w.clients[1], w.clients[2]
	w.mute(mute)
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	lock := func(a nlmtest.Args) nlmtest.Stat {
		a.Cookie, a.Caller, a.State = []byte{1, 2, 3, 4}, mute.Name, 1
		b, err := mute.Call(ctx, "tcp", w.bridge.Addr(), nlmtest.ProgramNLM, 4, nlmtest.Lock, a.Append(nil, 4, nlmtest.Lock))
		r, ok := nlmtest.ParseResults(b, 4, nlmtest.Lock)
		if err != nil || !ok {
			t.Fatalf("LOCK: %x and %v", b, err)
		}
		return r.Stat
	}
	const waits = 100
	for i := range waits {
		a := exclusive(uint32(i))
		a.FH = []byte{byte(i)}
		w.do(other, nlmtest.Lock, a, nlmtest.StatGranted)
		if got := lock(a); got != nlmtest.StatBlocked {
			t.Fatalf("LOCK: status %d, want %d", got, nlmtest.StatBlocked)
		}
	}
	w.do(other, nlmtest.Lock, exclusive(0), nlmtest.StatGranted)
	granted := w.wait(third, exclusive(0))
	for i := range waits {
		a := exclusive(uint32(i))
		a.FH = []byte{byte(i)}
		w.do(other, nlmtest.Unlock, a, nlmtest.StatGranted)
	}
	began := time.Now()
	w.do(other, nlmtest.Unlock, exclusive(0), nlmtest.StatGranted)
	w.granted(third, granted)
	t.Logf("the other client was granted its lock after %v", time.Since(began))
	for i := range waits {
		a := exclusive(uint32(i))
		a.FH = []byte{byte(i)}
		if got := lock(a); got != nlmtest.StatGranted {
			t.Fatalf("LOCK again: status %d, want %d", got, nlmtest.StatGranted)
		}
	}
	w.settled(waits+1, 0)
}

// TestMessagesTooLong: the bridge closes the connection of a record that is too long, does not answer such a datagram, and
// waits for the rest of a record without harm to others.
func TestMessagesTooLong(t *testing.T) {
	w := newWorld(t, nlmtest.Linux)
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	h := w.stranger()
	for name, b := range map[string][]byte{
		"one fragment":   xdr.AppendWords(nil, 1<<31|1<<30),
		"many fragments": append(make([]byte, 0, 1<<20), make([]byte, 1<<20)...),
		"no Call":        testkit.Record(xdr.AppendWords(nil, 7, oncrpc.TypeReply, 0, 0, 0, 0)),
	} {
		c, err := h.Dial(ctx, "tcp", w.bridge.Addr())
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(testkit.Patience))
		_, _ = c.Write(b) // may fail when it is closed
		if n, err := io.Copy(io.Discard, c); n > 0 || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %d octets and %v, want a closed connection", name, n, err)
		}
		c.Close()
	}
	half, err := h.Dial(ctx, "tcp", w.bridge.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer half.Close()
	if _, err := half.Write(xdr.AppendWords(nil, 1<<31|100, 7)); err != nil {
		t.Fatal(err)
	}
	a := exclusive(0)
	a.OH = make([]byte, 5000)
	if err := h.Send(w.bridge.Addr(), nlmtest.ProgramNLM, 4, nlmtest.Lock, a.Append(nil, 4, nlmtest.Lock)); err != nil {
		t.Fatal(err)
	}
	w.do(w.clients[0], nlmtest.Lock, exclusive(0), nlmtest.StatGranted)
	w.do(w.clients[0], nlmtest.Unlock, exclusive(0), nlmtest.StatGranted)
	w.settled(0, 0)
	w.idle()
}

// TestManyConnections: a client opens more connections than it may. Those of others are open.
func TestManyConnections(t *testing.T) {
	w := newWorld(t, nlmtest.Linux)
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	h := w.stranger()
	closed := 0
	for range 100 {
		c, err := h.Dial(ctx, "tcp", w.bridge.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(testkit.Patience))
		_ = testkit.WriteRecord(c, nlmtest.Message(1, nlmtest.ProgramNLM, 4, 0, nil))
		if _, err := testkit.ReadRecord(c); err != nil {
			closed++
		}
	}
	if closed == 0 {
		t.Error("a host has 100 connections")
	}
	w.do(w.clients[0], nlmtest.Lock, exclusive(0), nlmtest.StatGranted)
}

// calls are a Call of each procedure, with both lengths of a range.
func calls() (all [][]byte) {
	a := nlmtest.Args{Cookie: []byte{1, 2, 3, 4}, Caller: "host", FH: file, OH: []byte("owner"), SVID: 1, Length: 10, State: 1}
	for _, version := range []uint32{1, 4} {
		for procedure := range uint32(24) {
			args := a.Append(nil, version, procedure)
			if procedure > nlmtest.Granted+nlmtest.ToMsg && procedure <= nlmtest.Granted+nlmtest.ToRes {
				args = (&nlmtest.Results{Cookie: a.Cookie}).Append(nil, version, procedure-nlmtest.ToRes)
			}
			all = append(all, nlmtest.Message(procedure+1, nlmtest.ProgramNLM, version, procedure, args))
		}
	}
	for procedure := range uint32(7) {
		all = append(all, nlmtest.Message(procedure+1, nlmtest.ProgramNSM, 1, procedure, nlmtest.Notice{Name: "host", State: 3}.Append(nil)))
	}
	return all
}

// FuzzMessages: no message ends the bridge, and none makes it send the server what cannot be read.
func FuzzMessages(f *testing.F) {
	for _, m := range calls() {
		f.Add(m)
		f.Add(m[:len(m)-4])
	}
	w := newWorld(f, nlmtest.Linux)
	at := w.bridge.Addr()
	f.Fuzz(func(t *testing.T, m []byte) {
		if len(m) > 2048 {
			return
		}
		for _, from := range []netip.Addr{strangerAddr, serverAddr} {
			c, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0)), net.UDPAddrFromAddrPort(at))
			if err != nil {
				t.Fatal(err)
			}
			_, err = c.Write(m)
			c.Close()
			if err != nil {
				t.Fatal(err)
			}
		}
		c, err := net.DialTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(strangerAddr, 0)), net.TCPAddrFromAddrPort(at))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := testkit.WriteRecord(c, m); err != nil {
			t.Fatal(err)
		}
		if err := testkit.WriteRecord(c, nlmtest.Message(0xfeed, nlmtest.ProgramNLM, 4, 0, nil)); err != nil {
			return // m was none that a connection outlives
		}
		_ = c.SetDeadline(time.Now().Add(testkit.Patience))
		for {
			reply, err := testkit.ReadRecord(c)
			if err != nil && errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("the bridge does not answer after %x", m)
			}
			if err != nil || oncrpc.IsReply(reply, 0xfeed) {
				break
			}
		}
		if n := w.server.Malformed.Load(); n > 0 {
			t.Fatalf("%x made the bridge send the server what cannot be read", m)
		}
	})
}
