package observe

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

// TestClassOf: the class of a Reply follows from its first octets, and only from those that may be read.
func TestClassOf(t *testing.T) {
	var latest latestClass
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
		{"NLM, with another cookie", replyWords(1, 1, 0, 0, 0, 0, 5, 1, 2, 0), none, ulb.LockStatus, status.ClassOK},
		{"NLM", replyWords(1, 1, 0, 0, 0, 0, 5, 1, 2, 4), none, ulb.LockStatus, status.ClassGrace},
		{"NLM whose cookie is longer than the Reply", replyWords(1, 1, 0, 0, 0, 0, 1<<31, 1), none, ulb.LockStatus, status.ClassMalformed},
		{"behind a verifier of 8 octets", replyWords(1, 1, 0, 6, 8, 0, 9, 0, 2), none, ulb.FirstStatus, status.ClassNoEnt},
		{"behind such a verifier, ok", replyWords(1, 1, 0, 6, 8, 0, 9, 0, 0), none, ulb.FirstStatus, status.ClassOK},
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
		c, _, _ := ClassOf(tt.reply, tt.p, tt.kind)
		if next, again := latest.classOf(tt.reply, tt.p, tt.kind), latest.classOf(tt.reply, tt.p, tt.kind); c.String() != tt.want || next != c || again != c {
			t.Errorf("%s: %s, behind others %s, and again %s, want %s", tt.name, c, next, again, tt.want)
		}
	}
}

func FuzzClassOf(f *testing.F) {
	f.Add(replyWords(1, 1, 0, 0, 0, 0, 70), uint8(0), uint8(1))
	f.Fuzz(func(_ *testing.T, m []byte, p, kind uint8) {
		ClassOf(m, oncrpc.Protection(p%5), ulb.StatusKind(kind%3))
	})
}
