package proxy_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// spoiledFrom is the file offset from which on a server spoils its Replies to READs.
const spoiledFrom = 1 << 40

// A spoiler is a TCP server that answers some READs with octets of the test's, and counts how often it did.
type spoiler struct {
	*proxytest.TCPServer
	spoilt  atomic.Int64
	replies sync.Map // of the offset: func(xid uint32) []byte
}

// spoil makes what write returns the answer to READs at an offset, and returns that offset.
func (s *spoiler) spoil(n int, write func(xid uint32) []byte) (offset uint64) {
	offset = spoiledFrom + uint64(n)
	s.replies.Store(offset, write)
	return offset
}

// spoiled is a proxy with one connection to a spoiler.
func spoiled(t *testing.T, change func(*proxytest.Harness, *settings.UpstreamOptions)) (*proxytest.Harness, *proxy.Proxy, *spoiler) {
	t.Helper()
	h := proxytest.NewHarness(t, budget)
	s := &spoiler{}
	s.TCPServer = h.TCPServer(proxytest.Behaviour{InterceptTCP: func(c *oncrpc.Call, from *proxytest.TCPConn) ([]byte, bool) {
		if c.Program != oncrpc.ProgramNFS || c.Procedure != 6 {
			return nil, false
		}
		args := c.Message[c.Args:]
		write, ok := s.replies.Load(binary.BigEndian.Uint64(args[len(args)-12:]))
		if !ok {
			return nil, false
		}
		s.spoilt.Add(1)
		from.SendRaw(write.(func(uint32) []byte)(c.XID))
		return nil, true
	}})
	uo := settings.UpstreamOptions{Name: "storage", Endpoints: []string{s.Addr()}, BackoffMin: 5 * time.Millisecond, BackoffMax: 50 * time.Millisecond}
	if change != nil {
		change(h, &uo)
	}
	p := h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage"}}, []settings.UpstreamOptions{uo})
	return h, p, s
}

// record is a record of the parts, each a fragment.
func record(parts ...[]byte) (b []byte) {
	for i, p := range parts {
		mark := uint32(len(p))
		if i == len(parts)-1 {
			mark |= 1 << 31
		}
		b = append(binary.BigEndian.AppendUint32(b, mark), p...)
	}
	return b
}

// fragmented is a record of m in fragments of n octets.
func fragmented(m []byte, n int) []byte { return record(slices.Collect(slices.Chunk(m, n))...) }

// neighbours are clients that call while another client's Replies are spoilt.
type neighbours struct {
	h       *proxytest.Harness
	calls   atomic.Int64
	stop    chan struct{}
	stopped sync.WaitGroup
}

// callOn has n clients make MKDIRs, which close their client's connection when they are lost.
func callOn(h *proxytest.Harness, addr string, n int) *neighbours {
	x := &neighbours{h: h, stop: make(chan struct{})}
	for i := range n {
		c := h.Client(addr)
		x.stopped.Go(func() {
			for xid := uint32(i)<<20 | 1; ; xid++ {
				select {
				case <-x.stop:
					return
				default:
				}
				m := proxytest.MkdirCall(xid, "d")
				if got, err := c.Call(m); err != nil || !bytes.Equal(got, proxytest.Expected(m)) {
					h.T.Errorf("neighbour %d: call %d: %v", i, xid, err)
					return
				}
				x.calls.Add(1)
			}
		})
	}
	return x
}

// goOn waits until the neighbours have had some more Calls answered.
func (x *neighbours) goOn() {
	x.h.T.Helper()
	n := x.calls.Load()
	x.h.Eventually("the neighbours are answered", func() bool { return x.calls.Load() >= n+20 || x.h.T.Failed() })
}

func (x *neighbours) end() {
	close(x.stop)
	x.stopped.Wait()
}

