package nfs_test

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// The path of these tests carries 1 MiB of a READ, Replies of 8 KiB more, and WRITEs of 512 KiB. In a session
// it leaves room for the wrapping of RPCSEC_GSS integrity.
const (
	mostRead  = 1 << 20
	mostReply = 1<<20 + 8<<10
	mostWrite = 512 << 10
	mostCall  = mostWrite + 8<<10
	wrapping  = 8 + 4 + 400

	tooMuch = 8 << 20
)

// call3 is a Call of NFSv2 or NFSv3. Its arguments begin with a file handle.
func call3(version, proc uint32, args ...uint32) []byte {
	m := testkit.Words(1, 0, 2, oncrpc.ProgramNFS, version, proc, 0, 0, 0, 0)
	if version == 3 {
		return testkit.AppendWords(testkit.AppendOpaque(m, []byte("handle")), args...)
	}
	return testkit.AppendWords(append(m, make([]byte, 32)...), args...)
}

// lowerArguments does what the bridge does with the Call m, which it changes.
func lowerArguments(t testing.TB, m []byte) (a ulb.Analysis, changed bool) {
	t.Helper()
	reg := newRegistry()
	c := parse(t, m)
	b := reg.Analyse(c, &a)
	if a.Lower&ulb.Arguments == 0 {
		return a, false
	}
	p := reg.Path(mostCall)
	return a, b.(ulb.Lowerer).LowerArguments(c, &p)
}

// A lowered is a message with numbers that become others.
type lowered struct {
	name     string
	message  func(n ...uint32) []byte
	in, want []uint32
}

