package proxy_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/rdmaside"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
)

// TestRetransmissionBeforeTheEndIsSeen: a client that may have no more Calls
// under way is not read from, so its FIN is not seen. What it sends again on its
// next connection is executed once all the same, and answered on both.
func TestRetransmissionBeforeTheEndIsSeen(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, budget)
	release := make(chan struct{})
	tcp := h.TCPServer(proxytest.Behaviour{Intercept: func(*oncrpc.Call) ([]byte, bool) {
		<-release
		return nil, false
	}})
	p := h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "0.0.0.0:0", Upstream: "tcp", MaxCalls: 1}},
		[]settings.UpstreamOptions{{Name: "tcp", Endpoints: []string{tcp.Addr()}}})
	m := proxytest.MkdirCall(77, "once")
	port := h.KeptPort()
	a := port.Client(p.Addr("nfs"))
	first, err := a.Go(m)
	if err != nil {
		t.Fatal(err)
	}
	h.Eventually("the Call is at the server", func() bool { return tcp.Calls.Load() == 1 })
	b := port.Client(p.Addr("nfs")) // the first connection is as alive as can be seen
	second, err := b.Go(m)
	if err != nil {
		t.Fatal(err)
	}
	h.Eventually("it is taken for the one under way", func() bool { return metric(h, `listener_calls_total{listener="nfs",result="absorbed"}`) == 1 })
	close(release)
	for i, ch := range []<-chan []byte{first, second} {
		if r := <-ch; !bytes.Equal(r, proxytest.Expected(m)) {
			t.Errorf("the Call was not answered on connection %d", i)
		}
	}
	if n := tcp.Calls.Load(); n != 1 {
		t.Errorf("the server ran it %d times under XIDs %v", n, tcp.XIDs())
	}
}

// TestReconnectAndRetransmit: the end of one connection and the Call on the next
// race, on two loops, under load.
func TestReconnectAndRetransmit(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, budget)
	arrived := make(chan struct{}) // closed when the server has a MKDIR
	var once sync.Once
	var xids sync.Map
	p, _ := forward(t, h, 64, proxytest.Behaviour{Delay: 100 * time.Millisecond, Intercept: func(c *oncrpc.Call) ([]byte, bool) {
		if c.Procedure == 9 {
			once.Do(func() { close(arrived) })
			xids.Store(c.XID, nil)
		}
		return nil, false
	}}, anywhere)
	const rounds = 60
	var wg sync.WaitGroup
	for i := range uint32(rounds) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			m := proxytest.MkdirCall(0x70000000+i, "x")
			port := h.KeptPort()
			a := port.Client(p.Addr("nfs"))
			if _, err := a.Go(m); err != nil {
				t.Error(err)
			}
			<-arrived
			a.Close()
			got, err := port.Client(p.Addr("nfs")).Call(m)
			if err != nil || !bytes.Equal(got, proxytest.Expected(m)) {
				t.Errorf("call %d: %d octets, %v", i, len(got), err)
			}
		}()
	}
	wg.Wait()
	// A connection that is closed at once may take an unread Call with it, and on a slow
	// machine the first may have been answered, but no Call has two XIDs.
	n := 0
	xids.Range(func(any, any) bool { n++; return true })
	if n > rounds {
		t.Errorf("%d MKDIRs were sent under %d XIDs", rounds, n)
	}
}

// answers is told of the end of a Call.
type answers chan *rdmaside.CallError

func (o answers) CallDone(c *rdmaside.Call, err *rdmaside.CallError) {
	if err == nil {
		c.Reply.Release()
	}
	o <- err
}

// A repetition is one Call that clients send again on connection after connection while the
// server does not answer.
type repetition struct {
	*proxytest.Harness
	p        *proxy.Proxy
	server   *proxytest.TCPServer
	release  func() // lets the server answer
	provider *fabrictest.Loopback
	loop     *fabrictest.Loop // the clients'
	port     *proxytest.KeptPort
	acct     *regmem.Account
}

func newRepetition(t *testing.T) *repetition {
	t.Helper()
	x := &repetition{Harness: proxytest.NewHarness(t, budget), provider: fabrictest.NewLoopback(), loop: fabrictest.NewLoop()}
	hold := make(chan struct{})
	x.release = sync.OnceFunc(func() { close(hold) })
	t.Cleanup(x.loop.Stop)
	x.port = x.KeptPort()
	x.server = x.TCPServer(proxytest.Behaviour{Intercept: func(c *oncrpc.Call) ([]byte, bool) {
		if c.Procedure == 9 { // MKDIR
			<-hold
		}
		return nil, false
	}})
	t.Cleanup(x.release)
	x.p = x.Proxy([]settings.ListenerOptions{
		{Name: "rdma", Address: "middle", RDMA: true, Provider: x.provider, Upstream: "tcp"},
		{Name: "tcp", Address: "0.0.0.0:0", Upstream: "tcp"},
	}, []settings.UpstreamOptions{{Name: "tcp", Endpoints: []string{x.server.Addr()}}})
	x.acct = x.Arena.Account("test", 8<<20)
	return x
}

