package proxy_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy"
)

// TestChains: an RDMA listener and an RDMA upstream in one process, with a provider each
// and other thresholds, and the pairs with TCP besides: NFS and other Calls of all sizes,
// in chunks on both sides, many at once, every octet checked, while the server calls back.
func TestChains(t *testing.T) {
	pairs(t, proxytest.Behaviour{}, func(l *proxy.ListenerOptions, u *proxy.UpstreamOptions) {
		l.CallInline, l.ReplyInline = 8192, 2048
		u.CallInline, u.ReplyInline = 4096, 4096
	}, func(t *testing.T, x *pair) {
		const clients, calls, backs = 4, 25, 20
		var wg sync.WaitGroup
		for i := range clients {
			c, back := x.open()
			wg.Go(func() {
				for j := range uint32(backs) {
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
			})
			for part := range 3 {
				wg.Go(func() {
					r := rand.New(rand.NewPCG(uint64(i), uint64(part)))
					for j := range calls {
						xid := uint32(i<<20 | part<<16 | j + 1000)
						n := r.IntN(1 << (1 + r.IntN(20)))
						var m []byte
						switch r.IntN(8) {
						case 0, 1:
							m = proxytest.ReadCall(xid, uint64(j), uint32(n))
						case 2, 3:
							m = proxytest.WriteCall(xid, uint64(j), n)
						case 4:
							m = proxytest.EchoCall(xid, n, r.IntN(9000), 0)
						case 5:
							m = proxytest.GSSCall(proxytest.EchoCall(xid, r.IntN(9000), n, 0), xid, 1)
						case 6:
							m = proxytest.SequenceCall(xid)
						default:
							m = proxytest.GetattrCall(xid)
						}
						if got, err := c.Call(m); err != nil || !bytes.Equal(got, proxytest.Expected(m)) {
							t.Errorf("client %d call %d of %d octets: %d octets, %v", i, j, len(m), len(got), err)
							return
						}
					}
				})
			}
		}
		wg.Wait()
		if x.front == "rdma" {
			for _, what := range []string{`calls_total{call="pulled"`, `calls_total{call="inline"`} {
				if metric(x.Harness, "responder_"+what) == 0 {
					t.Errorf("responder_%s is 0", what)
				}
			}
			for _, reply := range []string{"inline", "write_chunk", "reply_chunk"} {
				if metric(x.Harness, fmt.Sprintf(`responder_replies_total{listener="nfs",reply=%q`, reply)) == 0 {
					t.Errorf("no reply was %s", reply)
				}
			}
		}
		if x.back == "rdma" {
			for _, shape := range []string{`call="inline",reply="write_chunk"`, `call="read_chunk",reply="inline"`, `call="long",reply="reply_chunk"`} {
				if metric(x.Harness, "requester_calls_total{"+shape) == 0 {
					t.Errorf("no call was %s", shape)
				}
			}
		}
	})
}
