package ulb

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

// generate appends a random value of a layout, and the positions and lengths of
// its eligible items to items.
func generate(r *rand.Rand, l Layout, b []byte, items *[][2]int) []byte {
	opaque := func() []byte {
		p := make([]byte, r.IntN(10))
		for i := range p {
			p[i] = byte(r.Uint32())
		}
		return p
	}
	for _, n := range l {
		switch n.kind {
		case nodeFixed:
			for range n.size {
				b = append(b, byte(r.Uint32()))
			}
		case nodeOpaque:
			b = xdr.AppendOpaque(b, opaque())
		case nodeEligible:
			p := opaque()
			*items = append(*items, [2]int{len(b) + 4, len(p)})
			b = xdr.AppendOpaque(b, p)
		case nodeUnits:
			k := r.IntN(3)
			b = append(xdr.AppendUint32(b, uint32(k)), make([]byte, 4*k)...)
		case nodeArray:
			k := r.IntN(3)
			b = xdr.AppendUint32(b, uint32(k))
			for range k {
				b = generate(r, n.sub, b, items)
			}
		case nodeOptional:
			k := r.IntN(2)
			b = xdr.AppendUint32(b, uint32(k))
			if k == 1 {
				b = generate(r, n.sub, b, items)
			}
		case nodeList:
			for range r.IntN(3) {
				b = generate(r, n.sub, xdr.AppendUint32(b, 1), items)
			}
			b = xdr.AppendUint32(b, 0)
		case nodeUnion:
			a := n.arms[r.IntN(len(n.arms))]
			v := a.value
			for a.fallback && slices.ContainsFunc(n.arms, func(o arm) bool { return !o.fallback && o.value == v }) {
				v = r.Uint32()
			}
			b = generate(r, a.sub, xdr.AppendUint32(b, v), items)
		}
	}
	return b
}

// layouts have every construct, some inside others. A Walk begins behind the first unit of
// each message.
var layouts = []string{
	"", "4", "16 8", "O", "D", "4 O 8 D 4", "B B", "[4]", "[8 O]", "[[O]]", "?(8)", "?(O D)",
	"F", "L", "[L] F 4", "*(8 O 8)", "*(O *(O)) 4", "{0:4|1:O}", "{0,1:{1:4|*:}|2:8|*:O O}", "{5:D|3,4:8|*:} O B O",
	"O O {1:4|*:} {1:4|*:} {1:4|*:} {1:8|*:} {2:8|*:} {2:8|*:} D", "{0:{1:84|0:} 8 D|*:{1:84|0:}}",
	"16 20 4 B {0:|1,4:16 4 4 4 4 O|2,5:16 4 {1:8|2:8} 4 4 4 O|3:{1,2:4|*:}}",
}

func TestLayoutWalk(t *testing.T) {
	r := rand.New(rand.NewPCG(8166, 8267))
	for _, s := range layouts {
		c := layoutCase{t: t, text: s, layout: Compile(s)}
		for range 200 {
			c.items = nil
			c.message = generate(r, c.layout, make([]byte, 4), &c.items)
			c.checkWhole()
			c.checkPrefixes()
			if len(c.items) == 1 {
				c.checkAbsent()
				c.checkRoundup()
			}
		}
	}
}

// A layoutCase is a random value of a layout.
type layoutCase struct {
	t       *testing.T
	text    string
	layout  Layout
	message []byte
	items   [][2]int // position and length of each eligible item
}

func (c *layoutCase) checkWhole() {
	m := c.message
	w := Walk{Cursor: xdr.NewCursor(m, 4)}
	c.layout.Walk(&w)
	if !w.OK() || w.Pos() != len(m) || w.Items != len(c.items) {
		c.t.Fatalf("%q over %x: OK %v, Pos %d, %d items", c.text, m[4:], w.OK(), w.Pos(), w.Items)
	}
	if len(c.items) == 1 && (w.Item != c.items[0][0] || w.Length != c.items[0][1]) {
		c.t.Fatalf("%q over %x: item %d of %d, want %v", c.text, m[4:], w.Item, w.Length, c.items)
	}
}

func (c *layoutCase) checkPrefixes() {
	for n := 4; n < len(c.message); n++ {
		w := Walk{Cursor: xdr.NewCursor(c.message[:n:n], 4)}
		c.layout.Walk(&w)
		if w.OK() && w.Pos() != n {
			c.t.Fatalf("%q over prefix %x: OK, Pos %d", c.text, c.message[4:n], w.Pos())
		}
		if w.OK() && c.text != "" && !strings.Contains(c.text, "*") {
			c.t.Fatalf("%q over prefix %x: OK", c.text, c.message[4:n])
		}
	}
}

