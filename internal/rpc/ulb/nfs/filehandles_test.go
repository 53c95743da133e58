package nfs

import (
	"slices"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

// TestMoveOf: each operation that does something to filehandles does that, with its handle or name, and arguments that are
// cut off have neither.
func TestMoveOf(t *testing.T) {
	words := func(w ...uint32) []byte { return xdr.AppendWords(nil, w...) }
	name := func(before ...uint32) []byte { return xdr.AppendOpaque(words(before...), []byte("name")) }
	target := xdr.AppendOpaque(words(5), []byte("target"))
	for _, v := range []struct {
		what   string
		number uint32
		args   []byte
		move   Move
		octets bool // "name"
	}{
		{"PUTFH", opPutFH, name(), Puts, true},
		{"PUTPUBFH", opPutPubFH, nil, PutsRoot, false},
		{"PUTROOTFH", opPutRootFH, nil, PutsRoot, false},
		{"SAVEFH", opSaveFH, nil, Saves, false},
		{"RESTOREFH", opRestoreFH, nil, Restores, false},
		{"LOOKUP", opLookup, name(), Enters, true},
		{"LOOKUPP", opLookupp, nil, GoesUp, false},
		{"OPENATTR", opOpenattr, words(1), EntersAttrs, false},
		{"CREATE of a directory", opCreate, name(2), Enters, true},
		{"CREATE of a device", opCreate, name(3, 8, 1), Enters, true},
		{"CREATE of another device", opCreate, name(4, 8, 1), Enters, true},
		{"CREATE of a symbolic link", opCreate, xdr.AppendOpaque(target, []byte("name")), Enters, true},
		{"OPEN by name", opOpen, name(0, 1, 0, 0, 0, 0, 0, 0), Enters, true},
		{"OPEN by filehandle", opOpen, words(0, 1, 0, 0, 0, 0, 0, 4), Stays, false},
		{"GETATTR", 9, words(0), Stays, false},
		{"REMOVE", 28, name(), Stays, false},
		{"LINK", opLink, name(), Stays, false},
	} {
		before := []byte("before")
		move, octets := MoveOf(v.number, slices.Concat(before, v.args), len(before))
		if move != v.move || v.octets != (string(octets) == "name") || !v.octets && octets != nil {
			t.Errorf("%s: %v of %q", v.what, move, octets)
		}
		if !v.octets {
			continue
		}
		for n := range v.args {
			if move, octets = MoveOf(v.number, v.args[:n], 0); octets != nil {
				t.Errorf("%s of %d octets: %v of %q", v.what, n, move, octets)
			}
		}
	}
}
