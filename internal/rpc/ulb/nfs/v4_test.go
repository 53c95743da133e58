package nfs_test

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

// testdata/reference4.txt holds COMPOUNDs with every operation of every minor
// version, made from the XDR in RFC 7531, RFC 5662, RFC 7863 and RFC 8276 with
// random contents, and Replies to them, some of which end with an error. Its figures come
// from the reference of reference.txt:
//
//	minor class arg-position arg-length result-data max-reply max-reduced
//	session creates-session reply-items first-item-position first-item-length
//	call reply
type reference4 struct {
	minor                uint32
	class                string
	pos, length, result  uint32
	maxReply, maxReduced uint32
	session              uint32
	creates, items       int
	itemPos, itemLength  uint32
	call, reply          []byte
}

func loadReference4(t testing.TB) (refs []reference4) {
	t.Helper()
	f, err := os.Open("testdata/reference4.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		var r reference4
		var call, reply string
		if _, err := fmt.Sscan(s.Text(), &r.minor, &r.class, &r.pos, &r.length, &r.result, &r.maxReply, &r.maxReduced,
			&r.session, &r.creates, &r.items, &r.itemPos, &r.itemLength, &call, &reply); err != nil {
			t.Fatalf("%q: %v", s.Text(), err)
		}
		if r.call, err = hex.DecodeString(call); err != nil {
			t.Fatal(err)
		}
		if r.reply, err = hex.DecodeString(reply); err != nil {
			t.Fatal(err)
		}
		refs = append(refs, r)
	}
	if len(refs) != 480 {
		t.Fatalf("%d reference COMPOUNDs", len(refs))
	}
	return refs
}

func TestReference4(t *testing.T) {
	reg := newRegistry()
	names := map[string]bool{}
	for _, r := range loadReference4(t) {
		var a ulb.Analysis
		b := reg.Analyse(parse(t, r.call), &a)
		names[a.Procedure] = true
		want := ulb.Analysis{
			Known: true, Class: classes[r.class], Reduce: true, ArgPosition: r.pos, ArgLength: r.length,
			ResultMax: r.result, MaxReply: r.maxReply, MaxReduced: r.maxReduced, Session: r.session,
			SessionOps: a.SessionOps, BackRequest: a.BackRequest, Guess: a.Guess, LayoutTypes: a.LayoutTypes, Procedure: a.Procedure,
		}
		if creates := a.SessionOps&ulb.CreateSession != 0; creates != (r.creates == 1) {
			t.Errorf("%x: SessionOps %d", r.call, a.SessionOps)
		}
		if (a.BackRequest != 0) != (r.creates == 1) {
			t.Errorf("%x: BackRequest %d", r.call, a.BackRequest)
		}
		a.Operation, a.Operations, a.Changes, a.Lower = 0, 0, false, 0 // TestOperations, TestChanges, TestLowerArguments
		if a != want {
			t.Errorf("%x:\n got %+v\nwant %+v", r.call, a, want)
		}
		s, ok := ulb.Reducible(b, 1, r.reply)
		if ok != (r.items > 0) || ok && (s.Pos != r.itemPos || s.Length != r.itemLength) {
			t.Errorf("%x: Reducible = %+v, %v; want %d items, the first at %d of %d", r.reply, s, ok, r.items, r.itemPos, r.itemLength)
		}
		if r.items != 1 || r.itemLength == 0 {
			continue
		}
		base := slices.Concat(r.reply[:s.Pos], r.reply[s.Pos+s.Length+s.Padding:])
		s, spliced, err := ulb.Restore(b, 1, base, r.itemLength)
		if err != nil || !spliced {
			t.Errorf("%x: spliced %v, %v", base, spliced, err)
			continue
		}
		if got := apply(s, base, r.reply[r.itemPos:r.itemPos+r.itemLength]); !bytes.Equal(got, r.reply) {
			t.Errorf("restored %x, want %x", got, r.reply)
		}
	}
	if len(names) < 60 {
		t.Errorf("%d kinds of COMPOUND: %v", len(names), names)
	}
}

