package nfs

import (
	"math/bits"

	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
)

// Values in attr4 for attributes whose length is in Limits.
const (
	attrBitmap   = 0xf000 + iota
	attrBitmap5  // five bitmaps
	attrIdentity // the name of an owner or a group
	attrLabel    // sec_label4
)

// attr4 is the most octets of each attribute's value, by number. It is 0 for a value
// without a bound: ACLs, locations, layout hints, and attributes that are not in the
// tables of RFC 7530 Section 5, RFC 8881 Section 5, RFC 7862 Section 12, RFC
// 8275, RFC 8276 and RFC 9754. A server returns only attributes that the Call names.
var attr4 = func() (t [96]uint16) {
	set := func(n uint16, attrs ...int) {
		for _, a := range attrs {
			if t[a] != 0 {
				panic("BUG: nfs: two lengths for an attribute")
			}
			t[a] = n
		}
	}
	set(4, 1, 2, 5, 6, 7, 9, 10, 11, 13, 14, 15, 16, 17, 18, 25, 26, 28, 29, 33, 34, 35, 46, 65, 66, 76, 77, 79, 82, 83)
	set(8, 3, 4, 20, 21, 22, 23, 27, 30, 31, 38, 39, 40, 41, 42, 43, 44, 45, 55, 73, 74, 78, 81)
	set(12, 47, 49, 50, 51, 52, 53, 56, 57, 84, 85)
	set(16, 8, 48, 54, 60, 70, 72)
	set(24, 69, 71)
	set(fh4, 19)
	set(4+256, 32)      // mimetype
	set(4+4*16, 62, 64) // layout types
	set(attrBitmap, 0, 75)
	set(attrBitmap5, 86) // open_arguments
	set(attrIdentity, 36, 37)
	set(attrLabel, 80)
	return t
}()

// attributes bounds the values of the attributes in the bitmap of n units at o. guessed reports
// whether only Limits.Attribute bounds the value of any of them.
func attributes(m []byte, o int, n uint32, l *ulb.Limits) (octets uint64, guessed bool) {
	for i := range n {
		for w := be(m, o+4*int(i)); w != 0; w &= w - 1 {
			var most uint16
			if a := 32*uint64(i) + uint64(bits.TrailingZeros32(w)); a < uint64(len(attr4)) {
				most = attr4[a]
			}
			switch most {
			case 0:
				octets += uint64(l.Attribute)
				guessed = true
			case attrBitmap:
				octets += bitmap4(l)
			case attrBitmap5:
				octets += 5 * bitmap4(l)
			case attrIdentity:
				octets += 4 + identity4(l)
			case attrLabel:
				octets += 12 + uint64(l.Label+3)&^3
			default:
				octets += uint64(most)
			}
		}
	}
	return octets, guessed
}
