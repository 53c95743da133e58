package proxy_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
)

// signedMix is Call i of a client of NFSv4.2 under RPCSEC_GSS, which writes 128 KiB once in sixteen Calls.
func signedMix(i uint32) []byte {
	ops := [][]byte{proxytest.Sequence([16]byte{1}, i, i%64)}
	if i%16 == 3 {
		write := append(testkit.Words(38), make([]byte, 16)...) // WRITE: stateid, offset, stability, data
		write = binary.BigEndian.AppendUint64(write, uint64(i))
		ops = append(ops, testkit.AppendOpaque(testkit.AppendWords(write, 2), testkit.Pattern(128<<10, i)))
	}
	return proxytest.GSSCall(proxytest.CompoundCall(i, 2, ops...), i, 1)
}

// TestLaneGSSWindow: the Calls of a GSS context arrive within the windows of servers, while others keep
// the lanes busy. If the client has several connections, these are on several lanes. Then the bridge
// reads the Calls in another order than the client has sent them, and all are answered.
func TestLaneGSSWindow(t *testing.T) {
	t.Parallel()
	const calls, depth = 600, 24
	for _, tt := range []struct{ lanes, connections int }{{1, 1}, {1, 4}, {4, 4}} {
		t.Run(fmt.Sprintf("%d lanes, %d connections", tt.lanes, tt.connections), func(t *testing.T) {
			eachBack(t, func(t *testing.T, rdma bool) {
				var w gssWindow
				x := newLaneBench(t, rdma, w.behaviour(), func(_ *settings.ListenerOptions, u *settings.UpstreamOptions) { u.Connections = tt.lanes })
				x.pour(1, 1, 2*tt.lanes, 8)
				var cs []*proxytest.Client
				for range tt.connections {
					cs = append(cs, x.from(2))
				}
				var replies sync.WaitGroup
				room := make(chan struct{}, depth)
				for i := uint32(1); i <= calls; i++ {
					room <- struct{}{}
					m := signedMix(i)
					ch, err := cs[int(i)%len(cs)].Go(m)
					if err != nil {
						t.Fatal(err)
					}
					replies.Go(func() {
						if r, ok := <-ch; !ok || !bytes.Equal(r, proxytest.Expected(m)) {
							t.Errorf("Call %d: %d octets, answered is %v", i, len(r), ok)
						}
						<-room
					})
				}
				replies.Wait()
				window := uint32(32)
				if tt.connections > 1 {
					window = calls
				}
				w.wantInside(t, calls, window)
			})
		})
	}
}

// TestLaneGSSWindowIsBounded: no more Calls of a context are outstanding than its window has, on all
// connections of its client together.
func TestLaneGSSWindowIsBounded(t *testing.T) {
	t.Parallel()
	eachBack(t, func(t *testing.T, rdma bool) {
		var gate proxytest.Gate
		x := newLaneBench(t, rdma, proxytest.Behaviour{Gate: &gate}, func(_ *settings.ListenerOptions, u *settings.UpstreamOptions) {
			u.GSSWindow, u.Connections = 8, 2
		})
		cs := []*proxytest.Client{x.from(1), x.from(1)}
		for i, c := range cs {
			check(t, c, proxytest.SequenceCall(uint32(i)+1)) // the grant rises
		}
		gate.Shut()
		defer gate.Open()
		before := x.calls()
		var all []<-chan []byte
		for i := range uint32(40) {
			ch, err := cs[i%2].Go(proxytest.GSSCall(proxytest.SequenceCall(i+1), i+1, 1))
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, ch)
		}
		x.Eventually("all are read", func() bool { return metric(x.Harness, `listener_received_calls_total{listener="nfs"}`) == 42 })
		x.Eventually("the window is full", func() bool { return x.calls() >= before+8 })
		other, err := cs[0].Go(proxytest.GSSCallOf("another context", proxytest.SequenceCall(100), 1, 1))
		if err != nil {
			t.Fatal(err)
		}
		x.Eventually("another context's Call is at the server", func() bool { return x.calls() >= before+9 })
		if n := x.calls() - before; n != 9 {
			t.Errorf("the server has %d Calls, want 8 of one context and 1 of another", n)
		}
		gate.Open()
		for i, ch := range append(all, other) {
			if _, ok := <-ch; !ok {
				t.Fatalf("Call %d has no Reply", i+1)
			}
		}
	})
}