// leases counts the leases of Calls and Receives.
func (x *repetition) leases() (n int) {
	for _, a := range x.p.Status(status.Query{}).Memory.Accounts {
		if a.Name == "calls" || a.Name == "receives" {
			n += a.Leases
		}
	}
	return n
}

// An attempt is the Call on one of the connections.
type attempt struct {
	done  <-chan error // nil when the Call is answered
	close func()
}

// send sends m on a new connection over transport.
func (x *repetition) send(t *testing.T, transport string, m []byte) attempt {
	t.Helper()
	if transport == "tcp" {
		c := x.port.Client(x.p.Addr("tcp"))
		ch, err := c.Go(m)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			if r := <-ch; bytes.Equal(r, proxytest.Expected(m)) {
				done <- nil
			} else {
				done <- fmt.Errorf("%d octets and the end of the connection", len(r))
			}
		}()
		return attempt{done, func() { c.Close() }}
	}
	r, err := rdmaside.DialRequester(t.Context(), x.provider, x.loop, "middle", proxytest.RequesterOptions(rdmaside.RequesterOptions{Memory: x.acct, Registry: x.Registry, Credits: 4, Log: zerolog.Nop()}), nil)
	if err != nil {
		t.Fatal(err)
	}
	o := make(answers, 1)
	c := rdmaCall(t, x.Harness, x.acct, m, o)
	x.loop.Do(func() {
		if err := r.Send(c); err != nil {
			t.Error(err)
		}
	})
	done := make(chan error, 1)
	go func() {
		if err := <-o; err != nil { // not a nil *CallError in an error
			done <- err
		} else {
			done <- nil
		}
	}()
	return attempt{done, func() { x.loop.Do(func() { r.Close(errors.New("closed by the test")) }) }}
}

// rdmaCall is the Call m of an RDMA client, in memory of acct.
func rdmaCall(t *testing.T, h *proxytest.Harness, acct *regmem.Account, m []byte, owner rdmaside.CallOwner) *rdmaside.Call {
	t.Helper()
	b, err := proxytest.Lease(acct, m)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Release)
	c := &rdmaside.Call{Owner: owner}
	if err := proxytest.PrepareCall(c, b, h.Registry); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestRepeatedTwice: a Call comes on one connection and the next and the next, over RDMA, or over TCP from
// one port. Each is answered, from one execution; a client that goes does not take
// the others' Reply along; and when the server goes the next Call takes the place of the first.
// Every Exchange and all memory come back.
func TestRepeatedTwice(t *testing.T) {
	t.Parallel()
	for _, transport := range []string{"rdma", "tcp"} {
		t.Run(transport, func(t *testing.T) {
			t.Parallel()
			t.Run("answered", func(t *testing.T) {
				t.Parallel()
				repeatTwice(t, transport, func(x *repetition, all []attempt) {
					x.release()
					wantAnswered(t, x, 1, all)
				})
			})
			t.Run("first client gone", func(t *testing.T) {
				t.Parallel()
				repeatTwice(t, transport, func(x *repetition, all []attempt) {
					all[0].close()
					<-all[0].done
					x.Eventually("its end is seen", func() bool { return x.clients() == 2 })
					x.release()
					wantAnswered(t, x, 1, all[1:])
				})
			})
			t.Run("last client gone", func(t *testing.T) {
				t.Parallel()
				repeatTwice(t, transport, func(x *repetition, all []attempt) {
					all[2].close()
					<-all[2].done
					x.Eventually("its end is seen", func() bool { return x.clients() == 2 })
					x.release()
					wantAnswered(t, x, 1, all[:2])
				})
			})
			t.Run("server gone", func(t *testing.T) {
				t.Parallel()
				repeatTwice(t, transport, func(x *repetition, all []attempt) {
					x.server.DropConnections()
					if err := <-all[0].done; err == nil {
						t.Error("a Call that may not be repeated was answered")
					}
					x.release()
					wantAnswered(t, x, 2, all[1:])
				})
			})
		})
	}
}

