package nfs_test

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

// testdata/vectors.json holds Calls and Replies made from the XDR of the RFCs and
// confirmed with tshark. Their bounds and items, including all eligible items of NFSv4,
// come from a reference that shares no code with this package. The bounds assume
// its "config", which has the defaults of ulb.Limits.
//
// testdata/reference.txt holds four Calls with random arguments for every
// procedure of every table, with figures from the same reference:
//
//	program version procedure name known class
//	item-position item-length result-data max-reply max-reduced message

type vectorFile struct {
	Config struct{ MaxIO, MaxReply, Path, SecFlavors, Ident, BmWords, Label, XAttr, Big uint32 }

	Vectors []vector
}

type vector struct {
	ID               string
	Call             hexBytes
	Prog, Vers, Proc uint32
	ArgsOffset       int `json:"args_offset"`
	Ops              []string
	Known            bool
	DDPAllowed       bool `json:"ddp_allowed"`
	ReadItems        []struct {
		Position, Length uint32
	} `json:"read_items"`
	WriteSlots []struct {
		Max uint32
	} `json:"write_slots"`
	CallReduced     hexBytes `json:"call_reduced"`
	MaxReplyTotal   uint32   `json:"max_reply_total"`
	MaxReplyReduced uint32   `json:"max_reply_reduced"`
	RetryClass      string   `json:"retry_class"`
	Session         *struct {
		MaxResp       uint32
		MaxRespCached uint32 `json:"maxresp_cached"`
	}
	Replies []reply
}

type reply struct {
	Name         string
	Reply        hexBytes
	Items        []struct{ Offset, Length uint32 }
	ReplyReduced hexBytes `json:"reply_reduced"`
}

type hexBytes []byte

func (b *hexBytes) UnmarshalText(text []byte) (err error) {
	*b, err = hex.AppendDecode(nil, text)
	return err
}

// classes are the reference's letters.
var classes = map[string]ulb.Class{
	"R": ulb.ReadOnly, "I": ulb.Idempotent, "S": ulb.Sequenced, "X": ulb.Sequenced, "N": ulb.NonIdempotent,
}

