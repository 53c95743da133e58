package ulb

import (
	"errors"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

// fixed is a binding that knows every Call, with an argument and a result of
// 1000 octets each.
type fixed struct{ generic }

func (fixed) Analyse(_ *oncrpc.Call, _ *Limits, a *Analysis) {
	*a = Analysis{
		Known: true, Class: Idempotent, Reduce: a.Reduce, Procedure: "FIXED",
		ArgPosition: 80, ArgLength: 1000, ResultMax: 1000, MaxReduced: 100, MaxReply: 1100,
	}
}

// endless is a binding with unbounded results.
type endless struct{ generic }

func (endless) Analyse(_ *oncrpc.Call, _ *Limits, a *Analysis) {
	a.Known, a.MaxReply, a.MaxReduced = true, Unbounded, Unbounded
}

func call(program, version, proc, flavor uint32, cred []byte, args ...uint32) *oncrpc.Call {
	var m []byte
	for _, w := range []uint32{1, oncrpc.TypeCall, oncrpc.RPCVersion, program, version, proc, flavor} {
		m = xdr.AppendUint32(m, w)
	}
	m = xdr.AppendOpaque(m, cred)
	m = xdr.AppendUint64(m, 0)
	for _, w := range args {
		m = xdr.AppendUint32(m, w)
	}
	c := new(oncrpc.Call)
	if err := oncrpc.ParseCall(m, c); err != nil {
		panic(err)
	}
	return c
}

func gss(version, proc, service uint32) []byte {
	var b []byte
	for _, w := range []uint32{version, proc, 7, service, 0} {
		b = xdr.AppendUint32(b, w)
	}
	return b
}

func TestRegistryAnalyse(t *testing.T) {
	reg := NewRegistry(Limits{})
	reg.Bind(1, 1, fixed{})
	reg.Bind(2, 1, endless{})
	most := reg.Limits().MaxReply
	known := func(header uint32) Analysis {
		return Analysis{
			Known: true, Class: Idempotent, Reduce: true, Procedure: "FIXED",
			ArgPosition: 80, ArgLength: 1000, ResultMax: 1000, MaxReduced: header + 100, MaxReply: header + 1100,
		}
	}
	whole := func(reduce bool, n uint32) Analysis {
		return Analysis{Class: NonIdempotent, Reduce: reduce, MaxReply: n, MaxReduced: n}
	}
	null := func(n uint32) Analysis {
		return Analysis{Known: true, Reduce: true, Procedure: "NULL", MaxReply: n, MaxReduced: n}
	}
	unreduced := Analysis{Known: true, Class: Idempotent, Procedure: "FIXED", MaxReply: 836 + 1100, MaxReduced: 836 + 1100}
	const (
		none  = oncrpc.FlavorNone
		sys   = oncrpc.FlavorSys
		short = oncrpc.FlavorShort
		sgss  = oncrpc.FlavorGSS
	)
	for _, tt := range []struct {
		name string
		c    *oncrpc.Call
		want Analysis
	}{
		{"AUTH_NONE", call(1, 1, 1, none, nil), known(24)},
		{"AUTH_SYS", call(1, 1, 1, sys, make([]byte, 20)), known(24)},
		{"AUTH_SHORT may be answered by a verifier", call(1, 1, 1, short, nil), known(424)},
		{"GSS none", call(1, 1, 1, sgss, gss(1, 0, 1)), known(424)},
		{"GSS channel", call(1, 1, 1, sgss, gss(2, 0, 4)), known(424)},
		{"GSS integrity", call(1, 1, 1, sgss, gss(1, 0, 2), 8, 7, 0), unreduced},
		{"GSS integrity, sequence of another Call", call(1, 1, 1, sgss, gss(1, 0, 2), 8, 8, 0), whole(false, most)},
		{"GSS privacy", call(1, 1, 1, sgss, gss(1, 0, 3), 0), whole(false, most)},
		{"GSS INIT", call(1, 1, 0, sgss, gss(1, 1, 0), 0), whole(false, 424+4+256+12+4+65536)},
		{"GSS CONTINUE_INIT", call(1, 1, 0, sgss, gss(1, 2, 1), 0), whole(false, 424+4+256+12+4+65536)},
		{"GSS CREATE", call(1, 1, 0, sgss, gss(3, 5, 3), 0), whole(false, 424+4+256+12+4+65536)},
		{"GSS DESTROY", call(1, 1, 0, sgss, gss(1, 3, 1)), whole(false, 424+16+400)},
		{"GSS BIND_CHANNEL", call(1, 1, 0, sgss, gss(2, 4, 1)), whole(false, 424+16+400)},
		{"GSS version 4", call(1, 1, 1, sgss, gss(4, 0, 1)), whole(false, most)},
		{"AUTH_DH", call(1, 1, 1, oncrpc.FlavorDH, nil), whole(false, most)},
		{"AUTH_TLS", call(1, 1, 0, oncrpc.FlavorTLS, nil), whole(false, most)},
		{"unbounded", call(2, 1, 1, sys, nil), Analysis{Known: true, Reduce: true, MaxReply: most, MaxReduced: most}},
		{"another version", call(1, 2, 1, sys, nil), whole(true, most)},
		{"another program", call(oncrpc.ProgramNFS, 4, 1, sys, nil), whole(true, most)},
		{"NULL of a known program", call(1, 1, 0, sys, nil), null(32)},
		{"NULL of NFSv4", call(oncrpc.ProgramNFS, 4, 0, sys, nil), null(32)},
		{"NULL of an unknown program", call(99, 1, 0, none, nil), null(32)},
		{"NULL under GSS none", call(99, 1, 0, sgss, gss(1, 0, 1)), null(432)},
		{"NULL with arguments is not NULL", call(99, 1, 0, none, nil, 1), whole(true, most)},
	} {
		a := Analysis{Procedure: "left over", Known: true, ArgLength: 9}
		reg.Analyse(tt.c, &a)
		a.Operation = 0 // TestOperations
		// Nobody knows what a Call does that cannot be read. What makes a GSS context changes no file.
		tt.want.Changes = !tt.want.Known && tt.c.Protection != oncrpc.ProtectControl
		if a != tt.want {
			t.Errorf("%s:\n got %+v\nwant %+v", tt.name, a, tt.want)
		}
	}
}

func TestRegistryBind(t *testing.T) {
	reg := NewRegistry(Limits{})
	reg.Bind(1, 1, fixed{})
	if b := reg.Lookup(1, 1); b != (fixed{}) {
		t.Errorf("Lookup = %T", b)
	}
	defer func() {
		if recover() == nil {
			t.Error("binding twice does not panic")
		}
	}()
	reg.Bind(1, 1, fixed{})
}

// Generic puts an argument back at the Requester's position if there is a length word
// before it.
func TestGenericArgItem(t *testing.T) {
	c := call(oncrpc.ProgramNFS, 4, 1, oncrpc.FlavorNone, nil, 13, 5, 0)
	for _, tt := range []struct {
		pos, length uint32
		ok          bool
	}{
		{uint32(c.Args) + 4, 13, true},
		{uint32(c.Args) + 4, 16, true}, // with roundup
		{uint32(c.Args) + 4, 12, false},
		{uint32(c.Args) + 8, 5, true},
		{uint32(c.Args) + 12, 0, true}, // behind the last octet of the message
		{uint32(c.Args) + 16, 0, false},
		{uint32(c.Args) + 5, 13, false},
		{uint32(c.Args), 0, false},
		{0, 0, false},
		{0xfffffffc, 0, false},
	} {
		s, err := RestoreCall(Generic, c, tt.pos, tt.length)
		if (err == nil) != tt.ok || err != nil && !errors.Is(err, ErrChunk) {
			t.Errorf("position %d, %d octets: %+v, %v", tt.pos, tt.length, s, err)
		}
	}
	// "a sender MUST NOT reduce a Payload stream when RPCSEC_GSS integrity or
	// encryption services are in use": RFC 8166 Section 8.2.2.3.
	c = call(oncrpc.ProgramNFS, 4, 1, oncrpc.FlavorGSS, gss(1, 0, 2), 8, 7, 0)
	if _, err := RestoreCall(Generic, c, uint32(len(c.Message)), 0); !errors.Is(err, ErrChunk) {
		t.Errorf("reduced under integrity: %v", err)
	}
}

func TestRestoreRefusals(t *testing.T) {
	success := oncrpc.AppendAccepted(nil, 1, oncrpc.Success)
	for name, base := range map[string][]byte{
		"no eligible item":  success,
		"GARBAGE_ARGS":      oncrpc.AppendAccepted(nil, 1, oncrpc.GarbageArguments),
		"AUTH_ERROR":        oncrpc.AppendAuthError(nil, 1, oncrpc.AuthTooWeak),
		"cut in the header": success[:20],
	} {
		if _, spliced, err := Restore(Generic, 1, base, 4); spliced || err == nil {
			t.Errorf("%s: spliced %v, %v", name, spliced, err)
		}
		if _, spliced, err := Restore(Generic, 1, base, 0); spliced || err != nil {
			t.Errorf("%s, nothing written: spliced %v, %v", name, spliced, err)
		}
		if _, ok := Reducible(Generic, 1, base); ok {
			t.Errorf("%s: reducible", name)
		}
	}
}
