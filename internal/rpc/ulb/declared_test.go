package ulb

import (
	"encoding/binary"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
)

func TestDeclared(t *testing.T) {
	reg := NewRegistry(Limits{})
	reg.Declare(1, 1, []Declaration{
		{Procedures: []uint32{1, 3}, Class: ReadOnly, MaxReply: 100},
		{Procedures: []uint32{3, 4}, Class: Idempotent, MaxReply: 1 << 30},
	})
	reg.Declare(1, 2, []Declaration{{Class: NonIdempotent, MaxReply: 2}})
	most := reg.Limits().MaxReply
	is := func(class Class, n uint32) Analysis {
		return Analysis{Known: true, Class: class, Changes: class != ReadOnly, Reduce: true, MaxReply: n, MaxReduced: n, Guess: true}
	}
	unknown := Analysis{Class: NonIdempotent, Changes: true, Reduce: true, MaxReply: most, MaxReduced: most}
	signed, sealed, encrypted := is(ReadOnly, 836+100), unknown, unknown
	signed.Reduce = false
	sealed.Reduce = false
	encrypted.Reduce, encrypted.Changes = false, false // procedure 1 changes nothing whatever its arguments
	const sys, sgss = oncrpc.FlavorSys, oncrpc.FlavorGSS
	for _, tt := range []struct {
		name string
		c    *oncrpc.Call
		want Analysis
	}{
		{"a procedure that reads", call(1, 1, 1, sys, nil, 7), is(ReadOnly, 24+100)},
		{"the first that has it counts", call(1, 1, 3, sys, nil), is(ReadOnly, 24+100)},
		{"no more than any Reply", call(1, 1, 4, sys, nil), is(Idempotent, most)},
		{"a procedure that no declaration has", call(1, 1, 2, sys, nil), unknown},
		{"every procedure, and room for PROG_MISMATCH", call(1, 2, 9, sys, nil), is(NonIdempotent, 24+8)},
		{"another version", call(1, 3, 1, sys, nil), unknown},
		{"integrity", call(1, 1, 1, sgss, gss(1, 0, 2), 8, 7, 0), signed},
		{"privacy, a procedure that reads", call(1, 1, 1, sgss, gss(1, 0, 3), 0), encrypted},
		{"privacy, another procedure", call(1, 1, 4, sgss, gss(1, 0, 3), 0), sealed},
	} {
		var a Analysis
		b := reg.Analyse(tt.c, &a)
		a.Operation = 0
		if a != tt.want {
			t.Errorf("%s:\n got %+v\nwant %+v", tt.name, a, tt.want)
		}
		if n, err := b.ResultItems(1, nil, 0, nil); n != 0 || err != nil {
			t.Errorf("%s: %d eligible results, %v", tt.name, n, err)
		}
	}
	// NULL is known without a declaration.
	var a Analysis
	reg.Analyse(call(1, 1, 0, sys, nil), &a)
	if a.Class != ReadOnly || a.MaxReply != 32 || a.Guess {
		t.Errorf("NULL: %+v", a)
	}
}

// Neither a Reply chunk nor anything else is offered for a Reply that is declared to be short.
func TestDeclaredPlan(t *testing.T) {
	reg := NewRegistry(Limits{})
	reg.Declare(1, 1, []Declaration{{Procedures: []uint32{1}, Class: ReadOnly, MaxReply: 512}, {Class: ReadOnly, MaxReply: 8 << 10}})
	for _, tt := range []struct {
		procedure uint32
		want      Shape
	}{
		{1, Shape{}},
		{2, Shape{Reply: ReplyChunk, Capacity: 12 << 10}},
	} {
		c := call(1, 1, tt.procedure, oncrpc.FlavorSys, nil)
		var a Analysis
		reg.Analyse(c, &a)
		got, err := reg.Plan(&a, len(c.Message), 4096, 4096)
		if err != nil || got != tt.want {
			t.Errorf("procedure %d: %+v, %v, want %+v", tt.procedure, got, err, tt.want)
		}
	}
}

// TestDeclaredFixed: the Analysis that a Registry keeps for a declared procedure is the one that it makes for each Call.
func TestDeclaredFixed(t *testing.T) {
	reg := NewRegistry(Limits{})
	reg.Declare(300000, 1, []Declaration{
		{Procedures: []uint32{1, 7, 40}, Class: ReadOnly, MaxReply: 100},
		{Procedures: []uint32{2}, Class: NonIdempotent, MaxReply: 2 << 20},
		{Procedures: []uint32{0, 3}, Class: Idempotent, MaxReply: 5000},
	})
	fixed := 0
	for n := range uint32(50) {
		for octets := range 9 {
			m := make([]byte, oncrpc.CallHeaderMin+octets)
			for at, w := range []uint32{8: oncrpc.RPCVersion, 12: 300000, 16: 1, 20: n} {
				if w != 0 {
					binary.BigEndian.PutUint32(m[at:], w)
				}
			}
			var h oncrpc.Call
			if err := oncrpc.ParseCall(m, &h); err != nil {
				t.Fatal(err)
			}
			if reg.Fixed(&h) != nil {
				fixed++
			}
			var got, want Analysis
			b := reg.Analyse(&h, &got)
			h.Flavor = oncrpc.FlavorDH // no procedure is fixed for it; its Replies are bounded like those of AUTH_SYS
			if reg.Analyse(&h, &want) != b || got != want {
				t.Fatalf("procedure %d with %d octets: %+v, want %+v", n, octets, got, want)
			}
		}
	}
	if fixed != 4*9 { // 1, 2, 3 and 7
		t.Errorf("%d Calls are fixed, want 36", fixed)
	}
}