// TestSpoiltReplies: a Reply with a fault fails its own Call, which is not sent again. The connection goes on, and with it
// the Calls of all other clients.
func TestSpoiltReplies(t *testing.T) {
	t.Parallel()
	h, p, s := spoiled(t, nil)
	x := callOn(h, p.Addr("nfs"), 8)
	defer x.end()
	greedy := h.Client(p.Addr("nfs"))
	most := int(h.Registry.Limits().MaxReply) + 64<<10
	words := testkit.Words
	const count = 1122264
	for i, tt := range []struct {
		name   string
		write  func(xid uint32) []byte
		reason string
	}{
		{"READ of 1,122,264 octets, answered in full", func(xid uint32) []byte { return record(proxytest.ReadReply(xid, 0, count)) }, "too_long"},
		{"the same in fragments of 2 KiB", func(xid uint32) []byte { return fragmented(proxytest.ReadReply(xid, 0, count), 2<<10) }, "too_long"},
		{"an octet too long", func(xid uint32) []byte { return record(append(words(xid, 1, 0, 0, 0, 0), make([]byte, most-23)...)) }, "too_long"},
		{"twenty times too long", func(xid uint32) []byte { return record(append(words(xid, 1, 0, 0, 0, 0), make([]byte, 20*most)...)) }, "too_long"},
		{"too many octets of record marks", func(xid uint32) []byte { return slices.Concat(make([]byte, most), record(words(xid, 1, 0, 0, 0, 0))) }, "fragments"},
		{"an XID alone", func(xid uint32) []byte { return record(words(xid)) }, "too_short"},
		{"neither Call nor Reply", func(xid uint32) []byte { return record(words(xid, 2, 0, 0, 0, 0)) }, "malformed"},
		{"XID and type", func(xid uint32) []byte { return record(words(xid, 1)) }, "malformed"},
		{"neither accepted nor denied", func(xid uint32) []byte { return record(words(xid, 1, 2, 0, 0, 0)) }, "malformed"},
		{"verifier without end", func(xid uint32) []byte { return record(words(xid, 1, 0, 6, 0xfffffff0, 0)) }, "malformed"},
		{"denied for no reason", func(xid uint32) []byte { return record(words(xid, 1, 1, 9, 0)) }, "malformed"},
	} {
		offset := s.spoil(i, tt.write)
		refused := func() int {
			return metric(h, fmt.Sprintf(`upstream_tcp_refused_replies_total{reason="%s",upstream="storage"}`, tt.reason))
		}
		for again := range 3 {
			before, sent := refused(), s.spoilt.Load()
			xid := 1<<30 | uint32(i)<<8 | uint32(again)
			got, err := greedy.Call(proxytest.ReadCall(xid, offset, count))
			if want := oncrpc.AppendAccepted(nil, xid, oncrpc.SystemError); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("%s: answered %x, %v; want SYSTEM_ERR", tt.name, got[:min(len(got), 64)], err)
			}
			x.goOn()
			if n := s.spoilt.Load() - sent; n != 1 {
				t.Errorf("%s: the Call was sent %d times", tt.name, n)
			}
			if n := refused() - before; n != 1 {
				t.Errorf("%s: counted %d times for %s", tt.name, n, tt.reason)
			}
		}
	}
	allowed := proxytest.ReadReply(0, 0, 64<<10)
	offset := s.spoil(1000, func(xid uint32) []byte {
		return slices.Concat(make([]byte, 4*1100), fragmented(proxytest.WithXID(allowed, xid), 60))
	})
	if got, err := greedy.Call(proxytest.ReadCall(1<<31, offset, 64<<10)); err != nil || !bytes.Equal(got, proxytest.WithXID(allowed, 1<<31)) {
		t.Errorf("a Reply of thousands of fragments: %d octets, %v", len(got), err)
	}
	unspoiltConnection(h)
}

// unspoiltConnection checks that no connection to the upstream has ended, but to have its own source port again, and that no
// credit is lost.
func unspoiltConnection(h *proxytest.Harness) {
	h.T.Helper()
	if n := metric(h, `upstream_disconnects_total{`); n != 0 {
		h.T.Errorf("%d connections to the server have ended", n)
	}
	if n := metric(h, `upstream_leaked_credits_total{upstream="storage"}`); n != 0 {
		h.T.Errorf("%d credits are lost", n)
	}
}

