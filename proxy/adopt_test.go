package proxy_test

import (
	"bytes"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

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

// TestAdoptedTwice: a Call goes from one client to the next and the next, RDMA
// and TCP, and every exchange and all memory come back.
func TestAdoptedTwice(t *testing.T) {
	for _, last := range []string{"rdma", "tcp"} {
		t.Run(last, func(t *testing.T) {
			h := proxytest.NewHarness(t, budget)
			release := make(chan struct{})
			tcp := h.TCPServer(proxytest.Behaviour{Intercept: func(*oncrpc.Call) ([]byte, bool) {
				<-release
				return nil, false
			}})
			rp := fabrictest.NewLoopback()
			p := h.Proxy([]proxy.ListenerOptions{
				{Name: "rdma", Address: "middle", RDMA: true, Provider: rp, Upstream: "tcp"},
				{Name: "tcp", Address: "127.0.0.1:0", Upstream: "tcp"},
			}, []proxy.UpstreamOptions{{Name: "tcp", Endpoints: []string{tcp.Addr()}}})
			acct := h.Arena.Account("test", 8<<20)
			leases := func() (n int) {
				for _, a := range p.Status().Memory.Accounts {
					if a.Name == "calls" || a.Name == "receives" {
						n += a.Leases
					}
				}
				return n
			}
			before := leases()
			loop := fabrictest.NewLoop()
			t.Cleanup(loop.Stop)
			m := proxytest.MkdirCall(99, "d")
			b, err := acct.Lease(len(m))
			if err != nil {
				t.Fatal(err)
			}
			defer b.Release()
			copy(b.Bytes(), m)
			send := func() (*rdmaside.Requester, answers) {
				t.Helper()
				r, err := rdmaside.DialRequester(t.Context(), rp, loop, "middle", proxytest.RequesterOptions(rdmaside.RequesterOptions{Memory: acct, Registry: h.Registry, Credits: 4, Log: zerolog.Nop()}), nil)
				if err != nil {
					t.Fatal(err)
				}
				o := make(answers, 1)
				c := &rdmaside.Call{XID: 99, Message: b.Bytes(), Owner: o}
				var hd oncrpc.Call
				if err := oncrpc.ParseCall(c.Message, &hd); err != nil {
					t.Fatal(err)
				}
				c.Binding = h.Registry.Analyse(&hd, &c.Analysis)
				loop.Do(func() {
					if err := r.Send(c); err != nil {
						t.Error(err)
					}
				})
				return r, o
			}
			_, first := send()
			h.Eventually("the Call is at the server", func() bool { return tcp.Calls.Load() == 1 })
			_, second := send()
			if err := <-first; err == nil {
				t.Error("answered on the first connection, which was to be closed")
			}
			if last == "rdma" {
				r, third := send()
				if err := <-second; err == nil {
					t.Error("answered on the second connection, which was to be closed")
				}
				close(release)
				if err := <-third; err != nil {
					t.Errorf("on the last connection: %v", err)
				}
				loop.Do(func() { r.Close(errors.New("test")) })
			} else {
				c := h.Client(p.Addr("tcp"))
				ch, err := c.Go(m)
				if err != nil {
					t.Fatal(err)
				}
				if err := <-second; err == nil {
					t.Error("answered on the second connection, which was to be closed")
				}
				close(release)
				if r := <-ch; !bytes.Equal(r, proxytest.Expected(m)) {
					t.Error("not answered on the last connection")
				}
				c.Close()
			}
			h.Eventually("all memory of Calls is back", func() bool { return leases() == before })
			if n := tcp.Calls.Load(); n != 1 {
				t.Errorf("the server ran it %d times", n)
			}
		})
	}
}
