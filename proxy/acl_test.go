package proxy_test

import (
	"bytes"
	"sync/atomic"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// TestLongACL: nothing bounds the Reply to GETACL of NFSACL. When it does not fit, the server says
// so, or ends the connection. Either way the bridge asks once more, with the largest Reply chunk and
// under another XID: RFC 8267 Section 5.2.
func TestLongACL(t *testing.T) {
	for name, dies := range map[string]bool{"the server answers ERR_CHUNK": false, "the server ends the connection": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := proxytest.NewHarness(t, budget)
			var calls atomic.Int32
			var drop atomic.Pointer[proxytest.RDMAServer]
			long := make([]byte, 100<<10)
			p, s := forward(t, h, 32, proxytest.Behaviour{Intercept: func(c *oncrpc.Call) ([]byte, bool) {
				if calls.Add(1) == 1 && dies {
					drop.Load().DropConnections(fabric.ErrClosed)
					return nil, true
				}
				return append(testkit.Words(c.XID, 1, 0, 0, 0, 0, 0), long...), true
			}}, nil)
			drop.Store(s)
			m := proxytest.CallHeader(nil, 7, 100227, 3, 1)
			m = testkit.AppendOpaque(m, make([]byte, 32))
			m = testkit.AppendWords(m, 15)
			r, err := h.Client(p.Addr("nfs")).Call(m)
			if err != nil || !bytes.Equal(r, append(testkit.Words(7, 1, 0, 0, 0, 0, 0), long...)) {
				t.Errorf("%d octets, %v; want %d", len(r), err, 28+len(long))
			}
			if n := calls.Load(); n != 2 {
				t.Errorf("%d Calls came, want two", n)
			}
			if n := len(s.XIDs()); n != 2 {
				t.Errorf("the Calls came under %d XIDs, want two", n)
			}
		})
	}
}
