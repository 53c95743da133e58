package ulb

import (
	"errors"
	"testing"
)

func TestPlan(t *testing.T) {
	const mib = 1 << 20
	reg := NewRegistry(Limits{})
	getattr := Analysis{Known: true, Reduce: true, MaxReply: 112, MaxReduced: 112}
	read := func(n uint32) Analysis {
		return Analysis{Known: true, Reduce: true, ResultMax: n, MaxReduced: 128, MaxReply: 128 + roundup(n)}
	}
	write := func(n uint32) Analysis {
		return Analysis{Known: true, Reduce: true, ArgPosition: 128, ArgLength: n, MaxReply: 160, MaxReduced: 160}
	}
	integrity := func(a Analysis) Analysis {
		a.Reduce, a.ArgPosition, a.ArgLength, a.ResultMax, a.MaxReduced = false, 0, 0, 0, a.MaxReply
		return a
	}
	unknown := Analysis{Reduce: true, Class: NonIdempotent, MaxReply: mib + 8<<10, MaxReduced: mib + 8<<10}

	for _, tt := range []struct {
		name                             string
		a                                Analysis
		callLen, callInline, replyInline int
		want                             Shape
	}{
		{"GETATTR", getattr, 108, 1024, 1024, Shape{}},
		{"a Reply that just fits", Analysis{MaxReply: 1024 - 28}, 108, 1024, 1024, Shape{}},
		{"a Reply one octet too long", Analysis{MaxReply: 1024 - 27}, 108, 1024, 1024, Shape{Reply: ReplyChunk, Capacity: 4096}},
		{"a small READ is inline", read(512), 120, 1024, 1024, Shape{}},
		{"READ", read(4096), 120, 4096, 4096, Shape{Reply: ReplyWriteChunk, Capacity: 4096}},
		{"READ of 1 MiB less 1", read(mib - 1), 120, 4096, 4096, Shape{Reply: ReplyWriteChunk, Capacity: mib}},
		{"READ whose Call just fits with a Write list", read(4096), 1024 - 52, 1024, 1024, Shape{Reply: ReplyWriteChunk, Capacity: 4096}},
		// "Read list + Write list together [...] is unexercised".
		{"READ whose Call does not", read(4096), 1024 - 51, 1024, 1024, Shape{Reply: ReplyChunk, Capacity: 8192}},
		{"READ whose Call is long", read(4096), 1024 - 47, 1024, 1024, Shape{Call: CallLong, Reply: ReplyChunk, Capacity: 8192}},
		{"READ whose reduced Reply does not fit", Analysis{Known: true, Reduce: true, ResultMax: 4096, MaxReduced: 1000, MaxReply: 5096}, 120, 1024, 1024, Shape{Reply: ReplyChunk, Capacity: 8192}},
		{"READ under integrity", integrity(read(mib)), 176, 4096, 4096, Shape{Reply: ReplyChunk, Capacity: mib + 4096}},
		{"a small WRITE is inline", write(512), 128 + 512, 1024, 1024, Shape{}},
		{"WRITE that just fits", write(1024 - 28 - 128), 1024 - 28, 1024, 1024, Shape{}},
		{"WRITE one unit longer", write(1024 - 24 - 128), 1024 - 24, 1024, 1024, Shape{Call: CallReadChunk}},
		{"WRITE of 1 MiB", write(mib), 128 + mib, 4096, 4096, Shape{Call: CallReadChunk}},
		{"WRITE of odd length", write(mib - 3), 128 + mib, 4096, 4096, Shape{Call: CallReadChunk}},
		{"WRITE with a long header", write(4096), 1024 + 4096, 1024, 1024, Shape{Call: CallLong}},
		{"WRITE under integrity", integrity(write(mib)), 200 + mib, 4096, 4096, Shape{Call: CallLong}},
		{"WRITE with a Reply chunk", Analysis{Known: true, Reduce: true, ArgPosition: 128, ArgLength: 4096, MaxReply: 8192, MaxReduced: 8192}, 128 + 4096, 1024, 1024, Shape{Call: CallReadChunk, Reply: ReplyChunk, Capacity: 12 << 10}},
		{"unknown", unknown, 84, 4096, 4096, Shape{Reply: ReplyChunk, Capacity: mib + 8<<10}},
		{"unknown and long", unknown, mib, 4096, 4096, Shape{Call: CallLong, Reply: ReplyChunk, Capacity: mib + 8<<10}},
		{"an empty READ", read(0), 4000, 4096, 100, Shape{Reply: ReplyChunk, Capacity: 4096}},
	} {
		got, err := reg.Plan(&tt.a, tt.callLen, tt.callInline, tt.replyInline)
		if err != nil || got != tt.want {
			t.Errorf("%s: Plan = %+v, %v; want %+v", tt.name, got, err, tt.want)
		}
	}
	for _, tt := range []struct{ callLen, callInline int }{{-1, 1024}, {maxCall + 1, 1024}, {100, 71}} {
		if _, err := reg.Plan(&getattr, tt.callLen, tt.callInline, 1024); !errors.Is(err, ErrTooLong) {
			t.Errorf("Plan of %d octets, threshold %d: %v", tt.callLen, tt.callInline, err)
		}
	}
}

