package identity

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

var (
	nlmClient1 = netip.MustParseAddr("192.0.2.1")
	nlmClient2 = netip.MustParseAddr("192.0.2.2")
)

// lockCall is a Call of NLM version 4 about a lock. at is where its svid is.
func lockCall(procedure uint32, words int, host string, svid uint32) (m []byte, at int) {
	for _, v := range []uint32{77, oncrpc.TypeCall, oncrpc.RPCVersion, oncrpc.ProgramNLM, 4, procedure, 0, 0, 0, 0} {
		m = xdr.AppendUint32(m, v)
	}
	m = xdr.AppendOpaque(m, []byte("cooki")) // with roundup
	for range words {
		m = xdr.AppendUint32(m, 1)
	}
	m = xdr.AppendOpaque(m, []byte(host))
	m = xdr.AppendOpaque(m, []byte("a file handle"))
	m = xdr.AppendOpaque(m, []byte("3@c1"))
	at = len(m)
	m = xdr.AppendUint32(m, svid)
	m = xdr.AppendUint64(m, 100)
	m = xdr.AppendUint64(m, 8)
	if procedure == nlmLock || procedure == nlmNMLock {
		m = xdr.AppendUint64(m, 5) // reclaim, state
	}
	return m, at
}

func owned(t testing.TB, m []byte, client netip.Addr) []byte {
	t.Helper()
	var h oncrpc.Call
	if err := oncrpc.ParseCall(m, &h); err != nil {
		t.Fatal(err)
	}
	testBridge.LockOwner(&h, client)
	return m
}

var nlmLocks = []struct {
	procedure uint32
	words     int
}{{nlmTest, 1}, {nlmLock, 2}, {nlmCancel, 2}, {nlmUnlock, 0}, {nlmNMLock, 2}}

// Only svid changes, and for one owner always to the same: what LOCK took, UNLOCK
// must give back.
func TestNLMOwnerIsOne(t *testing.T) {
	var svid uint32
	for i, p := range nlmLocks {
		m, at := lockCall(p.procedure, p.words, "host", 3)
		want := bytes.Clone(m)
		owned(t, m, nlmClient1)
		got := binary.BigEndian.Uint32(m[at:])
		if i == 0 {
			svid = got
		}
		if got != svid || got == 3 || got>>31 != 0 {
			t.Errorf("procedure %d: svid %#x, want %#x as before, not 3 and not negative", p.procedure, got, svid)
		}
		copy(m[at:at+4], want[at:])
		if !bytes.Equal(m, want) {
			t.Errorf("procedure %d: more than svid has changed:\n%x\n%x", p.procedure, m, want)
		}
	}
	// It follows from nothing that a process of ours makes up: a lock outlives us. The
	// vector was computed apart from this code, in Python.
	if want := uint32(0x5e05049f); svid != want {
		t.Errorf("svid = %#x, want %#x", svid, want)
	}
}

// Owners of different addresses, host names or processes are different.
func TestNLMOwnersDiffer(t *testing.T) {
	seen := make(map[uint32]string)
	for _, client := range []netip.Addr{nlmClient1, nlmClient2, netip.MustParseAddr("2001:db8::1")} {
		for _, host := range []string{"", "c1", "c2", "localhost", "localhost.localdomain"} {
			for svid := range uint32(100) {
				m, at := lockCall(nlmLock, 2, host, svid)
				owned(t, m, client)
				got := binary.BigEndian.Uint32(m[at:])
				if who, ok := seen[got]; ok {
					t.Errorf("%v %q %d has the svid of %s", client, host, svid, who)
				}
				seen[got] = client.String() + " " + host
			}
		}
	}
}

// Calls without a lock, cut short, signed or sealed do not change.
func TestNLMOwnerLeavesAlone(t *testing.T) {
	same := func(what string, m []byte, protection oncrpc.Protection) {
		t.Helper()
		want := bytes.Clone(m)
		var h oncrpc.Call
		if err := oncrpc.ParseCall(m, &h); err != nil {
			t.Fatal(err)
		}
		h.Protection = protection
		if testBridge.LockOwner(&h, nlmClient1); !bytes.Equal(m, want) {
			t.Errorf("%s: changed", what)
		}
	}
	for p := range uint32(30) {
		if p == nlmTest || p == nlmLock || p == nlmCancel || p == nlmUnlock || p == nlmNMLock {
			continue
		}
		m, _ := lockCall(p, 2, "c1", 3)
		same("procedure", m, oncrpc.ProtectNone)
	}
	for _, p := range nlmLocks {
		m, at := lockCall(p.procedure, p.words, "c1", 3)
		for _, protection := range []oncrpc.Protection{oncrpc.ProtectIntegrity, oncrpc.ProtectPrivacy, oncrpc.ProtectControl, oncrpc.ProtectUnknown} {
			same(protection.String(), m, protection)
		}
		for n := oncrpc.CallHeaderMin; n < at+4; n++ {
			same("cut short", bytes.Clone(m[:n]), oncrpc.ProtectNone)
		}
	}
}

func TestNLMRefused(t *testing.T) {
	for p := range uint32(30) {
		want := p >= 5 && p <= 16 || p == 23
		if got := RefusesNLM(&oncrpc.Call{Program: oncrpc.ProgramNLM, Procedure: p}); got != want {
			t.Errorf("procedure %d refused: %v, want %v", p, got, want)
		}
	}
}

func TestNLMOwnerAllocs(t *testing.T) {
	m, _ := lockCall(nlmLock, 2, "c1", 3)
	var h oncrpc.Call
	if err := oncrpc.ParseCall(m, &h); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() { testBridge.LockOwner(&h, nlmClient1) }); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

func FuzzNLMOwner(f *testing.F) {
	for _, p := range nlmLocks {
		m, _ := lockCall(p.procedure, p.words, "c1", 3)
		f.Add(m)
	}
	f.Fuzz(func(t *testing.T, m []byte) {
		var h oncrpc.Call
		if oncrpc.ParseCall(m, &h) != nil {
			return
		}
		was := bytes.Clone(m)
		testBridge.LockOwner(&h, nlmClient1)
		changed := 0
		for i := range m {
			if m[i] != was[i] {
				if changed == 0 {
					changed = i
				}
				if i-changed > 3 {
					t.Fatalf("octets %d and %d have changed", changed, i)
				}
			}
		}
	})
}
