package nfs_test

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
)

// backAttrs are the attributes of the back channel in the CREATE_SESSION of the vectors:
// headerpadsize, maxrequestsize, maxresponsesize, maxresponsesize_cached, maxoperations,
// maxrequests, no rdma_ird.
var backAttrs = []byte("\x00\x00\x00\x00\x00\x00\x10\x00\x00\x00\x10\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x10\x00\x00\x00\x00")

func createSession(t *testing.T) (m []byte, at int) {
	t.Helper()
	for _, v := range loadVectors(t) {
		if slices.Contains(v.Ops, "CREATE_SESSION") {
			if at = bytes.Index(v.Call, backAttrs); at < 0 {
				t.Fatalf("%s has other attributes", v.ID)
			}
			return bytes.Clone(v.Call), at + 4
		}
	}
	t.Fatal("no vector has CREATE_SESSION")
	return nil, 0
}

// TestBoundBackChannel checks that the most octets of a reverse Call, and nothing else, become what
// the way to the client carries, and never more than the client wants.
func TestBoundBackChannel(t *testing.T) {
	plain, at := createSession(t)
	// The fore channel may have an rdma_ird, which moves the back channel.
	moved := slices.Insert(bytes.Clone(plain), at-4, 0, 0, 0, 7)
	moved[at-5] = 1
	for _, tt := range []struct {
		m  []byte
		at int
	}{{plain, at}, {moved, at + 4}} {
		var a ulb.Analysis
		newRegistry().Analyse(parse(t, tt.m), &a)
		if !a.Known || int(a.BackRequest) != tt.at {
			t.Fatalf("BackRequest %d, want %d: %+v", a.BackRequest, tt.at, a)
		}
		for most, want := range map[int]uint32{-1: 4096, 0: 0, 996: 996, 4068: 4068, 4095: 4095, 4096: 4096, 1 << 20: 4096} {
			m, expected := bytes.Clone(tt.m), bytes.Clone(tt.m)
			nfs.BoundBackChannel(m, &a, most)
			binary.BigEndian.PutUint32(expected[tt.at:], want)
			if !bytes.Equal(m, expected) {
				t.Errorf("bound to %d: %x, want %x", most, m, expected)
			}
		}
	}
	for name, a := range map[string]ulb.Analysis{
		"no CREATE_SESSION": {}, "behind the end": {BackRequest: uint32(len(plain)) - 3, Reduce: true},
		"signed": {BackRequest: uint32(at)},
	} {
		m := bytes.Clone(plain)
		nfs.BoundBackChannel(m, &a, 996)
		if !bytes.Equal(m, plain) {
			t.Errorf("%s: the Call was changed", name)
		}
	}
}
