package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/ask"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
)

// TestExports: rules with exports are in force with the reload that brings them, the storage is asked before; and another
// reload replaces them.
func TestExports(t *testing.T) {
	handle := func(number byte) []byte { return []byte{1, 0, 1, 0, number, 0, 0, 0} }
	roots := map[string][]byte{"/archive": handle(1), "/home": handle(2)}
	server, err := proxytest.ListenTCP("127.0.0.1:0", proxytest.Behaviour{Intercept: func(h *oncrpc.Call) ([]byte, bool) {
		b := oncrpc.AppendAccepted(nil, h.XID, oncrpc.Success)
		x := xdr.NewCursor(h.Message, h.Args)
		switch pos, n := x.Opaque(); {
		case h.Program == oncrpc.ProgramMount && h.Procedure == 1:
			root := roots[string(h.Message[pos:pos+n])]
			if root == nil {
				return xdr.AppendUint32(b, 2), true // MNT3ERR_NOENT
			}
			return xdr.AppendUint32(xdr.AppendOpaque(xdr.AppendUint32(b, 0), root), 0), true
		case h.Program == oncrpc.ProgramMount && h.Procedure == 5:
			for p := range roots {
				b = xdr.AppendUint32(xdr.AppendOpaque(xdr.AppendUint32(b, 1), []byte(p)), 0)
			}
			return xdr.AppendUint32(b, 0), true
		case h.Program == oncrpc.ProgramMount:
			return b, true
		}
		return xdr.AppendWords(b, 0, 0, 0), true // SETATTR: success, no attributes
	}})
	must(t, err)
	t.Cleanup(server.Close)
	text := func(rules string) string {
		return fmt.Sprintf(`
listeners: [{name: nfs, address: 127.0.0.1:0, upstream: one%s}]
upstreams: [{name: one, transport: tcp, endpoints: [%q], mount: {port: %d}}]
admin: {address: 127.0.0.1:0}
`, rules, server.Addr(), netip.MustParseAddrPort(server.Addr()).Port())
	}
	rule := func(path string) string {
		return ", rules: [{name: archive, class: changing, exports: [" + path + "], action: deny}]"
	}
	x := startReload(t, text(""))
	must(t, x.b.waitReady(testkit.Patience))
	c, err := net.Dial("tcp", x.b.proxy.Addr("nfs"))
	must(t, err)
	defer c.Close()
	client := ask.On(c, 4096)
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	// status returns the status of a SETATTR of a file in the export with this number.
	status := func(number byte) uint32 {
		t.Helper()
		args := xdr.AppendOpaque(nil, append(handle(number), 7, 7, 7, 7))
		_, results, err := client.Call(ctx, oncrpc.ProgramNFS, 3, 2, ask.Root("client"), append(args, make([]byte, 32)...))
		must(t, err)
		return results.Uint32()
	}
	want := func(archive, home uint32) {
		t.Helper()
		if a, h := status(1), status(2); a != archive || h != home {
			t.Errorf("statuses %d in the archive and %d at home, want %d and %d", a, h, archive, home)
		}
	}
	const rofs = 30 // NFS3ERR_ROFS
	want(0, 0)
	x.reload(text(rule("/archive")), `"event":"reload_applied"`)
	want(rofs, 0)
	before := x.b.exports["nfs"].Watch
	x.reload(text(rule("/archive")+", limits: {connections: 77}"), `"event":"reload_applied"`)
	if x.b.exports["nfs"].Watch != before {
		t.Error("a reload that changes nothing of it asks anew")
	}
	want(rofs, 0)
	x.reload(text(rule("/home")), `"event":"reload_applied"`)
	want(0, rofs)
	x.reload(text(""), `"event":"reload_applied"`)
	want(0, 0)
	if len(x.b.exports) > 0 {
		t.Error("exports are still asked for")
	}
	x.reload(text(rule("/nowhere")), `"event":"exports_missing"`)
	x.stop()
}