// TestLaneSignedXIDs: two clients on one lane have the same XIDs, which are signed, at the same time.
// The second of two Calls waits until the first is answered, and none fails.
func TestLaneSignedXIDs(t *testing.T) {
	t.Parallel()
	const depth, calls = 16, 2000
	eachBack(t, func(t *testing.T, rdma bool) {
		var gate proxytest.Gate
		x := newLaneBench(t, rdma, proxytest.Behaviour{Gate: &gate}, nil)
		run := func(context string, host byte, first uint32) {
			c := x.from(host)
			var replies sync.WaitGroup
			room := make(chan struct{}, depth)
			for i := range uint32(calls) {
				room <- struct{}{}
				m := proxytest.GSSCallOf(context, proxytest.SequenceCall(first+i), i+1, 1)
				ch, err := c.Go(m)
				if err != nil {
					t.Error(err)
					return
				}
				replies.Go(func() {
					if r, ok := <-ch; !ok || !bytes.Equal(r, proxytest.Expected(m)) {
						t.Errorf("%s, Call %d: %d octets, answered is %v", context, i, len(r), ok)
					}
					<-room
				})
			}
			replies.Wait()
		}
		collided := func() int { return metric(x.Harness, "upstream_xid_collisions_total") }
		var took [2]time.Duration
		for round, apart := range []uint32{1 << 20, 0} {
			if apart == 0 {
				gate.Shut()
			}
			was, began := collided(), time.Now()
			var both sync.WaitGroup
			for k := range uint32(2) {
				both.Go(func() { run(fmt.Sprintf("context %d of %d", k, round), byte(1+k), uint32(round+1)<<24+k*apart) })
			}
			if apart == 0 {
				x.Eventually("XIDs are in use", func() bool { return collided() > was })
				gate.Open()
			}
			both.Wait()
			took[round] = time.Since(began)
			t.Logf("XIDs %d apart: %v, %d collisions", apart, took[round], collided()-was)
		}
		t.Logf("with the same XIDs the throughput is %.0f %%", 100*float64(took[0])/float64(took[1]))
	})
}

// TestLaneSignedClientGone: the Calls of a client that goes while they wait for their turn end, and
// those of its other connection with the same GSS context, on another lane, go on.
func TestLaneSignedClientGone(t *testing.T) {
	eachBack(t, func(t *testing.T, rdma bool) {
		var gate proxytest.Gate
		x := newLaneBench(t, rdma, proxytest.Behaviour{Gate: &gate}, func(_ *settings.ListenerOptions, u *settings.UpstreamOptions) { u.GSSWindow = 4 })
		a, b := x.from(1), x.from(1)
		check(t, a, proxytest.SequenceCall(1))
		check(t, b, proxytest.SequenceCall(2))
		leases := func() (n int) {
			for _, account := range x.p.Status(status.Query{}).Memory.Accounts {
				if account.Name == "calls" {
					n += account.Leases
				}
			}
			return n
		}
		before, received := leases(), metric(x.Harness, `listener_received_calls_total{listener="nfs"}`)
		gate.Shut()
		for i := range uint32(100) {
			if _, err := a.Go(signedMix(i + 1)); err != nil {
				t.Fatal(err)
			}
		}
		read := func() int { return metric(x.Harness, `listener_received_calls_total{listener="nfs"}`) - received }
		x.Eventually("all are read", func() bool { return read() == 100 })
		last, err := b.Go(signedMix(200))
		if err != nil {
			t.Fatal(err)
		}
		x.Eventually("the other connection's is read", func() bool { return read() == 101 })
		a.Close()
		x.Eventually("the Calls that wait have ended", func() bool { return leases() <= before+8 })
		gate.Open()
		if r, ok := <-last; !ok || len(r) == 0 {
			t.Error("the other connection has no Reply")
		}
		x.Eventually("all memory is back", func() bool { return leases() == before })
	})
}

