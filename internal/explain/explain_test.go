package explain

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
)

var update = flag.Bool("update", false, "write testdata anew")

// options are those of the command line without flags.
var options = Options{CallInline: 4096, ReplyInline: 4096}

// run explains input and returns what it prints.
func run(input []byte, o Options) (string, error) {
	in, err := Read(bytes.NewReader(input))
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	err = Run(&out, in, o)
	return out.String(), err
}

// The whole output, of captures that hold every vector of ulb/nfs, over TCP and
// over iWARP. go test -run Golden ./internal/explain -update writes it anew.
func TestExplainGolden(t *testing.T) {
	const captures = "../capture/testdata/"
	read := func(name string) []byte {
		b, err := os.ReadFile(captures + name)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	tcp, iwarp, large := read("tcp.pcap"), read("iwarp.pcap"), []byte(largeMessages(t))
	for _, tc := range []struct {
		golden string
		input  []byte
		o      Options
	}{
		{"large.txt", large, options},
		{"large-1024.txt", large, Options{CallInline: 1024, ReplyInline: 1024}},
		{"tcp.txt", tcp, options},
		{"tcp-max.txt", tcp, Options{CallInline: 4096, ReplyInline: 4096, Max: 3}},
		{"iwarp.txt", iwarp, options},
		{"iwarp.jsonl", iwarp, Options{CallInline: 4096, ReplyInline: 4096, JSON: true}},
		{"cut.txt", tcp[:3000], options},
	} {
		t.Run(tc.golden, func(t *testing.T) {
			got, err := run(tc.input, tc.o)
			if err != nil {
				t.Fatal(err)
			}
			name := filepath.Join("testdata", tc.golden)
			if *update {
				if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if line := difference(got, string(want)); line != "" {
				t.Errorf("%s: %s", name, line)
			}
		})
	}
}

// A vectorFile is what explain's tests take of the vectors of ulb/nfs.
type vectorFile struct {
	Vectors []struct {
		ID, Call   string
		Protect    string
		ArgsOffset int `json:"args_offset"`
		Ops        []string
		DDPAllowed bool   `json:"ddp_allowed"`
		MaxReply   uint32 `json:"max_reply_total"`
		RetryClass string `json:"retry_class"`
		ReadItems  []item `json:"read_items"`
		Replies    []struct {
			Name  string
			Reply string
			Items []struct{ Offset, Length uint32 }
		}
	}
	RDMA []struct{ Hex string }
}

func vectors(t testing.TB) *vectorFile {
	t.Helper()
	b, err := os.ReadFile("../rpc/ulb/nfs/testdata/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	f := new(vectorFile)
	if err := json.Unmarshal(b, f); err != nil || len(f.Vectors) == 0 {
		t.Fatal(len(f.Vectors), err)
	}
	return f
}

// largeMessages are vectors with more data, as records in hex.
func largeMessages(t *testing.T) string {
	f := vectors(t)
	find := func(id string) (call, reply string) {
		for _, v := range f.Vectors {
			if v.ID == id {
				return v.Call, v.Replies[0].Reply
			}
		}
		t.Fatalf("no vector %s", id)
		return "", ""
	}
	// An item of have octets at position becomes one of n.
	grow := func(m string, position, have, n int) string {
		end := position + (have+3)&^3
		return m[:2*position-8] + fmt.Sprintf("%08x", n) + strings.Repeat("5a", n) + strings.Repeat("00", -n&3) + m[2*end:]
	}
	var out strings.Builder
	add := func(m string) { out.WriteString(hexRecord(t, m) + "\n") }
	call, reply := find("02-nfs3-read")
	add(call[:len(call)-8] + "00100000") // count
	add(grow(reply, 128, 10, 9999))
	call, reply = find("03-nfs3-write")
	add(grow(call, 128, 13, 8193))
	add(reply)
	call, reply = find("17-nfs41-seq-putfh-write-getattr")
	add(grow(call, 196, 13, 65536))
	add(reply)
	call, _ = find("16-nfs41-seq-putfh-read")
	add(call[:len(call)-8] + "00008000")
	call, reply = find("04-nfs3-symlink")
	add(grow(call, 172, 17, 4095))
	add(reply)
	call, _ = find("06-nfs3-readdirplus")
	add(call[:len(call)-8] + "00008000")
	return out.String()
}

// difference is the first line in which two texts differ.
func difference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range max(len(g), len(w)) {
		switch {
		case i >= len(g):
			return fmt.Sprintf("line %d is missing: %s", i+1, w[i])
		case i >= len(w):
			return fmt.Sprintf("line %d is too many: %s", i+1, g[i])
		case g[i] != w[i]:
			return fmt.Sprintf("line %d is\n%s\nwant\n%s", i+1, g[i], w[i])
		}
	}
	return ""
}

// explained is the first message in the JSON that explain prints of input.
func explained(t testing.TB, input []byte) *message {
	t.Helper()
	o := options
	o.JSON = true
	out, err := run(input, o)
	if err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(strings.NewReader(out))
	d.DisallowUnknownFields()
	var h header
	if err := d.Decode(&h); err != nil || h.Kind != "input" {
		t.Fatalf("header %+v: %v", h, err)
	}
	var m message
	if err := d.Decode(&m); err != nil {
		t.Fatal(err)
	}
	return &m
}

// What explain says of the vectors of ulb/nfs is what their reference says: see
// there.
func TestExplainVectors(t *testing.T) {
	f := vectors(t)
	classes := map[string]string{"R": "read-only", "I": "idempotent", "S": "sequenced", "X": "sequenced", "N": "non-idempotent"}
	for _, v := range f.Vectors {
		t.Run(v.ID, func(t *testing.T) {
			m := explained(t, []byte(v.Call))
			c := m.Call
			if m.Kind != kindCall || c == nil {
				t.Fatalf("%+v", m)
			}
			if c.Protection != v.Protect || c.Arguments != v.ArgsOffset || c.Length != len(v.Call)/2 {
				t.Errorf("protection %s, arguments at %d, length %d; want %s, %d, %d", c.Protection, c.Arguments, c.Length, v.Protect, v.ArgsOffset, len(v.Call)/2)
			}
			switch {
			case c.Program == oncrpc.ProgramCCP:
				if c.Local == "" || c.Plan != nil {
					t.Errorf("CCP is not answered here: %+v", c)
				}
				return
			case c.Compound != nil:
				var ops []string
				for _, o := range c.Compound.Operations {
					ops = append(ops, o.Name)
				}
				if (c.Compound.Rest != "") != (v.ID == "28-nfs42-unknown-op") {
					t.Errorf("%+v", c.Compound)
				}
				if c.Compound.Rest == "" && !slices.Equal(ops, v.Ops) {
					t.Errorf("operations %v, want %v", ops, v.Ops)
				}
			case c.Analysis.Known && c.ProcedureName != "NULL" && !slices.Equal([]string{c.ProcedureName}, v.Ops):
				t.Errorf("procedure %s, want %v", c.ProcedureName, v.Ops)
			}
			a := c.Analysis
			if c.Compound != nil && c.Compound.Rest != "" {
				v.MaxReply = 1056768 // chunks.reply: the reference takes the session's, of which nothing is known here
			}
			if a.Reducible != v.DDPAllowed || a.MaxReply != v.MaxReply || a.Class != classes[v.RetryClass] {
				t.Errorf("reducible %v, at most %d, %s; want %v, %d, %s", a.Reducible, a.MaxReply, a.Class, v.DDPAllowed, v.MaxReply, classes[v.RetryClass])
			}
			if a.Argument != nil && !slices.Contains(v.ReadItems, *a.Argument) {
				t.Errorf("argument %+v, want one of %+v", *a.Argument, v.ReadItems)
			}
			if c.Plan == nil || c.Plan.Error != "" {
				t.Fatalf("plan %+v", c.Plan)
			}
			for _, r := range v.Replies {
				// Both in one input, as records.
				in := hexRecord(t, v.Call) + hexRecord(t, r.Reply)
				out, err := run([]byte(in), Options{CallInline: 4096, ReplyInline: 4096, JSON: true})
				lines := strings.Split(out, "\n")
				if err != nil || len(lines) != 5 {
					t.Fatalf("%s: %v: %s", r.Name, err, out)
				}
				var m message
				if err := json.Unmarshal([]byte(lines[2]), &m); err != nil {
					t.Fatal(err)
				}
				p := m.Reply
				switch {
				case m.Kind != kindReply || p.Call != 1 || p.Length != len(r.Reply)/2:
					t.Errorf("%s: %+v", r.Name, m)
				case p.Bound == nil || !p.Bound.Holds || p.Travel == nil || p.Travel.Shape == shapeNone:
					t.Errorf("%s: bound %+v, travels %+v", r.Name, p.Bound, p.Travel)
				case p.Item != nil && (len(r.Items) == 0 || *p.Item != (item{r.Items[0].Offset, r.Items[0].Length})):
					t.Errorf("%s: item %+v, want %+v", r.Name, *p.Item, r.Items)
				case p.Item == nil && len(r.Items) > 0 && v.DDPAllowed:
					t.Errorf("%s: no item, want %+v", r.Name, r.Items)
				}
			}
		})
	}
}

// hexRecord is a message in hex with a record mark before.
func hexRecord(t testing.TB, message string) string {
	t.Helper()
	return fmt.Sprintf("%08x%s", 1<<31|len(message)/2, message)
}

// The arithmetic that is shown is that of the plan.
func TestExplainArithmetic(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	seen := map[string]int{}
	for range 20000 {
		e := &explainer{
			registry: ulb.NewRegistry(ulb.Limits{}), callInline: 1024 << rng.IntN(4), replyInline: 1024 << rng.IntN(4),
		}
		length := 40 + rng.IntN(1<<rng.IntN(17))&^3
		a := ulb.Analysis{Known: rng.IntN(5) > 0, Reduce: rng.IntN(5) > 0, MaxReduced: uint32(rng.IntN(1 << rng.IntN(16)))}
		if rng.IntN(2) == 0 {
			a.ResultMax = uint32(rng.IntN(1 << 20))
		}
		if rng.IntN(2) == 0 && length > 60 {
			a.ArgPosition = 56
			a.ArgLength = uint32(rng.IntN(length - 56))
		}
		a.MaxReply = a.MaxReduced + a.ResultMax
		k := new(knownCall)
		p := e.newPlan(&oncrpc.Call{Program: oncrpc.ProgramNFS, Version: 3, Procedure: 6}, &a, length, k)
		if p.Error != "" {
			t.Fatalf("%+v: %s", a, p.Error)
		}
		seen[p.Call.Shape+" "+p.Reply.Shape]++
		for _, s := range []struct {
			shape
			last string
		}{{p.Call, shapePositionZero}, {p.Reply, shapeReplyChunk}} {
			// The first shape of which all comparisons hold; the last needs none.
			want := s.last
			for i := 0; i < len(s.Steps); {
				holds := true
				j := i
				for ; j < len(s.Steps) && s.Steps[j].Tries == s.Steps[i].Tries; j++ {
					holds = holds && s.Steps[j].Holds
				}
				if holds {
					want = s.Steps[i].Tries
					if j != len(s.Steps) {
						t.Errorf("%+v: looked on after %s", s, want)
					}
				}
				i = j
			}
			if s.Shape != want || s.DecidedBy == "" || len(s.Otherwise) == 0 && s.Shape == shapeInline {
				t.Errorf("%+v of %d octets at %d, %d: %+v, want %s", a, length, e.callInline, e.replyInline, s, want)
			}
		}
	}
	if len(seen) != 7 { // a Write chunk goes with a Call inline only
		t.Errorf("shapes %v, want 7 of them", seen)
	}
}

func TestExplainInput(t *testing.T) {
	call := "000000070000000000000002000186a3000000030000000100000000000000000000000000000000" + "00000004" + "61626364"
	raw, err := hex.DecodeString(call)
	if err != nil {
		t.Fatal(err)
	}
	marked := append(binary.BigEndian.AppendUint32(nil, 1<<31|uint32(len(raw))), raw...)
	halves := slices.Concat(binary.BigEndian.AppendUint32(nil, 20), raw[:20], binary.BigEndian.AppendUint32(nil, 1<<31|28), raw[20:])
	transport := append(binary.BigEndian.AppendUint32(nil, 7), make([]byte, 24)...)
	transport[7], transport[11] = 1, 64
	for name, in := range map[string][]byte{
		"hex":                       []byte(call),
		"hex with comments":         []byte("# a GETATTR\n0x00000007 " + call[8:60] + " # more\n\n" + strings.ToUpper(call[60:])),
		"hex by colons":             []byte("00:00:00:07," + call[8:]),
		"hex with mark":             []byte(hexRecord(t, call)),
		"raw":                       raw,
		"raw with mark":             marked,
		"raw in two fragments":      halves,
		"raw with Transport header": append(transport, raw...),
	} {
		m := explained(t, in)
		if m.Kind != kindCall || m.Call == nil || m.Call.ProcedureName != "GETATTR" || *m.XID != 7 || m.Call.Length != 48 || m.Call.Plan == nil {
			t.Errorf("%s: %+v", name, m)
		}
		if (m.RDMA != nil) != strings.Contains(name, "Transport") {
			t.Errorf("%s: Transport header %+v", name, m.RDMA)
		}
	}
}

// Malformed messages are explained, and no error.
func TestExplainMalformed(t *testing.T) {
	const head = "00000007 00000000 00000002 000186a3 00000003 00000001 "
	for _, tc := range []struct{ in, kind, want string }{
		{"00000007", kindMalformed, "4 octets, an XID and a message type take 8"},
		{"00000007 00000009 00000000", kindMalformed, "message type 9 at offset 4"},
		{"00000007 00000000 00000002 000186a3", kindMalformed, "not a Call: 16 octets, which is shorter than any"},
		{"00000007 00000000 00000003 000186a3 00000003 00000001 00000000 00000000 00000000 00000000", kindMalformed, "RPC version 3 at offset 8, there is only 2"},
		{head + "00000001 00000191 00000000 00000000", kindMalformed, "not a Call: credential of 401 octets at offset 28, 400 are allowed"},
		{head + "00000001 00000020 00000000 00000000", kindMalformed, "credential of 32 octets at offset 28, the message ends at 40"},
		{head + "00000000 00000000 00000000 000001f4", kindMalformed, "verifier of 500 octets at offset 36, 400 are allowed"},
		{"00000007 00000001 00000000", kindMalformed, "not a Reply: it ends at offset 12, inside verf"},
		{"00000007 00000001 00000002 00000000", kindMalformed, "not a Reply: reply_stat is 2 at offset 8, which means nothing"},
		{"800000ff" + head, kindCut, "a Call of which 24 octets are in the input: too few for its header"},
		{"80000030 00000007 00000000 00000002", kindCut, "a Call of which 12 octets are in the input"},
		{"80000030 00000007 00000001 00000000", kindCut, "a Reply of which 12 octets are in the input"},
	} {
		m := explained(t, []byte(tc.in))
		if m.Kind != tc.kind || !strings.Contains(m.Problem, tc.want) {
			t.Errorf("%s: %s, %q, want %s, %q", tc.in, m.Kind, m.Problem, tc.kind, tc.want)
		}
		if out, err := run([]byte(tc.in), options); err != nil || !strings.Contains(out, m.Problem) {
			t.Errorf("%s: %v: %s", tc.in, err, out)
		}
	}
}

// What the bridge answers itself, and credentials that few use.
func TestExplainCredentials(t *testing.T) {
	header := func(flavor, length string) string {
		return "00000007 00000000 00000002 000186a3 00000003 00000000 " + flavor + length
	}
	for _, tc := range []struct{ in, name, protection, means, local string }{
		{header("00000000", "00000000 00000000 00000000"), "AUTH_NONE", "none", "may be placed directly", ""},
		{header("00000007", "00000000 00000000 00000000"), "AUTH_TLS", "unknown", "speaks TLS", "no TLS here"},
		{header("00000003", "00000004 aabbccdd 00000000 00000000"), "AUTH_DH", "unknown", "is not known", ""},
		{header("00000063", "00000000 00000000 00000000"), "flavor 99", "unknown", "is not known", ""},
		{header("00000006", "00000004 00000001 00000000 00000000"), "RPCSEC_GSS", "unknown", "is not known", ""},
	} {
		m := explained(t, []byte(tc.in))
		if m.Call == nil {
			t.Fatalf("%s: %+v", tc.name, m)
		}
		c := &m.Call.Credential
		if c.Name != tc.name || m.Call.Protection != tc.protection || !strings.Contains(c.Means, tc.means) || !strings.Contains(m.Call.Local, tc.local) || (tc.local == "") != (m.Call.Local == "") {
			t.Errorf("%s: %+v, %q", tc.name, c, m.Call.Local)
		}
	}
}

// Whatever is read is explained or refused.
func FuzzExplain(f *testing.F) {
	v := vectors(f)
	for _, v := range v.Vectors {
		in, err := hex.DecodeString(hexRecord(f, v.Call) + hexRecord(f, v.Replies[0].Reply))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(in)
	}
	for _, m := range v.RDMA {
		in, err := hex.DecodeString(m.Hex)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(in)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		for _, o := range []Options{options, {CallInline: 4096, ReplyInline: 4096, JSON: true}} {
			if out, err := run(in, o); err != nil && out != "" {
				t.Fatal(err)
			}
		}
	})
}