// loweredCalls are Calls of all operations whose counts the bridge lowers. The layouts are those of RFC 1094, RFC
// 1813, RFC 7531, RFC 5662, RFC 7863 and RFC 8276.
var loweredCalls = []lowered{
	{"v2 READ", func(n ...uint32) []byte { return call3(2, 6, 4096, n[0], tooMuch) }, []uint32{tooMuch}, []uint32{mostRead}},
	{"v2 READ of the most", func(n ...uint32) []byte { return call3(2, 6, 4096, n[0], 0) }, []uint32{mostRead}, []uint32{mostRead}},
	{"v2 READDIR", func(n ...uint32) []byte { return call3(2, 16, 5, n[0]) }, []uint32{tooMuch}, []uint32{mostRead}},
	{"v3 READ", func(n ...uint32) []byte { return call3(3, 6, 0, tooMuch, n[0]) }, []uint32{math.MaxUint32}, []uint32{mostRead}},
	{"v3 READ of the most", func(n ...uint32) []byte { return call3(3, 6, 0, tooMuch, n[0]) }, []uint32{mostRead}, []uint32{mostRead}},
	{"v3 READ of an octet more", func(n ...uint32) []byte { return call3(3, 6, 0, 0, n[0]) }, []uint32{mostRead + 1}, []uint32{mostRead}},
	{"v3 READDIR", func(n ...uint32) []byte { return call3(3, 16, 0, tooMuch, 0, tooMuch, n[0]) }, []uint32{tooMuch}, []uint32{mostRead}},
	{"v3 READDIRPLUS", func(n ...uint32) []byte { return call3(3, 17, 0, tooMuch, 0, tooMuch, n[0], n[1]) }, []uint32{tooMuch, tooMuch}, []uint32{mostRead, mostRead}},
	{"v3 READDIRPLUS, dircount", func(n ...uint32) []byte { return call3(3, 17, 0, 1, 0, 0, n[0], n[1]) }, []uint32{tooMuch, 4096}, []uint32{mostRead, 4096}},
	{"v3 COMMIT of much", func(n ...uint32) []byte { return call3(3, 21, 0, 1, n[0]) }, []uint32{tooMuch}, []uint32{tooMuch}},

	{"v4.0 READ", read4s(0, 1), []uint32{tooMuch}, []uint32{mostRead}},
	{"v4.0 READ of the most", read4s(0, 1), []uint32{mostRead}, []uint32{mostRead}},
	{"v4.2, two READs that fit", read4s(2, 2), []uint32{4096, tooMuch}, []uint32{4096, mostRead}},
	// What three have beside their data, 12 + 8 + 3 x 16 octets, and 424 of a header leave 1,056,276 octets.
	{"v4.2, three READs", read4s(2, 3), []uint32{tooMuch, tooMuch, tooMuch}, []uint32{348160, 352256, 352256}},
	{"v4.2, three READs, of which one needs little", read4s(2, 3), []uint32{100, tooMuch, tooMuch}, []uint32{100, 524288, 528384}},
	{"v4.1, two READs that do not fit", read4s(1, 2), []uint32{600000, mostRead}, []uint32{524288, 528384}},
	{"v4.0 READDIR", func(n ...uint32) []byte { return compound4(0, 2, 24, 26, 0, 0, 0, 0, n[0], n[1], 1, 2) }, []uint32{tooMuch, tooMuch}, []uint32{mostRead, mostRead}},
	{"v4.1 READDIR, no dircount", func(n ...uint32) []byte { return compound4(1, 2, 24, 26, 0, 0, 0, 0, 0, n[0], 0) }, []uint32{tooMuch}, []uint32{mostRead}},
	{
		"v4.0 READ and READDIR", func(n ...uint32) []byte {
			return compound4(0, 3, 24, 25, 0, 0, 0, 0, 0, 0, n[0], 26, 0, 0, 0, 0, n[1], n[2], 0)
		},
		[]uint32{tooMuch, tooMuch, tooMuch},
		[]uint32{524288, 528384, 528384},
	},
	// Holes may be between the data: 40 octets for each 4 KiB.
	{"v4.2 READ_PLUS", func(n ...uint32) []byte { return compound4(2, 2, 24, 68, 0, 0, 0, 0, 0, 0, n[0]) }, []uint32{tooMuch}, []uint32{1044480}},
	{"v4.2 LISTXATTRS", func(n ...uint32) []byte { return compound4(2, 2, 24, 74, 0, 0, n[0]) }, []uint32{tooMuch}, []uint32{mostRead}},
	// A server may not return less.
	{"v4.1 GETDEVICEINFO", func(n ...uint32) []byte { return compound4(1, 1, 47, 0, 0, 0, 0, 1, n[0], 0) }, []uint32{tooMuch}, []uint32{tooMuch}},
	{
		"v4.1 LAYOUTGET", func(n ...uint32) []byte { return compound4(1, 2, 24, 50, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, n[0]) },
		[]uint32{tooMuch},
		[]uint32{tooMuch},
	},
	{"v4.0 OPEN, numbers that count nothing", func(n ...uint32) []byte { return compound4(0, 2, 24, 5, 0, 0, n[0]) }, []uint32{tooMuch}, []uint32{tooMuch}},
	{"CREATE_SESSION", createSession4, []uint32{tooMuch, tooMuch, tooMuch}, []uint32{mostCall - wrapping, mostReply - wrapping, mostReply - wrapping}},
	{"CREATE_SESSION of less", createSession4, []uint32{4096, 8192, 2048}, []uint32{4096, 8192, 2048}},
}

// read4s makes COMPOUNDs of so many READs.
func read4s(minor uint32, count int) func(n ...uint32) []byte {
	return func(n ...uint32) []byte {
		words := []uint32{24}
		for i := range count {
			words = append(words, 25, 0, 0, 0, 0, 0, tooMuch, n[i])
		}
		return compound4(minor, uint32(1+count), words...)
	}
}

