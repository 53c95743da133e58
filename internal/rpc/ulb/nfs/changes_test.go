package nfs_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

// keepers are the procedures that change no file, by program and version. Those of NLM's LOCK and
// NM_LOCK depend on their arguments.
var keepers = map[[2]uint32][]string{
	{oncrpc.ProgramNFS, 2}:     {"GETATTR", "ROOT", "LOOKUP", "READLINK", "READ", "WRITECACHE", "READDIR", "STATFS"},
	{oncrpc.ProgramNFS, 3}:     {"GETATTR", "LOOKUP", "ACCESS", "READLINK", "READ", "READDIR", "READDIRPLUS", "FSSTAT", "FSINFO", "PATHCONF"},
	{oncrpc.ProgramNFSACL, 2}:  {"GETACL", "GETATTR", "ACCESS"},
	{oncrpc.ProgramNFSACL, 3}:  {"GETACL"},
	{oncrpc.ProgramNLM, 1}:     {"TEST", "CANCEL", "UNLOCK"},
	{oncrpc.ProgramNLM, 3}:     {"TEST", "CANCEL", "UNLOCK", "UNSHARE"},
	{oncrpc.ProgramNLM, 4}:     {"TEST", "CANCEL", "UNLOCK", "UNSHARE"},
	{oncrpc.ProgramNSM, 1}:     {"STAT", "NOTIFY"},
	{oncrpc.ProgramMount, 1}:   {"MNT", "DUMP", "UMNT", "UMNTALL", "EXPORT", "EXPORTALL"},
	{oncrpc.ProgramMount, 2}:   {"MNT", "DUMP", "UMNT", "UMNTALL", "EXPORT", "EXPORTALL", "PATHCONF"},
	{oncrpc.ProgramMount, 3}:   {"MNT", "DUMP", "UMNT", "UMNTALL", "EXPORT"},
	{oncrpc.ProgramRPCBind, 2}: {"GETPORT", "DUMP"},
	{oncrpc.ProgramRPCBind, 3}: {"GETADDR", "DUMP", "GETTIME", "UADDR2TADDR", "TADDR2UADDR"},
	{oncrpc.ProgramRPCBind, 4}: {"GETADDR", "DUMP", "GETTIME", "UADDR2TADDR", "TADDR2UADDR", "GETVERSADDR", "GETADDRLIST", "GETSTAT"},
	{oncrpc.ProgramRQuota, 1}:  {"GETQUOTA", "GETACTIVEQUOTA"},
	{oncrpc.ProgramRQuota, 2}:  {"GETQUOTA", "GETACTIVEQUOTA"},
}

// loadReference4Calls are the COMPOUNDs of loadReference4.
func loadReference4Calls(t testing.TB) (calls []referenceCall) {
	for _, r := range loadReference4(t) {
		calls = append(calls, referenceCall{prog: oncrpc.ProgramNFS, vers: 4, proc: 1, name: "COMPOUND", message: r.call})
	}
	return calls
}

