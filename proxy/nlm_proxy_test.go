package proxy_test

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
)

// unlockCall is an NLM UNLOCK; svid is the fifth word from the end.
func unlockCall(xid, procedure uint32, host string, svid uint32) []byte {
	m := proxytest.CallHeader(nil, xid, oncrpc.ProgramNLM, 4, procedure)
	for _, s := range []string{"cookie", host, "handle", "owner"} {
		m = xdr.AppendOpaque(m, []byte(s))
	}
	m = xdr.AppendUint32(m, svid)
	m = xdr.AppendUint64(m, 0)
	return xdr.AppendUint64(m, 1)
}

// Two clients that number their processes alike are two owners to the server, one that
// comes back stays who it was, and a server's Calls do not come back to it.
func TestNLM(t *testing.T) {
	t.Parallel()
	svids := make(chan uint32, 16)
	h := proxytest.NewHarness(t, budget)
	l := h.TCPServer(proxytest.Behaviour{Intercept: func(c *oncrpc.Call) ([]byte, bool) {
		m := c.Message
		svids <- binary.BigEndian.Uint32(m[len(m)-20:])
		reply := oncrpc.AppendAccepted(nil, c.XID, oncrpc.Success)
		return xdr.AppendUint32(xdr.AppendOpaque(reply, []byte("cookie")), 0), true
	}})
	p := h.Proxy(
		[]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "lockd"}},
		[]settings.UpstreamOptions{{Name: "lockd", Endpoints: []string{l.Addr()}, BackoffMin: 5 * time.Millisecond, BackoffMax: 50 * time.Millisecond}})

	ask := func(c *proxytest.Client, m []byte) []byte {
		t.Helper()
		r, err := c.Call(m)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	seen := func() uint32 {
		t.Helper()
		select {
		case v := <-svids:
			return v
		case <-time.After(testkit.Patience):
			t.Fatal("nothing has reached the server")
		}
		return 0
	}
	const unlock, granted, grantedMsg, freeAll = 4, 5, 10, 23
	c1, c2, again := h.Client(p.Addr("nfs")), h.Client(p.Addr("nfs")), h.Client(p.Addr("nfs"))
	ask(c1, unlockCall(1, unlock, "c1", 0))
	one := seen()
	ask(c2, unlockCall(1, unlock, "c2", 0))
	two := seen()
	ask(again, unlockCall(2, unlock, "c1", 0))
	if back := seen(); one == 0 || one == two || back != one {
		t.Errorf("the server sees svid %#x of c1, %#x of c2, %#x of c1 again", one, two, back)
	}
	for _, procedure := range []uint32{granted, grantedMsg, freeAll} {
		want := oncrpc.AppendAccepted(nil, 9, oncrpc.ProcedureUnavailable)
		if got := ask(c1, unlockCall(9, procedure, "c1", 0)); !bytes.Equal(got, want) {
			t.Errorf("procedure %d: %x, want PROC_UNAVAIL", procedure, got)
		}
	}
	ask(c1, unlockCall(10, unlock, "c1", 0))
	if seen() != one || len(svids) != 0 {
		t.Error("the server has seen what is refused")
	}
}
