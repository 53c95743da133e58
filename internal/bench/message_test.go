package bench

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

// message returns one whole Call of kind o.
func message(o *op, xid, tag uint32) []byte {
	m := append(slices.Clone(o.head), dataOf(pattern(), tag, o.size)...)
	o.patch(m, xid, tag)
	return m
}

// serve returns the service's Reply to m.
func serve(t testing.TB, s *service, m []byte) ([]byte, *answer) {
	t.Helper()
	var c oncrpc.Call
	if err := oncrpc.ParseCall(m, &c); err != nil {
		t.Fatal(err)
	}
	a := &answer{head: make([]byte, 0, replyRoom)}
	s.answer(&c, a)
	var p [3][]byte
	return bytes.Join(a.parts(&p), nil), a
}

func allOps(t testing.TB) []*op {
	t.Helper()
	var ops []*op
	for _, n := range [][2]int{{0, 0}, {100, 100}, {101, 102}, {4096, 56}, {60, 1 << 20}, {1 << 20, 1 << 20}} {
		o, err := echoOp(n[0], n[1], 0)
		if err != nil {
			t.Fatal(err)
		}
		ops = append(ops, o)
	}
	for _, name := range []string{"null", "getattr", "read", "write"} {
		for _, n := range []int{4, 100, 64 << 10} {
			o, err := nfsOp(name, n)
			if err != nil {
				t.Fatal(err)
			}
			ops = append(ops, o)
		}
	}
	return ops
}

// The whole message has the length that Work gives.
func TestSizes(t *testing.T) {
	for _, tc := range []struct{ call, reply, wantCall, wantReply int }{
		{100, 100, 100, 100},
		{1 << 20, 1 << 20, 1 << 20, 1 << 20},
		{0, 0, MinEchoCall, MinEchoReply},
		{57, 33, 60, 36},
	} {
		o, err := echoOp(tc.call, tc.reply, 0)
		if err != nil {
			t.Fatal(err)
		}
		m := message(o, 7, 99)
		r, _ := serve(t, &service{pattern: pattern(), full: true}, m)
		if len(m) != tc.wantCall || o.callLen() != tc.wantCall || len(r) != tc.wantReply || o.reply != tc.wantReply {
			t.Errorf("asked for %d and %d: call %d (%d), reply %d (%d); want %d and %d", tc.call, tc.reply, len(m), o.callLen(), len(r), o.reply, tc.wantCall, tc.wantReply)
		}
	}
	if o, err := nfsOp("getattr", 4); err != nil || o.callLen() != 100 || o.reply != 112 {
		t.Errorf("GETATTR: %+v, %v; want 100 and 112 octets", o, err)
	}
	for _, tc := range [][3]int{{maxData + 100, 0, 0}, {0, maxData + 100, 0}, {0, 0, maxDelay + 1}} {
		if _, err := echoOp(tc[0], tc[1], uint32(tc[2])); err == nil {
			t.Errorf("%v: no error", tc)
		}
	}
	for _, n := range []int{0, 3, 6, maxData + 4} {
		if _, err := nfsOp("read", n); err == nil {
			t.Errorf("READ of %d octets: no error", n)
		}
	}
}

// The load accepts the Replies of the service, in any pieces, and no others.
func TestAnswers(t *testing.T) {
	s := &service{pattern: pattern(), full: true}
	scratch := make([]byte, headMax)
	for _, o := range allOps(t) {
		const xid, tag = 0xabcd1234, 0xfeed4321
		m := message(o, xid, tag)
		r, _ := serve(t, s, m)
		if s.wrong.Load() != 0 {
			t.Fatalf("%s: the service finds its data wrong", o.name)
		}
		if got := binary.BigEndian.Uint32(r); got != xid {
			t.Errorf("%s: xid %#x", o.name, got)
		}
		checkCuts(t, o, r, tag, scratch)
		checkBadReplies(t, o, r, tag, scratch)
		checkBadData(t, o, m, r, tag, scratch)
	}
}

func checkCuts(t *testing.T, o *op, r []byte, tag uint32, scratch []byte) {
	for _, cut := range []int{0, 4, 8, 24, 28, 32, 36, 128, 132, len(r) / 8 * 4} {
		cut = min(cut, len(r))
		parts := slices.DeleteFunc([][]byte{r[:cut], r[cut:]}, func(p []byte) bool { return len(p) == 0 })
		if err := o.check(parts, tag, true, scratch); err != nil {
			t.Errorf("%s, cut at %d: %v", o.name, cut, err)
		}
	}
}