// createSession4 is a CREATE_SESSION whose back channel may have longer messages than the fore channel.
func createSession4(n ...uint32) []byte {
	return compound4(1, 1, 43, 1, 2, 3, tooMuch,
		tooMuch, n[0], n[1], n[2], tooMuch, tooMuch, 1, tooMuch,
		tooMuch, tooMuch, tooMuch, tooMuch, tooMuch, tooMuch, 0,
		0x40000000, 1, 0)
}

// TestLowerArguments checks that the bridge lowers counts to what the path carries, and changes nothing else.
func TestLowerArguments(t *testing.T) {
	for _, tt := range loweredCalls {
		was, want := tt.message(tt.in...), tt.message(tt.want...)
		m := bytes.Clone(was)
		a, changed := lowerArguments(t, m)
		if !a.Known || !bytes.Equal(m, want) || changed == bytes.Equal(was, want) {
			t.Errorf("%s: changed %v, %+v\n got %x\nwant %x", tt.name, changed, a, m, want)
		}
		if same := bytes.Equal(was, want); same && a.Lower != 0 && a.SessionOps == 0 {
			t.Errorf("%s: Lower %d, and nothing to lower", tt.name, a.Lower)
		}
		if b := analyse(t, m); b.Lower != 0 && b.SessionOps == 0 || b.MaxReply > a.MaxReply || b.ResultMax > a.ResultMax || b.Operation != a.Operation {
			t.Errorf("%s: %+v became %+v", tt.name, a, b)
		}
		// Under RPCSEC_GSS without a service the arguments are not signed.
		unsigned := withoutService(t, was)
		if _, changed := lowerArguments(t, unsigned); !bytes.Equal(unsigned, withoutService(t, want)) || changed == bytes.Equal(was, want) {
			t.Errorf("%s under krb5: %x", tt.name, unsigned)
		}
		// Signed arguments stay, and so do those that cannot be walked to their end.
		for name, m := range map[string][]byte{"signed": signedCall(t, was), "cut short": was[:len(was)-4], "too long": append(bytes.Clone(was), 0, 0, 0, 0)} {
			if a := analyse(t, m); a.Lower != 0 {
				t.Errorf("%s, %s: %+v", tt.name, name, a)
			}
		}
	}
}

// withoutService is the Call m under RPCSEC_GSS with rpc_gss_svc_none.
func withoutService(t *testing.T, m []byte) []byte {
	b := append(bytes.Clone(m[:24]), testkit.Words(oncrpc.FlavorGSS, 20, 1, 0, 77, 1, 0)...)
	b = testkit.AppendOpaque(testkit.AppendWords(b, oncrpc.FlavorGSS), make([]byte, 28))
	return append(b, m[parse(t, m).Args:]...)
}

// TestLowerArgumentsHopeless: other results than those that are asked for by octets fill a Reply.
func TestLowerArgumentsHopeless(t *testing.T) {
	locks := slices.Repeat([]uint32{13, 1, 0, 0, 0, 0, 0, 0, 0}, 1100) // LOCKT, which may return another's owner
	m := compound4(0, 1101, append(locks, 25, 0, 0, 0, 0, 0, 0, tooMuch)...)
	want := patched(m, len(m)-4, mostRead)
	if a, changed := lowerArguments(t, m); !a.Known || !changed || !bytes.Equal(m, want) {
		t.Errorf("changed %v, %+v, count %d", changed, a, binary.BigEndian.Uint32(m[len(m)-4:]))
	}
}

// fsinfoReply is the Reply to an FSINFO, with attributes or without.
func fsinfoReply(attributes bool, n ...uint32) []byte {
	m := testkit.AppendWords(oncrpc.AppendAccepted(nil, 1, oncrpc.Success), 0)
	if attributes {
		m = testkit.AppendWords(append(testkit.AppendWords(m, 1), bytes.Repeat([]byte{0xff}, 84)...), n...)
	} else {
		m = testkit.AppendWords(testkit.AppendWords(m, 0), n...)
	}
	return testkit.AppendWords(m, tooMuch, tooMuch, tooMuch, tooMuch, 0x1b) // maxfilesize, time_delta, properties
}

