package ulb

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

// A Layout is a program that steps over XDR data. It is compiled at start-up from a
// small language and interpreted without allocating. Items are consumed left to right:
//
//	N            N octets, whole units: 16 is a stateid, 8 a hyper
//	O            opaque<> or string<>: length, data, roundup
//	D            the same, and DDP-eligible
//	B            bitmap4: a count and as many units
//	F            fattr4: B O
//	L            netloc4: {1,2:O|3:O O}
//	[x]          counted array of x
//	?(x)         bool, and x when it is true
//	*(x)         XDR linked list of x: (TRUE, x)*, FALSE
//	{a:x|b,c:y|*:z}   union on a unit: the arm of its value, * for any other;
//	             a value without an arm fails
//
// However large a count off the wire is, a Walk takes at most as many steps as the
// message has units.
type Layout []node

// anything is the layout of arguments of which nothing is known.
var anything = Layout{{kind: nodeRest}}

type nodeKind uint8

const (
	nodeFixed nodeKind = iota
	nodeOpaque
	nodeEligible
	nodeUnits
	nodeArray
	nodeOptional
	nodeList
	nodeUnion
	nodeRest
)

type node struct {
	kind nodeKind
	size int    // nodeFixed: octets; nodeArray: octets of an element, 0 when it varies
	sub  Layout // nodeArray, nodeOptional, nodeList
	arms []arm  // nodeUnion
}

type arm struct {
	value    uint32
	fallback bool // the * arm, always last
	sub      Layout
}

// A Walk is one pass of Layouts over a message.
type Walk struct {
	xdr.Cursor

	// Absent is whether the data and roundup of eligible items are missing
	// from the message. If Position is not 0, only the item whose data belong there is
	// missing.
	Absent   bool
	Position int

	// Roundup is how many octets of roundup a peer left in the message behind the
	// place of an absent item, instead of none. See [Left]. The caller checks that they
	// are zero.
	Roundup int

	// Items counts the eligible items. Item and Length are the data position and length
	// of the last one, or, with Position, of the item at that position.
	Items        int
	Item, Length int

	// Found is filled with the first items of a message without absent ones.
	Found []Splice

	// Wanted are the positions, in ascending order, at which the data of eligible items
	// must begin in a message without absent ones. Walk removes each from the front
	// when it finds an item there.
	Wanted []uint32
}

// Walk steps over one value. w.OK reports whether the message had such a value.
func (l Layout) Walk(w *Walk) {
	for i := range l {
		n := &l[i]
		switch n.kind {
		case nodeFixed:
			w.Skip(n.size)
		case nodeOpaque:
			w.Opaque()
		case nodeEligible:
			w.eligible()
		case nodeUnits:
			w.SkipArray(w.Uint32(), 4)
		case nodeArray:
			n.walkArray(w)
		case nodeOptional:
			switch w.Uint32() {
			case 0:
			case 1:
				n.sub.Walk(w)
			default:
				w.Fail()
			}
		case nodeList:
			n.walkList(w)
		case nodeRest:
			w.Skip(w.Len())
		case nodeUnion:
			n.walkUnion(w)
		}
		if !w.OK() {
			return
		}
	}
}

// Fits reports whether Walk steps from at to the end of m.
func (l Layout) Fits(m []byte, at int) bool {
	for i := range l {
		left, n := len(m)-at, &l[i]
		switch n.kind {
		case nodeFixed:
			at += n.size
			left -= n.size
		case nodeOpaque:
			if left < 4 {
				return false
			}
			size := 4 + (uint64(binary.BigEndian.Uint32(m[at:at+4:at+4]))+3)&^3
			if size > uint64(left) {
				return false
			}
			at += int(size)
		case nodeRest:
			return left >= 0
		default:
			return l[i:].walks(m, at)
		}
		if left < 0 {
			return false
		}
	}
	return at == len(m)
}

// walks does what Fits does, for any layout.
func (l Layout) walks(m []byte, at int) bool {
	var w Walk
	w.Reset(m, at)
	l.Walk(&w)
	return w.OK() && w.Len() == 0
}

func (w *Walk) eligible() {
	if !w.Absent || w.Position != 0 && w.Position != w.Pos()+4 {
		pos, n := w.Opaque()
		if w.OK() && w.Position == 0 {
			if w.Items < len(w.Found) {
				w.Found[w.Items] = Splice{Pos: uint32(pos), Length: uint32(n), Padding: uint32(xdr.Padding(n))}
			}
			if len(w.Wanted) > 0 && w.Wanted[0] == uint32(pos) {
				w.Wanted = w.Wanted[1:]
			}
			w.Items++
			w.Item, w.Length = pos, n
		}
		return
	}
	n := w.Uint32()
	if !w.OK() {
		return
	}
	w.Items++
	w.Item, w.Length = w.Pos(), int(n)
	if w.Roundup == 0 {
		return
	}
	if w.Roundup != xdr.Padding(w.Length) {
		w.Fail()
		return
	}
	w.Skip(w.Roundup)
}

// Left returns how many octets of roundup a peer left in a message from which it took
// an item. A message without roundup is whole units, so the octets beyond those are
// roundup.
func Left(m []byte) int { return len(m) & 3 }

