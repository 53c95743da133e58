package oncrpc

import (
	"bytes"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// TestRefusal: every Call whose header cannot be walked has a Reply, if the message says that it is a Call. Its
// arguments are nowhere.
func TestRefusal(t *testing.T) {
	call := func(ws ...uint32) []byte {
		return testkit.Words(append([]uint32{7, TypeCall, 2, ProgramNFS, 3, 1}, ws...)...)
	}
	denied := func(stat uint32) []byte { return testkit.Words(7, TypeReply, 1, AuthError, stat) }
	garbage := testkit.Words(7, TypeReply, 0, FlavorNone, 0, GarbageArguments)
	whole := append(call(FlavorSys, 8, 1, 2, FlavorNone, 4), 1, 2, 3, 4)
	for _, tt := range []struct {
		name  string
		m     []byte
		why   Refusal
		reply []byte
	}{
		{"RPC version 3", testkit.Words(7, TypeCall, 3), RefusedVersion, testkit.Words(7, TypeReply, 1, RPCMismatch, 2, 2)},
		{"a credential of 401 octets", append(call(FlavorSys, 401), make([]byte, 500)...), RefusedCredential, denied(AuthBadCredential)},
		{"a credential of 4 GiB", call(FlavorSys, 0xffffffff, 0, 0), RefusedCredential, denied(AuthBadCredential)},
		{"a verifier of 401 octets", append(call(FlavorNone, 0, FlavorNone, 401), make([]byte, 500)...), RefusedVerifier, denied(AuthBadVerifier)},
		{"a verifier of 4 GiB", call(FlavorNone, 0, FlavorNone, 0xffffffff), RefusedVerifier, denied(AuthBadVerifier)},
		{"a GSS credential that is cut short", call(FlavorGSS, 40, 1, 0, 1), RefusedShort, denied(AuthBadCredential)},
		{"a credential that is cut short", call(FlavorSys, 40, 1, 0, 1), RefusedShort, garbage},
		{"a verifier that is cut short", whole[:len(whole)-1], RefusedShort, garbage},
		{"a header that is cut short", whole[:39], RefusedShort, garbage},
		{"XID and direction", whole[:8], RefusedShort, garbage},
		{"an XID alone", whole[:7], RefusedNot, nil},
		{"nothing", nil, RefusedNot, nil},
		{"a Reply", testkit.Words(7, TypeReply, 0, 0, 0, 0, 0, 0, 0, 0), RefusedNot, nil},
		{"a short Reply", testkit.Words(7, TypeReply, 0), RefusedNot, nil},
		{"no direction", testkit.Words(7, 2, 0), RefusedNot, nil},
	} {
		var c Call
		err := ParseCall(tt.m, &c)
		if err == nil {
			t.Errorf("%s: the header can be walked", tt.name)
			continue
		}
		b, why := c.AppendRefusal(nil, err)
		if why != tt.why || !bytes.Equal(b, tt.reply) || c.Args != 0 {
			t.Errorf("%s: %s, %x, arguments at %d; want %s, %x", tt.name, RefusalNames[why], b, c.Args, RefusalNames[tt.why], tt.reply)
		}
	}
}
