package proxy_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"sync/atomic"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp/iwarptest"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// A liar is a server over RDMA that says it has written more octets to the memory of the bridge
// than it has. It answers all Calls but READ and echo as it should.
type liar struct {
	loop  loop.Loop
	l     fabric.Listener
	conns atomic.Int64
}

// A lie is what the liar writes of a chunk of n octets that it says is full, in order: each
// element is the octets [0] to [1].
type lie struct {
	name   string
	writes func(n int) [][2]int
}

var lies = []lie{
	{"nothing is written", func(int) [][2]int { return nil }},
	{"the first half is written", func(n int) [][2]int { return [][2]int{{0, n / 2}} }},
	{"all but the last unit is written", func(n int) [][2]int { return [][2]int{{0, n - 4}} }},
	{"the first octet is not written", func(n int) [][2]int { return [][2]int{{1, n}} }},
	{"there is a hole", func(n int) [][2]int { return [][2]int{{0, n / 4}, {n/4 + 1, n}} }},
	{"the end comes first, and there is a hole", func(n int) [][2]int { return [][2]int{{n / 2, n}, {0, n/2 - 8}} }},
	{"the start is written twice", func(n int) [][2]int { return [][2]int{{0, n / 3}, {n / 4, n / 2}, {0, n / 3}} }},
}

func listenLiar(t testing.TB, p fabric.Provider, on loop.Loop, addr string) *liar {
	t.Helper()
	x := &liar{loop: on}
	var err error
	x.l, err = p.Listen(addr, fabrictest.NoLimits(), func(in fabric.Incoming) {
		x.conns.Add(1)
		_, _ = in.Accept(context.Background(), on, fabric.ConnOptions{
			Receives:    64,
			PrivateData: rpcrdma.AppendPrivateData(nil, rpcrdma.PrivateData{RemoteInvalidation: true, SendSize: 4096, RecvSize: 4096}),
		}, &liarConn{})
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.l.Close() })
	return x
}

// A liarConn is one connection of a liar. It belongs to its loop.
type liarConn struct {
	conn   fabric.Conn
	bufs   [64][]byte
	header rpcrdma.Header
	next   int // of lies
}

func (c *liarConn) Setup(conn fabric.Conn) error {
	c.conn = conn
	for i := range c.bufs {
		c.bufs[i] = make([]byte, 4096)
		if err := conn.PostReceive(uint64(i)+1, c.bufs[i]); err != nil {
			return err
		}
	}
	return nil
}

func (c *liarConn) Closed(error) {}

func (c *liarConn) Completed(cs []fabric.Completion) {
	for i := range cs {
		if p := &cs[i]; p.Op == fabric.OpReceive && p.Err == nil {
			m := bytes.Clone(c.bufs[p.ID-1][:p.Bytes])
			_ = c.conn.PostReceive(p.ID, c.bufs[p.ID-1])
			c.call(m)
		}
	}
	c.conn.Flush()
}

// call answers the Call in the message m.
func (c *liarConn) call(m []byte) {
	h := &c.header
	n, err := h.Decode(m)
	if err != nil {
		panic(err)
	}
	want := proxytest.Expected(m[n:])
	var r rpcrdma.Header
	r.Reset(h.XID, 32, rpcrdma.Msg)
	var inv fabric.Handle
	switch {
	case len(h.Writes) == 1 && bytes.Contains(m[n:], beyondEnd):
		want = endOfFile(h.XID)
		r.AddWrite() // as old Linux servers do
	case len(h.Writes) == 1:
		s := h.Writes[0].Segments[0]
		data := want[proxytest.ReadData:]
		c.lie(s, len(data), 0)
		s.Length = uint32(len(data))
		r.AddWrite(s)
		inv, want = fabric.Handle(s.Handle), want[:proxytest.ReadData]
	case h.Reply != nil:
		s := h.Reply.Segments[0]
		head := proxytest.ReadData / 2 &^ 3 // so much of the Reply is really written
		c.write(s, 0, want[:head])
		c.lie(s, len(want), head)
		left := uint32(len(want))
		segments := h.Reply.Segments // parts of one region, one after the other
		for i := range segments {
			segments[i].Length = min(segments[i].Length, left)
			left -= segments[i].Length
		}
		r.Proc = rpcrdma.NoMsg
		r.SetReply(segments...)
		inv, want = fabric.Handle(s.Handle), nil
	}
	if c.next%2 == 0 {
		inv = 0
	}
	_ = c.conn.PostSend(0, fabric.Send{Parts: [][]byte{r.Append(nil), want}, Invalidate: inv})
}

// beyondEnd is the offset of a READ behind the end of the file.
var beyondEnd = bytes.Repeat([]byte{0xff}, 8)

// endOfFile is the Reply to such a READ: no data.
func endOfFile(xid uint32) []byte {
	b := testkit.Words(xid, 1, 0, 0, 0, 0, 0, 1)
	return append(append(b, make([]byte, 84)...), testkit.Words(0, 1, 0)...)
}

// lie writes the zeros that the next lie has of the octets from to n of s.
func (c *liarConn) lie(s rpcrdma.Segment, n, from int) {
	l := lies[c.next%len(lies)]
	c.next++
	for _, w := range l.writes(n - from) {
		c.write(s, from+w[0], make([]byte, w[1]-w[0]))
	}
}

