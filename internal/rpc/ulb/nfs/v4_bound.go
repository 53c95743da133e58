package nfs

import (
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

// A bound4 bounds the part of one operation's results that depends on its
// arguments or on Limits. The arguments begin at pos of m. Analyse has walked them, so a
// bound4 indexes them unchecked. Sums are 64 bits wide and cannot overflow: a COMPOUND
// has at most thousands of operations, each bounded by a few counts of 32 bits.
type bound4 func(m []byte, pos int, l *ulb.Limits) size4

// A size4 is the result of a bound4.
type size4 struct {
	octets  uint64 // most octets beside an eligible item
	item    uint32 // most octets of an eligible item, without roundup
	guessed bool   // octets has a bound of Limits where the protocol has none
	layouts bool   // the operation asks for fs_layout_type
	maxIO   bool   // the operation asks for maxread or maxwrite
}

func octets(n uint64) size4 { return size4{octets: n} }

// bitmap4 bounds a bitmap whose length the server chooses.
func bitmap4(l *ulb.Limits) uint64 { return 4 + 4*uint64(l.Bitmap) }

// identity4 bounds the data of a string that names an owner, a group or a principal
// of an ACE.
func identity4(l *ulb.Limits) uint64 { return uint64(l.Identity+3) &^ 3 }

// getattr4: fattr4, a bitmap and attr_vals<>.
func getattr4(m []byte, pos int, l *ulb.Limits) size4 {
	n := be(m, pos)
	values, guessed := attributes(m, pos+4, n, l)
	return size4{
		octets:  4 + 4*uint64(max(n, l.Bitmap)) + 4 + (values+3)&^3,
		guessed: guessed, layouts: n > 1 && be(m, pos+8)&layoutTypeBit != 0,
		maxIO: n > 0 && be(m, pos+4)&maxIOBits != 0,
	}
}

// read4: eof, data<>. A server returns no more than its maximum for any count.
func read4(m []byte, pos int, l *ulb.Limits) size4 {
	return size4{item: min(be(m, pos+24), l.MaxIO)}
}

// readdir4: cookieverf, entries, eof. maxcount bounds all of READDIR4resok, RFC
// 8881 Section 18.23.3. The row's most counts the fixed parts a second time.
func readdir4(m []byte, pos int, _ *ulb.Limits) size4 {
	return octets(uint64(max(be(m, pos+20), 16)))
}

func readlink4(_ []byte, _ int, l *ulb.Limits) size4 { return size4{item: l.Path} }

// secinfo4Most: flavors, each with at most an OID, a quality and a service.
func secinfo4Most(_ []byte, _ int, l *ulb.Limits) size4 { return octets(48 * uint64(l.Flavors)) }

// exchangeID: under SP4_SSV the results have sizes, and as many handles as the client
// asked for. RFC 8881 Section 18.35.
func exchangeID(m []byte, pos int, _ *ulb.Limits) size4 {
	pos = after(m, pos+8) + 4
	if be(m, pos) != 2 {
		return size4{}
	}
	w := ulb.Walk{Cursor: xdr.NewCursor(m, pos+4)}
	ssv4.Walk(&w)
	return octets(20 + 260*uint64(w.Uint32()))
}

// ssv4 is ssv_sp_parms4 up to the number of handles.
var ssv4 = ulb.Compile("B B [O] [O] 4")

// getdeviceinfo: gdia_maxcount bounds "all of the data being returned within
// the GETDEVICEINFO4resok structure", RFC 8881 Section 18.40.3. A client that wants only
// the notifications sends 0.
func getdeviceinfo(m []byte, pos int, l *ulb.Limits) size4 {
	return octets(max((uint64(be(m, pos+20))+3)&^3, 8+bitmap4(l)))
}

func getdevicelist(m []byte, pos int, _ *ulb.Limits) size4 {
	return octets(16 * uint64(be(m, pos+4)))
}

// layoutget: loga_maxcount bounds "the layout"; each segment has more words around it.
func layoutget(m []byte, pos int, _ *ulb.Limits) size4 {
	return octets((uint64(be(m, pos+52))+3)&^3 + 512)
}

// setSSV: the hash that made the Call's ssa_digest<> makes ssr_digest<>, too.
func setSSV(m []byte, pos int, _ *ulb.Limits) size4 {
	return octets((uint64(be(m, after(m, pos)))+3)&^3 + 64)
}

func testStateID(m []byte, pos int, _ *ulb.Limits) size4 { return octets(4 * uint64(be(m, pos))) }

// readPlus: eof, contents<>. Data segments have 16 octets around them, holes
// have 20 octets; they alternate at no less than 4 KiB.
func readPlus(m []byte, pos int, l *ulb.Limits) size4 {
	n := uint64(min(be(m, pos+24), l.MaxIO))
	return octets((n+3)&^3 + 40*((n+4095)/4096+1))
}

func getxattr(_ []byte, _ int, l *ulb.Limits) size4 { return octets(uint64(l.XAttr+3) &^ 3) }

// listxattrs: cookie, names<>, eof. lxa_maxcount bounds "all of the data being
// returned within the LISTXATTRS4resok structure", RFC 8276 Section 8.4.3.3;
// Linux counts the names alone.
func listxattrs(m []byte, pos int, _ *ulb.Limits) size4 {
	return octets((uint64(max(be(m, pos+8), 16)) + 3) &^ 3)
}