// TestLanePrivateFirst: a COMPOUND that cannot be read, as the first Call of a connection, has the
// client on a lane, unless the client has spoken NFSv4.0.
func TestLanePrivateFirst(t *testing.T) {
	eachBack(t, func(t *testing.T, rdma bool) {
		x := newLaneBench(t, rdma, proxytest.Behaviour{Intercept: func(c *oncrpc.Call) ([]byte, bool) {
			return oncrpc.AppendAccepted(nil, c.XID, oncrpc.Success), c.Flavor == oncrpc.FlavorGSS
		}}, nil)
		onLanes := func() (n int) {
			for _, l := range x.p.Status(status.Query{Connections: true}).Upstreams[0].Connections {
				n += l.Clients
			}
			return n
		}
		private := func(c *proxytest.Client, xid uint32) {
			t.Helper()
			if _, err := c.Call(proxytest.GSSCall(proxytest.SequenceCall(xid), xid, 3)); err != nil {
				t.Fatal(err)
			}
		}
		old := x.from(1)
		check(t, old, proxytest.CompoundCall(1, 0))
		private(old, 2)
		if n := onLanes(); n != 0 {
			t.Errorf("%d clients are on a lane, one of which has spoken NFSv4.0", n)
		}
		private(x.from(2), 3)
		if n := onLanes(); n != 1 {
			t.Errorf("%d clients are on a lane, want the one whose first Call could not be read", n)
		}
	})
}

// TestLaneGSSAndShared: a host uses one GSS context on two connections, of which one is on a lane. While the lane has a
// Call of the context outstanding, those of the other connection stay on the shared connection that is theirs.
func TestLaneGSSAndShared(t *testing.T) {
	const hosts = 8
	var mu sync.Mutex
	var held []func()
	from := make(map[uint32]string) // XIDs of GETATTRs to the connections that they came on
	x := newLaneBench(t, false, proxytest.Behaviour{InterceptTCP: func(c *oncrpc.Call, on *proxytest.TCPConn) ([]byte, bool) {
		mu.Lock()
		defer mu.Unlock()
		if c.Version == 3 {
			from[c.XID] = on.RemoteAddr().String()
			return nil, false
		}
		reply := proxytest.Expected(c.Message)
		held = append(held, func() { on.Send(reply) })
		return nil, true
	}}, func(_ *settings.ListenerOptions, u *settings.UpstreamOptions) { u.Connections = 4 })
	used := make(map[string]bool)
	for host := byte(1); host <= hosts; host++ {
		shared, lane := x.from(host), x.from(host)
		context, xid := fmt.Sprint("context ", host), uint32(host)<<8
		call := func(n uint32) string {
			t.Helper()
			if _, err := shared.Call(proxytest.GSSCallOf(context, proxytest.GetattrCall(xid+n), n, 1)); err != nil {
				t.Fatal(err)
			}
			mu.Lock()
			defer mu.Unlock()
			return from[xid+n]
		}
		alone := call(1)
		before := func() int { mu.Lock(); defer mu.Unlock(); return len(held) }()
		reply, err := lane.Go(proxytest.GSSCallOf(context, proxytest.SequenceCall(xid+2), 2, 1))
		if err != nil {
			t.Fatal(err)
		}
		x.Eventually("the lane's Call is at the server", func() bool { mu.Lock(); defer mu.Unlock(); return len(held) > before })
		if with := call(3); with != alone {
			t.Errorf("host %d: while its lane has a Call, another came on %s, before on %s", host, with, alone)
		}
		used[alone] = true
		mu.Lock()
		held[len(held)-1]()
		mu.Unlock()
		if _, ok := <-reply; !ok {
			t.Errorf("host %d: the lane's Call has no Reply", host)
		}
	}
	if len(used) < 2 {
		t.Errorf("the shared connections that the hosts used: %v", used)
	}
}
