package nfs_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

const (
	nonPNFS = 0x10000
	mds     = 0x20000
	ds      = 0x40000
)

// exchanged returns the vector's Reply to EXCHANGE_ID with other flags, and their position.
func exchanged(t testing.TB, flags uint32) (m []byte, at int) {
	t.Helper()
	at = 24 + 12 + 8 + 12 // the header, status to count, operation and status, clientid and sequenceid
	return patched(byID(t, "24-nfs41-exchange-id").Replies[0].Reply, at, flags), at
}

// TestHideLayouts checks that the roles of the server, and nothing else, change.
func TestHideLayouts(t *testing.T) {
	a := analyse(t, byID(t, "24-nfs41-exchange-id").Call)
	const others = 0x80000103 // CONFIRMED_R, BIND_PRINC_STATEID, SUPP_MOVED_MIGR and _REFER
	for _, tt := range []struct {
		name       string
		flags      uint32
		want       uint32
		wantChange bool
	}{
		{"metadata server", others | mds, others | nonPNFS, true},
		{"both servers", mds | ds, nonPNFS, true},
		{"data server", others | ds, others | nonPNFS, true},
		{"data server without layouts of its own", ds | nonPNFS, nonPNFS, true},
		{"neither", others | nonPNFS, others | nonPNFS, false},
		{"no role at all", others, others, false},
	} {
		m, at := exchanged(t, tt.flags)
		want := patched(m, at, tt.want)
		if changed := nfs.HideLayouts([][]byte{m}, &a); changed != tt.wantChange || !bytes.Equal(m, want) {
			t.Errorf("%s: changed %v\n got %x\nwant %x", tt.name, changed, m, want)
		}
	}
}

// The word may be in any part of a Reply.
func TestHideLayoutsParts(t *testing.T) {
	a := analyse(t, byID(t, "24-nfs41-exchange-id").Call)
	m, at := exchanged(t, mds)
	want := patched(m, at, nonPNFS)
	for cut := 0; cut <= len(m); cut++ {
		m := bytes.Clone(m)
		inside := cut > at && cut < at+4
		changed := nfs.HideLayouts([][]byte{m[:cut:cut], {}, m[cut:]}, &a)
		if changed == inside || bytes.Equal(m, want) != changed {
			t.Errorf("cut at %d: changed %v, %x", cut, changed, m)
		}
	}
}

func TestHideLayoutsNot(t *testing.T) {
	call := byID(t, "24-nfs41-exchange-id").Call
	a := analyse(t, call)
	ok, _ := exchanged(t, mds)
	for name, m := range map[string][]byte{
		"failed":      replyOf(10008, 42, 10008),
		"denied":      oncrpc.AppendAuthError(nil, 1, 1),
		"cut short":   ok[:len(ok)-4],
		"trailing":    append(bytes.Clone(ok), 0, 0, 0, 0),
		"another":     byID(t, "23-nfs41-create-session").Replies[0].Reply,
		"not a Reply": call,
		"empty":       {},
	} {
		was := bytes.Clone(m)
		if nfs.HideLayouts([][]byte{m}, &a) || !bytes.Equal(m, was) {
			t.Errorf("%s: %x", name, m)
		}
	}
	if nfs.HideLayouts(nil, &a) {
		t.Error("no parts, and one changed")
	}
	signed, other := a, a
	signed.Reduce, other.SessionOps = false, ulb.CreateSession
	for name, a := range map[string]*ulb.Analysis{"signed": &signed, "another Call": &other} {
		for _, m := range [][]byte{bytes.Clone(ok), integrity(ok)} {
			was := bytes.Clone(m)
			if nfs.HideLayouts([][]byte{m}, a) || !bytes.Equal(m, was) {
				t.Errorf("%s: %x", name, m)
			}
		}
	}
}

// fsinfoCall asks for what Linux asks for when it mounts a file system.
const fsinfoCall = callHeader + `
	00000000 00000001 00000003   # tag, minorversion, count
	00000035                     # SEQUENCE
	00010203 04050607 08090a0b 0c0d0e0f  # sa_sessionid
	00000007 00000000 00000000 00000000  # sequenceid, slotid, highest_slotid, cachethis
	00000018                     # PUTROOTFH
	00000009                     # GETATTR
	00000003 68000400 40080000 00020002  # lease_time, maxread ...; fs_layout_type, time_delta; ...
`