// repeatTwice sends a Call on three connections, and ends it with end.
func repeatTwice(t *testing.T, transport string, end func(x *repetition, all []attempt)) {
	x := newRepetition(t)
	before := x.leases()
	m := proxytest.MkdirCall(99, "d")
	var all []attempt
	for i := range 3 {
		all = append(all, x.send(t, transport, m))
		if i == 0 {
			x.Eventually("the Call is at the server", func() bool { return x.server.Calls.Load() == 1 })
		} else {
			x.Eventually("it is taken for the one under way", func() bool { return x.absorbed() == i })
		}
	}
	end(x, all)
	for _, a := range all {
		a.close()
	}
	x.Eventually("all memory of Calls is back", func() bool { return x.leases() == before })
	if n := len(x.server.XIDs()); n != 1 {
		t.Errorf("the server saw it under %d XIDs", n)
	}
}

// wantAnswered fails unless all are answered and the server had the Call as often as want says.
func wantAnswered(t *testing.T, x *repetition, want int64, all []attempt) {
	t.Helper()
	for i, a := range all {
		if err := <-a.done; err != nil {
			t.Errorf("%d of %d: %v", i, len(all), err)
		}
	}
	if n := x.server.Calls.Load(); n != want {
		t.Errorf("the server had it %d times, want %d", n, want)
	}
}

// clients counts the connections of clients.
func (x *repetition) clients() (n int) {
	for _, l := range x.p.Status(status.Query{}).Listeners {
		n += l.Clients
	}
	return n
}

// absorbed counts the Calls that repeat another.
func (x *repetition) absorbed() int {
	return metric(x.Harness, `listener_calls_total{listener="rdma",result="absorbed"}`) + metric(x.Harness, `listener_calls_total{listener="tcp",result="absorbed"}`)
}

// TestTwins: a hundred connections from one address that use the same XIDs, for the same Calls of the same users,
// do not disturb each other. They may be processes of one host: the server executes each Call.
func TestTwins(t *testing.T) {
	const clients, rounds = 100, 5
	h := proxytest.NewHarness(t, budget)
	p, s := forward(t, h, 64, proxytest.Behaviour{}, nil)
	var conns []*proxytest.Client
	for range clients {
		conns = append(conns, h.Client(p.Addr("nfs")))
	}
	call := func(xid uint32, i int) []byte {
		m := proxytest.MkdirCall(xid, fmt.Sprint("dir", i%4))
		if i%2 == 1 {
			binary.BigEndian.PutUint32(m[52:], 1001) // the uid, behind stamp and machine name
		}
		return m
	}
	for xid := range uint32(rounds) {
		var answers []<-chan []byte
		for i, c := range conns {
			ch, err := c.Go(call(xid, i))
			if err != nil {
				t.Fatal(err)
			}
			answers = append(answers, ch)
		}
		for i, ch := range answers {
			if r, ok := <-ch; !ok || !bytes.Equal(r, proxytest.Expected(call(xid, i))) {
				t.Fatalf("connection %d, XID %d: %d octets, answered is %v", i, xid, len(r), ok)
			}
		}
	}
	if n := p.Status(status.Query{}).Listeners[0].Clients; n != clients {
		t.Errorf("%d of %d connections are left", n, clients)
	}
	if n := len(s.XIDs()); n != clients*rounds {
		t.Errorf("the server saw %d XIDs, want %d", n, clients*rounds)
	}
	if n := metric(h, `upstream_xid_collisions_total{upstream="storage"}`); n != 0 {
		t.Errorf("%d collisions", n)
	}
}

// TestOtherUser: the Call of one user does not get the Reply to another user's Call, neither
// while that is under way nor, by its XID, from the server's duplicate request cache after that.
func TestOtherUser(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, budget)
	var gate proxytest.Gate
	p, s := forward(t, h, 8, proxytest.Behaviour{Gate: &gate}, anywhere)
	port := h.KeptPort()
	root := proxytest.MkdirCall(77, "d")
	other := bytes.Clone(root)
	binary.BigEndian.PutUint32(other[52:], 1001)
	gate.Shut()
	first, err := port.Client(p.Addr("nfs")).Go(root)
	if err != nil {
		t.Fatal(err)
	}
	h.Eventually("the Call is at the server", func() bool { return s.Calls.Load() == 1 })
	second, err := port.Client(p.Addr("nfs")).Go(other)
	if err != nil {
		t.Fatal(err)
	}
	h.Eventually("the other user's Call is there, too", func() bool { return s.Calls.Load() == 2 })
	gate.Open()
	<-first
	<-second
	if _, err := port.Client(p.Addr("nfs")).Call(other); err != nil {
		t.Error(err)
	}
	if n := len(s.XIDs()); n != 2 {
		t.Errorf("the server saw %d XIDs, want one for each user", n)
	}
}