// TestChanges: each procedure of each program changes files or not, as the list above has it, whatever its
// arguments and its protection. Of COMPOUNDs a serverView decides.
func TestChanges(t *testing.T) {
	reg := newRegistry()
	seen := 0
	for _, r := range slices.Concat(loadReference(t), loadReference4Calls(t)) {
		var a ulb.Analysis
		c := parse(t, r.message)
		reg.Analyse(c, &a)
		want := r.name != "NULL" && !slices.Contains(keepers[[2]uint32{r.prog, r.vers}], r.name)
		switch {
		case r.prog == oncrpc.ProgramNFS && r.vers == 4 && r.proc == 1:
			start, end, ok := c.Arguments()
			want = !ok || !a.Known || readAsServer(c.Message[start:end]).changes >= 0
		case r.prog == oncrpc.ProgramNLM && (r.name == "LOCK" || r.name == "NM_LOCK"):
			start, _, ok := c.Arguments()
			want = true
			if ok && a.Known {
				v := serverView{b: c.Message[start:]}
				v.opaque()
				v.skip(4)
				want = v.u32() != 0
			}
		}
		if a.Changes != want {
			t.Errorf("%d.%d %s %x: changes files: %v, want %v", r.prog, r.vers, r.name, r.message, a.Changes, want)
		}
		seen++
	}
	if seen < 1000 {
		t.Errorf("%d Calls", seen)
	}
	for _, tt := range []struct {
		program, version, procedure uint32
		want                        bool
	}{
		{oncrpc.ProgramNFS, 3, 0, false},
		{oncrpc.ProgramNFS, 4, 0, false},
		{oncrpc.ProgramNFS, 3, 22, true},
		{oncrpc.ProgramNFS, 4, 2, true},
		{oncrpc.ProgramNFS, 5, 1, true},
		{4711, 1, 1, true},
		{4711, 1, 0, false},
		{oncrpc.ProgramRQuota, 1, 3, true},
		{oncrpc.ProgramNFS, 3, 1, false},
		{oncrpc.ProgramNFS, 3, 6, false},
		{oncrpc.ProgramNFS, 3, 7, true},
	} {
		c := &oncrpc.Call{Message: make([]byte, 40), Program: tt.program, Version: tt.version, Procedure: tt.procedure, Args: 40}
		var a ulb.Analysis
		if reg.Analyse(c, &a); a.Changes != tt.want {
			t.Errorf("%d.%d.%d without arguments changes files: %v", tt.program, tt.version, tt.procedure, a.Changes)
		}
		c.Protection = oncrpc.ProtectPrivacy
		if reg.Analyse(c, &a); a.Changes != (tt.want || tt.program == 4711) {
			t.Errorf("%d.%d.%d under privacy changes files: %v", tt.program, tt.version, tt.procedure, a.Changes)
		}
	}
}

// checkReadOnly checks that the COMPOUND m, if the Analysis lets it pass as one that changes no file, has
// nothing that a server would take for a change, and that Cut leaves nothing else of it.
func checkReadOnly(t *testing.T, reg *ulb.Registry, m []byte) (passes bool) {
	t.Helper()
	var c oncrpc.Call
	if oncrpc.ParseCall(m, &c) != nil {
		return false
	}
	var a ulb.Analysis
	reg.Analyse(&c, &a)
	start, end, ok := c.Arguments()
	if !ok || c.Program != oncrpc.ProgramNFS || c.Version != 4 || c.Procedure != 1 {
		return !a.Changes
	}
	v := readAsServer(m[start:end])
	if !a.Changes {
		if v.changes >= 0 {
			t.Errorf("%x passes for reading, and operation %d, %d, changes a file", m, v.changes, v.numbers[v.changes])
		}
		return true
	}
	cut := c
	cut.Message = bytes.Clone(m)
	s, ok := nfs.Cut(&cut, nfs.ReadOnly)
	if !ok {
		if !bytes.Equal(cut.Message, m) {
			t.Errorf("%x was not cut, and changed to %x", m, cut.Message)
		}
		return false
	}
	if len(cut.Message) > len(m) || cap(cut.Message) > cap(c.Message)+cap(cut.Message) {
		t.Errorf("%x grew", m)
	}
	var b ulb.Analysis
	if reg.Analyse(&cut, &b); b.Changes || !b.Known {
		t.Errorf("%x cut to %x: %+v", m, cut.Message, b)
	}
	w := readAsServer(cut.Message[start:])
	if w.changes >= 0 || !w.bad {
		t.Errorf("%x cut to %x: a server reads %v, and operation %d changes a file", m, cut.Message, w.numbers, w.changes)
	}
	if len(w.numbers) > 0 && (w.numbers[0] != 53 || !slices.Equal(w.numbers, v.numbers[:len(w.numbers)])) {
		t.Errorf("%x cut to %x: a server executes %v of %v", m, cut.Message, w.numbers, v.numbers)
	}
	if n := len(w.numbers); s != 0 && (n < len(v.numbers) && uint32(s) != v.numbers[n]) {
		t.Errorf("%x: stump %d, want %d", m, s, v.numbers[n])
	}
	return false
}