func checkBadReplies(t *testing.T, o *op, r []byte, tag uint32, scratch []byte) {
	xid := binary.BigEndian.Uint32(r)
	for _, bad := range []struct {
		name string
		m    []byte
		want error
	}{
		{"short", r[:len(r)-4], errShortReply},
		{"long", append(slices.Clone(r), 0, 0, 0, 0), errShortReply},
		{"failed", oncrpc.AppendAccepted(nil, xid, oncrpc.SystemError), &statusError{oncrpc.SystemError}},
	} {
		err := o.check([][]byte{bad.m}, tag, false, scratch)
		var stat *statusError
		if err == nil || errors.As(bad.want, &stat) != errors.As(err, &stat) {
			t.Errorf("%s, %s: %v, want %v", o.name, bad.name, err, bad.want)
		}
	}
	if o.reply > o.dataAt || o.echoAt > 0 {
		if err := o.check([][]byte{r}, tag+1, false, scratch); !errors.Is(err, errTag) && !errors.Is(err, errData) {
			t.Errorf("%s: another call's reply: %v", o.name, err)
		}
	}
}

// checkBadData changes the first and the last octet of the data, in the Reply r and in the
// Call m.
func checkBadData(t *testing.T, o *op, m, r []byte, tag uint32, scratch []byte) {
	if o.reply > o.dataAt {
		for _, at := range []int{o.dataAt, o.reply - 1} {
			x := slices.Clone(r)
			x[at] ^= 1
			if err := o.check([][]byte{x}, tag, false, scratch); !errors.Is(err, errData) {
				t.Errorf("%s: octet %d of the reply wrong: %v", o.name, at, err)
			}
		}
	}
	if o.size > 0 {
		for _, at := range []int{len(o.head), len(m) - 1} {
			x := slices.Clone(m)
			x[at] ^= 1
			lax := &service{pattern: pattern()}
			r, _ := serve(t, lax, x)
			if err := o.check([][]byte{r}, tag, false, scratch); lax.wrong.Load() != 1 || err == nil {
				t.Errorf("%s: octet %d of the call wrong: %v", o.name, at, err)
			}
		}
	}
}

// The bindings of NFS know these Calls and Replies, so that they travel like those of a
// real client.
func TestBindings(t *testing.T) {
	registry := ulb.NewRegistry(ulb.Limits{})
	nfs.Register(registry)
	for _, o := range allOps(t) {
		m := message(o, 1, 2)
		var c oncrpc.Call
		if err := oncrpc.ParseCall(m, &c); err != nil {
			t.Fatal(err)
		}
		var a ulb.Analysis
		b := registry.Analyse(&c, &a)
		if a.Known == (o.name == "echo") {
			t.Errorf("%s: known %t", o.name, a.Known)
		}
		if o.name == "write" && (int(a.ArgPosition) != len(o.head) || int(a.ArgLength) != o.size) {
			t.Errorf("WRITE: data at %d, %d octets; want %d, %d", a.ArgPosition, a.ArgLength, len(o.head), o.size)
		}
		if o.name == "echo" {
			continue
		}
		r, _ := serve(t, &service{pattern: pattern()}, m)
		if int(a.MaxReply) < len(r) {
			t.Errorf("%s: reply of %d octets, at most %d expected", o.name, len(r), a.MaxReply)
		}
		s, ok := ulb.Reducible(b, c.Procedure, r)
		if ok != (o.name == "read") || ok && (int(s.Pos) != o.dataAt || int(s.Length) != o.reply-o.dataAt) {
			t.Errorf("%s: item %+v, %t", o.name, s, ok)
		}
	}
}