// compound4 returns a COMPOUND under AUTH_NONE with operations that the caller encodes.
func compound4(minor, count uint32, words ...uint32) []byte {
	b := xdr.AppendUint32(nil, 1)
	for _, w := range []uint32{oncrpc.TypeCall, oncrpc.RPCVersion, oncrpc.ProgramNFS, 4, 1, 0, 0, 0, 0, 0, minor, count} {
		b = xdr.AppendUint32(b, w)
	}
	for _, w := range words {
		b = xdr.AppendUint32(b, w)
	}
	return b
}

// A COMPOUND that cannot be walked or has an unknown minor version is carried whole. Its
// Analysis has the session if SEQUENCE could be walked.
func TestCompoundUnknown(t *testing.T) {
	reg := newRegistry()
	sequence := []uint32{53, 1, 2, 3, 4, 5, 6, 7, 8}
	const putrootfh, allocate = 24, 59
	for _, tt := range []struct {
		name    string
		m       []byte
		session uint32
	}{
		{"minor version 3", compound4(3, 1, putrootfh), 0},
		{"nothing of minor version 3", compound4(3, 0), 0},
		{"operation 0", compound4(0, 1, 0), 0},
		{"operation 2", compound4(2, 1, 2), 0},
		{"operation 76", compound4(2, 1, 76), 0},
		{"SEQUENCE in 4.0", compound4(0, 1, sequence...), 0},
		{"SEQUENCE second", compound4(1, 3, append([]uint32{putrootfh}, append(sequence, 76)...)...), 0},
		{"ALLOCATE in 4.1", compound4(1, 2, append(sequence, allocate, 0, 0, 0, 0, 0, 0, 0, 0)...), 56},
		{"an operation less", compound4(1, 1, append(sequence, putrootfh)...), 56},
		{"an operation more", compound4(1, 3, append(sequence, putrootfh)...), 56},
		{"2^32-1 operations", compound4(1, 0xffffffff, append(sequence, putrootfh)...), 0},
		{"5000 operations", compound4(0, 5000, slices.Repeat([]uint32{putrootfh}, 5000)...), 0},
		{"octets behind", append(compound4(0, 1, putrootfh), 0), 0},
	} {
		var a ulb.Analysis
		reg.Analyse(parse(t, tt.m), &a)
		most := reg.Limits().MaxReply
		want := ulb.Analysis{
			Class: ulb.NonIdempotent, Reduce: true, MaxReply: most, MaxReduced: most,
			Session: tt.session, Procedure: "COMPOUND",
		}
		a.Operation, a.Operations, a.Changes, a.Lower = 0, 0, false, 0 // TestOperations, TestChanges, TestLowerArguments
		if a != want {
			t.Errorf("%s: %+v, want %+v", tt.name, a, want)
		}
	}
	var a ulb.Analysis
	if reg.Analyse(parse(t, compound4(2, 1, 10044)), &a); !a.Known || a.MaxReply != 44 || a.Procedure != "COMPOUND" || a.Changes {
		t.Errorf("ILLEGAL: %+v", a)
	}
	if reg.Analyse(parse(t, compound4(0, 0)), &a); !a.Known || a.MaxReply != 36 || a.Class != ulb.ReadOnly || a.Procedure != "COMPOUND" {
		t.Errorf("a COMPOUND of nothing: %+v", a)
	}
	if reg.Analyse(parse(t, compound4(0, 4096, slices.Repeat([]uint32{putrootfh}, 4096)...)), &a); !a.Known || a.MaxReply != 36+8*4096 {
		t.Errorf("a COMPOUND of 4096: %+v", a)
	}
}

// Under integrity the arguments give the bounds, and nothing is reduced.
func TestCompoundIntegrity(t *testing.T) {
	reg := newRegistry()
	for _, v := range loadVectors(t) {
		if !v.compound() || !v.Known {
			continue
		}
		plain := parse(t, v.Call)
		m := signedCall(t, v.Call)
		c := parse(t, m)
		var a, b ulb.Analysis
		reg.Analyse(plain, &a)
		binding := reg.Analyse(c, &b)
		want := a
		want.Reduce, want.ArgPosition, want.ArgLength, want.ResultMax, want.Lower = false, 0, 0, 0, 0
		want.MaxReply += 400 + 8 + 4 + 400
		want.MaxReduced = want.MaxReply
		if want.Session != 0 {
			want.Session = uint32(c.Args + 8 + int(a.Session) - plain.Args)
		}
		if want.BackRequest != 0 {
			want.BackRequest = uint32(c.Args + 8 + int(a.BackRequest) - plain.Args)
		}
		if b != want {
			t.Errorf("%s under integrity:\n got %+v\nwant %+v", v.ID, b, want)
		}
		for p := range uint32(len(m)) {
			if _, err := ulb.RestoreCall(binding, c, p, 13); err == nil {
				t.Errorf("%s: reduced under integrity at %d", v.ID, p)
			}
		}
	}
}

