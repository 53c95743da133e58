package session

import (
	"bytes"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
)

// TestWholeReply: a Reply in several parts is copied only if it is short.
func TestWholeReply(t *testing.T) {
	t.Parallel()
	long := make([]byte, mostWhole)
	for _, tt := range []struct {
		name  string
		parts [][]byte
		want  []byte
	}{
		{"one part", [][]byte{append(long, 1)}, append(long, 1)},
		{"two short parts", [][]byte{{1, 2}, {3}}, []byte{1, 2, 3}},
		{"two long parts", [][]byte{{1}, long}, nil},
	} {
		if got := whole(tt.parts); !bytes.Equal(got, tt.want) {
			t.Errorf("%s: %d octets, want %d", tt.name, len(got), len(tt.want))
		}
	}
	// What reads such a Reply takes none for an answer.
	a := &ulb.Analysis{SessionOps: ulb.CreateSession}
	if _, _, ok := nfs.CreatedLimits(nil, a); ok {
		t.Error("no Reply has limits")
	}
	if _, _, ok := nfs.CreatedSession(nil, a); ok {
		t.Error("no Reply has made a session")
	}
}