// checkAbsent walks over the value without its item and the roundup, told where the item
// belongs or not.
func (c *layoutCase) checkAbsent() {
	pos, n := c.items[0][0], c.items[0][1]
	reduced := slices.Delete(bytes.Clone(c.message), pos, pos+xdr.Roundup(n))
	for _, at := range []int{0, pos} {
		w := Walk{Cursor: xdr.NewCursor(reduced, 4), Absent: true, Position: at}
		c.layout.Walk(&w)
		if !w.OK() || w.Pos() != len(reduced) || w.Items != 1 || w.Item != pos || w.Length != n {
			c.t.Fatalf("%q over reduced %x, Position %d: %+v", c.text, reduced[4:], at, w)
		}
	}
	w := Walk{Cursor: xdr.NewCursor(c.message, 4), Absent: true, Position: pos + 4}
	if c.layout.Walk(&w); !w.OK() || w.Items != 0 {
		c.t.Fatalf("%q: an item at a position where there is none: %+v", c.text, w)
	}
}

// checkRoundup walks over the value without its item and with the roundup.
func (c *layoutCase) checkRoundup() {
	pos, n := c.items[0][0], c.items[0][1]
	kept := slices.Delete(bytes.Clone(c.message), pos, pos+n)
	w := Walk{Cursor: xdr.NewCursor(kept, 4), Absent: true, Roundup: Left(kept)}
	if c.layout.Walk(&w); !w.OK() || w.Pos() != len(kept) || w.Items != 1 || w.Item != pos || w.Length != n {
		c.t.Fatalf("%q over %x, from which a peer took no roundup: %+v", c.text, kept[4:], w)
	}
	if n%4 == 0 {
		w = Walk{Cursor: xdr.NewCursor(c.message, 4), Absent: true, Roundup: 1}
		if c.layout.Walk(&w); w.OK() {
			c.t.Fatalf("%q: roundup behind an item of %d octets", c.text, n)
		}
	}
}

func TestLayoutRefusals(t *testing.T) {
	for _, tt := range []struct {
		layout string
		words  []uint32
	}{
		{"?(4)", []uint32{2, 0}},
		{"*(4)", []uint32{1, 0, 2, 0}},
		{"*(4)", []uint32{1, 0}},
		{"{0:4|1:8}", []uint32{2, 0, 0}},
		{"{0:{1:4}}", []uint32{0, 2, 0}},
		{"[4]", []uint32{0xffffffff, 0}},
		{"[12]", []uint32{0x15555556, 0, 0}}, // 12 times that is 8, modulo 2^32
		{"[O]", []uint32{0xffffffff, 0, 0, 0}},
		{"[O]", []uint32{3, 0, 0}},
		{"[*(4)]", []uint32{0x40000000}},
		{"B", []uint32{0x40000000}},
		{"O", []uint32{0xfffffffd, 0}},
		{"D", []uint32{5, 0}},
	} {
		var m []byte
		for _, v := range tt.words {
			m = xdr.AppendUint32(m, v)
		}
		w := Walk{Cursor: xdr.NewCursor(m, 0)}
		if Compile(tt.layout).Walk(&w); w.OK() {
			t.Errorf("%q over %x: OK", tt.layout, m)
		}
	}
}

func TestCompileBugs(t *testing.T) {
	for _, s := range []string{"5", "0", "X", "[4", "[]", "?4", "?(4", "{", "{}", "{0}", "{0:4", "{*:|0:4}", "{0:4|}", "4)", "{a:4}", "99999999999"} {
		func() {
			defer func() {
				if r := recover(); r == nil || !strings.HasPrefix(r.(string), "BUG: ") {
					t.Errorf("Compile(%q): %v, want a BUG", s, r)
				}
			}()
			Compile(s)
		}()
	}
}

// FuzzWalk walks any octets by any layout.
func FuzzWalk(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 2))
	for i, s := range layouts {
		var items [][2]int
		f.Add(generate(r, Compile(s), nil, &items), byte(i), false)
	}
	compiled := make([]Layout, len(layouts))
	for i, s := range layouts {
		compiled[i] = Compile(s)
	}
	f.Fuzz(func(t *testing.T, m []byte, i byte, absent bool) {
		w := Walk{Cursor: xdr.NewCursor(m, 0), Absent: absent}
		compiled[int(i)%len(compiled)].Walk(&w)
		if w.Pos() > len(m) || w.Pos()%4 != 0 {
			t.Fatalf("Pos %d of %d", w.Pos(), len(m))
		}
		if w.Items > 0 && (w.Item < 4 || w.Item > len(m) || !absent && w.Item+w.Length > len(m)) {
			t.Fatalf("item at %d of %d, message of %d", w.Item, w.Length, len(m))
		}
	})
}
