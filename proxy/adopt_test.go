package proxy_test

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy"
	"github.com/rdmabridge/rdmabridge/rdmaside"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
)

// TestRetransmissionBeforeTheEndIsSeen: a client that may have no more Calls
// under way is not read from, so its FIN is not seen. What it sends again on its
// next connection is executed once all the same, and the old one is closed.
func TestRetransmissionBeforeTheEndIsSeen(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, budget)
	release := make(chan struct{})
	tcp := h.TCPServer(proxytest.Behaviour{Intercept: func(*oncrpc.Call) ([]byte, bool) {
		<-release
		return nil, false
	}})
	p := h.Proxy([]proxy.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "tcp", MaxCalls: 1}},
		[]proxy.UpstreamOptions{{Name: "tcp", Endpoints: []string{tcp.Addr()}}})
	m := proxytest.MkdirCall(77, "once")
	a := h.Client(p.Addr("nfs"))
	first, err := a.Go(m)
	if err != nil {
		t.Fatal(err)
	}
	h.Eventually("the Call is at the server", func() bool { return tcp.Calls.Load() == 1 })
	b := h.Client(p.Addr("nfs")) // the first connection is as alive as can be seen
	second, err := b.Go(m)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := <-first; ok {
		t.Error("the Call was answered on the first connection, which was to be closed")
	}
	close(release)
	if r := <-second; !bytes.Equal(r, proxytest.Expected(m)) {
		t.Error("the Call was not answered on the connection it came on last")
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
	var mkdirs atomic.Int64
	var xids sync.Map
	p, _ := forward(t, h, 64, proxytest.Behaviour{Delay: 100 * time.Millisecond, Intercept: func(c *oncrpc.Call) ([]byte, bool) {
		if c.Procedure == 9 {
			mkdirs.Add(1)
			xids.Store(c.XID, nil)
		}
		return nil, false
	}}, nil)
	const rounds = 60
	var wg sync.WaitGroup
	for i := range uint32(rounds) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			m := proxytest.MkdirCall(0x70000000+i, "x")
			a := h.Client(p.Addr("nfs"))
			_, err := a.Go(m)
			if err != nil {
				t.Error(err)
			}
			for mkdirs.Load() == 0 {
				time.Sleep(time.Millisecond)
			}
			a.Close()
			// The loop of a may read the Call after that of the next connection has, and
			// then the Call is a's, and the next connection is closed.
			var got []byte
			for range 10 {
				if got, err = h.Client(p.Addr("nfs")).Call(m); err == nil {
					break
				}
			}
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

// An adoption is one Call that clients send again on connection after connection while the
// server does not answer.
type adoption struct {
	*proxytest.Harness
	p        *proxy.Proxy
	server   *proxytest.TCPServer
	release  chan struct{} // closed when the server may answer
	provider *fabrictest.Loopback
	loop     *fabrictest.Loop // the clients'
	acct     *regmem.Account
}

func newAdoption(t *testing.T) *adoption {
	t.Helper()
	x := &adoption{Harness: proxytest.NewHarness(t, budget), release: make(chan struct{}), provider: fabrictest.NewLoopback(), loop: fabrictest.NewLoop()}
	t.Cleanup(x.loop.Stop)
	x.server = x.TCPServer(proxytest.Behaviour{Intercept: func(*oncrpc.Call) ([]byte, bool) {
		<-x.release
		return nil, false
	}})
	x.p = x.Proxy([]proxy.ListenerOptions{
		{Name: "rdma", Address: "middle", RDMA: true, Provider: x.provider, Upstream: "tcp"},
		{Name: "tcp", Address: "127.0.0.1:0", Upstream: "tcp"},
	}, []proxy.UpstreamOptions{{Name: "tcp", Endpoints: []string{x.server.Addr()}}})
	x.acct = x.Arena.Account("test", 8<<20)
	return x
}

// leases counts the leases of Calls and Receives.
func (x *adoption) leases() (n int) {
	for _, a := range x.p.Status().Memory.Accounts {
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
func (x *adoption) send(t *testing.T, transport string, m []byte) attempt {
	t.Helper()
	if transport == "tcp" {
		c := x.Client(x.p.Addr("tcp"))
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

// TestAdoptedTwice: a Call goes from one connection to the next and the next, over every
// sequence of transports. However it ends, only the last connection learns of that, and every
// Exchange and all memory come back.
func TestAdoptedTwice(t *testing.T) {
	transports := []string{"rdma", "tcp"}
	for _, a := range transports {
		for _, b := range transports {
			for _, c := range transports {
				t.Run(a+" "+b+" "+c, func(t *testing.T) {
					t.Run("answered", func(t *testing.T) {
						t.Parallel()
						adoptTwice(t, a, b, c, func(x *adoption, last attempt) {
							close(x.release)
							if err := <-last.done; err != nil {
								t.Errorf("on the last connection: %v", err)
							}
						})
					})
					t.Run("client gone", func(t *testing.T) {
						t.Parallel()
						adoptTwice(t, a, b, c, func(x *adoption, last attempt) {
							last.close()
							<-last.done
							close(x.release)
						})
					})
					t.Run("server gone", func(t *testing.T) {
						t.Parallel()
						adoptTwice(t, a, b, c, func(x *adoption, last attempt) {
							x.server.DropConnections()
							if err := <-last.done; err == nil {
								t.Error("a Call that may not be repeated was answered")
							}
							close(x.release)
						})
					})
				})
			}
		}
	}
}

// adoptTwice sends a Call over three transports, and ends it with end.
func adoptTwice(t *testing.T, a, b, c string, end func(x *adoption, last attempt)) {
	x := newAdoption(t)
	before := x.leases()
	m := proxytest.MkdirCall(99, "d")
	first := x.send(t, a, m)
	x.Eventually("the Call is at the server", func() bool { return x.server.Calls.Load() == 1 })
	second := x.send(t, b, m)
	if err := <-first.done; err == nil {
		t.Error("answered on the first connection, which was to be closed")
	}
	last := x.send(t, c, m)
	if err := <-second.done; err == nil {
		t.Error("answered on the second connection, which was to be closed")
	}
	end(x, last)
	last.close()
	x.Eventually("all memory of Calls is back", func() bool { return x.leases() == before })
	if n := x.server.Calls.Load(); n != 1 {
		t.Errorf("the server ran it %d times", n)
	}
}
