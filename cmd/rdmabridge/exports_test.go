package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/doctor"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ask"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
)

// exportRoot is the handle of an export with this number.
func exportRoot(number byte) []byte { return []byte{1, 0, 1, 0, number, 0, 0, 0} }

// startExporter starts a server of NFS and MOUNT with these exports, which answers each SETATTR with a status.
func startExporter(t *testing.T, status uint32, roots map[string][]byte) (addr string) {
	t.Helper()
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
		case h.Program == oncrpc.ProgramMount && h.Procedure == 2: // DUMP
			return xdr.AppendUint32(b, status), true
		case h.Program == oncrpc.ProgramMount:
			return b, true
		}
		return xdr.AppendWords(b, status, 0, 0), true // without attributes
	}})
	must(t, err)
	t.Cleanup(server.Close)
	return server.Addr()
}

// setattr returns a function that makes a SETATTR of a file in the export with a number, or a DUMP of MOUNT for 0, and returns
// the first word of its results.
func (x *reloadCase) setattr() func(number byte) uint32 {
	x.t.Helper()
	c, err := net.Dial("tcp", x.b.proxy.Addr("nfs"))
	must(x.t, err)
	x.t.Cleanup(func() { c.Close() })
	client := ask.On(c, 4096)
	return func(number byte) uint32 {
		x.t.Helper()
		ctx, cancel := context.WithTimeout(x.t.Context(), testkit.Patience)
		defer cancel()
		args := append(xdr.AppendOpaque(nil, append(exportRoot(number), 7, 7, 7, 7)), make([]byte, 32)...)
		program := uint32(oncrpc.ProgramNFS)
		if number == 0 {
			program, args = oncrpc.ProgramMount, nil
		}
		_, results, err := client.Call(ctx, program, 3, 2, ask.Root("client"), args)
		must(x.t, err)
		return results.Uint32()
	}
}

// exporterConfig returns a configuration with one listener, which has more settings, in front of a server of startExporter.
func exporterConfig(server, more string) string {
	return fmt.Sprintf(`
listeners: [{name: nfs, address: 127.0.0.1:0, upstream: one%s}]
upstreams: [{name: one, transport: tcp, endpoints: [%q], mount: {port: %d}}]
admin: {address: 127.0.0.1:0}
`, more, server, netip.MustParseAddrPort(server).Port())
}

// TestExports: rules with exports are in force with the reload that brings them, the storage is asked before; and another
// reload replaces them.
func TestExports(t *testing.T) {
	roots := map[string][]byte{"/archive": exportRoot(1), "/home": exportRoot(2)}
	server := startExporter(t, 0, roots)
	text := func(more string) string { return exporterConfig(server, more) }
	rule := func(path string) string {
		return ", rules: [{name: archive, class: changing, exports: [" + path + "], action: deny}]"
	}
	x := startReload(t, text(""))
	must(t, x.b.waitReady(testkit.Patience))
	status := x.setattr()
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

// TestExportsOfTwoStorages: each export's Calls go to its storage, and what is not known goes where the routes say.
func TestExportsOfTwoStorages(t *testing.T) {
	const one, two = 10001, 10002 // the statuses by which the servers can be told apart
	first := startExporter(t, one, map[string][]byte{"/home": exportRoot(1), "/same": exportRoot(3)})
	second := startExporter(t, two, map[string][]byte{"/scratch": exportRoot(2), "/other": exportRoot(3)})
	x := startReload(t, fmt.Sprintf(`
listeners:
  - name: nfs
    address: 127.0.0.1:0
    upstream: one
    rules:
      - {name: scratch, exports: [/scratch, /other], versions: [3], action: upstream, upstream: two}
upstreams:
  - {name: one, transport: tcp, endpoints: [%q], mount: {port: %d}}
  - {name: two, transport: tcp, endpoints: [%q], mount: {port: %d}}
admin: {address: 127.0.0.1:0}
`, first, netip.MustParseAddrPort(first).Port(), second, netip.MustParseAddrPort(second).Port()))
	must(t, x.b.waitReady(testkit.Patience))
	status := x.setattr()
	for number, want := range map[byte]uint32{
		0: one, 1: one, 2: two,
		3: one, // of both, so that nobody knows
		4: one, // of none
	} {
		if got := status(number); got != want {
			t.Errorf("a file in export %d: the status %d, want %d", number, got, want)
		}
	}
	x.stop()
}

// TestDoctorExports: doctor says what rules with exports lack.
func TestDoctorExports(t *testing.T) {
	storage := netip.MustParseAddrPort(startExporter(t, 0, map[string][]byte{"/home": exportRoot(1), "/odd": []byte("a handle of another form")})).Port()
	nobody := netip.MustParseAddrPort(testkit.DeadAddr(t)).Port()
	for _, tt := range []struct {
		name, exports string
		port          uint16
		want          string
	}{
		{"nothing lacks but what no rule names", "/home", storage, "[exports-formless]"},
		{"a path", "/home, /archive", storage, "[exports-formless exports-missing]"},
		{"everything", "/home", nobody, "[exports-unknown]"},
	} {
		c, err := configs.Load([]byte(fmt.Sprintf(`
listeners:
  - {name: plain, address: 127.0.0.1:0, upstream: one}
  - {name: nfs, address: 127.0.0.1:0, upstream: one, rules: [{name: a, exports: [%s], action: deny}]}
upstreams: [{name: one, transport: tcp, endpoints: ["127.0.0.1:1"], mount: {port: %d}}]
`, tt.exports, tt.port)), known)
		must(t, err)
		var found doctor.Findings
		judgeExports(t.Context(), c, &found)
		codes := []string{}
		for _, f := range found {
			codes = append(codes, f.Code)
		}
		if fmt.Sprint(codes) != tt.want {
			t.Errorf("%s: %v, want %s", tt.name, found, tt.want)
		}
	}
}

// TestLimitsOfExports: Calls about an export that a rule limits make their client wait, and no others do; without the rule
// nobody waits any more.
func TestLimitsOfExports(t *testing.T) {
	server := startExporter(t, 0, map[string][]byte{"/scratch": exportRoot(1), "/home": exportRoot(2)})
	text := func(more string) string { return exporterConfig(server, more) }
	x := startReload(t, text(", rules: [{name: scratch, exports: [/scratch], action: limit, rate: {calls: 1}}]"))
	must(t, x.b.waitReady(testkit.Patience))
	want := func(calls, waits int) {
		t.Helper()
		if r := x.b.proxy.Status(status.Query{}).Listeners[0].Rules[0]; r.Calls != uint64(calls) {
			t.Errorf("the rule matches %d Calls, want %d", r.Calls, calls)
		}
		x.metric(fmt.Sprintf(`rdmabridge_listener_rate_limit_waits_total{limit="rule",listener="nfs"} %d`, waits))
	}
	home, scratch := x.setattr(), x.setattr()
	beside := func() {
		t.Helper()
		for range 50 {
			home(2)
			home(0) // of MOUNT, about no export
		}
	}
	beside()
	want(0, 0)
	scratch(1)
	want(1, 1)
	beside()
	want(1, 1)
	x.reload(text(""), `"event":"reload_applied"`)
	for range 500 { // they would take minutes
		scratch(1)
	}
	x.stop()
}