func (n *node) walkArray(w *Walk) {
	count := w.Uint32()
	if n.size > 0 {
		w.SkipArray(count, n.size)
		return
	}
	// Compile sees to it that every element has at least one unit.
	if uint64(count) > uint64(w.Len()/4) {
		w.Fail()
		return
	}
	for ; count > 0 && w.OK(); count-- {
		n.sub.Walk(w)
	}
}

func (n *node) walkList(w *Walk) {
	for w.OK() {
		switch w.Uint32() {
		case 0:
			return
		case 1:
			n.sub.Walk(w)
		default:
			w.Fail()
		}
	}
}

func (n *node) walkUnion(w *Walk) {
	v := w.Uint32()
	for i := range n.arms {
		if a := &n.arms[i]; a.value == v || a.fallback {
			a.sub.Walk(w)
			return
		}
	}
	w.Fail()
}

// Compile translates the language of [Layout]. It panics on a mistake in s, since
// layouts are constants of this program.
func Compile(s string) Layout {
	p := compiler{text: s}
	l := p.sequence("")
	if p.pos != len(s) {
		p.bug("unexpected character")
	}
	return l
}

type compiler struct {
	text string
	pos  int
}

func (p *compiler) bug(what string) {
	panic(fmt.Sprintf("BUG: ulb: layout %q at %d: %s", p.text, p.pos, what))
}

func (p *compiler) more(stop string) bool {
	return p.pos < len(p.text) && !strings.ContainsRune(stop, rune(p.text[p.pos]))
}

func (p *compiler) expect(c byte) {
	if p.pos >= len(p.text) || p.text[p.pos] != c {
		p.bug("want " + string(c))
	}
	p.pos++
}

// letters are the constructs of one character. An L is a name, a URL, or an address of
// two strings: netloc4 of RFC 7863.
var letters = map[byte]Layout{
	' ': nil,
	'O': {{kind: nodeOpaque}},
	'D': {{kind: nodeEligible}},
	'B': {{kind: nodeUnits}},
	'F': {{kind: nodeUnits}, {kind: nodeOpaque}},
	'L': {{kind: nodeUnion, arms: []arm{
		{value: 1, sub: Layout{{kind: nodeOpaque}}},
		{value: 2, sub: Layout{{kind: nodeOpaque}}},
		{value: 3, sub: Layout{{kind: nodeOpaque}, {kind: nodeOpaque}}},
	}}},
}

// sequence compiles items up to one of the characters of stop, which it does not consume.
func (p *compiler) sequence(stop string) Layout {
	l := Layout{}
	for p.more(stop) {
		c := p.text[p.pos]
		if c >= '0' && c <= '9' {
			n := p.octets()
			if k := len(l) - 1; k >= 0 && l[k].kind == nodeFixed {
				l[k].size += n
			} else {
				l = append(l, node{kind: nodeFixed, size: n})
			}
			continue
		}
		if nodes, ok := letters[c]; ok {
			p.pos++
			l = append(l, nodes...)
			continue
		}
		l = append(l, p.bracketed(c))
	}
	return l
}

// octets compiles a number of octets.
func (p *compiler) octets() int {
	n := p.number()
	if n == 0 || n%4 != 0 {
		p.bug("want whole units")
	}
	return int(n)
}

// bracketed compiles a construct that has others inside. It begins with c.
func (p *compiler) bracketed(c byte) node {
	switch c {
	case '[':
		p.pos++
		return p.array()
	case '?':
		p.pos++
		return node{kind: nodeOptional, sub: p.between('(', ')')}
	case '*':
		p.pos++
		return node{kind: nodeList, sub: p.between('(', ')')}
	case '{':
		p.pos++
		return node{kind: nodeUnion, arms: p.arms()}
	}
	p.bug("unexpected character")
	return node{}
}

func (p *compiler) between(first, last byte) Layout {
	p.expect(first)
	sub := p.sequence(string(last))
	p.expect(last)
	return sub
}

// array compiles the rest of an array, behind its first bracket.
func (p *compiler) array() node {
	sub := p.sequence("]")
	p.expect(']')
	if len(sub) == 0 {
		p.bug("array of nothing")
	}
	n := node{kind: nodeArray, sub: sub}
	if len(sub) == 1 && sub[0].kind == nodeFixed {
		n.size = sub[0].size
	}
	return n
}

func (p *compiler) arms() []arm {
	var arms []arm
	fallback := false
	for {
		first := len(arms)
		for {
			if fallback {
				p.bug("arm after *")
			}
			if p.more("*") {
				arms = append(arms, arm{value: uint32(p.number())})
			} else {
				p.expect('*')
				fallback = true
				arms = append(arms, arm{fallback: true})
			}
			if !p.more(":") {
				break
			}
			p.expect(',')
		}
		p.expect(':')
		sub := p.sequence("|}")
		for i := first; i < len(arms); i++ {
			arms[i].sub = sub
		}
		if !p.more("}") {
			p.expect('}')
			return arms
		}
		p.expect('|')
	}
}

func (p *compiler) number() uint64 {
	start := p.pos
	for p.pos < len(p.text) && p.text[p.pos] >= '0' && p.text[p.pos] <= '9' {
		p.pos++
	}
	n, err := strconv.ParseUint(p.text[start:p.pos], 10, 32)
	if err != nil {
		p.bug(err.Error())
	}
	return n
}
