package nfs_test

import (
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
)

// TestOperations: each Call has the number of its operation, whether or not its arguments can be read.
func TestOperations(t *testing.T) {
	reg := ulb.NewRegistry(ulb.Limits{})
	nfs.Register(reg)
	words := func(ws ...uint32) []byte {
		b := make([]byte, 0, 4*len(ws))
		for _, w := range ws {
			b = append(b, byte(w>>24), byte(w>>16), byte(w>>8), byte(w))
		}
		return b
	}
	gss := func(procedure, service uint32) []uint32 { // a credential with an empty handle, and a verifier
		return []uint32{oncrpc.FlavorGSS, 20, 1, procedure, 7, service, 0, 0, 0}
	}
	none := []uint32{0, 0, 0, 0}
	for _, tt := range []struct {
		name                        string
		program, version, procedure uint32
		auth, args                  []uint32
		want                        string
		status                      ulb.StatusKind
		ops                         uint16
	}{
		{"v3 GETATTR", 100003, 3, 1, none, []uint32{4, 9}, "GETATTR", ulb.FirstStatus, 0},
		{"v3 garbage", 100003, 3, 6, none, []uint32{4}, "READ", ulb.FirstStatus, 0},
		{"v3 NULL", 100003, 3, 0, none, nil, "NULL", ulb.NoStatus, 0},
		{"v3 unknown", 100003, 3, 22, none, nil, "other", ulb.NoStatus, 0},
		{"v3 far beyond", 100003, 3, 1 << 31, none, nil, "other", ulb.NoStatus, 0},
		{"v3 private", 100003, 3, 7, gss(0, 3), []uint32{0}, "WRITE", ulb.FirstStatus, 0},
		{"GSS control", 100003, 3, 0, gss(1, 1), []uint32{0}, "GSS", ulb.NoStatus, 0},
		{"v2 ROOT", 100003, 2, 3, none, nil, "ROOT", ulb.NoStatus, 0},
		{"v4 private", 100003, 4, 1, gss(0, 3), []uint32{0}, "COMPOUND", ulb.FirstStatus, 0},
		{"v4 procedure 25 does not exist", 100003, 4, 25, none, nil, "other", ulb.NoStatus, 0},
		{"v4 empty", 100003, 4, 1, none, []uint32{0, 0, 0}, "COMPOUND", ulb.FirstStatus, 0},
		{"v4 PUTROOTFH GETATTR", 100003, 4, 1, none, []uint32{0, 0, 2, 24, 9, 0}, "GETATTR", ulb.FirstStatus, 2},
		{"v4 LOOKUPP ACCESS GETATTR", 100003, 4, 1, none, []uint32{0, 0, 4, 24, 16, 3, 1, 9, 0}, "LOOKUPP", ulb.FirstStatus, 4},
		{"v4 and an operation that is none", 100003, 4, 1, none, []uint32{0, 0, 3, 24, 9, 0, 999}, "GETATTR", ulb.FirstStatus, 2},
		{"NLM LOCK", 100021, 4, 2, none, nil, "LOCK", ulb.LockStatus, 0},
		{"NLM LOCK_MSG", 100021, 4, 7, none, nil, "LOCK_MSG", ulb.NoStatus, 0},
		{"MNT", 100005, 3, 1, none, nil, "MNT", ulb.FirstStatus, 0},
		{"EXPORT", 100005, 3, 5, none, nil, "EXPORT", ulb.NoStatus, 0},
		{"NFSACL", 100227, 3, 1, none, nil, "GETACL", ulb.FirstStatus, 0},
		{"the last binding", 100011, 2, 9, none, nil, "other", ulb.NoStatus, 0},
		{"unknown program", 4711, 1, 1, none, nil, "other", ulb.NoStatus, 0},
	} {
		m := words(append(append([]uint32{1, 0, 2, tt.program, tt.version, tt.procedure}, tt.auth...), tt.args...)...)
		var c oncrpc.Call
		if err := oncrpc.ParseCall(m, &c); err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		var a ulb.Analysis
		reg.Analyse(&c, &a)
		o := reg.Operations()[a.Operation]
		if o.Name != tt.want || o.Status != tt.status || a.Operations != tt.ops {
			t.Errorf("%s: operation %d, %+v of %d, want %s, status %d, of %d", tt.name, a.Operation, o, a.Operations, tt.want, tt.status, tt.ops)
		}
		if known := o.Program != 0; known && (o.Program != tt.program || o.Version != tt.version) {
			t.Errorf("%s: the operation is one of program %d version %d", tt.name, o.Program, o.Version)
		}
	}
}