// TestSpoiltMessages: a message that answers no Call is dropped, whatever is wrong with it.
func TestSpoiltMessages(t *testing.T) {
	t.Parallel()
	h, p, s := spoiled(t, nil)
	x := callOn(h, p.Addr("nfs"), 8)
	defer x.end()
	greedy := h.Client(p.Addr("nfs"))
	most := int(h.Registry.Limits().MaxReply) + 64<<10
	var spoilt []byte
	for n := range 5 {
		spoilt = append(spoilt, record(testkit.Pattern(n, 1))...)
	}
	for _, m := range [][]byte{
		testkit.Pattern(7, 2),
		append(testkit.Words(0xfeedfeed, 1), make([]byte, most)...),
		testkit.Words(0xfeedfeed, 1, 7),
		append(testkit.Words(0xfeedfeed, 0), make([]byte, most)...), // a reverse Call
	} {
		spoilt = append(spoilt, record(m)...)
	}
	offset := s.spoil(0, func(xid uint32) []byte {
		return append(bytes.Clone(spoilt), record(proxytest.ReadReply(xid, 0, 40))...)
	})
	for xid := range uint32(20) {
		if got, err := greedy.Call(proxytest.ReadCall(1<<30|xid, offset, 40)); err != nil || !bytes.Equal(got, proxytest.ReadReply(1<<30|xid, 0, 40)) {
			t.Fatalf("call %d behind the messages: %x, %v", xid, got, err)
		}
		x.goOn()
	}
	for reason, want := range map[string]int{"too_short": 20 * 6, "too_long": 20 * 2} {
		if n := metric(h, fmt.Sprintf(`upstream_tcp_refused_replies_total{reason="%s",upstream="storage"}`, reason)); n != want {
			t.Errorf("%d messages refused for %s, want %d", n, reason, want)
		}
	}
	unspoiltConnection(h)
}

// TestOutOfStep: octets that are no record marks end the connection, and the Calls on it are sent again on the next one. A
// Call that seems to be answered by them is not, so that it cannot end that one, too.
func TestOutOfStep(t *testing.T) {
	t.Parallel()
	h, p, s := spoiled(t, nil)
	c := h.Client(p.Addr("nfs"))
	once := s.spoil(1, func(xid uint32) []byte {
		if s.spoilt.Load() == 1 {
			return []byte("HTTP/1.1 400 Bad Request\r\n\r\n")
		}
		return record(proxytest.ReadReply(xid, spoiledFrom+1, 40))
	})
	check(t, c, proxytest.ReadCall(1, once, 40))
	if n := s.spoilt.Load(); n != 2 {
		t.Errorf("the Call was sent %d times, want 2", n)
	}
	// The record cannot be skipped, and its first octets name the Call.
	endless := s.spoil(2, func(xid uint32) []byte {
		return slices.Concat(testkit.Words(8, xid, 1, 1<<31-1), make([]byte, 100))
	})
	before := s.spoilt.Load()
	if got, err := c.Call(proxytest.ReadCall(2, endless, 40)); err != nil || !bytes.Equal(got, oncrpc.AppendAccepted(nil, 2, oncrpc.SystemError)) {
		t.Errorf("answered %x, %v; want SYSTEM_ERR", got, err)
	}
	check(t, c, proxytest.MkdirCall(3, "d"))
	if n := s.spoilt.Load() - before; n != 1 {
		t.Errorf("the Call was sent %d times, want 1", n)
	}
}

// TestLongExports: a list of exports that is longer than a Reply may be fails its own Call. With larger chunks.reply it is
// delivered.
func TestLongExports(t *testing.T) {
	t.Parallel()
	exports := append(testkit.Words(0, 1, 0, 0, 0, 0), testkit.Pattern(2<<20, 3)...)
	for _, most := range []uint32{0, 2<<20 + 8<<10} {
		h, p, s := spoiled(t, func(h *proxytest.Harness, _ *settings.UpstreamOptions) {
			h.Registry = ulb.NewRegistry(ulb.Limits{MaxReply: most})
			nfs.Register(h.Registry)
		})
		s.Intercept = func(c *oncrpc.Call) ([]byte, bool) {
			return proxytest.WithXID(exports, c.XID), c.Program == oncrpc.ProgramMount
		}
		c := h.Client(p.Addr("nfs"))
		m := proxytest.CallHeader(nil, 77, oncrpc.ProgramMount, 3, 5)
		want := proxytest.WithXID(exports, 77)
		if most == 0 {
			want = oncrpc.AppendAccepted(nil, 77, oncrpc.SystemError)
		}
		if got, err := c.Call(m); err != nil || !bytes.Equal(got, want) {
			t.Errorf("MaxReply %d: %d octets, %v; want %d", most, len(got), err, len(want))
		}
		check(t, c, proxytest.MkdirCall(78, "d"))
		unspoiltConnection(h)
	}
}

