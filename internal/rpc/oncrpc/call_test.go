package oncrpc

import (
	"errors"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

func TestParseCallVectors(t *testing.T) {
	calls, _ := load(t)
	for _, v := range calls {
		var c Call
		if err := ParseCall(v.message, &c); err != nil {
			t.Errorf("%s: %v", v.name, err)
			continue
		}
		if c.XID != v.xid || c.Program != v.program || c.Version != v.version || c.Procedure != v.proc || c.Flavor != v.flavor {
			t.Errorf("%s: parsed %+v", v.name, c)
		}
		if got := c.Protection.String(); got != v.protection {
			t.Errorf("%s: Protection = %s, want %s", v.name, got, v.protection)
		}
		if c.Reducible() != (v.protection == "none") {
			t.Errorf("%s: Reducible = %v", v.name, c.Reducible())
		}
		start, end, ok := c.Arguments()
		switch v.protection {
		case "none", "integrity":
			if !ok || start != v.args || end > len(v.message) || v.protection == "none" && end != len(v.message) {
				t.Errorf("%s: Arguments = %d, %d, %v; want start %d", v.name, start, end, ok, v.args)
			}
		default:
			if ok || c.Args != v.args {
				t.Errorf("%s: Arguments ok = %v, Args %d, want %d", v.name, ok, c.Args, v.args)
			}
		}
	}
}

func TestParseCallTruncated(t *testing.T) {
	calls, _ := load(t)
	for _, v := range calls {
		var whole Call
		if err := ParseCall(v.message, &whole); err != nil {
			t.Fatal(err)
		}
		for n := range whole.Args {
			var c Call
			err := ParseCall(v.message[:n:n], &c)
			var e *Error
			if !errors.As(err, &e) || !errors.Is(err, ErrShort) || e.Field == "" || e.Position > n {
				t.Errorf("%s: prefix of %d octets: %v", v.name, n, err)
			}
			if n >= 4 && (c.XID != v.xid || e.XID != v.xid) {
				t.Errorf("%s: prefix of %d octets: XID %#x", v.name, n, c.XID)
			}
		}
		var c Call
		if err := ParseCall(v.message[:whole.Args:whole.Args], &c); err != nil {
			t.Errorf("%s: header alone: %v", v.name, err)
		}
	}
}

// header returns a Call header with the words of a test's credential and verifier.
func header(flavor uint32, cred []byte, verifier []byte) []byte {
	var b []byte
	for _, w := range []uint32{0x11, TypeCall, RPCVersion, ProgramNFS, 3, 1, flavor} {
		b = xdr.AppendUint32(b, w)
	}
	b = xdr.AppendOpaque(b, cred)
	b = xdr.AppendUint32(b, FlavorNone)
	return xdr.AppendOpaque(b, verifier)
}

func gss(version, proc, seq, service uint32, handle []byte) []byte {
	var b []byte
	for _, w := range []uint32{version, proc, seq, service} {
		b = xdr.AppendUint32(b, w)
	}
	return xdr.AppendOpaque(b, handle)
}

func TestParseCallRefusals(t *testing.T) {
	with := func(at int, v byte) []byte {
		m := header(FlavorSys, make([]byte, 20), nil)
		m[at] = v
		return m
	}
	for _, tt := range []struct {
		name, field string
		m           []byte
		want        error
	}{
		{"a Reply", "mtype", with(7, 1), ErrValue},
		{"RPC version 3", "rpcvers", with(11, 3), ErrVersion},
		{"credential of 401 octets", "cred", header(FlavorSys, make([]byte, MaxAuth+1), nil), ErrBound},
		{"credential of 4 GiB", "cred", with(28, 0xff), ErrBound},
		{"verifier of 401 octets", "verf", header(FlavorSys, nil, make([]byte, MaxAuth+1)), ErrBound},
	} {
		var c Call
		err := ParseCall(tt.m, &c)
		var e *Error
		if !errors.As(err, &e) || e.Field != tt.field || !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want field %s and %v", tt.name, err, tt.field, tt.want)
		}
	}
	var c Call
	if err := ParseCall(header(FlavorSys, make([]byte, MaxAuth), make([]byte, MaxAuth)), &c); err != nil {
		t.Errorf("both of 400 octets: %v", err)
	}
}

