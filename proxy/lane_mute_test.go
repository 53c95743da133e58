package proxy_test

import (
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
)

// A muteLane is a bridge with two lanes, one of which has a connection that works, and a server that
// answers nothing on further connections.
type muteLane struct {
	*proxytest.Harness
	p      *proxy.Proxy
	mute   atomic.Bool   // the server does not answer on connections that come now
	opened chan struct{} // closed when it answers on them, too
	shut   bool          // it ends them instead
	muted  atomic.Int64  // how many there were
}

// newMuteLane makes a muteLane. timeout is UpstreamOptions.ConnectTimeout.
func newMuteLane(t *testing.T, timeout time.Duration, shut bool) *muteLane {
	t.Helper()
	x := &muteLane{Harness: proxytest.NewHarness(t, budget), opened: make(chan struct{}), shut: shut}
	s := x.TCPServer(proxytest.Behaviour{})
	f, err := proxytest.ServeTCP("127.0.0.1:0", func(c *proxytest.TCPConn) { x.serve(c, s.Addr()) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	t.Cleanup(func() {
		if x.mute.Swap(false) {
			close(x.opened)
		}
	})
	x.p = x.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage"}}, []settings.UpstreamOptions{{
		Name: "storage", Endpoints: []string{f.Addr()}, Connections: 2, ConnectTimeout: timeout, UnavailableAfter: testkit.Patience,
		BackoffMin: 5 * time.Millisecond, BackoffMax: 50 * time.Millisecond,
	}})
	x.Eventually("the shared connections are there", func() bool { return x.p.Status(status.Query{}).Upstreams[0].Usable == 2 })
	check(t, x.client(), proxytest.SequenceCall(1))
	x.mute.Store(true)
	return x
}

// serve connects c with the server at addr.
func (x *muteLane) serve(c *proxytest.TCPConn, addr string) {
	if x.mute.Load() {
		x.muted.Add(1)
		if x.shut {
			_, _ = testkit.ReadRecord(c)
			return
		}
		<-x.opened
	}
	to, err := net.Dial("tcp", addr)
	if err != nil {
		return
	}
	go func() {
		_, _ = io.Copy(c, to)
		c.Close()
	}()
	_, _ = io.Copy(to, c)
	to.Close()
}

func (x *muteLane) client() *proxytest.Client { return x.Client(x.p.Addr("nfs")) }

// lanes are how many clients each lane has.
func (x *muteLane) lanes() (clients []int) {
	for _, c := range x.p.Status(status.Query{Connections: true}).Upstreams[0].Connections {
		if c.Kind == "lane" {
			clients = append(clients, c.Clients)
		}
	}
	return clients
}

// waits has a client send a Call that goes to the lane whose server does not answer.
func (x *muteLane) waits() <-chan []byte {
	x.T.Helper()
	ch, err := x.client().Go(proxytest.SequenceCall(2))
	if err != nil {
		x.T.Fatal(err)
	}
	x.Eventually("the lane is connected", func() bool { return x.muted.Load() > 0 })
	return ch
}

// closed waits until the connection of the client that waits has been closed.
func (x *muteLane) closed(ch <-chan []byte) {
	x.T.Helper()
	select {
	case _, ok := <-ch:
		if ok {
			x.T.Fatal("the Call of the client that waits was answered")
		}
	case <-time.After(testkit.Patience):
		x.T.Fatal("the client waits, although another lane works")
	}
}

// TestMuteLane: clients are assigned to no lane on whose connection the server does not answer while it does
// on another one. A client that waits there goes to another lane, not before the server has had
// ConnectTimeout to answer. When it answers, the lane has clients again.
func TestMuteLane(t *testing.T) {
	t.Parallel()
	const timeout = 3 * time.Second
	x := newMuteLane(t, timeout, false)
	began := time.Now()
	ch := x.waits()
	x.Eventually("the lane does not look like one that is just being connected", func() bool { return x.p.LanesWaiting() == 1 })
	for range 8 {
		if check(t, x.client(), proxytest.SequenceCall(3)); t.Failed() {
			return
		}
	}
	x.closed(ch)
	if d := time.Since(began); d < timeout {
		t.Errorf("the client was closed after %v", d)
	}
	if n := x.muted.Load(); n != 1 {
		t.Errorf("%d connections to a server of one address, which is slow to answer; want 1", n)
	}
	check(t, x.client(), proxytest.SequenceCall(4)) // the client comes back
	x.mute.Store(false)
	close(x.opened)
	x.Eventually("the lane has clients again", func() bool {
		check(t, x.client(), proxytest.SequenceCall(5))
		all := x.lanes()
		return len(all) == 2 && all[0] > 0 && all[1] > 0
	})
}

// TestShutLane: the same where the server ends each connection. The client that waits goes to another lane
// at once.
func TestShutLane(t *testing.T) {
	t.Parallel()
	x := newMuteLane(t, testkit.Patience, true)
	x.closed(x.waits())
	tried := x.muted.Load()
	for range 8 {
		if check(t, x.client(), proxytest.SequenceCall(3)); t.Failed() {
			return
		}
	}
	x.Eventually("the lane is tried again, although it has no client", func() bool { return x.muted.Load() > tried+2 })
	x.mute.Store(false)
	x.Eventually("the lane has clients again", func() bool {
		check(t, x.client(), proxytest.SequenceCall(5))
		all := x.lanes()
		return len(all) == 2 && all[0] > 0 && all[1] > 0
	})
}
