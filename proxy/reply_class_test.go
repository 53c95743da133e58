package proxy

import (
	"encoding/binary"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/status"
)

func replyWords(ws ...uint32) (b []byte) {
	for _, w := range ws {
		b = binary.BigEndian.AppendUint32(b, w)
	}
	return b
}

// TestReplyClass: the class of a Reply follows from its first octets, and only from those that may be read.
func TestReplyClass(t *testing.T) {
	none, integrity, privacy := oncrpc.ProtectNone, oncrpc.ProtectIntegrity, oncrpc.ProtectPrivacy
	for _, tt := range []struct {
		name  string
		reply []byte
		p     oncrpc.Protection
		kind  ulb.StatusKind
		want  string
	}{
		{"ok", replyWords(1, 1, 0, 0, 0, 0, 0), none, ulb.FirstStatus, status.ClassOK},
		{"stale", replyWords(1, 1, 0, 0, 0, 0, 70), none, ulb.FirstStatus, status.ClassStale},
		{"behind a verifier of 5 octets", replyWords(1, 1, 0, 6, 5, 9, 9, 0, 2), none, ulb.FirstStatus, status.ClassNoEnt},
		{"krb5i", replyWords(1, 1, 0, 6, 4, 9, 0, 8, 77, 10008), integrity, ulb.FirstStatus, status.ClassDelay},
		{"krb5p", replyWords(1, 1, 0, 6, 4, 9, 0, 8, 77, 10008), privacy, ulb.FirstStatus, status.ClassEncrypted},
		{"krb5p, and no such program", replyWords(1, 1, 0, 0, 0, 1), privacy, ulb.FirstStatus, status.ClassProgUnavail},
		{"no status", replyWords(1, 1, 0, 0, 0, 0, 70), none, ulb.NoStatus, status.ClassOK},
		{"NLM", replyWords(1, 1, 0, 0, 0, 0, 5, 1, 2, 4), none, ulb.LockStatus, status.ClassGrace},
		{"NLM whose cookie is longer than the Reply", replyWords(1, 1, 0, 0, 0, 0, 1<<31, 1), none, ulb.LockStatus, status.ClassMalformed},
		{"SYSTEM_ERR", replyWords(1, 1, 0, 0, 0, 5), none, ulb.FirstStatus, status.ClassSystemErr},
		{"accept_stat 6", replyWords(1, 1, 0, 0, 0, 6), none, ulb.FirstStatus, status.ClassMalformed},
		{"AUTH_ERROR", replyWords(1, 1, 1, 1, 5), none, ulb.FirstStatus, status.ClassAuthError},
		{"RPC_MISMATCH", replyWords(1, 1, 1, 0, 2, 2), none, ulb.FirstStatus, status.ClassRPCMismatch},
		{"too short", replyWords(1, 1, 0), none, ulb.FirstStatus, status.ClassMalformed},
		{"without its status", replyWords(1, 1, 0, 0, 0, 0), none, ulb.FirstStatus, status.ClassMalformed},
		{"a verifier beyond the Reply", replyWords(1, 1, 0, 0, 400, 0), none, ulb.FirstStatus, status.ClassMalformed},
		{"a verifier that is too long", replyWords(1, 1, 0, 0, 1<<31, 0), none, ulb.FirstStatus, status.ClassMalformed},
		{"a status of tomorrow", replyWords(1, 1, 0, 0, 0, 0, 20000), none, ulb.FirstStatus, status.ClassOther},
	} {
		if c, _, _ := replyClass(tt.reply, tt.p, tt.kind); classNames[c] != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, classNames[c], tt.want)
		}
	}
}

func FuzzReplyClass(f *testing.F) {
	f.Add(replyWords(1, 1, 0, 0, 0, 0, 70), uint8(0), uint8(1))
	f.Fuzz(func(_ *testing.T, m []byte, p, kind uint8) {
		replyClass(m, oncrpc.Protection(p%5), ulb.StatusKind(kind%3))
	})
}

// TestDivide: the phases of a Call add up to its time, also when the clocks of two loops disagree by a pass.
func TestDivide(t *testing.T) {
	for _, tt := range []struct {
		times   callTimes
		settled int64
		want    [phases]uint64
	}{
		{callTimes{10, 20, 40, 80}, 160, [phases]uint64{10, 20, 40, 80}},
		{callTimes{10, 0, 0, 10}, 15, [phases]uint64{0, 0, 0, 5}}, // the bridge answered it
		{callTimes{10, 20, 15, 30}, 40, [phases]uint64{10, 0, 10, 10}},
		{callTimes{10, 20, 30, 25}, 28, [phases]uint64{10, 10, 0, 0}},
	} {
		var d [phases]uint64
		if tt.times.divide(tt.settled, &d); d != tt.want {
			t.Errorf("%+v until %d: %v, want %v", tt.times, tt.settled, d, tt.want)
		}
	}
}