// TestPlanFits tries lengths around every threshold and adds up the octets that the chosen
// shape puts into a Send.
func TestPlanFits(t *testing.T) {
	reg := NewRegistry(Limits{})
	for _, inline := range []int{1024, 4096} {
		for callLen := 40; callLen < 3*inline; callLen += 4 {
			for data := 0; data <= callLen-40; data += 388 {
				for _, res := range []int{0, 1, inline - 200, inline, 1 << 20} {
					a := Analysis{
						Known: true, Reduce: true, ArgLength: uint32(data), ResultMax: uint32(res),
						MaxReduced: 128, MaxReply: 128 + roundup(uint32(res)),
					}
					checkPlan(t, reg, &a, callLen, inline, inline)
				}
			}
		}
	}
}

// checkPlan asserts the rules of every plan.
func checkPlan(t *testing.T, reg *Registry, a *Analysis, callLen, callInline, replyInline int) {
	t.Helper()
	s, err := reg.Plan(a, callLen, callInline, replyInline)
	if err != nil {
		t.Fatal(err)
	}
	call, reply := 28, 28+int(a.MaxReply)
	switch s.Reply {
	case ReplyWriteChunk:
		call += 24
		reply = 28 + 24 + int(a.MaxReduced)
		if s.Call != CallInline || !a.Reduce || s.Capacity < a.ResultMax || s.Capacity%4 != 0 {
			t.Fatalf("%+v for %+v", s, *a)
		}
	case ReplyChunk:
		call += 20
		reply = 0
		if s.Capacity < a.MaxReply || s.Capacity%4096 != 0 {
			t.Fatalf("%+v for %+v", s, *a)
		}
	}
	switch s.Call {
	case CallInline:
		call += callLen
	case CallReadChunk:
		call += 24 + callLen - int(roundup(a.ArgLength))
		if !a.Reduce || a.ArgLength == 0 {
			t.Fatalf("%+v for %+v", s, *a)
		}
	case CallLong:
		call += 24
	}
	if call > callInline || reply > replyInline {
		t.Fatalf("%+v for %+v and a Call of %d: Sends of %d and %d, thresholds %d and %d", s, *a, callLen, call, reply, callInline, replyInline)
	}
}

func TestLimits(t *testing.T) {
	def := NewRegistry(Limits{}).Limits()
	want := Limits{
		MaxIO: 1 << 20, MaxReply: 1<<20 + 8<<10, Path: 4096, Flavors: 32, Bitmap: 4, Identity: 1024, Label: 2048,
		XAttr: 64 << 10, Attribute: 64 << 10, Token: 64 << 10,
	}
	if def != want {
		t.Errorf("defaults %+v, want %+v", def, want)
	}
	if l := NewRegistry(Limits{MaxIO: 4 << 20}).Limits(); l.MaxReply != 4<<20+8<<10 {
		t.Errorf("MaxReply follows MaxIO: %+v", l)
	}
	if l := NewRegistry(Limits{MaxIO: 4 << 20, MaxReply: 1 << 20}).Limits(); l.MaxReply != 4<<20+8<<10 {
		t.Errorf("MaxReply too small for MaxIO is kept: %+v", l)
	}
	all := uint32(0xffffffff)
	l := NewRegistry(Limits{all, all, all, all, all, all, all, all, all, all}).Limits()
	if uint64(l.MaxReply)+replyQuantum+replySlack > 0xffffffff || uint64(l.Flavors)*4+1<<12 > 0xffffffff || uint64(max(l.Label, l.XAttr))+3 > 0xffffffff {
		t.Errorf("limits %+v overflow", l)
	}
}