// lowerResults does what the bridge does with the Reply to the Call.
func lowerResults(t testing.TB, call, reply []byte) (changed bool) {
	t.Helper()
	reg := newRegistry()
	c := parse(t, call)
	var a ulb.Analysis
	b := reg.Analyse(c, &a)
	if a.Lower&ulb.Results == 0 {
		return false
	}
	p := reg.Path(mostCall)
	return b.(ulb.Lowerer).LowerResults(c.Procedure, reply, &p)
}

func TestLowerFSInfo(t *testing.T) {
	call := call3(3, 19)
	high := []uint32{tooMuch, mostRead + 1, tooMuch, tooMuch, tooMuch, mostWrite + 1, tooMuch}
	most := []uint32{mostRead, mostRead, mostRead, mostWrite, mostWrite, mostWrite, mostRead}
	less := []uint32{mostRead, 4096, 512, mostWrite, 8192, 512, 65536}
	for _, attributes := range []bool{false, true} {
		for _, tt := range []struct{ in, want []uint32 }{{high, most}, {most, most}, {less, less}} {
			was, want := fsinfoReply(attributes, tt.in...), fsinfoReply(attributes, tt.want...)
			m := bytes.Clone(was)
			if changed := lowerResults(t, call, m); !bytes.Equal(m, want) || changed == bytes.Equal(was, want) {
				t.Errorf("attributes %v: changed %v\n got %x\nwant %x", attributes, changed, m, want)
			}
		}
	}
	ok := fsinfoReply(true, high...)
	for name, tt := range map[string]struct{ call, reply []byte }{
		"failed":        {call, patched(ok, 24, 70)},
		"failed, short": {call, testkit.AppendWords(oncrpc.AppendAccepted(nil, 1, oncrpc.Success), 70, 0)},
		"denied":        {call, oncrpc.AppendAuthError(nil, 1, 1)},
		"cut short":     {call, ok[:len(ok)-4]},
		"trailing":      {call, append(bytes.Clone(ok), 0, 0, 0, 0)},
		"not a Reply":   {call, call},
		"empty":         {call, nil},
		"another":       {call3(3, 18), ok},
		"signed":        {signedCall(t, call), integrity(ok)},
		"not wrapped":   {signedCall(t, call), ok},
	} {
		was := bytes.Clone(tt.reply)
		if lowerResults(t, tt.call, tt.reply) || !bytes.Equal(tt.reply, was) {
			t.Errorf("%s: %x", name, tt.reply)
		}
	}
}

func TestLowerStatFS(t *testing.T) {
	call := call3(2, 17)
	reply := func(tsize uint32) []byte {
		return testkit.AppendWords(oncrpc.AppendAccepted(nil, 1, oncrpc.Success), 0, tsize, tooMuch, tooMuch, tooMuch, tooMuch)
	}
	for in, want := range map[uint32]uint32{tooMuch: mostWrite, mostWrite: mostWrite, 8192: 8192} {
		m := reply(in)
		if changed := lowerResults(t, call, m); !bytes.Equal(m, reply(want)) || changed != (in != want) {
			t.Errorf("tsize %d: changed %v, %x", in, changed, m)
		}
	}
	if m := testkit.AppendWords(oncrpc.AppendAccepted(nil, 1, oncrpc.Success), 5); lowerResults(t, call, m) {
		t.Errorf("failed: %x", m)
	}
}