func (c *liarConn) write(s rpcrdma.Segment, at int, b []byte) {
	_ = c.conn.PostWrite(0, fabric.Write{Parts: [][]byte{b}, To: fabric.Region{Handle: fabric.Handle(s.Handle), Offset: s.Offset + uint64(at), Length: uint32(len(b))}})
}

// A blind provider cannot tell what its peers have written.
type blind struct{ fabric.Provider }

func (p blind) Dial(ctx context.Context, on loop.Loop, addr string, o fabric.ConnOptions, h fabric.Handler) (fabric.Conn, error) {
	return p.Provider.Dial(ctx, on, addr, o, blindHandler{h})
}

type blindHandler struct{ fabric.Handler }

func (h blindHandler) Setup(c fabric.Conn) error {
	return h.Handler.Setup(struct{ fabric.Conn }{c})
}

// TestNothingStale checks that a client whose server lies gets no octet of the memory that other
// clients' Replies were in: not of clients of another listener and upstream, and whatever the
// provider knows. The server's connection stays for its other Calls.
func TestNothingStale(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		open func(t *testing.T) (honest, liar fabric.Provider, on loop.Loop, addr string)
	}{
		{"iwarp", func(t *testing.T) (_, _ fabric.Provider, on loop.Loop, addr string) {
			l := iwarptest.NewLoop()
			t.Cleanup(l.Stop)
			p := proxytest.IWARP(iwarp.Options{})
			return p, p, l, "127.0.0.1:0"
		}},
		{"in memory", func(t *testing.T) (_, _ fabric.Provider, on loop.Loop, addr string) {
			l := fabrictest.NewLoop()
			t.Cleanup(l.Stop)
			p := fabrictest.NewLoopback()
			return p, p, l, ":0"
		}},
		{"blind", func(t *testing.T) (_, _ fabric.Provider, on loop.Loop, addr string) {
			l := fabrictest.NewLoop()
			t.Cleanup(l.Stop)
			p := fabrictest.NewLoopback()
			return p, blind{p}, l, ":0"
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			honest, lying, on, addr := tt.open(t)
			_, isBlind := lying.(blind)
			h := proxytest.NewHarness(t, budget)
			s := h.RDMAServer(honest, []loop.Loop{on}, addr, 32, proxytest.Behaviour{})
			server := lying
			if isBlind {
				server = honest
			}
			x := listenLiar(t, server, on, addr)
			p := h.Proxy([]settings.ListenerOptions{
				{Name: "a", Address: "127.0.0.1:0", Upstream: "a"}, {Name: "b", Address: "127.0.0.1:0", Upstream: "b"},
			}, []settings.UpstreamOptions{
				{Name: "a", RDMA: true, Provider: honest, Endpoints: []string{s.Addr()}, Connections: 2},
				{Name: "b", RDMA: true, Provider: lying, Endpoints: []string{x.l.Addr().String()}, Connections: 1},
			})
			a, b, innocent := h.Client(p.Addr("a")), h.Client(p.Addr("b")), h.Client(p.Addr("b"))
			check(t, innocent, proxytest.GetattrCall(1))
			conns := x.conns.Load()
			xid := uint32(100)
			for range 2 * len(lies) {
				for _, n := range []int{6000, 64 << 10, 1 << 20} {
					// The data are patterns without zeros in a row.
					xid += 8
					check(t, a, proxytest.ReadCall(xid, uint64(xid), uint32(n)))
					check(t, a, proxytest.EchoCall(xid+1, 10, n, 0))
					lied(t, b, proxytest.ReadCall(xid+2, uint64(xid), uint32(n)), proxytest.ReadData, isBlind)
					lied(t, b, proxytest.EchoCall(xid+3, 10, n, 0), proxytest.ReadData/2&^3, isBlind)
					check(t, innocent, proxytest.GetattrCall(xid+4))
					if r, err := innocent.Call(proxytest.ReadCall(xid+5, 1<<64-1, uint32(n))); err != nil || !bytes.Equal(r, endOfFile(xid+5)) {
						t.Fatalf("a READ behind the end, answered with an empty Write chunk: %x, %v", r, err)
					}
				}
			}
			if n := x.conns.Load(); n != conns {
				t.Errorf("%d connections were made to the server that lies, want %d", n, conns)
			}
			if n := metric(h, `upstream_rdma_refused_replies_total{reason="unwritten",upstream="b"}`); !isBlind && n != 12*len(lies) {
				t.Errorf("%d Replies were refused, want all %d", n, 12*len(lies))
			}
		})
	}
}

// lied makes the Call m to the liar, of whose Reply the octets from at on are lies: zeros, or
// nothing at all.
func lied(t *testing.T, c *proxytest.Client, m []byte, at int, cleared bool) {
	t.Helper()
	r, err := c.Call(m)
	if err != nil {
		t.Fatal(err)
	}
	if !cleared {
		if want := oncrpc.AppendAccepted(nil, binary.BigEndian.Uint32(m), oncrpc.SystemError); !bytes.Equal(r, want) {
			t.Fatalf("%d octets, want SYSTEM_ERR: %x", len(r), r[:min(len(r), 200)])
		}
		return
	}
	for i, v := range r[at:] {
		if v != 0 {
			t.Fatalf("octet %d of %d is %#x, which the server never wrote", at+i, len(r), v)
		}
	}
}