// randomOperation appends an operation of NFSv4 with plausible arguments.
func randomOperation(r *rand.Rand, b []byte, number uint32) []byte {
	word := func(v ...uint32) {
		for _, v := range v {
			b = xdr.AppendUint32(b, v)
		}
	}
	any := func(v ...uint32) uint32 { return v[r.IntN(len(v))] }
	zero := func(n int) { b = append(b, make([]byte, n)...) }
	opaque := func() { b = xdr.AppendOpaque(b, make([]byte, r.IntN(9))) }
	bitmap := func() {
		n := r.IntN(3)
		word(uint32(n))
		zero(4 * n)
	}
	word(number)
	switch number {
	case 3, 52, 58:
		zero(4)
	case 19:
		word(any(0, 0, 1))
	case 4:
		zero(20)
	case 5, 74:
		zero(12)
	case 6:
		word(2)
		opaque()
		bitmap()
		opaque()
	case 7, 30, 57:
		zero(8)
	case 8, 44, 45, 66, 67, 36:
		zero(16)
	case 9:
		bitmap()
	case 11, 15, 22, 28, 33, 72, 75:
		opaque()
	case 12:
		word(any(1, 2, 3, 4), 0)
		zero(16)
		word(0)
		zero(20)
	case 13:
		zero(28)
		opaque()
	case 14:
		zero(40)
	case 17, 37:
		bitmap()
		opaque()
	case 18:
		word(0, any(1, 1, 2, 3, 0x101), any(0, 0, 1, 2, 3), 0, 0)
		opaque()
		if c := any(0, 0, 1); c == 0 {
			word(0)
		} else {
			word(1, 0)
			bitmap()
			opaque()
		}
		switch c := any(0, 1, 2, 3, 4, 5, 6); c {
		case 0, 3:
			word(c)
			opaque()
		case 1:
			word(c, any(0, 1, 2))
		case 2:
			word(c)
			zero(16)
			opaque()
		case 5:
			word(c)
			zero(16)
		default:
			word(c)
		}
	case 20:
		zero(20)
	case 21, 25, 68, 69:
		zero(28)
	case 26:
		zero(24)
		bitmap()
	case 29, 54:
		opaque()
		opaque()
	case 34:
		zero(16)
		bitmap()
		opaque()
	case 38:
		zero(28)
		opaque()
	case 39:
		zero(8)
		opaque()
	case 41:
		zero(24)
	case 47:
		zero(24)
		bitmap()
	case 48:
		zero(24)
	case 50:
		zero(56)
	case 51:
		zero(12)
		word(2)
	case 53, 59, 62:
		zero(32)
	case 55:
		word(1)
		zero(16)
	case 56:
		word(0, 4)
	case 60:
		zero(64)
		word(0)
	case 63:
		zero(32)
		bitmap()
	case 71:
		zero(56)
	case 73:
		zero(4)
		opaque()
		opaque()
	}
	return b
}

// randomCompound makes a COMPOUND, most of whose operations change nothing.
func randomCompound(r *rand.Rand) []byte {
	reading := []uint32{3, 4, 8, 9, 10, 12, 13, 14, 15, 16, 17, 18, 18, 19, 22, 24, 25, 26, 27, 31, 32, 33, 45, 51, 55, 68, 69, 72, 74}
	minor := uint32(r.IntN(3))
	n := r.IntN(7)
	b := compound4(minor, uint32(n))
	if r.IntN(4) == 0 {
		b = b[:len(b)-12]
		b = xdr.AppendOpaque(b, []byte("a tag"))
		b = xdr.AppendUint32(xdr.AppendUint32(b, minor), uint32(n))
	}
	for i := range n {
		number := reading[r.IntN(len(reading))]
		switch {
		case i == 0 && minor > 0 && r.IntN(3) > 0:
			number = 53
		case r.IntN(8) == 0:
			number = uint32(r.IntN(78))
		}
		b = randomOperation(r, b, number)
	}
	return b
}