// TestHideLayoutTypes checks that GETATTRs ask for everything but fs_layout_type.
func TestHideLayoutTypes(t *testing.T) {
	fsinfo := testkit.Unhex(t, fsinfoCall)
	at := len(fsinfo) - 8
	getattrs := compound4(1, 3, 9, 1, 0x40000000, 9, 2, 1, 0x40000002, 9, 3, 0, 0xffffffff, 0)
	first := 40 + 12
	for _, tt := range []struct {
		name    string
		m, want []byte
	}{
		{"mount", fsinfo, patched(fsinfo, at, 0x00080000)},
		{"several GETATTRs", getattrs, patched(patched(getattrs, first+12+12, 2), first+12+16+12, 0xbfffffff)},
		{"no GETATTR asks for it", patched(fsinfo, at, 0xbfffffff), nil},
		{"one unit", compound4(1, 1, 9, 1, 0x40000000), nil},
		{"another operation", compound4(2, 1, 34, 0, 0, 0, 0, 2, 0, 0x40000000, 0), nil},
		{"cut short", fsinfo[:len(fsinfo)-4], nil},
		{"signed", signedCall(t, fsinfo), nil},
	} {
		m, want := bytes.Clone(tt.m), tt.want
		if want == nil {
			want = tt.m
		}
		c := parse(t, m)
		a := analyse(t, m)
		changed := nfs.HideLayoutTypes(c, &a)
		if !bytes.Equal(m, want) || changed == bytes.Equal(tt.m, want) {
			t.Errorf("%s: changed %v\n got %x\nwant %x", tt.name, changed, m, want)
		}
		if a.LayoutTypes != (changed || tt.name == "signed") {
			t.Errorf("%s: LayoutTypes %v", tt.name, a.LayoutTypes)
		}
		if b := analyse(t, m); changed && (!b.Known || b.LayoutTypes) {
			t.Errorf("%s: after the change %+v", tt.name, b)
		}
	}
}

func TestLayoutsAllocs(t *testing.T) {
	a := analyse(t, byID(t, "24-nfs41-exchange-id").Call)
	m, at := exchanged(t, mds)
	call := testkit.Unhex(t, fsinfoCall)
	c, b := parse(t, call), analyse(t, call)
	bit := len(call) - 8
	parts := [][]byte{m}
	if n := testing.AllocsPerRun(100, func() {
		copy(m[at:], []byte{0, 2, 0, 0})
		copy(call[bit:], []byte{0x40, 8, 0, 0})
		if !nfs.HideLayouts(parts, &a) || !nfs.HideLayoutTypes(c, &b) {
			t.Fatal("not changed")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzLayouts checks that the functions change only the bits that they are to change, and leave
// messages that can still be walked.
func FuzzLayouts(f *testing.F) {
	for _, v := range loadVectors(f) {
		if v.compound() {
			f.Add([]byte(v.Call[v.ArgsOffset:]), []byte(v.Replies[0].Reply[24:]), uint16(0))
		}
	}
	reply, _ := exchanged(f, mds|ds)
	f.Add([]byte(byID(f, "24-nfs41-exchange-id").Call[76:]), reply[24:], uint16(40))
	f.Add(testkit.Unhex(f, fsinfoCall)[40:], []byte{}, uint16(0))
	header := testkit.Unhex(f, callHeader)
	success := oncrpc.AppendAccepted(nil, 1, oncrpc.Success)
	f.Fuzz(func(t *testing.T, args, results []byte, cut uint16) {
		call, reply := slices.Concat(header, args), slices.Concat(success, results)
		a := analyse(t, call)
		was := bytes.Clone(call)
		if changed := nfs.HideLayoutTypes(parse(t, call), &a); changed != a.LayoutTypes || changed == bytes.Equal(call, was) {
			t.Fatalf("changed %v with %+v: %x", changed, a, call)
		}
		if b := analyse(t, call); b.LayoutTypes || b.Known != a.Known || b.SessionOps != a.SessionOps || b.Class != a.Class {
			t.Fatalf("%+v became %+v", a, b)
		}
		was = bytes.Clone(reply)
		at := min(int(cut), len(reply))
		changed := nfs.HideLayouts([][]byte{reply[:at], reply[at:]}, &a)
		different := 0
		for i := range reply {
			if reply[i] != was[i] {
				different++
			}
		}
		if changed != (different > 0) || different > 1 {
			t.Fatalf("changed %v, %d octets", changed, different)
		}
		before, ok := nfs.Status(was, &a)
		if after, is := nfs.Status(reply, &a); is != ok || after != before {
			t.Fatalf("status %d, %v became %d, %v", before, ok, after, is)
		}
	})
}