// value4 is a value of the attribute a, at most 31, of NFSv4. RFC 7531.
func value4(a int, maxRead, maxWrite uint64) []byte {
	fill := func(n int) []byte { return bytes.Repeat([]byte{0xff}, n) }
	switch a {
	case 0: // supported_attrs
		return testkit.Words(2, math.MaxUint32, math.MaxUint32)
	case 3, 4, 20, 21, 22, 23, 27:
		return fill(8)
	case 8: // fsid
		return fill(16)
	case 12: // acl
		b := testkit.AppendOpaque(testkit.Words(2, 0, 0, tooMuch), []byte("OWNER@"))
		return testkit.AppendOpaque(testkit.AppendWords(b, 1, 2, 3), []byte("a@b"))
	case 19: // filehandle
		return testkit.AppendOpaque(nil, fill(27))
	case 24: // fs_locations
		b := testkit.AppendOpaque(testkit.AppendOpaque(testkit.Words(2), []byte("export")), []byte("home"))
		b = testkit.AppendOpaque(testkit.AppendOpaque(testkit.AppendWords(b, 2, 2), []byte("server")), []byte("192.0.2.1"))
		b = testkit.AppendOpaque(testkit.AppendWords(b, 1), []byte("x"))
		return testkit.AppendWords(b, 0, 0)
	case 30:
		return binary.BigEndian.AppendUint64(nil, maxRead)
	case 31:
		return binary.BigEndian.AppendUint64(nil, maxWrite)
	}
	return fill(4)
}

// getattr4Results are the results of a GETATTR with these attributes, and some of the second unit.
func getattr4Results(attributes uint32, maxRead, maxWrite uint64) []byte {
	var values []byte
	for a := range 32 {
		if attributes>>a&1 != 0 {
			values = append(values, value4(a, maxRead, maxWrite)...)
		}
	}
	b := testkit.Words(9, 0, 2, attributes, 1<<(35-32))
	return testkit.AppendOpaque(b, testkit.AppendWords(values, 0xffffffff)) // numlinks
}

// compound4Reply is the Reply to a COMPOUND with these results.
func compound4Reply(results ...[]byte) []byte {
	m := testkit.AppendOpaque(testkit.AppendWords(oncrpc.AppendAccepted(nil, 1, oncrpc.Success), 0), []byte("tag"))
	return append(testkit.AppendWords(m, uint32(len(results))), slices.Concat(results...)...)
}

// TestLowerAttributes checks maxread and maxwrite behind every other attribute, and behind random sets of them.
func TestLowerAttributes(t *testing.T) {
	call := compound4(1, 3, 24, 9, 1, 3<<30, 9, 1, 3<<30)
	sets := []uint32{0, math.MaxUint32 >> 2}
	for a := range 30 {
		sets = append(sets, 1<<a)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		sets = append(sets, rng.Uint32()>>2)
	}
	for _, set := range sets {
		for _, io := range []uint32{0, 1 << 30, 1 << 31, 3 << 30} {
			for _, tt := range []struct{ read, write, wantRead, wantWrite uint64 }{
				{tooMuch, tooMuch, mostRead, mostWrite},
				{math.MaxUint64, 1 << 32, mostRead, mostWrite},
				{mostRead, mostWrite, mostRead, mostWrite},
				{mostRead - 1, mostWrite + 1, mostRead - 1, mostWrite},
			} {
				first := getattr4Results(set, 0, 0)
				was := compound4Reply(testkit.Words(24, 0), first, getattr4Results(set|io, tt.read, tt.write))
				want := compound4Reply(testkit.Words(24, 0), first, getattr4Results(set|io, tt.wantRead, tt.wantWrite))
				m := bytes.Clone(was)
				if changed := lowerResults(t, call, m); !bytes.Equal(m, want) || changed == bytes.Equal(was, want) {
					t.Fatalf("attributes %x: changed %v\n got %x\nwant %x", set|io, changed, m, want)
				}
			}
		}
	}
}

