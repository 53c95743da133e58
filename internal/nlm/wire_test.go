package nlm

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// LOCK of version 4, as a Linux client sends it.
const lockCall = `
	00000004 01000000          # cookie
	00000001 00000001          # block, exclusive
	00000006 636c69656e74 0000 # caller_name client
	00000008 0102030405060708  # handle
	0000000a 37406c6f63616c686f73 0000 # owner
	00000007                   # svid
	0000000000000400           # offset 1024
	0000000000000000           # length: to the end
	00000000 00000003          # reclaim, state`

// TestLockCall: the parser reads a LOCK as RFC 1813 has it, and no part of it.
func TestLockCall(t *testing.T) {
	m := testkit.Unhex(t, lockCall)
	var r request
	if !r.parse(m, 0, 4, procLock) {
		t.Fatal("not read")
	}
	if r.block != 1 || r.exclusive != 1 || string(r.name) != "client" || len(r.handle) != 8 || string(r.oh) != "7@localhos" || r.svid != 7 || r.span() != (span{1024, endless}) || r.state != 3 {
		t.Errorf("%+v", r)
	}
	if got := r.append(nil, 4, procLock); !bytes.Equal(got, m) {
		t.Errorf("%x, want %x", got, m)
	}
	for n := range m {
		if new(request).parse(m[:n], 0, 4, procLock) {
			t.Errorf("%d octets are read", n)
		}
	}
	for _, tt := range []struct{ at, n int }{{24, maxHandle + 4}, {16, maxName + 1}} {
		long := request{name: r.name, handle: r.handle}
		if tt.n > maxName {
			long.name = make([]byte, tt.n)
		} else {
			long.handle = make([]byte, tt.n)
		}
		if new(request).parse(long.append(nil, 4, procLock), 0, 4, procLock) {
			t.Errorf("too long: %+v", tt)
		}
	}
}

// TestSpans: with, minus and without agree with a set of octets.
func TestSpans(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var held []span
	var model [24]bool
	for range 20000 {
		start := random.Uint64N(24)
		s := span{start, start + 1 + random.Uint64N(24-start)}
		var rest []uint64
		for _, x := range without(s, held) {
			for i := x.Start; i < x.End; i++ {
				rest = append(rest, i)
			}
		}
		var want []uint64
		for i := s.Start; i < s.End; i++ {
			if !model[i] {
				want = append(want, i)
			}
		}
		if !slices.Equal(rest, want) {
			t.Fatalf("%v without %v is %v, want %v", s, held, rest, want)
		}
		on := random.IntN(2) == 0
		if on {
			held = with(held, s)
		} else {
			held = minus(held, s)
		}
		for i := s.Start; i < s.End; i++ {
			model[i] = on
		}
		for i, x := range held {
			if x.Start >= x.End || i > 0 && held[i-1].End > x.Start {
				t.Fatalf("%v", held)
			}
		}
		for i, on := range model {
			if (len(without(span{uint64(i), uint64(i) + 1}, held)) == 0) != on {
				t.Fatalf("octet %d of %v, want %v", i, held, on)
			}
		}
	}
}

// TestBounds: a client can fill a quarter of the table, and splitting a range does not make it larger.
func TestBounds(t *testing.T) {
	table := newTable([32]byte{})
	lock := func(client string, start, length uint64) bool {
		id := identity{client: netip.MustParseAddr(client)}
		r := &request{start: start, length: length}
		o := table.begin(id, path{}, r, credential{})
		if o != nil {
			table.settle(o, r, granted, true)
		}
		return o != nil
	}
	for _, client := range []string{"192.0.2.1", "192.0.2.2", "192.0.2.3"} {
		// One range with many holes is as many ranges; sorting them in costs n at a time.
		o := &owner{identity: identity{client: netip.MustParseAddr(client)}, number: uint32(client[8]), files: map[string]*file{"": {}}}
		table.add(o)
		for i := range uint64(maxClientRanges) {
			o.files[""].held = append(o.files[""].held, span{2 * i, 2*i + 1})
		}
		table.count(o, maxClientRanges, 0)
		if lock(client, 1<<40, 1) {
			t.Errorf("%s has more than its part", client)
		}
		if !lock(client, 0, 1) {
			t.Error("a lock that is held cannot be asked for again")
		}
	}
	if !lock("192.0.2.4", 0, 1<<30) {
		t.Error("the last quarter is not there")
	}
	table.all.held = maxRanges
	table.released(identity{client: netip.MustParseAddr("192.0.2.4")}, &request{start: 5, length: 1}, true)
	if table.all.held != maxRanges {
		t.Errorf("%d ranges", table.all.held)
	}
	if lock("192.0.2.5", 0, 1) {
		t.Error("more than the table may have")
	}
}

// FuzzArrived: no message makes the Server panic, and it reads again what it writes.
func FuzzArrived(f *testing.F) {
	lock := xdr.AppendWords(nil, 7, 0, 2, 100021, 4, procLock, 0, 0, 0, 0)
	f.Add(append(lock, testkit.Unhex(f, lockCall)...))
	f.Add(xdr.AppendWords(nil, 7, 0, 2, 100024, 1, procNotify, 0, 0, 0, 0, 0, 5))
	s := &Server{closed: true, table: newTable([32]byte{})}
	s.series.resolve(nil, nil)
	s.upstream = newUpstream(s, "lock manager", oncrpc.ProgramNLM, 4, 0)
	f.Fuzz(func(t *testing.T, m []byte) {
		s.arrived(&call{from: netip.MustParseAddrPort("192.0.2.1:700"), send: func(b []byte) {
			var r oncrpc.Reply
			if err := oncrpc.ParseReply(b, &r); err != nil {
				t.Errorf("%x: %v", b, err)
			}
		}}, bytes.Clone(m))
		for version := uint32(3); version <= 4; version++ {
			for procedure := uint32(1); procedure < 24; procedure++ {
				var r, again request
				if r.parse(m, 0, version, procedure) {
					b := r.append(nil, version, procedure)
					if !again.parse(b, 0, version, procedure) || !bytes.Equal(again.append(nil, version, procedure), b) {
						t.Errorf("%x is written as %x", m, b)
					}
					without(r.span(), minus([]span{everything}, r.span()))
				}
				var res, same result
				if res.parse(m, 0, version, procedure) {
					b := res.append(nil, nil, version, procedure)
					if !same.parse(b, 0, version, procedure) || !bytes.Equal(same.append(nil, nil, version, procedure), b) {
						t.Errorf("results %x are written as %x", m, b)
					}
				}
			}
		}
	})
}
