package proxy_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
)

const (
	usePNFSMDS = 0x00020000
	useNonPNFS = 0x00010000

	fsLayoutType = 0x40000000 // in the second unit of a bitmap
)

var (
	// exchangeID is the operation with an owner, no state protection and no implementation.
	exchangeID = testkit.Words(42, 1, 2, 4, 0x61626364, 0, 0, 0)
	// fsinfo asks for lease_time, fs_layout_type and time_delta.
	fsinfo = testkit.Words(9, 2, 1<<10, fsLayoutType|1<<19)
	// read4 asks for 8 KiB.
	read4 = testkit.Words(25, 0, 0, 0, 0, 0, 0, 8192)
)

// metadataServer answers the operations above as a server that gives layouts.
func metadataServer(c *oncrpc.Call) ([]byte, bool) {
	var results []byte
	count := uint32(0)
	result := func(op []byte, words ...uint32) bool {
		if !bytes.Contains(c.Message, op) {
			return false
		}
		count++
		results = testkit.AppendWords(results, binary.BigEndian.Uint32(op), 0)
		results = testkit.AppendWords(results, words...)
		return true
	}
	if result(read4, 1) {
		results = testkit.AppendOpaque(results, testkit.Pattern(8191, 7))
	}
	// clientid, sequenceid, flags; no protection; minor_id, major_id, scope, implementation
	result(exchangeID, 0, 5, 1, usePNFSMDS|3, 0, 0, 9, 0, 0, 0)
	// What it is asked for it returns: lease_time, one layout type, time_delta.
	result(fsinfo, 2, 1<<10, fsLayoutType|1<<19, 24, 90, 1, 1, 0, 0, 1)
	result(testkit.Words(9, 2, 1<<10, 1<<19), 2, 1<<10, 1<<19, 16, 90, 0, 0, 1)
	if count == 0 {
		return nil, false
	}
	m := testkit.AppendWords(oncrpc.AppendAccepted(nil, c.XID, oncrpc.Success), 0, 0, count)
	return append(m, results...), true
}

// TestLayouts lets clients of a metadata server believe that it is none, or not, and changes nothing
// under signatures.
func TestLayouts(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, budget)
	b := proxytest.Behaviour{Intercept: metadataServer}
	l := fabrictest.NewLoop()
	t.Cleanup(l.Stop)
	lp := fabrictest.NewLoopback()
	h.RDMAServer(lp, []loop.Loop{l}, "storage", 32, b)
	tcp := h.TCPServer(b)
	ls := []settings.ListenerOptions{
		{Name: "rdma", Address: "127.0.0.1:0", Upstream: "rdma"}, {Name: "tcp", Address: "127.0.0.1:0", Upstream: "tcp"},
	}
	us := []settings.UpstreamOptions{
		{Name: "rdma", RDMA: true, Provider: lp, Endpoints: []string{"storage"}}, {Name: "tcp", Endpoints: []string{tcp.Addr()}},
	}
	p := h.Proxy(ls, us)
	calls := map[string][]byte{
		"EXCHANGE_ID":                     proxytest.CompoundCall(1, 1, exchangeID),
		"READ before EXCHANGE_ID":         proxytest.CompoundCall(2, 1, read4, exchangeID),
		"GETATTR":                         proxytest.CompoundCall(3, 1, fsinfo),
		"EXCHANGE_ID and GETATTR":         proxytest.CompoundCall(4, 1, exchangeID, fsinfo),
		"EXCHANGE_ID under krb5":          proxytest.GSSCall(proxytest.CompoundCall(5, 1, exchangeID), 1, oncrpc.GSSServiceNone),
		"EXCHANGE_ID under krb5i":         proxytest.GSSCall(proxytest.CompoundCall(6, 1, exchangeID), 2, oncrpc.GSSServiceIntegrity),
		"GETATTR under krb5p":             proxytest.GSSCall(proxytest.CompoundCall(7, 1, fsinfo), 3, oncrpc.GSSServicePrivacy),
		"EXCHANGE_ID of no minor version": proxytest.CompoundCall(8, 9, exchangeID),
	}
	signed := map[string]bool{"EXCHANGE_ID under krb5i": true, "GETATTR under krb5p": true, "EXCHANGE_ID of no minor version": true}
	// See what clients see, in the order pass, hide, pass.
	for _, hide := range []bool{false, true, false} {
		us[0].HideLayouts, us[1].HideLayouts = hide, hide
		if err := p.Reconfigure(proxytest.Listeners(ls...), proxytest.Upstreams(us...)); err != nil {
			t.Fatal(err)
		}
		for _, upstream := range []string{"rdma", "tcp"} {
			client := h.Client(p.Addr(upstream))
			for name, m := range calls {
				var c oncrpc.Call
				if err := oncrpc.ParseCall(m, &c); err != nil {
					t.Fatal(err)
				}
				want, _ := metadataServer(&c)
				if hide && !signed[name] {
					m := bytes.Replace(m, fsinfo, testkit.Words(9, 2, 1<<10, 1<<19), 1)
					_ = oncrpc.ParseCall(m, &c)
					want, _ = metadataServer(&c)
					want = bytes.Replace(want, testkit.Words(1, usePNFSMDS|3), testkit.Words(1, useNonPNFS|3), 1)
				}
				if got, err := client.Call(m); err != nil || !bytes.Equal(got, want) {
					t.Errorf("%s over %s, hide %v: %v\n got %x\nwant %x", name, upstream, hide, err, cut(got), cut(want))
				}
			}
			client.Close()
		}
	}
}

// cut returns the end of a long message.
func cut(m []byte) []byte { return m[max(0, len(m)-256):] }
