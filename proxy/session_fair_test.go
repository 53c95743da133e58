package proxy_test

import (
	"encoding/binary"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
)

// makesSessions answers each CREATE_SESSION with a session of its own, which has a back channel. n counts them.
func makesSessions(n *atomic.Uint32) func(*oncrpc.Call) ([]byte, bool) {
	return func(c *oncrpc.Call) ([]byte, bool) {
		if args := c.Message[c.Args:]; len(args) < 16 || binary.BigEndian.Uint32(args[12:]) != 43 {
			return nil, false
		}
		r := testkit.Words(c.XID, 1, 0, 0, 0, 0, 0, 0, 1, 43, 0)
		r = append(r, testkit.Words(0x5e551011, n.Add(1), 0, 0, 1, 2)...)
		for range 2 {
			r = append(r, testkit.Words(0, 1<<20, 16<<10, 4096, 16, 64, 0)...)
		}
		return r, true
	}
}

// createSessionCall is a COMPOUND with CREATE_SESSION.
func createSessionCall(xid uint32) []byte {
	create := testkit.Words(43, 0, 0, 1, 3)
	for range 2 {
		create = append(create, testkit.Words(0, 1<<20, 1<<20, 4096, 16, 64, 0)...)
	}
	return proxytest.CompoundCall(xid, 1, append(create, testkit.Words(0x40000000, 0)...))
}

// TestSessionTableNeighbours: a host that makes sessions without end takes the places of its own, and no other
// host loses its connection.
func TestSessionTableNeighbours(t *testing.T) {
	const most, neighbours, under, flood = 40, 20, 100, 2000
	var made atomic.Uint32
	x := newLaneBench(t, false, proxytest.Behaviour{Intercept: makesSessions(&made)}, nil)
	x.p.SetMaxSessions(most)
	var all []*proxytest.Client
	for i := range byte(neighbours) {
		c := x.from(i + 1)
		if r, err := c.Call(createSessionCall(1)); err != nil || len(r) < 100 {
			t.Fatalf("CREATE_SESSION: %d octets, %v", len(r), err)
		}
		all = append(all, c)
	}
	var wg sync.WaitGroup
	for range under {
		wg.Go(func() {
			for made.Load() < flood {
				c, err := proxytest.DialClientFrom(net.IPv4(127, 0, 9, 200), x.p.Addr("nfs"))
				if err != nil {
					t.Error(err)
					return
				}
				for xid := uint32(1); err == nil && made.Load() < flood; xid++ {
					_, err = c.Call(createSessionCall(xid)) // ends when the bridge closes the connection
				}
				c.Close()
			}
		})
	}
	wg.Wait()
	lost := 0
	for i, c := range all {
		if _, err := c.Call(sessionCall(byte(i+1), 2)); err != nil {
			lost++
		}
	}
	if lost > 0 {
		t.Errorf("%d of %d neighbours lost their connection", lost, neighbours)
	}
	if n := metric(x.Harness, "upstream_evicted_sessions_total"); n < flood-2*most || n > int(made.Load()) {
		t.Errorf("%d sessions are counted as forgotten, of %d", n, made.Load())
	}
	if n := metric(x.Harness, "upstream_sessions"); n > most {
		t.Errorf("%d sessions are known, want at most %d", n, most)
	}
}

// TestSessionBoundsNeighbours: while a host makes sessions without end, the limits of another host's session bound
// the Reply chunks of its Calls.
func TestSessionBoundsNeighbours(t *testing.T) {
	t.Parallel()
	const most = 8
	var made atomic.Uint32
	create := makesSessions(&made)
	long := make([]byte, 40<<10)
	x := newPinning(t, budget, proxytest.Behaviour{Intercept: func(c *oncrpc.Call) ([]byte, bool) {
		if r, ok := create(c); ok {
			return r, true
		}
		if len(c.Message[c.Args:]) > 48 { // GETATTR
			return append(testkit.Words(c.XID, 1, 0, 0, 0, 0, 0, uint32(len(long))), long...), true
		}
		return nil, false
	}}, nil)
	x.p.SetMaxSessions(most)
	from := func(host byte, n int) *proxytest.Client {
		c, err := proxytest.DialClientFrom(net.IPv4(127, 0, 9, host), x.p.Addr("nfs"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		for xid := range n {
			if r, err := c.Call(createSessionCall(uint32(xid + 1))); err != nil || len(r) < 100 {
				t.Fatalf("CREATE_SESSION: %d octets, %v", len(r), err)
			}
		}
		return c
	}
	c := from(1, 1)
	from(2, 10*most)
	id := [16]byte(testkit.Words(0x5e551011, 1, 0, 0))
	acl := append(testkit.Words(9, 1), testkit.Words(1<<12)...)
	// 40 KiB do not fit a Reply chunk for the 16 KiB of the session.
	r, err := c.Call(proxytest.CompoundCall(100, 1, proxytest.Sequence(id, 1, 0), testkit.Words(24), acl))
	if err != nil || len(r) != 24 || binary.BigEndian.Uint32(r[20:]) != oncrpc.SystemError {
		t.Errorf("a Reply beyond what the session allows: %d octets, %v; want SYSTEM_ERR", len(r), err)
	}
}
