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

var update = flag.Bool("update", false, "write the files in testdata again")

// options and jsonOptions are what explain uses without flags and with --json.
var (
	options     = Options{CallInline: 4096, ReplyInline: 4096}
	jsonOptions = Options{CallInline: 4096, ReplyInline: 4096, JSON: true}
)

// run explains input and returns the output.
func run(input []byte, o Options) (string, error) {
	in, err := Read(bytes.NewReader(input))
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	err = Run(&out, in, o)
	return out.String(), err
}

// TestExplainGolden compares the whole output for captures that have every vector of
// ulb/nfs, over TCP and over iWARP, with files. To write the files again, run
// go test -run Golden ./internal/explain -update.
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
		{"iwarp.jsonl", iwarp, jsonOptions},
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

// difference describes the first line in which two texts differ. It returns "" for equal
// texts.
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

// explained explains input and returns the first message, from the JSON.
func explained(t testing.TB, input []byte) *message {
	t.Helper()
	out, err := run(input, jsonOptions)
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

// TestExplainArithmetic: the comparisons in the output lead to the shape of the plan.
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
			// The plan takes the first shape for which all comparisons hold. The last
			// shape needs none.
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
						t.Errorf("%+v: tried another shape after %s", s, want)
					}
				}
				i = j
			}
			if s.Shape != want || s.DecidedBy == "" || len(s.Otherwise) == 0 && s.Shape == shapeInline {
				t.Errorf("%+v of %d octets at %d, %d: %+v, want %s", a, length, e.callInline, e.replyInline, s, want)
			}
		}
	}
	if len(seen) != 7 { // a Write chunk goes only with an inline Call
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

// TestExplainMalformed: malformed messages are described; they are no error.
func TestExplainMalformed(t *testing.T) {
	const head = "00000007 00000000 00000002 000186a3 00000003 00000001 "
	for _, tc := range []struct{ in, kind, want string }{
		{"00000007", kindMalformed, "it has 4 octets, and an XID and a message type take 8"},
		{"00000007 00000009 00000000", kindMalformed, "message type 9 at offset 4"},
		{"00000007 00000000 00000002 000186a3", kindMalformed, "not a Call: it has 16 octets, fewer than any Call"},
		{"00000007 00000000 00000003 000186a3 00000003 00000001 00000000 00000000 00000000 00000000", kindMalformed, "RPC version 3 at offset 8; the only one is 2"},
		{head + "00000001 00000191 00000000 00000000", kindMalformed, "not a Call: the credential at offset 28 has 401 octets, and 400 are allowed"},
		{head + "00000001 00000020 00000000 00000000", kindMalformed, "the credential at offset 28 has 32 octets, and the message ends at 40"},
		{head + "00000000 00000000 00000000 000001f4", kindMalformed, "the verifier at offset 36 has 500 octets, and 400 are allowed"},
		{"00000007 00000001 00000000", kindMalformed, "not a Reply: it ends at offset 12, inside verf"},
		{"00000007 00000001 00000002 00000000", kindMalformed, "not a Reply: reply_stat at offset 8 is 2, an undefined value"},
		{"800000ff" + head, kindCut, "the input has 24 octets of a Call: too few for its header"},
		{"80000030 00000007 00000000 00000002", kindCut, "the input has 12 octets of a Call"},
		{"80000030 00000007 00000001 00000000", kindCut, "the input has 12 octets of a Reply"},
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

// TestExplainCredentials covers Calls that the bridge answers itself and rare credentials.
func TestExplainCredentials(t *testing.T) {
	header := func(flavor, length string) string {
		return "00000007 00000000 00000002 000186a3 00000003 00000000 " + flavor + length
	}
	for _, tc := range []struct{ in, name, protection, means, local string }{
		{header("00000000", "00000000 00000000 00000000"), "AUTH_NONE", "none", "may be placed directly", ""},
		{header("00000007", "00000000 00000000 00000000"), "AUTH_TLS", "unknown", "supports TLS", "does not support TLS"},
		{header("00000003", "00000004 aabbccdd 00000000 00000000"), "AUTH_DH", "unknown", "does not know", ""},
		{header("00000063", "00000000 00000000 00000000"), "flavor 99", "unknown", "does not know", ""},
		{header("00000006", "00000004 00000001 00000000 00000000"), "RPCSEC_GSS", "unknown", "does not know", ""},
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

// FuzzExplain: every input is explained, or rejected before there is output.
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
		for _, o := range []Options{options, jsonOptions} {
			if out, err := run(in, o); err != nil && out != "" {
				t.Fatal(err)
			}
		}
	})
}