// TestSpoiltReplySigned: only the server can answer a Call under RPCSEC_GSS, so that its client is closed. Nobody else is.
func TestSpoiltReplySigned(t *testing.T) {
	t.Parallel()
	h, p, s := spoiled(t, nil)
	x := callOn(h, p.Addr("nfs"), 4)
	defer x.end()
	offset := s.spoil(0, func(xid uint32) []byte { return record(proxytest.ReadReply(xid, 0, 1122264)) })
	c := h.Client(p.Addr("nfs"))
	if got, err := c.Call(proxytest.GSSCall(proxytest.ReadCall(1, offset, 1122264), 1, 1)); err == nil {
		t.Errorf("answered %x", got[:24])
	}
	x.goOn()
	if n := s.spoilt.Load(); n != 1 {
		t.Errorf("the Call was sent %d times", n)
	}
	unspoiltConnection(h)
}

// TestEarlyReply: a server may answer a long Call by its first octets, before it has read the rest. The Reply waits until
// the message is sent, or until the connection has ended, and the Call is not sent again.
func TestEarlyReply(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		reply func(xid uint32) []byte
		ends  bool // the server reads no more, and ends the connection
	}{
		{"GARBAGE_ARGS", func(xid uint32) []byte { return oncrpc.AppendAccepted(nil, xid, oncrpc.GarbageArguments) }, false},
		{"GARBAGE_ARGS, and the end", func(xid uint32) []byte { return oncrpc.AppendAccepted(nil, xid, oncrpc.GarbageArguments) }, true},
		{"too long", func(xid uint32) []byte { return append(testkit.Words(xid, 1, 0, 0, 0, 0), make([]byte, 2<<20)...) }, false},
		{"malformed, and the end", func(xid uint32) []byte { return testkit.Words(xid, 1) }, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := proxytest.NewHarness(t, budget)
			var writes atomic.Int64
			s, err := proxytest.ServeTCP("127.0.0.1:0", func(c *proxytest.TCPConn) {
				_ = c.SetReadBuffer(128 << 10)
				for {
					head := make([]byte, 28)
					if _, err := io.ReadFull(c, head); err != nil {
						return
					}
					xid, procedure := binary.BigEndian.Uint32(head[4:]), binary.BigEndian.Uint32(head[24:])
					if procedure == 7 {
						writes.Add(1)
						c.Send(tt.reply(xid))
						if tt.ends {
							sent := 4 + 24 + 4 + len(tt.reply(xid)) // with the Reply to the first NULL Call
							h.Eventually("the Reply is read", func() bool {
								return metric(h, `upstream_tcp_received_bytes_total{upstream="storage"}`) >= sent
							})
							return
						}
					}
					if _, err := io.CopyN(io.Discard, c, int64(binary.BigEndian.Uint32(head)&^(1<<31))-24); err != nil {
						return
					}
					if procedure != 7 {
						c.Send(oncrpc.AppendAccepted(nil, xid, oncrpc.Success))
					}
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(s.Close)
			p := h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage"}},
				[]settings.UpstreamOptions{{Name: "storage", Endpoints: []string{s.Addr()}, BackoffMin: 5 * time.Millisecond, BackoffMax: 50 * time.Millisecond}})
			c := h.Client(p.Addr("nfs"))
			want := tt.reply(7)
			if binary.BigEndian.Uint32(want[4:]) != 1 || len(want) != 24 {
				want = oncrpc.AppendAccepted(nil, 7, oncrpc.SystemError)
			}
			if got, err := c.Call(proxytest.WriteCall(7, 0, 4<<20)); err != nil || !bytes.Equal(got, want) {
				t.Errorf("answered %x, %v; want %x", got, err, want)
			}
			if n := writes.Load(); n != 1 {
				t.Errorf("the Call was sent %d times", n)
			}
			null := proxytest.CallHeader(nil, 8, oncrpc.ProgramNFS, 3, 0)
			if got, err := c.Call(null); err != nil || !bytes.Equal(got, proxytest.Expected(null)) {
				t.Errorf("the next Call: %x, %v", got, err)
			}
			if cs := s.Conns(); !tt.ends && (len(cs) != 1 || cs[0].Number != 1) {
				t.Errorf("the first connection has ended; there are %d others", len(cs))
			}
		})
	}
}