// Bad Calls get their accept_stat. Unaligned data get roundup.
func TestService(t *testing.T) {
	s := &service{pattern: pattern()}
	head := func(program, version, proc uint32, args ...uint32) []byte {
		b := xdr.AppendWords(nil, 5, 0, 2, program, version, proc, 0, 0, 0, 0)
		return xdr.AppendWords(b, args...)
	}
	for _, tc := range []struct {
		name string
		m    []byte
		want uint32
	}{
		{"null", head(EchoProgram, EchoVersion, 0), oncrpc.Success},
		{"no program", head(1, 1, 1), oncrpc.ProgramUnavailable},
		{"no procedure", head(EchoProgram, EchoVersion, 3), oncrpc.ProcedureUnavailable},
		{"no NFS procedure", head(oncrpc.ProgramNFS, 3, 17, 4, 1), oncrpc.ProcedureUnavailable},
		{"NFSv4", head(oncrpc.ProgramNFS, 4, 1), oncrpc.ProgramUnavailable},
		{"no arguments", head(EchoProgram, EchoVersion, EchoProc), oncrpc.GarbageArguments},
		{"data beyond the message", head(EchoProgram, EchoVersion, EchoProc, 1, 0, 0, 8, 0), oncrpc.GarbageArguments},
		{"reply too long", head(EchoProgram, EchoVersion, EchoProc, 1, maxData+1, 0, 0), oncrpc.GarbageArguments},
		{"short reply too long", head(EchoProgram, EchoVersion, EchoProcShort, 1, EchoShort-7, 0, 0), oncrpc.GarbageArguments},
		{"delay too long", head(EchoProgram, EchoVersion, EchoProc, 1, 0, maxDelay+1, 0), oncrpc.GarbageArguments},
		{"READ too long", head(oncrpc.ProgramNFS, 3, procRead, 4, 1, 0, 0, maxData+1), oncrpc.GarbageArguments},
		{"READ cut", head(oncrpc.ProgramNFS, 3, procRead, 4, 1, 0, 0), oncrpc.GarbageArguments},
		{"no handle", head(oncrpc.ProgramNFS, 3, procGetattr, 0), oncrpc.GarbageArguments},
	} {
		r, a := serve(t, s, tc.m)
		var h oncrpc.Reply
		if err := oncrpc.ParseReply(r, &h); err != nil || h.AcceptStat != tc.want || h.XID != 5 || len(a.data) > 0 {
			t.Errorf("%s: %+v, %v; want accept_stat %d", tc.name, h, err, tc.want)
		}
	}
	for _, n := range []uint32{0, 1, 2, 3, 4, 5, inlineReply - 1, inlineReply, inlineReply + 1, inlineReply + 2, inlineReply + 3} {
		r, _ := serve(t, s, head(EchoProgram, EchoVersion, EchoProc, 3, n, 0, 0))
		want := append(dataOf(pattern(), 3, int(n)), make([]byte, -int(n)&3)...)
		if got := r[MinEchoReply:]; !bytes.Equal(got, want) {
			t.Errorf("reply with %d octets of data: % x, want % x", n, got, want)
		}
	}
	if !bytes.Equal(s.pattern[:64], pattern()[:64]) {
		t.Error("the pattern was written to")
	}
}

func FuzzService(f *testing.F) {
	for _, o := range allOps(f) {
		if o.callLen() < 8192 {
			f.Add(message(o, 1, 2))
		}
	}
	s := &service{pattern: pattern(), full: true}
	f.Fuzz(func(t *testing.T, m []byte) {
		var c oncrpc.Call
		if oncrpc.ParseCall(m, &c) != nil {
			return
		}
		r, a := serve(t, s, m)
		var h oncrpc.Reply
		if err := oncrpc.ParseReply(r, &h); err != nil || h.XID != c.XID || len(r)%4 != 0 || len(a.head) > replyRoom-inlineReply-3 {
			t.Errorf("reply of %d octets, head %d: %+v, %v", len(r), len(a.head), h, err)
		}
	})
}

func TestMessageAllocs(t *testing.T) {
	s := &service{pattern: pattern()}
	scratch, head := make([]byte, headMax), make([]byte, 0, replyRoom)
	for _, o := range allOps(t) {
		m := message(o, 1, 2)
		r, _ := serve(t, s, m)
		var c oncrpc.Call
		var p [3][]byte
		parts := [][]byte{r}
		n := testing.AllocsPerRun(100, func() {
			o.patch(m, 3, 2)
			if oncrpc.ParseCall(m, &c) != nil {
				t.Fatal("not a call")
			}
			a := answer{head: head[:0]}
			s.answer(&c, &a)
			a.parts(&p)
			if err := o.check(parts, 2, false, scratch); err != nil {
				t.Fatal(err)
			}
		})
		if n != 0 {
			t.Errorf("%s: %g allocations per call", o.name, n)
		}
	}
}

func TestMix(t *testing.T) {
	ops, order, err := Work{Mix: "nfs3:read=50,write=30,getattr=20", Size: 4096}.ops()
	if err != nil {
		t.Fatal(err)
	}
	var count [3]int
	for i, k := range order {
		count[k]++
		// Evenly: in every prefix, each index has its share to within one.
		for j, w := range []int{50, 30, 20} {
			if d := count[j]*100 - w*(i+1); d > 100 || d < -100 {
				t.Errorf("after %d calls %s has had %d", i+1, ops[j].name, count[j])
			}
		}
	}
	if len(ops) != 3 || count != [3]int{50, 30, 20} || ops[0].name != "read" || ops[1].size != 4096 {
		t.Errorf("ops %v, counts %v", ops, count)
	}
	if ops, order, err := (Work{Mix: "nfs3:null", Size: 4096}).ops(); err != nil || len(ops) != 1 || len(order) != 1 {
		t.Errorf("one kind: %v %v %v", ops, order, err)
	}
	for _, bad := range []string{
		"read", "nfs4:read", "nfs3:", "nfs3:fly", "nfs3:read=", "nfs3:read=0", "nfs3:read=-1", "nfs3:read=x",
		"nfs3:read=1,read=2", "nfs3:read=1,", "nfs3:read=600,write=600", "nfs3:read=99999999999999999999",
	} {
		if _, _, err := (Work{Mix: bad, Size: 4096}).ops(); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}