func TestProtection(t *testing.T) {
	h := []byte{1, 2, 3, 4, 5} // an odd length needs roundup
	for _, tt := range []struct {
		name   string
		flavor uint32
		cred   []byte
		want   Protection
	}{
		{"none", FlavorNone, nil, ProtectNone},
		{"sys", FlavorSys, make([]byte, 20), ProtectNone},
		{"short", FlavorShort, make([]byte, 7), ProtectNone},
		{"DH", FlavorDH, make([]byte, 28), ProtectUnknown},
		{"TLS", FlavorTLS, nil, ProtectUnknown},
		{"unassigned", 390003, nil, ProtectUnknown},
		{"v1 none", FlavorGSS, gss(1, GSSData, 1, GSSServiceNone, h), ProtectNone},
		{"v1 integrity", FlavorGSS, gss(1, GSSData, 1, GSSServiceIntegrity, h), ProtectIntegrity},
		{"v1 privacy", FlavorGSS, gss(1, GSSData, 1, GSSServicePrivacy, h), ProtectPrivacy},
		{"v1 channel", FlavorGSS, gss(1, GSSData, 1, GSSServiceChannel, h), ProtectUnknown},
		{"v2 channel", FlavorGSS, gss(2, GSSData, 1, GSSServiceChannel, h), ProtectNone},
		{"v3 none", FlavorGSS, gss(3, GSSData, 1, GSSServiceNone, h), ProtectNone},
		{"v3 privacy", FlavorGSS, gss(3, GSSData, 1, GSSServicePrivacy, h), ProtectPrivacy},
		{"service 0", FlavorGSS, gss(1, GSSData, 1, 0, h), ProtectUnknown},
		{"service 5", FlavorGSS, gss(3, GSSData, 1, 5, h), ProtectUnknown},
		{"init", FlavorGSS, gss(1, GSSInit, 0, GSSServiceNone, nil), ProtectControl},
		{"continue", FlavorGSS, gss(1, GSSContinueInit, 0, 0, h), ProtectControl},
		{"destroy", FlavorGSS, gss(1, GSSDestroy, 9, GSSServicePrivacy, h), ProtectControl},
		{"bind channel", FlavorGSS, gss(2, GSSBindChannel, 9, GSSServiceNone, h), ProtectControl},
		{"bind channel in v1", FlavorGSS, gss(1, GSSBindChannel, 9, GSSServiceNone, h), ProtectUnknown},
		{"create", FlavorGSS, gss(3, GSSCreate, 9, GSSServiceIntegrity, h), ProtectControl},
		{"list", FlavorGSS, gss(3, GSSList, 9, GSSServicePrivacy, h), ProtectControl},
		{"create in v2", FlavorGSS, gss(2, GSSCreate, 9, GSSServiceIntegrity, h), ProtectUnknown},
		{"procedure 7", FlavorGSS, gss(3, 7, 9, GSSServiceNone, h), ProtectUnknown},
		{"version 0", FlavorGSS, gss(0, GSSData, 9, GSSServiceNone, h), ProtectUnknown},
		{"version 4", FlavorGSS, gss(4, GSSData, 9, GSSServiceNone, h), ProtectUnknown},
		{"empty", FlavorGSS, nil, ProtectUnknown},
		{"cut", FlavorGSS, gss(1, GSSData, 9, GSSServiceNone, h)[:24], ProtectUnknown},
		{"trailing", FlavorGSS, append(gss(1, GSSData, 9, GSSServiceNone, h), 0, 0, 0, 0), ProtectUnknown},
	} {
		var c Call
		if err := ParseCall(header(tt.flavor, tt.cred, nil), &c); err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if c.Protection != tt.want {
			t.Errorf("%s: Protection = %v, want %v", tt.name, c.Protection, tt.want)
		}
		if c.TLSProbe() != (tt.name == "TLS") {
			t.Errorf("%s: TLSProbe = %v", tt.name, c.TLSProbe())
		}
	}
}

func TestArgumentsIntegrity(t *testing.T) {
	const seq = 9
	h := header(FlavorGSS, gss(1, GSSData, seq, GSSServiceIntegrity, nil), make([]byte, 28))
	words := func(w ...uint32) []byte {
		b := append([]byte(nil), h...)
		for _, v := range w {
			b = xdr.AppendUint32(b, v)
		}
		return b
	}
	for _, tt := range []struct {
		name string
		m    []byte
		ok   bool
		n    int
	}{
		{"two units of arguments", words(12, seq, 1, 2, 0), true, 8},
		{"no arguments", words(4, seq, 0), true, 0},
		{"sequence of another Call", words(12, seq+1, 1, 2, 0), false, 0},
		{"databody without sequence", words(0, seq), false, 0},
		{"databody of 3 octets", words(3, seq), false, 0},
		{"databody beyond the message", words(16, seq, 1, 2), false, 0},
		{"databody of 4 GiB", words(0xffffffff, seq, 1, 2), false, 0},
		{"nothing", words(), false, 0},
	} {
		var c Call
		if err := ParseCall(tt.m, &c); err != nil {
			t.Fatal(err)
		}
		start, end, ok := c.Arguments()
		if ok != tt.ok || ok && (start != len(h)+8 || end-start != tt.n) {
			t.Errorf("%s: Arguments = %d, %d, %v", tt.name, start, end, ok)
		}
	}
}