func TestLowerAttributesNot(t *testing.T) {
	call := compound4(1, 2, 24, 9, 1, 3<<30)
	ok := compound4Reply(testkit.Words(24, 0), getattr4Results(3<<30, tooMuch, tooMuch))
	short := testkit.AppendOpaque(testkit.Words(9, 0, 1, 3<<30), make([]byte, 4)) // no room for a value
	for name, tt := range map[string]struct{ call, reply []byte }{
		"failed":             {call, compound4Reply(testkit.Words(24, 0), testkit.Words(9, 10008))},
		"denied":             {call, oncrpc.AppendAuthError(nil, 1, 1)},
		"cut short":          {call, ok[:len(ok)-4]},
		"trailing":           {call, append(bytes.Clone(ok), 0, 0, 0, 0)},
		"values end early":   {call, compound4Reply(short)},
		"no bitmap":          {call, compound4Reply(testkit.Words(9, 0, 0, 0))},
		"not a Reply":        {call, call},
		"empty":              {call, nil},
		"not asked for":      {compound4(1, 2, 24, 9, 1, 1<<29), ok},
		"in the second unit": {compound4(1, 2, 24, 9, 2, 0, 3<<30), ok},
		"signed":             {signedCall(t, call), integrity(ok)},
		"not wrapped":        {signedCall(t, call), ok},
	} {
		was := bytes.Clone(tt.reply)
		if lowerResults(t, tt.call, tt.reply) || !bytes.Equal(tt.reply, was) {
			t.Errorf("%s: %x", name, tt.reply)
		}
	}
}

// TestPathWrite: a WRITE of that many octets fits a Call with its header, and servers get whole pages.
func TestPathWrite(t *testing.T) {
	for call, want := range map[int]uint32{
		4 << 10: 1 << 10, 8 << 10: 2 << 10, 12 << 10: 4 << 10, 64<<10 + 1: 56 << 10, 4<<20 + 64<<10: 4<<20 + 56<<10, 8 << 20: 8<<20 - 8<<10,
	} {
		p := newRegistry().Path(call)
		if got := p.Write(); got != want {
			t.Errorf("Calls of %d octets: WRITEs of %d, want %d", call, got, want)
		}
	}
}

func TestLowerAllocs(t *testing.T) {
	reg := newRegistry()
	p := reg.Path(mostCall)
	fsinfo, attributes := fsinfoReply(true, make([]uint32, 7)...), compound4Reply(getattr4Results(math.MaxUint32, tooMuch, tooMuch))
	reads := read4s(2, 3)(tooMuch, tooMuch, tooMuch)
	for name, call := range map[string][]byte{"READ": call3(3, 6, 0, 0, tooMuch), "READs": reads, "FSINFO": call3(3, 19), "GETATTR": compound4(1, 1, 9, 1, 3<<30)} {
		m := bytes.Clone(call)
		var c oncrpc.Call
		var a ulb.Analysis
		if n := testing.AllocsPerRun(100, func() {
			copy(m, call)
			if oncrpc.ParseCall(m, &c) != nil {
				t.Fatal("no Call")
			}
			b := reg.Analyse(&c, &a).(ulb.Lowerer)
			if a.Lower&ulb.Arguments != 0 {
				b.LowerArguments(&c, &p)
			}
			if a.Lower&ulb.Results != 0 {
				b.LowerResults(c.Procedure, fsinfo, &p)
				b.LowerResults(c.Procedure, attributes, &p)
			}
		}); n != 0 || a.Lower == 0 {
			t.Errorf("%s: %v allocations, %+v", name, n, a)
		}
	}
}