// TestCallTooLongForServer: a server that ends the connection at the record mark of a long Call sees it a few times, not for as
// long as Calls may wait.
func TestCallTooLongForServer(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, budget)
	var ended atomic.Int64
	s, err := proxytest.ServeTCP("127.0.0.1:0", func(c *proxytest.TCPConn) {
		for {
			head := make([]byte, 28)
			if _, err := io.ReadFull(c, head); err != nil {
				return
			}
			n := int64(binary.BigEndian.Uint32(head) &^ (1 << 31))
			if n > 1<<20+4<<10 {
				ended.Add(1)
				return
			}
			if _, err := io.CopyN(io.Discard, c, n-24); err != nil {
				return
			}
			c.Send(oncrpc.AppendAccepted(nil, binary.BigEndian.Uint32(head[4:]), oncrpc.Success))
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	p := h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage"}},
		[]settings.UpstreamOptions{{Name: "storage", Endpoints: []string{s.Addr()}, BackoffMin: 5 * time.Millisecond, BackoffMax: 50 * time.Millisecond}})
	if got, err := h.Client(p.Addr("nfs")).Call(proxytest.WriteCall(7, 0, 4<<20)); err == nil {
		t.Errorf("answered %x", got)
	}
	if n := ended.Load(); n < 2 || n > 6 {
		t.Errorf("the server saw the Call %d times, want 2 to 6", n)
	}
}

// TestSpoiltRepliesRDMA: over RDMA, too, a Reply that does not fit or cannot be read fails its own Call, and the connection goes
// on.
func TestSpoiltRepliesRDMA(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, budget)
	var spoilt atomic.Int64
	p, s := forward(t, h, 32, proxytest.Behaviour{Intercept: func(c *oncrpc.Call) ([]byte, bool) {
		var reply []byte
		switch args := c.Message[c.Args:]; {
		case c.Program == oncrpc.ProgramMount:
			reply = append(testkit.Words(c.XID, 1, 0, 0, 0, 0), testkit.Pattern(2<<20, 3)...)
		case c.Program != oncrpc.ProgramNFS || c.Procedure != 6:
			return nil, false
		case binary.BigEndian.Uint64(args[len(args)-12:]) == spoiledFrom:
			reply = proxytest.ReadReply(c.XID, 0, 1122264) // the bridge asks for less
		case binary.BigEndian.Uint64(args[len(args)-12:]) == spoiledFrom+1:
			reply = testkit.Words(c.XID, 1, 2, 0, 0, 0) // neither accepted nor denied
		default:
			return nil, false
		}
		spoilt.Add(1)
		return reply, true
	}}, func(_ *settings.ListenerOptions, uo *settings.UpstreamOptions) { uo.Connections = 1 })
	x := callOn(h, p.Addr("nfs"), 8)
	defer x.end()
	greedy := h.Client(p.Addr("nfs"))
	for i, tt := range []struct {
		name string
		call []byte
		most int64 // times that it is sent; a Reply that does not fit may fit the largest Reply chunk
	}{
		{"READ of 1,122,264 octets, answered in full", proxytest.ReadCall(0, spoiledFrom, 1122264), 2},
		{"READ of 64 KiB, answered with more", proxytest.ReadCall(0, spoiledFrom, 64<<10), 2},
		{"EXPORT list of 2 MiB", proxytest.CallHeader(nil, 0, oncrpc.ProgramMount, 3, 5), 2},
		{"neither accepted nor denied", proxytest.ReadCall(0, spoiledFrom+1, 40), 1},
	} {
		for again := range 3 {
			sent := spoilt.Load()
			xid := 1<<30 | uint32(i)<<8 | uint32(again)
			got, err := greedy.Call(proxytest.WithXID(tt.call, xid))
			if want := oncrpc.AppendAccepted(nil, xid, oncrpc.SystemError); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("%s: answered %x, %v; want SYSTEM_ERR", tt.name, got[:min(len(got), 64)], err)
			}
			x.goOn()
			if n := spoilt.Load() - sent; n < 1 || n > tt.most {
				t.Errorf("%s: the Call was sent %d times, want at most %d", tt.name, n, tt.most)
			}
		}
	}
	if n := metric(h, `upstream_disconnects_total{`); n != 0 || s.Connections() != 1 {
		t.Errorf("%d connections have ended, %d are up", n, s.Connections())
	}
}