// TestReadOnlyCompounds: of many COMPOUNDs those that change files are found, and cut before that.
func TestReadOnlyCompounds(t *testing.T) {
	reg := newRegistry()
	passed := 0
	const rounds = 40000
	for i := range uint64(rounds) {
		r := rand.New(rand.NewPCG(i, 16))
		m := randomCompound(r)
		switch r.IntN(5) {
		case 0:
			m[40+r.IntN(len(m)-40)&^3+3] = byte(r.IntN(80))
		case 1:
			m = m[:40+r.IntN(len(m)-39)]
		}
		if checkReadOnly(t, reg, m) {
			passed++
		}
		if t.Failed() {
			t.Fatal("seed", i)
		}
	}
	if passed < rounds/20 || passed > rounds*9/10 {
		t.Errorf("%d of %d pass", passed, rounds)
	}
}

// FuzzReadOnly looks for a COMPOUND that passes for one that changes no file, and changes one.
func FuzzReadOnly(f *testing.F) {
	for i := range uint64(200) {
		f.Add(randomCompound(rand.New(rand.NewPCG(i, 17))))
	}
	reg := newRegistry()
	f.Fuzz(func(t *testing.T, m []byte) { checkReadOnly(t, reg, m) })
}

// TestRefusalReply: the Reply that refuses a Call is one of its program, with the error for read-only, or for later.
func TestRefusalReply(t *testing.T) {
	reg := newRegistry()
	refused := map[string]int{}
	for _, r := range slices.Concat(loadReference(t), loadReference4Calls(t)) {
		c := parse(t, bytes.Clone(r.message))
		var a ulb.Analysis
		reg.Analyse(c, &a)
		if !a.Changes || !a.Known || r.vers == 4 && r.prog == oncrpc.ProgramNFS && c.Protection != oncrpc.ProtectNone || c.Flavor != oncrpc.FlavorNone && c.Flavor != oncrpc.FlavorSys {
			continue
		}
		args := bytes.Clone(c.Message[c.Args:])
		b := nfs.RefusalReply(c, nfs.ReadOnly)
		if !oncrpc.IsReply(b, c.XID) || len(b) > len(r.message) || &b[0] != &c.Message[0] {
			t.Fatalf("%s: Reply %x to %x", r.name, b, r.message)
		}
		var reply oncrpc.Reply
		if err := oncrpc.ParseReply(b, &reply); err != nil || reply.Denied {
			t.Fatalf("%s: %x: %v", r.name, b, err)
		}
		got := fmt.Sprintf("%d %x", reply.AcceptStat, b[reply.Results:])
		const rofs = "0000001e"
		v := serverView{b: args}
		var want string
		switch {
		case r.prog == oncrpc.ProgramNFS && r.vers == 4:
			v.opaque()
			tag := args[:len(args)-len(v.b)]
			v.u32()
			v.u32()
			first, status := v.u32(), uint32(30)
			if first == 50 {
				status = 10059
			}
			want = fmt.Sprintf("0 %08x%x%08x%08x%08x", status, tag, 1, first, status)
			if first == 34 {
				want += "00000000"
			}
		case r.prog == oncrpc.ProgramNLM:
			if r.proc > 5 && r.proc < 20 || r.proc == 23 {
				want = "3 " // PROC_UNAVAIL: the answer is another Call
				break
			}
			v.opaque()
			want = fmt.Sprintf("0 %x", args[:len(args)-len(v.b)])
			want += map[uint32]string{1: "00000002", 3: "00000002", 4: "00000007"}[r.vers]
			if r.proc == 20 {
				want += "00000000"
			}
		case r.prog == oncrpc.ProgramRPCBind, r.prog == oncrpc.ProgramNSM:
			want = "3 "
		case r.vers == 2:
			want = "0 " + rofs
		case r.prog == oncrpc.ProgramNFSACL:
			want = "0 " + rofs + "00000000"
		default:
			want = "0 " + rofs + map[string]string{
				"RENAME": "00000000000000000000000000000000", "LINK": "000000000000000000000000",
			}[r.name]
			if len(want) == 10 {
				want += "0000000000000000"
			}
		}
		if got != want {
			t.Errorf("%d.%d %s: %s, want %s", r.prog, r.vers, r.name, got, want)
		}
		if r.prog == oncrpc.ProgramNFS || r.prog == oncrpc.ProgramNFSACL {
			status := "00002718" // NFS3ERR_JUKEBOX, NFS4ERR_DELAY
			if r.vers == 2 || r.prog == oncrpc.ProgramNFSACL {
				status = "00000005"
			}
			b := nfs.RefusalReply(parse(t, bytes.Clone(r.message)), nfs.Later)
			if got, want := hex.EncodeToString(b[oncrpc.ReplyHeader:]), strings.NewReplacer(rofs, status, "0000274b", status).Replace(want[2:]); got != want {
				t.Errorf("%d.%d %s: later is %s, want %s", r.prog, r.vers, r.name, got, want)
			}
		}
		refused[fmt.Sprintf("%d.%d", r.prog, r.vers)]++
		if reply.AcceptStat == oncrpc.Success && r.vers != 4 {
			if _, _, _, err := reg.Lookup(r.prog, r.vers).ResultItem(r.proc, b, reply.Results, false); err != nil {
				t.Errorf("%s: %v", r.name, err)
			}
		}
	}
	if len(refused) < 10 {
		t.Errorf("refused only Calls of %v", refused)
	}
	for _, tt := range []struct {
		m    []byte
		want string
	}{
		{compound4(3, 1, 24), "0 00002725" + "00000000" + "00000000"},
		{compound4(0, 0), "4 "},
		{compound4(1, 1, 99), "0 0000273c" + "00000000" + "00000001" + "0000273c0000273c"},
		{compound4(0, 1)[:48], "4 "},
	} {
		c := parse(t, bytes.Clone(tt.m))
		b := nfs.RefusalReply(c, nfs.ReadOnly)
		var reply oncrpc.Reply
		if err := oncrpc.ParseReply(b, &reply); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%d %x", reply.AcceptStat, b[reply.Results:]); got != tt.want {
			t.Errorf("%x: %s, want %s", tt.m, got, tt.want)
		}
	}
	// Cut at every length, no Call makes RefusalReply panic.
	for i := range uint64(500) {
		m := randomCompound(rand.New(rand.NewPCG(i, 18)))
		for n := 40; n <= len(m); n++ {
			binary.BigEndian.PutUint32(m[12:], []uint32{oncrpc.ProgramNFS, oncrpc.ProgramNLM, oncrpc.ProgramNFSACL, 7}[n%4])
			binary.BigEndian.PutUint32(m[16:], 1+uint32(n/4)%4)
			binary.BigEndian.PutUint32(m[20:], uint32(i%24))
			c := &oncrpc.Call{}
			if oncrpc.ParseCall(bytes.Clone(m[:n]), c) == nil {
				nfs.RefusalReply(c, nfs.ReadOnly)
			}
		}
	}
}

