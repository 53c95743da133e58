package explain

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
)

// A vectorFile has those parts of the vectors of ulb/nfs that this package's tests use.
type vectorFile struct {
	Vectors []vector
	RDMA    []struct{ Hex string }
}

// A vector is a Call with its Replies, and what a reference implementation says of it.
type vector struct {
	ID         string
	Call       string
	Protect    string
	ArgsOffset int `json:"args_offset"`
	Ops        []string
	DDPAllowed bool   `json:"ddp_allowed"`
	MaxReply   uint32 `json:"max_reply_total"`
	RetryClass string `json:"retry_class"`
	ReadItems  []item `json:"read_items"`
	Replies    []vectorReply
}

// A vectorReply is a Reply to a vector's Call.
type vectorReply struct {
	Name  string
	Reply string
	Items []struct{ Offset, Length uint32 }
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

// largeMessages returns vectors with more data than they have, as records in hex.
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
	// grow replaces an item of have octets at position by one of n octets.
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

// hexRecord puts a record mark before a message in hex.
func hexRecord(t testing.TB, message string) string {
	t.Helper()
	return fmt.Sprintf("%08x%s", 1<<31|len(message)/2, message)
}

// TestExplainVectors compares the explanations of the vectors of ulb/nfs with their
// reference.
func TestExplainVectors(t *testing.T) {
	for _, v := range vectors(t).Vectors {
		t.Run(v.ID, func(t *testing.T) {
			m := explained(t, []byte(v.Call))
			c := m.Call
			if m.Kind != kindCall || c == nil {
				t.Fatalf("%+v", m)
			}
			if c.Protection != v.Protect || c.Arguments != v.ArgsOffset || c.Length != len(v.Call)/2 {
				t.Errorf("protection %s, arguments at %d, length %d; want %s, %d, %d", c.Protection, c.Arguments, c.Length, v.Protect, v.ArgsOffset, len(v.Call)/2)
			}
			if c.Program == oncrpc.ProgramCCP {
				if c.Local == "" || c.Plan != nil {
					t.Errorf("the bridge does not answer CCP itself: %+v", c)
				}
				return
			}
			v.checkOperations(t, c)
			v.checkAnalysis(t, c)
			for i := range v.Replies {
				v.checkReply(t, &v.Replies[i])
			}
		})
	}
}

func (v *vector) checkOperations(t *testing.T, c *callPart) {
	switch {
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
}

func (v *vector) checkAnalysis(t *testing.T, c *callPart) {
	classes := map[string]string{"R": "read-only", "I": "idempotent", "S": "sequenced", "X": "sequenced", "N": "non-idempotent"}
	a, maxReply := c.Analysis, v.MaxReply
	if c.Compound != nil && c.Compound.Rest != "" {
		// The reference uses the limits of the session. Here the session is unknown, and
		// chunks.reply is the bound.
		maxReply = 1056768
	}
	if a.Reducible != v.DDPAllowed || a.MaxReply != maxReply || a.Class != classes[v.RetryClass] {
		t.Errorf("reducible %v, at most %d, %s; want %v, %d, %s", a.Reducible, a.MaxReply, a.Class, v.DDPAllowed, maxReply, classes[v.RetryClass])
	}
	if a.Argument != nil && !slices.Contains(v.ReadItems, *a.Argument) {
		t.Errorf("argument %+v, want one of %+v", *a.Argument, v.ReadItems)
	}
	if c.Plan == nil || c.Plan.Error != "" {
		t.Fatalf("plan %+v", c.Plan)
	}
}

// checkReply explains the Call and the Reply r as records of one input.
func (v *vector) checkReply(t *testing.T, r *vectorReply) {
	out, err := run([]byte(hexRecord(t, v.Call)+hexRecord(t, r.Reply)), jsonOptions)
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