func TestMessageType(t *testing.T) {
	m := testkit.Unhex(t, "00000007 00000001 00")
	if xid, mtype, ok := MessageType(m); xid != 7 || mtype != TypeReply || !ok {
		t.Errorf("MessageType = %d, %d, %v", xid, mtype, ok)
	}
	for n := range 8 {
		if _, _, ok := MessageType(m[:n]); ok {
			t.Errorf("MessageType of %d octets is ok", n)
		}
	}
}

func TestProgramNames(t *testing.T) {
	for _, name := range []string{"nfs", "mount", "nlm", "nsm", "nfsacl", "rpcbind", "rquota", "ccp"} {
		n, ok := ProgramByName(name)
		if !ok || ProgramName(n) != name {
			t.Errorf("%s: program %d, %v, named %q", name, n, ok, ProgramName(n))
		}
	}
	if _, ok := ProgramByName("NFS"); ok || ProgramName(1) != "" {
		t.Error("an unknown program has a name")
	}
}

func FuzzParseCall(f *testing.F) {
	calls, replies := load(f)
	for _, v := range calls {
		f.Add(v.message)
	}
	f.Add(replies[0].message)
	f.Fuzz(func(t *testing.T, m []byte) {
		var c Call
		if err := ParseCall(m, &c); err != nil {
			var e *Error
			if !errors.As(err, &e) || e.Position > len(m) {
				t.Fatalf("error %v", err)
			}
			return
		}
		checkHeader(t, &c, m)
		checkArguments(t, &c, m)
	})
}

// checkHeader asserts the rules of every Call's header.
func checkHeader(t *testing.T, c *Call, m []byte) {
	if c.Args < CallHeaderMin || c.Args > len(m) || c.Args%4 != 0 || c.CredentialLen > MaxAuth || c.VerifierLen > MaxAuth {
		t.Fatalf("parsed %+v", c)
	}
	if c.VerifierPos()+xdr.Roundup(c.VerifierLen) != c.Args {
		t.Fatalf("verifier ends before Args: %+v", c)
	}
	// The header alone says the same.
	var again Call
	if err := ParseCall(m[:c.Args:c.Args], &again); err != nil || again.Args != c.Args || again.Protection != c.Protection {
		t.Fatalf("header alone: %v, %+v", err, again)
	}
}

// checkArguments asserts the rules of every Call's arguments.
func checkArguments(t *testing.T, c *Call, m []byte) {
	start, end, ok := c.Arguments()
	if ok && (start < c.Args || end < start || end > len(m)) {
		t.Fatalf("Arguments = %d, %d of %d", start, end, len(m))
	}
	if !c.Reducible() {
		return
	}
	if !ok || start != c.Args || end != len(m) {
		t.Fatalf("reducible, but Arguments = %d, %d, %v", start, end, ok)
	}
	if c.Flavor == FlavorGSS && c.GSS.Service != GSSServiceNone && c.GSS.Service != GSSServiceChannel {
		t.Fatalf("reducible under service %d", c.GSS.Service)
	}
}

func TestParseCallAllocs(t *testing.T) {
	calls, _ := load(t)
	var c Call
	if n := testing.AllocsPerRun(100, func() {
		for i := range calls {
			if ParseCall(calls[i].message, &c) != nil {
				t.Fatal("failed")
			}
			c.Arguments()
		}
	}); n != 0 {
		t.Errorf("ParseCall allocates %v times in %d Calls", n, len(calls))
	}
}

func BenchmarkParseCall(b *testing.B) {
	calls, _ := load(b)
	for _, i := range []int{2, 32, 33} {
		v := calls[i]
		b.Run(v.name, func(b *testing.B) {
			var c Call
			b.SetBytes(int64(len(v.message)))
			b.ReportAllocs()
			for b.Loop() {
				if err := ParseCall(v.message, &c); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