// TestUncut: the client of a COMPOUND that was cut gets the error of the operation that was refused.
func TestUncut(t *testing.T) {
	sequence := append([]uint32{53}, make([]uint32, 8)...)
	reply := func(words ...uint32) []byte {
		b := oncrpc.AppendAccepted(nil, 1, oncrpc.Success)
		for _, w := range words {
			b = xdr.AppendUint32(b, w)
		}
		return b
	}
	setattr := append([]uint32{34}, make([]uint32, 6)...)
	for _, tt := range []struct {
		name        string
		m           []byte
		left        []uint32 // what the server gets
		reply, want []byte
		more        bool
	}{
		{
			"REMOVE", compound4(1, 4, slices.Concat(sequence, []uint32{24, 28, 1, 0x61000000, 9, 0})...), append(slices.Clone(sequence), 24, 10044),
			reply(10044, 0, 3, 53, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 24, 0, 10044, 10044), reply(30, 0, 3, 53, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 24, 0, 28, 30), false,
		},
		{
			"SETATTR", compound4(2, 3, slices.Concat(sequence, []uint32{24}, setattr)...), append(slices.Clone(sequence), 24, 10044),
			reply(10044, 0, 3, 53, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 24, 0, 10044, 10044), reply(30, 0, 3, 53, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 24, 0, 34, 30), true,
		},
		{
			"LAYOUTGET", compound4(1, 2, slices.Concat(sequence, append([]uint32{50}, make([]uint32, 14)...))...), append(slices.Clone(sequence), 10044),
			reply(10044, 0, 2, 53, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10044, 10044), reply(10059, 0, 2, 53, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 50, 10059), false,
		},
		{
			"an earlier error", compound4(1, 4, slices.Concat(sequence, []uint32{24, 28, 1, 0x61000000, 9, 0})...), append(slices.Clone(sequence), 24, 10044),
			reply(10052, 0, 1, 53, 10052), reply(10052, 0, 1, 53, 10052), false,
		},
		{
			"of 4.0 the first", compound4(0, 2, 24, 28, 1, 0x61000000),
			[]uint32{10044},
			reply(10044, 0, 1, 10044, 10044), reply(30, 0, 1, 24, 30), false,
		},
		{
			"an unknown operation", compound4(2, 2, slices.Concat(sequence, []uint32{76})...), append(slices.Clone(sequence), 10044),
			reply(10044, 0, 2, 53, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10044, 10044), reply(10044, 0, 2, 53, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10044, 10044), false,
		},
	} {
		if s, ok := nfs.Cut(parse(t, bytes.Clone(tt.m)), nfs.Later); ok && s != 0 && binary.BigEndian.Uint32(tt.want[24:]) != 10052 {
			b := bytes.Clone(tt.reply)
			more := s.Uncut([][]byte{b})
			want := bytes.Clone(tt.want)
			binary.BigEndian.PutUint32(want[24:], 10008)
			binary.BigEndian.PutUint32(want[len(want)-4:], 10008)
			if !bytes.Equal(b, want) || more != tt.more {
				t.Errorf("%s: later: %x, %v, want %x, %v", tt.name, b, more, want, tt.more)
			}
		}
		c := parse(t, tt.m)
		s, ok := nfs.Cut(c, nfs.ReadOnly)
		if !ok {
			t.Fatalf("%s: not cut", tt.name)
		}
		count := 1
		if tt.left[0] == 53 {
			count = 2
			if slices.Contains(tt.left[9:], 24) {
				count = 3
			}
		}
		if want := compound4(binary.BigEndian.Uint32(tt.m[44:]), uint32(count), tt.left...); !bytes.Equal(c.Message, want) {
			t.Errorf("%s: the server gets %x, want %x", tt.name, c.Message, want)
		}
		for _, at := range []int{0, 28, len(tt.reply) - 8} {
			b := bytes.Clone(tt.reply)
			parts := [][]byte{b}
			if at > 0 {
				parts = [][]byte{b[:at], b[at:]}
			}
			more := s.Uncut(parts)
			if got := bytes.Join(parts, nil); !bytes.Equal(got, tt.want) || more != tt.more {
				t.Errorf("%s: Reply in parts from %d: %x, %v, want %x, %v", tt.name, at, got, more, tt.want, tt.more)
			}
		}
	}
	for _, flavored := range []func(*oncrpc.Call){
		func(c *oncrpc.Call) { c.Protection = oncrpc.ProtectIntegrity },
		func(c *oncrpc.Call) { c.Protection = oncrpc.ProtectPrivacy },
		func(c *oncrpc.Call) { c.Version = 3 },
	} {
		c := parse(t, compound4(0, 2, 24, 28, 1, 0x61000000))
		if flavored(c); true {
			if _, ok := nfs.Cut(c, nfs.ReadOnly); ok {
				t.Error("a signed Call, or one of NFSv3, was cut")
			}
		}
	}
}

// TestReadOnlyAllocations: nothing of this allocates.
func TestReadOnlyAllocations(t *testing.T) {
	m := compound4(1, 4, slices.Concat([]uint32{53}, make([]uint32, 8), []uint32{24, 28, 1, 0x61000000, 9, 0})...)
	b := make([]byte, len(m))
	r := make([]byte, len(m))
	copy(r, oncrpc.AppendAccepted(nil, 1, 0))
	parts := [][]byte{r}
	var c oncrpc.Call
	if n := testing.AllocsPerRun(100, func() {
		copy(b, m)
		_ = oncrpc.ParseCall(b, &c)
		s, _ := nfs.Cut(&c, nfs.ReadOnly)
		s.Uncut(parts)
		copy(b, m)
		_ = oncrpc.ParseCall(b, &c)
		nfs.RefusalReply(&c, nfs.ReadOnly)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
