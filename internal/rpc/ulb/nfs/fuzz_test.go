package nfs_test

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

func FuzzAnalyse(f *testing.F) {
	for _, v := range loadVectors(f) {
		f.Add([]byte(v.Call), uint16(4096), uint16(4096))
	}
	for i, r := range loadReference(f) {
		if i%4 == 0 {
			f.Add(r.message, uint16(1024), uint16(1024))
		}
	}
	for i, r := range loadReference4(f) {
		if i%4 == 0 {
			f.Add(r.call, uint16(1024), uint16(4096))
		}
	}
	reg := newRegistry()
	l := reg.Limits()
	f.Fuzz(func(t *testing.T, m []byte, callInline, replyInline uint16) {
		var c oncrpc.Call
		if oncrpc.ParseCall(m, &c) != nil {
			return
		}
		var a ulb.Analysis
		b := reg.Analyse(&c, &a)
		if b == nil {
			t.Fatal("no binding")
		}
		checkBounds(t, &a, &c, &l)
		if a.ArgLength > 0 {
			checkArgument(t, b, &a, &c)
		}
		plan(t, reg, &a, len(m), int(callInline), int(replyInline))
	})
}

// checkBounds asserts the rules of every Analysis.
func checkBounds(t *testing.T, a *ulb.Analysis, c *oncrpc.Call, l *ulb.Limits) {
	t.Helper()
	for _, wrong := range []bool{
		a.MaxReply < 32 || a.MaxReply > l.MaxReply || a.MaxReduced > a.MaxReply || a.ResultMax > l.MaxIO,
		a.Lower != 0 && !(a.Known && a.Reduce), a.Reduce != c.Reducible() || !a.Known && a.Class != ulb.NonIdempotent,
		(a.ArgLength > 0 || a.ResultMax > 0) && !(a.Known && a.Reduce),
		a.ResultMax == 0 && a.MaxReduced != a.MaxReply,
		a.ResultMax > 0 && a.MaxReduced+a.ResultMax > a.MaxReply && a.MaxReply < l.MaxReply,
	} {
		if wrong {
			t.Fatalf("%+v", *a)
		}
	}
}

// checkArgument asserts that the Responder puts the argument back that the Requester takes
// out.
func checkArgument(t *testing.T, b ulb.Binding, a *ulb.Analysis, c *oncrpc.Call) {
	t.Helper()
	m, pos, n := c.Message, int(a.ArgPosition), int(a.ArgLength)
	if pos%4 != 0 || pos < c.Args+4 || pos+xdr.Roundup(n) > len(m) || binary.BigEndian.Uint32(m[pos-4:]) != a.ArgLength {
		t.Fatalf("%+v of %d octets", *a, len(m))
	}
	reduced := slices.Concat(m[:pos], m[pos+xdr.Roundup(n):])
	s, err := ulb.RestoreCall(b, parse(t, reduced), a.ArgPosition, a.ArgLength)
	if err != nil {
		t.Fatal(err)
	}
	got := apply(s, reduced, m[pos:pos+n])
	// A client's roundup octets need not be zero; those of the restored Call are.
	if !bytes.Equal(got[:pos+n], m[:pos+n]) || !bytes.Equal(got[pos+xdr.Roundup(n):], m[pos+xdr.Roundup(n):]) {
		t.Fatalf("restored %x, want %x", got, m)
	}
}

// plan asserts the rules of every plan: both Sends fit, every list has at most one chunk,
// and the combination is one that servers are tested with.
func plan(t *testing.T, reg *ulb.Registry, a *ulb.Analysis, callLen, callInline, replyInline int) {
	t.Helper()
	s, err := reg.Plan(a, callLen, callInline, replyInline)
	if err != nil {
		if callInline >= 72 {
			t.Fatal(err)
		}
		return
	}
	call, reply := 28, 28
	switch s.Reply {
	case ulb.ReplyInline:
		reply += int(a.MaxReply)
	case ulb.ReplyWriteChunk:
		call += 24
		reply += 24 + int(a.MaxReduced)
		if s.Call != ulb.CallInline || a.ResultMax == 0 || s.Capacity < a.ResultMax {
			t.Fatalf("%+v for %+v", s, *a)
		}
	case ulb.ReplyChunk:
		call += 20
		if s.Capacity < a.MaxReply || s.Capacity > reg.Limits().MaxReply+4095 {
			t.Fatalf("%+v for %+v", s, *a)
		}
	}
	switch s.Call {
	case ulb.CallInline:
		call += callLen
	case ulb.CallReadChunk:
		call += 24 + callLen - xdr.Roundup(int(a.ArgLength))
		if a.ArgLength == 0 {
			t.Fatalf("%+v for %+v", s, *a)
		}
	case ulb.CallLong:
		call += 24
	}
	if call > callInline || s.Reply != ulb.ReplyChunk && reply > replyInline {
		t.Fatalf("%+v for %+v: Sends of %d and %d octets, thresholds %d and %d", s, *a, call, reply, callInline, replyInline)
	}
}