// FuzzLower checks that only numbers which the RFCs allow to be less are changed, that they become less, and
// that nothing changes the second time.
func FuzzLower(f *testing.F) {
	for _, tt := range loweredCalls {
		f.Add(tt.message(tt.in...), fsinfoReply(true, slices.Repeat([]uint32{tooMuch}, 7)...)[24:], uint32(mostCall))
	}
	for _, v := range loadVectors(f) {
		if len(v.Replies) > 0 {
			f.Add([]byte(v.Call), []byte(v.Replies[0].Reply[min(24, len(v.Replies[0].Reply)):]), uint32(4096))
		}
	}
	f.Add(compound4(1, 1, 9, 1, 3<<30), compound4Reply(getattr4Results(math.MaxUint32, tooMuch, tooMuch))[24:], uint32(mostCall))
	reg := newRegistry()
	success := oncrpc.AppendAccepted(nil, 1, oncrpc.Success)
	f.Fuzz(func(t *testing.T, m, results []byte, record uint32) {
		var c oncrpc.Call
		if oncrpc.ParseCall(m, &c) != nil {
			return
		}
		var a ulb.Analysis
		b := reg.Analyse(&c, &a)
		if a.Lower == 0 {
			return
		}
		if !a.Known || !c.Reducible() {
			t.Fatalf("%+v", a)
		}
		p := reg.Path(int(record))
		l := b.(ulb.Lowerer)
		if a.Lower&ulb.Arguments != 0 {
			was := bytes.Clone(m)
			changed := l.LowerArguments(&c, &p)
			checkLowered(t, &c, was, m, changed)
			var again ulb.Analysis
			if reg.Analyse(&c, &again); again.MaxReply > a.MaxReply || again.Operation != a.Operation || again.Class != a.Class || !again.Known || again.BackRequest != a.BackRequest {
				t.Fatalf("%+v became %+v", a, again)
			}
			if l.LowerArguments(&c, &p) {
				t.Fatalf("changed twice: %x", m)
			}
		}
		reply := slices.Concat(success, results)
		was := bytes.Clone(reply)
		changed := l.LowerResults(c.Procedure, reply, &p)
		if changed == bytes.Equal(reply, was) || changed && l.LowerResults(c.Procedure, reply, &p) {
			t.Fatalf("changed %v: %x became %x", changed, was, reply)
		}
		// A changed octet is one of the seven numbers of FSINFO, of tsize of STATFS, or in a hyper of an attribute.
		for i := range reply {
			if reply[i] != was[i] && (c.Version == 3 && (i < len(reply)-48 || i >= len(reply)-20) || c.Version == 2 && (i < len(reply)-20 || i >= len(reply)-16)) {
				t.Fatalf("octet %d of %d: %x became %x", i, len(reply), was, reply)
			}
		}
	})
}

// checkLowered checks that the words of m which are not as they were are counts, and have become less.
func checkLowered(t *testing.T, c *oncrpc.Call, was, m []byte, changed bool) {
	t.Helper()
	if changed == bytes.Equal(was, m) {
		t.Fatalf("changed %v: %x became %x", changed, was, m)
	}
	word := func(at int) uint32 { return binary.BigEndian.Uint32(m[at:]) }
	// operation reports whether an operation of this number may have its arguments so many octets before at.
	operation := func(at, before int, number uint32) bool {
		at -= before + 4
		return at >= c.Args+12 && word(at) == number
	}
	for at := c.Args; at+4 <= len(m); at += 4 {
		if old, now := binary.BigEndian.Uint32(was[at:]), word(at); old == now {
			continue
		} else if now > old {
			t.Fatalf("the word at %d became more: %x became %x", at, was, m)
		}
		end := at - len(m)
		ok := false
		switch c.Version {
		case 2:
			ok = c.Procedure == 6 && end == -8 || c.Procedure == 16 && end == -4
		case 3:
			ok = (c.Procedure == 6 || c.Procedure == 16 || c.Procedure == 17) && end == -4 || c.Procedure == 17 && end == -8
		case 4:
			ok = operation(at, 24, 25) || operation(at, 24, 68) || operation(at, 16, 26) || operation(at, 20, 26) || operation(at, 8, 74) ||
				operation(at, 20, 43) || operation(at, 24, 43) || operation(at, 28, 43)
		}
		if !ok || c.Program != oncrpc.ProgramNFS {
			t.Fatalf("version %d procedure %d: the word at %d changed: %x became %x", c.Version, c.Procedure, at, was, m)
		}
	}
}