// A COMPOUND of an RDMA client with operations that this package does not know is rebuilt
// by the client's positions, like a Call without a binding.
func TestArgItemUnknownOperation(t *testing.T) {
	reg := newRegistry()
	write := []uint32{38, 0, 0, 0, 0, 0, 0, 2, 13}
	for _, tt := range []struct {
		name  string
		m     []byte
		pos   uint32
		found bool
	}{
		{"WRITE, unknown", compound4(2, 2, append(write, 76, 1, 2)...), 88, true},
		{"WRITE, unknown, another position", compound4(2, 2, append(write, 76, 1, 2)...), 84, false},
		{"unknown, WRITE", compound4(2, 2, append([]uint32{76, 1, 2}, write...)...), 100, true},
		{"unknown, WRITE, before the unknown", compound4(2, 2, append([]uint32{76, 1, 2}, write...)...), 52, false},
		{"data in place of an operation", compound4(2, 2, append(write, 0x68656c6c, 1, 2)...), 88, false},
		{"of another minor version", compound4(1, 2, append(write, 59, 1, 2)...), 88, false},
	} {
		c := parse(t, tt.m)
		_, err := ulb.RestoreCall(reg.Lookup(c.Program, c.Version), c, tt.pos, 13)
		if (err == nil) != tt.found {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

// The same for plain Calls.
func TestArgItemsUnknownOperation(t *testing.T) {
	reg := newRegistry()
	write := []uint32{38, 0, 0, 0, 0, 0, 0, 2, 13, 1, 2, 3, 4}
	both := slices.Concat(write, []uint32{76, 1, 2}, write)
	for _, tt := range []struct {
		name   string
		m      []byte
		places []uint32
		found  bool
	}{
		{"both", compound4(2, 3, both...), []uint32{88, 152}, true},
		{"the first", compound4(2, 3, both...), []uint32{88}, true},
		{"the second", compound4(2, 3, both...), []uint32{152}, true},
		{"none", compound4(2, 3, both...), nil, true},
		{"elsewhere before the unknown", compound4(2, 3, both...), []uint32{84, 152}, false},
		{"twice", compound4(2, 3, both...), []uint32{88, 88}, false},
		{"not ascending", compound4(2, 2, slices.Concat(write, write)...), []uint32{140, 88}, false},
		{"ascending", compound4(2, 2, slices.Concat(write, write)...), []uint32{88, 140}, true},
		{"data in place of an operation", compound4(2, 2, slices.Concat(write, []uint32{0x68656c6c, 1, 2})...), []uint32{88}, false},
		{"of another minor version", compound4(1, 2, slices.Concat(write, []uint32{59, 1, 2})...), []uint32{88}, false},
		{"too few operations", compound4(2, 1, slices.Concat(write, write)...), []uint32{88}, false},
		{"a program without a binding", slices.Concat(compound4(2, 1, write...)[:16], []byte{0, 0, 0, 5}, compound4(2, 1, write...)[20:]), []uint32{88}, true},
	} {
		c := parse(t, tt.m)
		if got := reg.Lookup(c.Program, c.Version).ArgItems(c, tt.places); got != tt.found {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}

// Limits bound the results that the protocol does not bound. In 4.0 the Reply header and
// COMPOUND4res add 36 octets; in later minor versions the session is the bound.
func TestCompoundLimits(t *testing.T) {
	reg := ulb.NewRegistry(ulb.Limits{
		MaxIO: 1 << 16, MaxReply: 1 << 20, Path: 101, Flavors: 3, Bitmap: 5, Identity: 9, Label: 6, XAttr: 7, Attribute: 1001,
	})
	nfs.Register(reg)
	const bm = 4 + 4*5
	bit := func(n int) []uint32 {
		w := make([]uint32, 4+n/32)
		w[0], w[1], w[2+n/32] = 9, uint32(1+n/32), 1<<(n%32)
		return w[:3+n/32]
	}
	ssv := func(handles uint32) []uint32 {
		return []uint32{42, 0, 0, 0, 0, 2, 0, 0, 0, 0, 7, handles, 0}
	}
	for _, tt := range []struct {
		name  string
		minor uint32
		words []uint32
		want  uint32
	}{
		{"READ beyond MaxIO", 0, []uint32{25, 0, 0, 0, 0, 0, 0, 1 << 20}, 16 + 1<<16},
		{"READ of odd length", 0, []uint32{25, 0, 0, 0, 0, 0, 0, 13}, 16 + 16},
		{"READ_PLUS", 2, []uint32{68, 0, 0, 0, 0, 0, 0, 1 << 20}, 16 + 1<<16 + 40*17},
		{"READLINK", 0, []uint32{27}, 12 + 104},
		{"SECINFO_NO_NAME", 1, []uint32{52, 0}, 12 + 3*48},
		{"CREATE", 0, []uint32{6, 2, 0, 0, 0}, 28 + bm},
		{"GETXATTR", 2, []uint32{72, 0}, 12 + 8},
		{"GETATTR of nothing", 0, []uint32{9, 0}, 16 + bm - 4},
		{"GETATTR of supported_attrs", 0, bit(0), 16 + bm - 4 + bm},
		{"GETATTR of owner", 0, bit(36), 16 + bm - 4 + 4 + 12},
		{"GETATTR of sec_label", 0, bit(80), 16 + bm - 4 + 12 + 8},
		{"GETATTR of open_arguments", 0, bit(86), 16 + bm - 4 + 5*bm},
		{"GETATTR of acl", 0, bit(12), 16 + bm - 4 + 1004},
		{"GETATTR of attribute 87", 0, bit(87), 16 + bm - 4 + 1004},
		{"GETATTR of attribute 100", 0, bit(100), 16 + bm - 4 + 1004},
		{"GETATTR of attribute 1000", 0, bit(1000), 16 + 4*32 + 1004},
		{"GETATTR of acl in 4.1", 1, bit(12), 1 << 20},
		{"EXCHANGE_ID", 1, []uint32{42, 0, 0, 0, 0, 0, 0}, 8 + 28 + 4*1028 + 4 + 4 + 12 + 2*bm - 4},
		{"EXCHANGE_ID with SP4_SSV", 1, ssv(3), 8 + 28 + 4*1028 + 4 + 4 + 12 + 2*bm - 4 + 20 + 3*260},
		{"EXCHANGE_ID with too many handles", 1, ssv(0xffffffff), 1 << 20},
		{"READDIR of 4 GiB", 0, []uint32{26, 0, 0, 0, 0, 0, 0xffffffff, 0}, 1 << 20},
		{"READDIR of less than an entry", 0, []uint32{26, 0, 0, 0, 0, 0, 0, 0}, 24 + 16},
	} {
		var a ulb.Analysis
		reg.Analyse(parse(t, compound4(tt.minor, 1, tt.words...)), &a)
		want := tt.want
		if want != 1<<20 {
			want += 36
		}
		if !a.Known || a.MaxReply != want {
			t.Errorf("%s: MaxReply = %d of %+v, want %d", tt.name, a.MaxReply, a, want)
		}
	}
}

// The server answers an unknown operation with ILLEGAL, here behind reduced data.
func TestCompoundIllegalResult(t *testing.T) {
	b := newRegistry().Lookup(oncrpc.ProgramNFS, 4)
	reply := oncrpc.AppendAccepted(nil, 1, oncrpc.Success)
	for _, w := range []uint32{10044, 0, 2, 25, 0, 1, 5, 10044, 10044} {
		reply = xdr.AppendUint32(reply, w)
	}
	s, spliced, err := ulb.Restore(b, 1, reply, 5)
	if err != nil || !spliced || s != (ulb.Splice{Pos: 52, Length: 5, Padding: 3}) {
		t.Errorf("Restore = %+v, %v, %v", s, spliced, err)
	}
	reply[len(reply)-8+2] = 0x28 // another number without an operation
	if _, _, err := ulb.Restore(b, 1, reply, 5); err == nil {
		t.Error("the result of an unknown operation is walked")
	}
}