// TestReplyWithoutMemory: a Reply that has begun and gets no memory for the rest gives back what it has, and its Call is in
// limbo. The connection goes on.
func TestReplyWithoutMemory(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, budget, func(o *tcpframe.EngineOptions) { o.MemoryTimeout = time.Millisecond })
	var reads atomic.Int64
	begun, rest := make(chan int), make(chan struct{})
	s := h.TCPServer(proxytest.Behaviour{InterceptTCP: func(c *oncrpc.Call, from *proxytest.TCPConn) ([]byte, bool) {
		if c.Program != oncrpc.ProgramNFS || c.Procedure != 6 || reads.Add(1) > 1 {
			return nil, false
		}
		b := record(proxytest.ReadReply(c.XID, 7, 1<<20))
		from.SendRaw(b[:20<<10])
		begun <- 20 << 10
		<-rest
		from.SendRaw(b[20<<10:])
		return nil, true
	}})
	p := h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage"}},
		[]settings.UpstreamOptions{{Name: "storage", Endpoints: []string{s.Addr()}, BackoffMin: 5 * time.Millisecond, BackoffMax: 50 * time.Millisecond}})
	c := h.Client(p.Addr("nfs"))
	m := proxytest.ReadCall(1, 7, 1<<20)
	reply, err := c.Go(m)
	if err != nil {
		t.Fatal(err)
	}
	n := <-begun
	h.Eventually("the Reply has begun", func() bool { return metric(h, `upstream_tcp_received_bytes_total{upstream="storage"}`) >= n })
	release := p.HoldReplies()
	close(rest)
	h.Eventually("the Reply is given up", func() bool {
		return metric(h, `upstream_tcp_refused_replies_total{reason="memory",upstream="storage"}`) == 1
	})
	release()
	if got := <-reply; !bytes.Equal(got, proxytest.Expected(m)) {
		t.Errorf("answered with %d octets", len(got))
	}
	if n := reads.Load(); n != 2 {
		t.Errorf("the Call was sent %d times, want 2", n)
	}
	unspoiltConnection(h)
}

// TestSpoiltReplyLane: on a connection that NFSv4.1 clients share, too, only the client whose Reply is spoilt notices.
func TestSpoiltReplyLane(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, budget)
	const spoiltSequence = 0xbad
	s := h.TCPServer(proxytest.Behaviour{Intercept: func(c *oncrpc.Call) ([]byte, bool) {
		if c.Program != oncrpc.ProgramNFS || c.Version != 4 || c.Procedure != 1 {
			return nil, false
		}
		if !bytes.Contains(c.Message[c.Args:], testkit.Words(spoiltSequence)) {
			return nil, false
		}
		return append(testkit.Words(c.XID, 1, 0, 0, 0, 0), make([]byte, 2<<20)...), true
	}})
	p := h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage"}},
		[]settings.UpstreamOptions{{Name: "storage", Endpoints: []string{s.Addr()}, BackoffMin: 5 * time.Millisecond, BackoffMax: 50 * time.Millisecond}})
	greedy, other := h.Client(p.Addr("nfs")), h.Client(p.Addr("nfs"))
	sequence := func(xid, n uint32) []byte {
		return proxytest.CompoundCall(xid, 2, proxytest.Sequence([16]byte{1}, n, 1))
	}
	for xid := range uint32(5) {
		check(t, other, sequence(100+xid, 1+xid))
		if got, err := greedy.Call(sequence(xid, spoiltSequence)); err != nil || !bytes.Equal(got, oncrpc.AppendAccepted(nil, xid, oncrpc.SystemError)) {
			t.Fatalf("answered %x, %v; want SYSTEM_ERR", got, err)
		}
	}
	check(t, other, sequence(200, 99))
	if n := metric(h, `upstream_disconnects_total{`); n != 0 {
		t.Errorf("%d connections have ended", n)
	}
}
