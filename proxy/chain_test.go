package proxy_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
)

// TestChains: an RDMA listener and an RDMA upstream in one process, with a provider each
// and other thresholds, and the pairs with TCP besides: NFS and other Calls of all sizes,
// in chunks on both sides, many at once, every octet checked, while the server calls back.
func TestChains(t *testing.T) {
	t.Parallel()
	pairs(t, proxytest.Behaviour{}, func(l *settings.ListenerOptions, u *settings.UpstreamOptions) {
		l.CallInline, l.ReplyInline = 8192, 2048
		u.CallInline, u.ReplyInline = 4096, 4096
	}, func(t *testing.T, x *pair) {
		const clients, calls, backs = 4, 25, 20
		var wg sync.WaitGroup
		for i := range clients {
			c, back := x.open()
			wg.Go(func() { chainBack(t, i, c, back, backs) })
			for part := range 3 {
				wg.Go(func() { chainCalls(t, i, part, c, calls) })
			}
		}
		wg.Wait()
		x.wantShapes(t)
	})
}

// chainBack has the server call client i n times.
func chainBack(t *testing.T, i int, c caller, back backend, n uint32) {
	for j := range n {
		m := proxytest.CallbackCall(j, int(j)*50)
		back.Call(m, 2)
		if got, err := c.NextCall(patience); err != nil || !bytes.Equal(got, m) {
			t.Errorf("client %d was called with %d octets, %v", i, len(got), err)
			return
		}
		r := proxytest.CallbackReply(j, int(j)*40)
		if err := c.Send(r); err != nil {
			t.Error(err)
			return
		}
		if got, err := back.Next(patience); err != nil || !bytes.Equal(got, r) {
			t.Errorf("the server of client %d was answered %d octets, %v", i, len(got), err)
			return
		}
	}
}

// chainCalls sends n random Calls of client i, one after another.
func chainCalls(t *testing.T, i, part int, c caller, n int) {
	r := rand.New(rand.NewPCG(uint64(i), uint64(part)))
	for j := range n {
		m := chainCall(r, uint32(i<<20|part<<16|j+1000), j)
		if got, err := c.Call(m); err != nil || !bytes.Equal(got, proxytest.Expected(m)) {
			t.Errorf("client %d call %d of %d octets: %d octets, %v", i, j, len(m), len(got), err)
			return
		}
	}
}

// chainCall is a Call of any kind and size.
func chainCall(r *rand.Rand, xid uint32, j int) []byte {
	n := r.IntN(1 << (1 + r.IntN(20)))
	switch r.IntN(8) {
	case 0, 1:
		return proxytest.ReadCall(xid, uint64(j), uint32(n))
	case 2, 3:
		return proxytest.WriteCall(xid, uint64(j), n)
	case 4:
		return proxytest.EchoCall(xid, n, r.IntN(9000), 0)
	case 5:
		return proxytest.GSSCall(proxytest.EchoCall(xid, r.IntN(9000), n, 0), xid, 1)
	case 6:
		return proxytest.SequenceCall(xid)
	default:
		return proxytest.GetattrCall(xid)
	}
}

// wantShapes checks that messages of every shape went over the RDMA sides.
func (x *pair) wantShapes(t *testing.T) {
	t.Helper()
	var names []string
	if x.front == "rdma" {
		names = append(names, `listener_rdma_calls_total{call="pulled"`, `listener_rdma_calls_total{call="inline"`)
		for _, reply := range []string{"inline", "write_chunk", "reply_chunk"} {
			names = append(names, fmt.Sprintf(`listener_rdma_replies_total{listener="nfs",reply=%q`, reply))
		}
	}
	if x.back == "rdma" {
		for _, shape := range []string{`call="inline",reply="write_chunk"`, `call="read_chunk",reply="inline"`, `call="long",reply="reply_chunk"`} {
			names = append(names, "upstream_rdma_calls_total{"+shape)
		}
	}
	for _, name := range names {
		if metric(x.Harness, name) == 0 {
			t.Errorf("%s is 0", name)
		}
	}
}
