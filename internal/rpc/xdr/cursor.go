// Package xdr reads and writes the few parts of XDR, RFC 4506, that a proxy
// needs: it walks messages to learn where items lie and how long they are, and
// does not decode their contents.
//
// Every position and length is in octets. Only the appending functions allocate, as
// append does.
package xdr

import (
	"encoding/binary"
	"errors"
)

// ErrShort reports an item that is longer than the rest of the message.
var ErrShort = errors.New("xdr: message too short")

// Roundup returns n rounded up to a whole number of XDR units of four octets.
// RFC 4506 Section 4: "If the n bytes needed to contain the data are not a
// multiple of four, then the n bytes are followed by enough (0 to 3) residual
// zero bytes". n+3 must fit an int; lengths that passed a Cursor always do.
func Roundup(n int) int { return (n + 3) &^ 3 }

// Padding returns the roundup octets that follow an item of n octets: 0 to 3.
func Padding(n int) int { return -n & 3 }

// A Cursor walks an XDR stream. It borrows the octets and never writes them.
//
// Failure is sticky: after the first item that did not fit every method
// returns zeros, [Cursor.OK] is false, and [Cursor.Pos] stays where that item
// began. A walk thus needs one check, at its end or before a value is trusted.
type Cursor struct {
	b   []byte
	pos int
	bad bool
}

// NewCursor returns a Cursor over b whose next item is at pos. A pos outside b
// gives a Cursor that has failed.
func NewCursor(b []byte, pos int) Cursor {
	return Cursor{b: b, pos: pos, bad: uint(pos) > uint(len(b))}
}

// Reset makes c what NewCursor returns.
func (c *Cursor) Reset(b []byte, pos int) {
	c.b, c.pos, c.bad = b, pos, uint(pos) > uint(len(b))
}

// Pos returns the offset of the next item from the first octet of the stream.
func (c *Cursor) Pos() int { return c.pos }

// Len returns how many octets are left. It returns 0 after a failure.
func (c *Cursor) Len() int {
	if c.bad {
		return 0
	}
	return len(c.b) - c.pos
}

// OK reports whether every item so far did fit and [Cursor.Fail] was not called.
func (c *Cursor) OK() bool { return !c.bad }

// Err returns ErrShort after a failure, else nil.
func (c *Cursor) Err() error {
	if c.bad {
		return ErrShort
	}
	return nil
}

// Fail makes the Cursor fail. A caller uses it on a value that it does not know.
func (c *Cursor) Fail() { c.bad = true }

// Uint32 consumes an unsigned integer, an enum or a bool: one unit.
func (c *Cursor) Uint32() uint32 {
	if c.bad || len(c.b)-c.pos < 4 {
		c.bad = true
		return 0
	}
	v := binary.BigEndian.Uint32(c.b[c.pos:])
	c.pos += 4
	return v
}

// Uint64 consumes an unsigned hyper integer: two units.
func (c *Cursor) Uint64() uint64 {
	if c.bad || len(c.b)-c.pos < 8 {
		c.bad = true
		return 0
	}
	v := binary.BigEndian.Uint64(c.b[c.pos:])
	c.pos += 8
	return v
}

// Skip consumes n octets. The caller sees to it that n is a whole number of units. A
// negative n fails.
func (c *Cursor) Skip(n int) {
	if c.bad || uint(n) > uint(len(c.b)-c.pos) {
		c.bad = true
		return
	}
	c.pos += n
}

// SkipArray consumes n elements of size octets each. It compares n with the octets left
// before it multiplies, so that a count off the wire cannot overflow. A size of less than
// one octet fails.
func (c *Cursor) SkipArray(n uint32, size int) {
	if c.bad || size < 1 || uint64(n) > uint64(len(c.b)-c.pos)/uint64(size) {
		c.bad = true
		return
	}
	c.pos += int(n) * size
}

// Opaque consumes a variable-length opaque or string: its length word, data and
// roundup. It returns the position of the data and their length.
func (c *Cursor) Opaque() (pos, n int) {
	left := len(c.b) - c.pos - 4
	if c.bad || left < 0 {
		c.bad = true
		return 0, 0
	}
	v := binary.BigEndian.Uint32(c.b[c.pos:])
	if (uint64(v)+3)&^3 > uint64(left) {
		c.bad = true
		return 0, 0
	}
	pos, n = c.pos+4, int(v)
	c.pos = pos + Roundup(n)
	return pos, n
}

// Octets consumes what Opaque does, and returns the data, which are a part of the buffer; nil if they are not all there.
func (c *Cursor) Octets() []byte {
	pos, n := c.Opaque()
	if c.bad {
		return nil
	}
	return c.b[pos : pos+n : pos+n]
}

// AppendUint32 appends one unit.
func AppendUint32(b []byte, v uint32) []byte { return binary.BigEndian.AppendUint32(b, v) }

// AppendWords appends unsigned integers: RFC 4506 Section 4.2.
func AppendWords(b []byte, words ...uint32) []byte {
	for _, w := range words {
		b = AppendUint32(b, w)
	}
	return b
}

// AppendUint64 appends two units.
func AppendUint64(b []byte, v uint64) []byte { return binary.BigEndian.AppendUint64(b, v) }

// AppendOpaque appends a variable-length opaque: length word, data, and roundup
// octets of zero. data must be shorter than 4 GiB.
func AppendOpaque(b, data []byte) []byte {
	b = AppendUint32(b, uint32(len(data)))
	b = append(b, data...)
	return append(b, make([]byte, Padding(len(data)))...)
}
