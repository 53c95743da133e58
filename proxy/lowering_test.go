package proxy_test

import (
	"bytes"
	"encoding/binary"
	"sync"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
)

// What the paths of these tests carry: the data of one READ, which is the default of ulb.Limits, the data of one
// WRITE, and in a session whole Calls and Replies.
const (
	pathRead   = 1 << 20
	pathRecord = 256 << 10
	pathWrite  = pathRecord - 8<<10
	pathCall   = pathRecord - 412
	pathReply  = pathRead + 8<<10 - 412
)

// eachPath runs f with a client of each transport and a server of each transport, which behaves like b. Calls have
// at most record octets.
func eachPath(t *testing.T, h *proxytest.Harness, record int, b proxytest.Behaviour, f func(t *testing.T, dial func() caller)) {
	l := fabrictest.NewLoop()
	t.Cleanup(l.Stop)
	lp := fabrictest.NewLoopback()
	h.RDMAServer(lp, []loop.Loop{l}, "storage", 32, b)
	us := []settings.UpstreamOptions{
		{Name: "tcp", Endpoints: []string{h.TCPServer(b).Addr()}},
		{Name: "rdma", RDMA: true, Provider: lp, Endpoints: []string{"storage"}},
	}
	p := h.Proxy([]settings.ListenerOptions{
		{Name: "tcp to tcp", Address: "127.0.0.1:0", Upstream: "tcp", MaxRecord: record},
		{Name: "tcp to rdma", Address: "127.0.0.1:0", Upstream: "rdma", MaxRecord: record},
		{Name: "rdma to tcp", Address: "a", Upstream: "tcp", RDMA: true, Provider: lp, MaxRecord: record},
		{Name: "rdma to rdma", Address: "b", Upstream: "rdma", RDMA: true, Provider: lp, MaxRecord: record},
	}, us)
	for _, name := range []string{"tcp to tcp", "tcp to rdma"} {
		t.Run(name, func(t *testing.T) { f(t, func() caller { return h.Client(p.Addr(name)) }) })
	}
	for _, name := range []string{"rdma to tcp", "rdma to rdma"} {
		t.Run(name, func(t *testing.T) { f(t, func() caller { return h.RDMAClient(lp, l, p.Addr(name), 0) }) })
	}
}

// TestReadInParts: a client asks for 8 MiB of a server that answers in full. It gets as much as the path
// carries, and the rest when it asks for it.
func TestReadInParts(t *testing.T) {
	t.Parallel()
	eachPath(t, proxytest.NewHarness(t, budget), pathRecord, proxytest.Behaviour{}, func(t *testing.T, dial func() caller) {
		c := dial()
		const all = 8 << 20
		for offset, xid := uint64(0), uint32(1); offset < all; xid++ {
			got, err := c.Call(proxytest.ReadCall(xid, offset, uint32(all-offset)))
			if err != nil {
				t.Fatalf("READ at %d: %v", offset, err)
			}
			if want := proxytest.ReadReply(xid, offset, pathRead); !bytes.Equal(got, want) {
				t.Fatalf("READ at %d: %d octets, %x, want %d, %x", offset, len(got), got[:min(len(got), 128)], len(want), want[:128])
			}
			offset += uint64(binary.BigEndian.Uint32(got[proxytest.ReadData-4:]))
		}
	})
}

// TestLargestByDefault: READs and WRITEs of 4 MiB, which some servers offer, are carried with the defaults of
// chunks.io and limits.record and the default budget of a container of 128 MiB, of several clients at once.
func TestLargestByDefault(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, 48<<20)
	h.Registry = ulb.NewRegistry(ulb.Limits{MaxIO: 4 << 20})
	nfs.Register(h.Registry)
	const largest = 4 << 20
	eachPath(t, h, largest+64<<10, proxytest.Behaviour{}, func(t *testing.T, dial func() caller) {
		var clients sync.WaitGroup
		for i := range uint32(3) {
			c := dial()
			clients.Go(func() {
				for xid := i * 100; xid < i*100+8; xid += 2 {
					for _, m := range [][]byte{proxytest.ReadCall(xid, uint64(xid), largest), proxytest.WriteCall(xid+1, uint64(xid), largest)} {
						if got, err := c.Call(m); err != nil || !bytes.Equal(got, proxytest.Expected(m)) {
							t.Errorf("client %d, XID %d: %d octets, %v", i, proxytest.XID(m), len(got), err)
						}
					}
				}
			})
		}
		clients.Wait()
	})
}

// A mount is what a client asks when it mounts a file system, and what a server answers that takes and returns
// so much at once.
type mount struct {
	call, reply func(xid uint32, n ...uint32) []byte
}

// createSession is the operation, with the longest Call and the longest Replies of the fore channel.
func createSession(n ...uint32) []byte {
	return testkit.Words(43, 1, 2, 3, 0, 0, n[0], n[1], n[2], 8, 8, 0, 0, 900, 900, 0, 2, 16, 0, 0x40000000, 1, 0)
}