func loadVectors(t testing.TB) []vector {
	t.Helper()
	b, err := os.ReadFile("testdata/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var f vectorFile
	if err := json.Unmarshal(b, &f); err != nil {
		t.Fatal(err)
	}
	l := newRegistry().Limits()
	if c := f.Config; c.MaxIO != l.MaxIO || c.MaxReply != l.MaxReply || c.Path != l.Path || c.SecFlavors != l.Flavors ||
		c.Ident != l.Identity || c.BmWords != l.Bitmap || c.Label != l.Label || c.XAttr != l.XAttr || c.Big != l.Attribute {
		t.Fatalf("the vectors assume %+v, the defaults are %+v", f.Config, l)
	}
	if len(f.Vectors) != 48 {
		t.Fatalf("%d vectors, want 48", len(f.Vectors))
	}
	return f.Vectors
}

// sessionID is the session ID of every SEQUENCE in the vectors.
var sessionID = []byte{0xd0, 0xd1, 0xd2, 0xd3, 0xd4, 0xd5, 0xd6, 0xd7, 0xd8, 0xd9, 0xda, 0xdb, 0xdc, 0xdd, 0xde, 0xdf}

func newRegistry() *ulb.Registry {
	reg := ulb.NewRegistry(ulb.Limits{})
	nfs.Register(reg)
	return reg
}

func parse(t testing.TB, m []byte) *oncrpc.Call {
	t.Helper()
	c := new(oncrpc.Call)
	if err := oncrpc.ParseCall(m, c); err != nil {
		t.Fatal(err)
	}
	return c
}

// carriedWhole are the vectors that no binding can walk, with the facts that Analyse finds
// anyway. They travel whole, and Limits.MaxReply bounds their Replies. When a binding
// learns to walk one, the test fails until its line is removed.
var carriedWhole = map[string]ulb.Analysis{
	"28-nfs42-unknown-op": {Session: 92, Procedure: "COMPOUND"},
	"45-ccp-conf":         {}, // about its own connection, RFC 5666 Section 6, so never passed on
	"46-unknown-program":  {},
	"47-cb41-recall":      {},
}

// compoundNames are the names of the COMPOUNDs, each from one of its operations.
var compoundNames = map[string]string{
	"16-nfs41-seq-putfh-read":          "COMPOUND/READ",
	"17-nfs41-seq-putfh-write-getattr": "COMPOUND/WRITE",
	"18-nfs42-three-reads":             "COMPOUND/READ",
	"19-nfs42-two-writes":              "COMPOUND/WRITE",
	"20-nfs40-create-symlink":          "COMPOUND/CREATE",
	"21-nfs40-getattr-acl":             "COMPOUND/GETATTR",
	"22-nfs41-open":                    "COMPOUND/OPEN",
	"23-nfs41-create-session":          "COMPOUND/CREATE_SESSION",
	"24-nfs41-exchange-id":             "COMPOUND/EXCHANGE_ID",
	"25-nfs42-read-plus":               "COMPOUND/READ_PLUS",
	"26-nfs42-copy":                    "COMPOUND/COPY",
	"27-nfs42-getxattr":                "COMPOUND/GETXATTR",
	"29-nfs40-readdir":                 "COMPOUND/READDIR",
	"31-nfs42-three-reads-aligned":     "COMPOUND/READ",
}

func (v *vector) compound() bool {
	return v.Prog == oncrpc.ProgramNFS && v.Vers == 4 && v.Proc == 1
}

func TestVectorAnalysis(t *testing.T) {
	reg := newRegistry()
	for _, v := range loadVectors(t) {
		t.Run(v.ID, func(t *testing.T) {
			c := parse(t, v.Call)
			var a ulb.Analysis
			reg.Analyse(c, &a)
			if a.Reduce != v.DDPAllowed {
				t.Errorf("Reduce = %v, want %v", a.Reduce, v.DDPAllowed)
			}
			if want, whole := carriedWhole[v.ID]; whole {
				want.Class, want.Reduce = ulb.NonIdempotent, v.DDPAllowed
				want.MaxReply, want.MaxReduced = reg.Limits().MaxReply, reg.Limits().MaxReply
				a.Operation, a.Operations, a.Changes, a.Lower = 0, 0, false, 0 // TestOperations, TestChanges, TestLowerArguments
				if a != want {
					t.Errorf("Analysis = %+v, want that of a Call carried whole, %+v", a, want)
				}
				return
			}
			v.checkProcedure(t, &a)
			v.checkSession(t, &a)
			v.checkItems(t, &a)
			v.checkReplyBounds(t, &a)
			if start, _, ok := c.Arguments(); ok && start != v.ArgsOffset {
				t.Errorf("arguments begin at %d, want %d", start, v.ArgsOffset)
			}
		})
	}
}

func (v *vector) checkProcedure(t *testing.T, a *ulb.Analysis) {
	if a.Known != v.Known || a.Class != classes[v.RetryClass] {
		t.Errorf("Known %v, Class %v; want %v, %s", a.Known, a.Class, v.Known, v.RetryClass)
	}
	name := slices.Concat(v.Ops, []string{"NULL"})[0]
	if v.compound() {
		name = compoundNames[v.ID]
	}
	if v.Known && a.Procedure != name {
		t.Errorf("Procedure = %q, want %q", a.Procedure, name)
	}
}

func (v *vector) checkSession(t *testing.T, a *ulb.Analysis) {
	var ops ulb.SessionOps
	if slices.Contains(v.Ops, "CREATE_SESSION") {
		ops |= ulb.CreateSession
	}
	if slices.Contains(v.Ops, "EXCHANGE_ID") {
		ops |= ulb.ExchangeID
	}
	if a.SessionOps != ops {
		t.Errorf("SessionOps = %d of %v, want %d", a.SessionOps, v.Ops, ops)
	}
	sequence := len(v.Ops) > 0 && v.Ops[0] == "SEQUENCE"
	if sequence != (a.Session != 0) || sequence && !bytes.HasPrefix(v.Call[a.Session-4:], append([]byte{0, 0, 0, 53}, sessionID...)) {
		t.Errorf("Session = %d of %v", a.Session, v.Ops)
	}
}

// checkItems: of the eligible items, only the data of READ and WRITE are worth a chunk, one
// in each direction: the longest WRITE, and a READ that is the only one. Without a chunk for
// the result, MaxReduced is MaxReply.
func (v *vector) checkItems(t *testing.T, a *ulb.Analysis) {
	var arg, position, result uint32
	reduced := v.MaxReplyTotal
	if slices.Contains(v.Ops, "WRITE") && v.DDPAllowed {
		for _, it := range v.ReadItems {
			if it.Length > arg {
				arg, position = it.Length, it.Position
			}
		}
	}
	if len(v.WriteSlots) == 1 && slices.Contains(v.Ops, "READ") {
		result, reduced = v.WriteSlots[0].Max, v.MaxReplyReduced
	}
	if a.ArgLength != arg || a.ArgPosition != position || a.ResultMax != result || a.MaxReduced != reduced {
		t.Errorf("ArgPosition %d, ArgLength %d, ResultMax %d, MaxReduced %d; want %d, %d, %d, %d",
			a.ArgPosition, a.ArgLength, a.ResultMax, a.MaxReduced, position, arg, result, reduced)
	}
}

func (v *vector) checkReplyBounds(t *testing.T, a *ulb.Analysis) {
	if a.MaxReply != v.MaxReplyTotal {
		t.Errorf("MaxReply = %d, want %d", a.MaxReply, v.MaxReplyTotal)
	}
	for _, r := range v.Replies {
		if uint32(len(r.Reply)) > a.MaxReply {
			t.Errorf("%s has %d octets, MaxReply is %d", r.Name, len(r.Reply), a.MaxReply)
		}
		if a.ResultMax > 0 && uint32(len(r.ReplyReduced)) > a.MaxReduced {
			t.Errorf("%s has %d octets when reduced, MaxReduced is %d", r.Name, len(r.ReplyReduced), a.MaxReduced)
		}
	}
}

// A Call with any strict prefix of its arguments is not Known, and offers nothing.
func TestVectorCallsTruncated(t *testing.T) {
	reg := newRegistry()
	for _, v := range loadVectors(t) {
		whole := parse(t, v.Call)
		for n := whole.Args; n < len(v.Call); n++ {
			c := parse(t, v.Call[:n:n])
			var a ulb.Analysis
			reg.Analyse(c, &a)
			if whole.Protection == oncrpc.ProtectControl {
				continue // bounded by the credential alone
			}
			if whole.Protection == oncrpc.ProtectIntegrity {
				if start, end, ok := c.Arguments(); ok && end-start > 0 {
					continue // only the checksum is cut
				}
			}
			// Without any arguments, a whole NULL Call is left.
			if a.Known && !(n == whole.Args && c.Procedure == 0) {
				t.Fatalf("%s: Known when cut to %d of %d octets", v.ID, n, len(v.Call))
			}
			if !a.Known && (a.ArgLength != 0 || a.ResultMax != 0 || a.MaxReply != reg.Limits().MaxReply || a.Class != ulb.NonIdempotent) {
				t.Fatalf("%s: cut to %d octets: %+v", v.ID, n, a)
			}
		}
	}
}

// apply rebuilds a message as a Splice says.
func apply(s ulb.Splice, base, chunk []byte) []byte {
	return slices.Concat(base[:s.Pos], chunk[:s.Length], make([]byte, s.Padding), base[s.Pos:])
}

// The Responder's side of a Call: every eligible argument, including symbolic links, one
// at a time.
func TestVectorCallsRestored(t *testing.T) {
	reg := newRegistry()
	seen := 0
	for _, v := range loadVectors(t) {
		for _, it := range v.ReadItems {
			seen++
			pos, n := it.Position, it.Length
			padded := v.Call[pos : int(pos)+xdr.Roundup(int(n))]
			base := slices.Concat(v.Call[:pos], v.Call[int(pos)+len(padded):])
			if len(v.ReadItems) == 1 && !bytes.Equal(base, v.CallReduced) {
				t.Errorf("%s: reduced %x, want %x", v.ID, base, v.CallReduced)
			}
			c := parse(t, base)
			b := reg.Lookup(c.Program, c.Version)
			for _, chunk := range [][]byte{v.Call[pos : pos+n], padded} {
				s, err := ulb.RestoreCall(b, c, pos, uint32(len(chunk)))
				if err != nil {
					t.Errorf("%s: chunk of %d: %v", v.ID, len(chunk), err)
					continue
				}
				if got := apply(s, base, chunk); !bytes.Equal(got, v.Call) {
					t.Errorf("%s: restored %x, want %x", v.ID, got, v.Call)
				}
			}
			for p := range uint32(len(v.Call) + 8) {
				if _, err := ulb.RestoreCall(b, c, p, n); err == nil && p != pos {
					t.Errorf("%s: position %d is accepted for an eligible item at %d", v.ID, p, pos)
				}
				if _, err := ulb.RestoreCall(b, c, pos, p); err == nil && p != n && int(p) != len(padded) {
					t.Errorf("%s: a chunk of %d octets is accepted for an item of %d", v.ID, p, n)
				}
			}
			if _, err := ulb.RestoreCall(b, parse(t, v.Call), pos, n); err == nil {
				t.Errorf("%s: an item that is present is accepted as absent", v.ID)
			}
			for k := c.Args; k < len(base); k++ {
				if _, err := ulb.RestoreCall(b, parse(t, base[:k:k]), pos, n); err == nil {
					t.Errorf("%s: restored when cut to %d octets", v.ID, k)
				}
			}
		}
	}
	if seen != 8 { // v2 and v3 WRITE and SYMLINK, v4 WRITE three times and CREATE
		t.Errorf("%d eligible arguments, want 8", seen)
	}
}

// Both sides of a Reply.
func TestVectorReplies(t *testing.T) {
	reg := newRegistry()
	restored := 0
	for _, v := range loadVectors(t) {
		c := parse(t, v.Call)
		b := reg.Lookup(c.Program, c.Version)
		if !c.Reducible() {
			continue
		}
		for _, r := range v.Replies {
			t.Run(v.ID+"/"+r.Name, func(t *testing.T) {
				if len(r.Items) > 1 {
					checkSeveral(t, b, c.Procedure, r)
				} else {
					restored += checkReply(t, b, c.Procedure, r)
				}
			})
		}
	}
	if restored != 9 { // v3 READ four times, READLINK; v2 READ, READLINK; v4 READ, and one alone before an error
		t.Errorf("%d Replies restored, want 9", restored)
	}
}

// checkSeveral is for a Reply with several eligible items: a Responder may reduce
// them, a Requester offers no chunk for any.
func checkSeveral(t *testing.T, b ulb.Binding, proc uint32, r reply) {
	for k := range len(r.Items) + 2 {
		items := make([]ulb.Splice, k)
		n := ulb.ReducibleItems(b, proc, r.Reply, items)
		if n != min(k, len(r.Items)) {
			t.Fatalf("ReducibleItems = %d of %d items, asked for %d", n, len(r.Items), k)
		}
		reduced, at := []byte{}, uint32(0)
		for i, s := range items[:n] {
			if s.Pos != r.Items[i].Offset || s.Length != r.Items[i].Length || s.Padding != -s.Length&3 {
				t.Errorf("item %d is %+v, want %+v", i, s, r.Items[i])
			}
			reduced = append(reduced, r.Reply[at:s.Pos]...)
			at = s.Pos + s.Length + s.Padding
		}
		reduced = append(reduced, r.Reply[at:]...)
		if n == len(r.Items) && !bytes.Equal(reduced, r.ReplyReduced) {
			t.Errorf("reduced %x, want %x", reduced, r.ReplyReduced)
		}
	}
	for k := range r.Reply {
		if n := ulb.ReducibleItems(b, proc, r.Reply[:k:k], make([]ulb.Splice, 9)); n != 0 {
			t.Errorf("%d items in %d octets of %d", n, k, len(r.Reply))
		}
	}
	s, ok := ulb.Reducible(b, proc, r.Reply)
	if !ok || s.Pos != r.Items[0].Offset || s.Length != r.Items[0].Length {
		t.Errorf("Reducible = %+v, %v; want the first of %+v", s, ok, r.Items)
	}
	if _, spliced, err := ulb.Restore(b, proc, r.Reply, 0); spliced || err != nil {
		t.Errorf("nothing written: spliced %v, %v", spliced, err)
	}
	for _, base := range [][]byte{r.Reply, r.ReplyReduced} {
		for _, it := range r.Items {
			if _, _, err := ulb.Restore(b, proc, base, it.Length); it.Length > 0 && err == nil {
				t.Errorf("%d octets written for one of several items: no error", it.Length)
			}
		}
	}
}

// checkReply is for a Reply with one eligible item or none. It returns 1 when there was an
// item to restore.
func checkReply(t *testing.T, b ulb.Binding, proc uint32, r reply) (restored int) {
	s := checkReduced(t, b, proc, r)
	// Without written octets every Reply is plain already.
	if _, spliced, err := ulb.Restore(b, proc, r.Reply, 0); spliced || err != nil {
		t.Errorf("nothing written: spliced %v, %v", spliced, err)
	}
	if s.Length == 0 {
		for _, written := range []uint32{1, 4, 10} {
			if _, _, err := ulb.Restore(b, proc, r.Reply, written); err == nil {
				t.Errorf("%d octets written, the Reply has no place for them: no error", written)
			}
		}
		return 0
	}
	checkRestored(t, b, proc, r, s)
	checkNotRestored(t, b, proc, r, s)
	return 1
}

// checkReduced returns the item of the plain Reply.
func checkReduced(t *testing.T, b ulb.Binding, proc uint32, r reply) ulb.Splice {
	s, ok := ulb.Reducible(b, proc, r.Reply)
	if ok != (len(r.Items) == 1) {
		t.Fatalf("Reducible ok = %v, want %d items", ok, len(r.Items))
	}
	if !ok {
		return ulb.Splice{}
	}
	if it := r.Items[0]; s.Pos != it.Offset || s.Length != it.Length {
		t.Errorf("Reducible = %+v, want %+v", s, it)
	}
	var items [3]ulb.Splice
	if ulb.ReducibleItems(b, proc, r.Reply, items[:]) != 1 || items[0] != s || ulb.ReducibleItems(b, proc, r.Reply, nil) != 0 {
		t.Errorf("ReducibleItems finds %+v, want %+v", items, s)
	}
	reduced := slices.Concat(r.Reply[:s.Pos], r.Reply[s.Pos+s.Length+s.Padding:])
	if !bytes.Equal(reduced, r.ReplyReduced) {
		t.Errorf("reduced %x, want %x", reduced, r.ReplyReduced)
	}
	return s
}

// checkRestored restores a Reply that a peer reduced in one of the ways that peers do.
func checkRestored(t *testing.T, b ulb.Binding, proc uint32, r reply, s ulb.Splice) {
	roundup := make([]byte, s.Padding)
	chunk := r.Reply[s.Pos : s.Pos+s.Length]
	kept := slices.Concat(r.ReplyReduced[:s.Pos], roundup, r.ReplyReduced[s.Pos:])
	for _, tt := range []struct {
		name        string
		base, chunk []byte
	}{
		{"as RFC 8166 has it", r.ReplyReduced, chunk},
		{"roundup written", r.ReplyReduced, slices.Concat(chunk, roundup)},
		{"roundup inline", kept, chunk},
		{"roundup in both", kept, slices.Concat(chunk, roundup)},
	} {
		s, spliced, err := ulb.Restore(b, proc, tt.base, uint32(len(tt.chunk)))
		if err != nil || !spliced {
			t.Errorf("%s: spliced %v, %v", tt.name, spliced, err)
			continue
		}
		if got := apply(s, tt.base, tt.chunk); !bytes.Equal(got, r.Reply) {
			t.Errorf("%s: restored %x, want %x", tt.name, got, r.Reply)
		}
	}
}

// checkNotRestored has Replies that are wrong, each in one way.
func checkNotRestored(t *testing.T, b ulb.Binding, proc uint32, r reply, s ulb.Splice) {
	roundup := make([]byte, s.Padding)
	wrong := func(name string, base []byte, written uint32) {
		t.Helper()
		if _, spliced, err := ulb.Restore(b, proc, base, written); err == nil || spliced {
			t.Errorf("%s: spliced %v, %v; want an error", name, spliced, err)
		}
	}
	n := s.Length
	wrong("short write", r.ReplyReduced, n-1)
	wrong("long write", r.ReplyReduced, n+s.Padding+1)
	wrong("item inline and written", r.Reply, n)
	wrong("octets behind", slices.Concat(r.ReplyReduced, roundup, make([]byte, 4)), n)
	if s.Padding > 0 {
		dirty := slices.Concat(r.ReplyReduced[:s.Pos], roundup, r.ReplyReduced[s.Pos:])
		dirty[s.Pos+s.Padding-1] = 1
		wrong("roundup that is not zero", dirty, n)
	}
	for k := range r.ReplyReduced {
		wrong(fmt.Sprintf("cut to %d octets", k), r.ReplyReduced[:k:k], n)
	}
}

// The four residues of roundup, in READ and WRITE of both versions.
func TestResidues(t *testing.T) {
	reg := newRegistry()
	vectors := loadVectors(t)
	byID := func(id string) vector {
		return vectors[slices.IndexFunc(vectors, func(v vector) bool { return v.ID == id })]
	}
	for n := range uint32(9) {
		data := bytes.Repeat([]byte{0xd5}, int(n))
		for _, id := range []string{"02-nfs3-read", "10-nfs2-read"} {
			v := byID(id)
			r := v.Replies[0]
			// Restore ignores the count inside the results of version 3.
			plain := xdr.AppendOpaque(bytes.Clone(r.Reply[:r.Items[0].Offset-4]), data)
			base := plain[:r.Items[0].Offset]
			b := reg.Lookup(v.Prog, v.Vers)
			s, spliced, err := ulb.Restore(b, v.Proc, base, n)
			if err != nil || spliced != (n > 0) {
				t.Errorf("%s of %d: spliced %v, %v", id, n, spliced, err)
				continue
			}
			if got := apply(s, base, data); !bytes.Equal(got, plain) {
				t.Errorf("%s of %d: restored %x, want %x", id, n, got, plain)
			}
		}
		for _, id := range []string{"03-nfs3-write", "11-nfs2-write"} {
			v := byID(id)
			pos := v.ReadItems[0].Position
			m := xdr.AppendOpaque(bytes.Clone(v.Call[:pos-4]), data)
			var a ulb.Analysis
			b := reg.Analyse(parse(t, m), &a)
			if !a.Known || a.ArgLength != n || n > 0 && a.ArgPosition != pos {
				t.Errorf("%s of %d: %+v", id, n, a)
			}
			s, err := ulb.RestoreCall(b, parse(t, m[:pos]), pos, n)
			if err != nil || !bytes.Equal(apply(s, m[:pos], data), m) {
				t.Errorf("%s of %d: %+v, %v", id, n, s, err)
			}
		}
	}
}

type referenceCall struct {
	prog, vers, proc     uint32
	name, class          string
	known                int
	pos, length, result  uint32
	maxReply, maxReduced uint32
	message              []byte
}

func loadReference(t testing.TB) (calls []referenceCall) {
	t.Helper()
	f, err := os.Open("testdata/reference.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		var r referenceCall
		var text string
		if _, err := fmt.Sscan(s.Text(), &r.prog, &r.vers, &r.proc, &r.name, &r.known, &r.class, &r.pos, &r.length,
			&r.result, &r.maxReply, &r.maxReduced, &text); err != nil {
			t.Fatalf("%q: %v", s.Text(), err)
		}
		if r.message, err = hex.DecodeString(text); err != nil {
			t.Fatal(err)
		}
		calls = append(calls, r)
	}
	if len(calls) < 600 {
		t.Fatalf("%d reference calls", len(calls))
	}
	return calls
}

func TestReference(t *testing.T) {
	reg := newRegistry()
	procs := map[[3]uint32]bool{}
	for _, r := range loadReference(t) {
		procs[[3]uint32{r.prog, r.vers, r.proc}] = true
		var a ulb.Analysis
		reg.Analyse(parse(t, r.message), &a)
		want := ulb.Analysis{
			Known: r.known == 1, Class: classes[r.class], Reduce: a.Reduce, Procedure: r.name,
			MaxReply: r.maxReply, MaxReduced: r.maxReply, Guess: r.known == 1 && r.name == "GETACL",
		}
		if !want.Known {
			want.Class = ulb.NonIdempotent
		}
		if r.name == "WRITE" && r.length > 0 {
			want.ArgPosition, want.ArgLength = r.pos, r.length
		}
		if r.name == "READ" && r.result > 0 {
			want.ResultMax, want.MaxReduced = r.result, r.maxReduced
		}
		// A client may ask for more of a directory than any Reply can have.
		most := reg.Limits().MaxReply
		want.MaxReply, want.MaxReduced = min(want.MaxReply, most), min(want.MaxReduced, most)
		a.Operation, a.Operations, a.Changes, a.Lower = 0, 0, false, 0 // TestOperations, TestChanges, TestLowerArguments
		if a != want {
			t.Errorf("%d.%d.%d %s %x:\n got %+v\nwant %+v", r.prog, r.vers, r.proc, r.name, r.message, a, want)
		}
	}
	// A procedure without a row is not Known.
	for _, b := range nfs.Bindings() {
		for proc := range uint32(30) {
			if b.Version == 4 && b.Program == oncrpc.ProgramNFS && proc < 2 {
				continue
			}
			if procs[[3]uint32{b.Program, b.Version, proc}] {
				continue
			}
			c := &oncrpc.Call{Message: make([]byte, 40), Program: b.Program, Version: b.Version, Procedure: proc, Args: 40}
			var a ulb.Analysis
			reg.Analyse(c, &a)
			if a.Known || a.Procedure != "" {
				t.Errorf("%d.%d has a procedure %d: %+v", b.Program, b.Version, proc, a)
			}
		}
	}
}