func FuzzRestore(f *testing.F) {
	bindings := nfs.Bindings()
	for _, v := range loadVectors(f) {
		i := slices.IndexFunc(bindings, func(b nfs.Bound) bool { return b.Program == v.Prog && b.Version == v.Vers })
		if i < 0 {
			continue
		}
		for _, r := range v.Replies {
			f.Add([]byte(r.Reply), byte(i), v.Proc, uint32(0))
			if len(r.Items) == 1 {
				n := r.Items[0].Length
				f.Add([]byte(r.ReplyReduced), byte(i), v.Proc, n)
				f.Add([]byte(r.ReplyReduced), byte(i), v.Proc, (n+3)&^3)
				f.Add([]byte(slices.Concat(r.ReplyReduced, make([]byte, -n&3))), byte(i), v.Proc, n)
			}
		}
	}
	for i, r := range loadReference4(f) {
		if i%4 == 0 {
			f.Add(r.reply, byte(0), uint32(1), r.itemLength)
		}
	}
	f.Fuzz(func(t *testing.T, base []byte, i byte, proc, written uint32) {
		b := bindings[int(i)%len(bindings)].Binding
		if s, ok := ulb.Reducible(b, proc, base); ok {
			if s.Pos%4 != 0 || uint64(s.Pos)+uint64(s.Length)+uint64(s.Padding) > uint64(len(base)) {
				t.Fatalf("Reducible = %+v of %d octets", s, len(base))
			}
		}
		s, spliced, err := ulb.Restore(b, proc, base, written)
		switch {
		case err != nil && spliced:
			t.Fatal("spliced and an error")
		case err != nil:
		case spliced != (written > 0):
			t.Fatalf("%d octets written, spliced %v", written, spliced)
		case spliced && written <= 1<<16:
			checkSplice(t, b, proc, base, written, s)
		}
	})
}

// checkSplice asserts that the plain Reply holds the item where Restore put it.
func checkSplice(t *testing.T, b ulb.Binding, proc uint32, base []byte, written uint32, s ulb.Splice) {
	t.Helper()
	if int(s.Pos) > len(base) || s.Length > written || written-s.Length > 3 || s.Padding > 3 {
		t.Fatalf("%+v for %d octets written, base of %d", s, written, len(base))
	}
	plain := apply(s, base, make([]byte, written))
	again, ok := ulb.Reducible(b, proc, plain)
	if !ok || again.Pos != s.Pos || again.Length != s.Length || len(plain)%4 != 0 {
		t.Fatalf("%+v gives %x, whose item is %+v, %v", s, plain, again, ok)
	}
}

// FuzzCompound makes up the headers and fuzzes the operations of a COMPOUND and their
// results.
func FuzzCompound(f *testing.F) {
	addCompounds(f)
	reg := newRegistry()
	binding := reg.Lookup(oncrpc.ProgramNFS, 4)
	header := compound4(0, 0)[:40]
	success := oncrpc.AppendAccepted(nil, 1, oncrpc.Success)
	f.Fuzz(func(t *testing.T, args, results []byte, pos uint32) {
		m := slices.Concat(header, args)
		reply := slices.Concat(success, results)
		a := checkCompound(t, reg, m)
		checkArgItem(t, binding, parse(t, m), pos)
		checkResultItem(t, binding, reply, len(success))
		checkResultItems(t, binding, reply, len(success))
		checkTighten(t, reg.Limits(), m, reply, a)
	})
}