var mounts = map[string]mount{
	"FSINFO": {
		func(xid uint32, _ ...uint32) []byte {
			return testkit.AppendOpaque(proxytest.CallHeader(nil, xid, oncrpc.ProgramNFS, 3, 19), []byte("root"))
		},
		func(xid uint32, n ...uint32) []byte {
			m := testkit.AppendWords(oncrpc.AppendAccepted(nil, xid, oncrpc.Success), 0, 0)
			return testkit.AppendWords(m, n[0], n[0], 4096, n[1], n[1], 4096, n[0], 0, 1<<30, 0, 1, 27)
		},
	},
	"GETATTR": {
		func(xid uint32, _ ...uint32) []byte {
			return proxytest.CompoundCall(xid, 0, testkit.Words(24), testkit.Words(9, 1, 3<<30|1<<10))
		},
		func(xid uint32, n ...uint32) []byte {
			m := testkit.AppendWords(oncrpc.AppendAccepted(nil, xid, oncrpc.Success), 0, 0, 2, 24, 0, 9, 0, 1, 3<<30|1<<10)
			return testkit.AppendOpaque(m, testkit.Words(90, 0, n[0], 0, n[1]))
		},
	},
}

// TestLargestAdvertised: a server takes and returns 8 MiB at once and says so. The client gets to know what the
// path carries, and so the server does of the client in a session. Signed messages stay as they are.
func TestLargestAdvertised(t *testing.T) {
	t.Parallel()
	const all = 8 << 20
	server := func(c *oncrpc.Call) ([]byte, bool) {
		for name, x := range mounts {
			if name == "FSINFO" && c.Version == 3 && c.Procedure == 19 || name == "GETATTR" && c.Version == 4 && bytes.Contains(c.Message, testkit.Words(9, 1, 3<<30|1<<10)) {
				return x.reply(c.XID, all, all), true
			}
		}
		return nil, false // the Reply to a COMPOUND tells the arguments that the server has got
	}
	eachPath(t, proxytest.NewHarness(t, budget), pathRecord, proxytest.Behaviour{Intercept: server}, func(t *testing.T, dial func() caller) {
		c := dial()
		is := func(name string, call, want []byte) {
			t.Helper()
			if got, err := c.Call(call); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: %v\n got %x\nwant %x", name, err, got, want)
			}
		}
		xid := uint32(0)
		for name, x := range mounts {
			xid++
			is(name, x.call(xid), x.reply(xid, pathRead, pathWrite))
			is(name+" under krb5", proxytest.GSSCall(x.call(xid+10), xid, 1), x.reply(xid+10, pathRead, pathWrite))
			is(name+" under krb5i", proxytest.GSSCall(x.call(xid+20), xid+10, 2), x.reply(xid+20, all, all))
		}
		compound := func(xid uint32, n ...uint32) []byte { return proxytest.CompoundCall(xid, 1, createSession(n...)) }
		is("CREATE_SESSION", compound(100, all, all, all), proxytest.Expected(compound(100, pathCall, pathReply, pathReply)))
		signed := proxytest.GSSCall(compound(101, all, all, all), 100, 2)
		is("CREATE_SESSION under krb5i", signed, proxytest.Expected(signed))
		reads := func(xid uint32, n ...uint32) []byte {
			var ops [][]byte
			for _, n := range n {
				ops = append(ops, testkit.Words(25, 0, 0, 0, 0, 0, 0, n))
			}
			return proxytest.CompoundCall(xid, 0, ops...)
		}
		is("READs", reads(102, all, 4096, all), proxytest.Expected(reads(102, 348160, 4096, 700416)))
	})
}

// TestRepeatOfTooMuch: a Call that asks for too much and must not be executed twice is recognised when it comes
// again, although the bridge has changed it.
func TestRepeatOfTooMuch(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, budget)
	release := make(chan struct{})
	server := h.TCPServer(proxytest.Behaviour{Intercept: func(*oncrpc.Call) ([]byte, bool) {
		<-release
		return nil, false
	}})
	p := h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "tcp"}},
		[]settings.UpstreamOptions{{Name: "tcp", Endpoints: []string{server.Addr()}}})
	call := func(n uint32) []byte {
		return proxytest.CompoundCall(7, 0, testkit.Words(24), testkit.Words(28, 1, 0x61000000), testkit.Words(25, 0, 0, 0, 0, 0, 0, n))
	}
	c := h.Client(p.Addr("nfs"))
	got, err := c.Go(call(8 << 20))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Send(call(8 << 20)); err != nil {
		t.Fatal(err)
	}
	h.Eventually("the second is taken for the first", func() bool { return metric(h, `listener_calls_total{listener="nfs",result="absorbed"}`) == 1 })
	close(release)
	if r, want := <-got, proxytest.Expected(call(pathRead)); !bytes.Equal(r, want) {
		t.Errorf("got %x\nwant %x", r, want)
	}
	if n := server.Calls.Load(); n != 1 {
		t.Errorf("the server ran it %d times", n)
	}
}
