package names

import (
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

var update = flag.Bool("update", false, "write testdata")

// A vector is a Call with a Reply, made from the XDR of the RFCs for package nfs.
type vector struct {
	name        string
	call, reply []byte
}

func vectors(t testing.TB) (all []vector) {
	b, err := os.ReadFile("../rpc/ulb/nfs/testdata/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var f struct {
		Vectors []struct {
			ID, Call string
			Replies  []struct{ Name, Reply string }
		}
	}
	if err := json.Unmarshal(b, &f); err != nil {
		t.Fatal(err)
	}
	octets := func(s string) []byte {
		b, err := hex.DecodeString(s)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for _, v := range f.Vectors {
		for _, r := range v.Replies {
			all = append(all, vector{v.ID + " " + r.Name, octets(v.Call), octets(r.Reply)})
		}
	}
	return all
}

func (f *fact) String() string {
	short := func(b []byte) string { return fmt.Sprintf("%x", b[:min(len(b), 4)]) }
	switch f.kind {
	case named:
		return fmt.Sprintf("%s is %q in %s", short(f.handle), f.name, short(f.dir))
	case gone:
		return fmt.Sprintf("%q in %s is gone", f.name, short(f.dir))
	case moved:
		return fmt.Sprintf("%q in %s is %q in %s", f.name, short(f.dir), f.toName, short(f.toDir))
	case mount, mount4:
		return fmt.Sprintf("%s is %q", short(f.handle), f.name)
	case within:
		return fmt.Sprintf("%s is in %x:%x", short(f.handle), f.fsid.major, f.fsid.minor)
	}
	return "?"
}

// said returns what a Call and its Reply say.
func said(call, reply []byte) string {
	var p parsed
	p.parse(call, reply)
	var s []string
	for i := range p.facts {
		s = append(s, p.facts[i].String())
	}
	if p.handle != nil {
		s = append(s, fmt.Sprintf("uses %x", p.handle[:min(len(p.handle), 4)]))
	}
	if p.read+p.written > 0 {
		s = append(s, fmt.Sprintf("reads %d, writes %d", p.read, p.written))
	}
	if p.opaque {
		s = append(s, "is encrypted")
	}
	return strings.Join(s, "; ")
}

// TestVectors: what the Calls and Replies of the RFCs say. testdata/facts.txt was compared with them by hand.
func TestVectors(t *testing.T) {
	var b strings.Builder
	for _, v := range vectors(t) {
		fmt.Fprintf(&b, "%s: %s\n", v.name, said(v.call, v.reply))
	}
	const file = "testdata/facts.txt"
	if *update {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("the vectors say\n%swant what is in %s", b.String(), file)
	}
}

// TestCut: of messages that are cut off, parse learns a part of what the whole ones say, and nothing else. Of
// several READs it may count the first.
func TestCut(t *testing.T) {
	for _, v := range vectors(t) {
		whole := said(v.call, v.reply)
		for n := range v.reply {
			for part := range strings.SplitSeq(said(v.call, v.reply[:n]), "; ") {
				if !strings.HasPrefix(part, "reads") && !strings.Contains(whole, part) {
					t.Errorf("%s: %d octets of the Reply: %q is not in %q", v.name, n, part, whole)
				}
			}
		}
		for n := range v.call {
			said(v.call[:n], v.reply)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, v := range vectors(f) {
		f.Add(v.call, v.reply)
	}
	f.Fuzz(func(t *testing.T, call, reply []byte) {
		var p parsed
		p.parse(call, reply)
		b := book{newTable(1 << 20), newExports()}
		for i := range p.facts {
			if g := &p.facts[i]; len(g.handle) > maxHandle || len(g.name) > maxPath || len(g.toName) > maxPath {
				t.Fatalf("fact %v is longer than it may be", g)
			}
			b.learn(clientA, "nfs", &p.facts[i])
		}
		b.table.check(t)
	})
}

// A compound builds a COMPOUND and its Reply.
type compound struct {
	args, results []byte
	n             uint32
}

// op adds an operation with its arguments and results, which are words, strings or attributes.
func (c *compound) op(number uint32, args, results []any) *compound {
	c.n++
	c.args = encode(xdr.AppendUint32(c.args, number), args)
	c.results = encode(xdr.AppendWords(c.results, number, 0), results)
	return c
}

func encode(b []byte, all []any) []byte {
	for _, i := range all {
		switch i := i.(type) {
		case int:
			b = xdr.AppendUint32(b, uint32(i))
		case string:
			b = xdr.AppendOpaque(b, []byte(i))
		}
	}
	return b
}

// message returns the header of a Call of NFS and of its Reply, with arguments and results.
func message(version, procedure uint32, args, results []byte) (call, reply []byte) {
	call = append(xdr.AppendWords(nil, 1, 0, 2, oncrpc.ProgramNFS, version, procedure, 0, 0, 0, 0), args...)
	return call, append(xdr.AppendWords(nil, 1, 1, 0, 0, 0, 0), results...)
}

func (c *compound) said() string {
	args := append(xdr.AppendWords(nil, 0, 1, c.n), c.args...)
	results := append(xdr.AppendWords(nil, 0, 0, c.n), c.results...)
	return said(message(4, 1, args, results))
}

type items = []any

// TestCompound: current and saved filehandles, and names whose directory has a handle or not.
func TestCompound(t *testing.T) {
	const (
		putfh, putrootfh, lookup, getfh, savefh, rename, remove, link, open, getattr, create, restorefh = 22, 24, 15, 10, 32, 29, 28, 11, 18, 9, 6, 31
	)
	change := items{1, 0, 0, 0, 0}
	fsid := items{1, 1 << 8, string([]byte{0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 9})}
	for _, v := range []struct {
		want string
		c    *compound
	}{
		{`726f6f74 is "/"`, new(compound).op(putrootfh, nil, nil).op(getfh, nil, items{"root"})},
		{`66666666 is "/a/b" in ; 66666666 is in 7:9`, new(compound).op(putrootfh, nil, nil).op(lookup, items{"a"}, nil).op(lookup, items{"b"}, nil).op(getfh, nil, items{"ffff"}).op(getattr, items{1, 1 << 8}, fsid)},
		{`66666666 is "a/b" in 64646464; uses 64646464`, new(compound).op(putfh, items{"dddd"}, nil).op(lookup, items{"a"}, nil).op(lookup, items{"b"}, nil).op(getfh, nil, items{"ffff"})},
		{`"a" in 64646464 is "b" in 65656565; uses 64646464`, new(compound).op(putfh, items{"dddd"}, nil).op(savefh, nil, nil).op(putfh, items{"eeee"}, nil).op(rename, items{"a", "b"}, append(change, change...))},
		{`"a" in 64646464 is gone; uses 64646464`, new(compound).op(putfh, items{"dddd"}, nil).op(remove, items{"a"}, change)},
		{`66666666 is "a" in 64646464; uses 66666666`, new(compound).op(putfh, items{"ffff"}, nil).op(savefh, nil, nil).op(putfh, items{"dddd"}, nil).op(link, items{"a"}, change)},
		// OPEN of a new file, and the directory again.
		{`66666666 is "a" in 64646464; 64646464 is in 7:9; uses 64646464`, new(compound).op(putfh, items{"dddd"}, nil).op(savefh, nil, nil).
			op(open, items{1, 2, 0, 1, 1, "owner", 1, 0, 1, 0, "", 0, "a"}, append(append(items{1, 2, 3, 4}, change...), 0, 0, 0)).
			op(getfh, nil, items{"ffff"}).op(restorefh, nil, nil).op(getattr, items{1, 1 << 8}, fsid)},
		{`66666666 is "a" in 64646464; uses 64646464`, new(compound).op(putfh, items{"dddd"}, nil).op(create, items{5, "target", "a", 0, ""}, append(change, 0)).op(getfh, nil, items{"ffff"})},
	} {
		if got := v.c.said(); got != v.want {
			t.Errorf("said %s\nwant %s", got, v.want)
		}
	}
}

// TestDots: "." and ".." name nothing.
func TestDots(t *testing.T) {
	for _, name := range []string{".", ".."} {
		call, reply := message(3, 3, encode(nil, items{"dddd", name}), encode(nil, items{0, "ffff", 0, 0}))
		if got := said(call, reply); got != "uses 64646464" {
			t.Errorf("%s: said %s", name, got)
		}
	}
}