// addCompounds adds the arguments and results of the vectors, plain and reduced.
func addCompounds(f *testing.F) {
	for i, r := range loadReference4(f) {
		if i%2 == 0 {
			start := parse(f, r.call).Args
			f.Add(r.call[start:], r.reply[24:], r.pos+40-uint32(start))
		}
	}
	for _, v := range loadVectors(f) {
		if !v.compound() {
			continue
		}
		f.Add([]byte(v.Call[v.ArgsOffset:]), []byte(v.Replies[0].Reply[24:]), uint32(0))
		if len(v.ReadItems) > 0 {
			f.Add([]byte(v.CallReduced[v.ArgsOffset:]), []byte{}, v.ReadItems[0].Position+40-uint32(v.ArgsOffset))
		}
		if len(v.Replies[0].Items) > 0 {
			f.Add([]byte{}, []byte(v.Replies[0].ReplyReduced[24:]), uint32(0))
		}
	}
}

func checkCompound(t *testing.T, reg *ulb.Registry, m []byte) (a ulb.Analysis) {
	t.Helper()
	c := parse(t, m)
	reg.Analyse(c, &a)
	minor, ok := nfs.MinorVersion(c)
	if a.Known && (!ok || minor > 2) || a.Session != 0 && (!ok || minor == 0) {
		t.Fatalf("minor version %d, %v: %+v", minor, ok, a)
	}
	if a.Session != 0 && (int(a.Session)+32 > len(m) || binary.BigEndian.Uint32(m[a.Session-4:]) != 53) {
		t.Fatalf("%+v of %d octets", a, len(m))
	}
	if (a.SessionOps != 0 || a.BackRequest != 0 || a.LayoutTypes || a.Lower != 0) && !a.Known {
		t.Fatalf("%+v", a)
	}
	if a.Known && len(m) > 52 {
		var b ulb.Analysis
		if reg.Analyse(parse(t, m[:len(m)-4]), &b); b.Known {
			t.Fatalf("Known with and without the last unit: %+v, %+v", a, b)
		}
	}
	return a
}

func checkArgItem(t *testing.T, b ulb.Binding, c *oncrpc.Call, pos uint32) {
	t.Helper()
	m := c.Message
	outside := pos%4 != 0 || int(pos) < c.Args+4 || int(pos) > len(m)
	if n, ok := b.ArgItem(c, pos); ok && (outside || binary.BigEndian.Uint32(m[pos-4:]) != n) {
		t.Fatalf("ArgItem(%d) = %d of %d octets", pos, n, len(m))
	}
	if b.ArgItems(c, []uint32{pos}) && outside {
		t.Fatalf("ArgItems(%d) of %d octets", pos, len(m))
	}
}

// checkResultItem looks for an item in a Reply whose results begin at the given position.
func checkResultItem(t *testing.T, b ulb.Binding, reply []byte, results int) {
	t.Helper()
	for _, reduced := range []bool{false, true} {
		p, n, ok, err := b.ResultItem(1, reply, results, reduced)
		if ok && (err != nil || int(p) < results+16 || int(p) > len(reply) || binary.BigEndian.Uint32(reply[p-4:]) != n) {
			t.Fatalf("ResultItem = %d, %d, %v of %d octets", p, n, err, len(reply))
		}
		if ok && !reduced && int(p)+int(n) > len(reply) {
			t.Fatalf("item at %d of %d, Reply of %d", p, n, len(reply))
		}
	}
}

func checkResultItems(t *testing.T, b ulb.Binding, reply []byte, results int) {
	t.Helper()
	var items [4]ulb.Splice
	n, err := b.ResultItems(1, reply, results, items[:])
	if n > len(items) {
		t.Fatalf("ResultItems = %d", n)
	}
	if err != nil {
		return
	}
	at := results
	for i, s := range items[:n] {
		if int(s.Pos) < at+12 || uint64(s.Pos)+uint64(s.Length)+uint64(s.Padding) > uint64(len(reply)) || binary.BigEndian.Uint32(reply[s.Pos-4:]) != s.Length {
			t.Fatalf("item %d is %+v of %d octets", i, s, len(reply))
		}
		at = int(s.Pos + s.Length + s.Padding)
	}
}

func checkTighten(t *testing.T, l ulb.Limits, m, reply []byte, a ulb.Analysis) {
	t.Helper()
	_, limits, ok := nfs.CreatedLimits(reply, &a)
	if !ok {
		return
	}
	was := a
	limits.Tighten(m, &a)
	if a.MaxReply > was.MaxReply || a.MaxReduced > a.MaxReply || a.MaxReply > l.MaxReply || a.MaxReply < 32 {
		t.Fatalf("tightened %+v to %+v", was, a)
	}
}
