package nfs

import (
	"encoding/binary"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

// Numbers that must not exceed what the path carries
//
// A client says how much it wants of a file or a directory, and a server may always return less: "The server
// may choose to return fewer bytes than specified by the client", RFC 8881 Section 18.22.3. A server says how
// much it takes and returns at once, and a client keeps to that. The bridge carries messages of some length.
// So it lowers these numbers, in arguments and in results, and no Reply and no WRITE is too long for it.
//
// A number is one of them, and the tables of procedures and operations have all: those of READ, READDIR,
// READDIRPLUS, READ_PLUS, LISTXATTRS and CREATE_SESSION in arguments, and those of STATFS, of FSINFO and of the
// attributes maxread and maxwrite in results.
//
// Other counts are not lowered. For those of GETDEVICEINFO and LAYOUTGET a server may not return less: it
// answers with NFS4ERR_TOOSMALL, and the client would ask for as much again. GETXATTR has none.
//
// Signed messages stay as they are. RPCSEC_GSS without a service signs the header of a Call up to its
// credential, and in a Reply the sequence number: RFC 2203 Sections 5.3.1 and 5.3.3.2. So arguments and results
// may change under it.

// A number is an unsigned integer in arguments or results. Of several in arguments the last bounds the results.
type number struct {
	at   int8 // octets from the beginning of these, or, if it is negative, from their end
	wide bool // it has 64 bits, and not 32
	of   quantity
}

// A quantity is what a number counts the octets of.
type quantity uint8

const (
	dataRead     quantity = iota // of one READ, or the entries of one READDIR
	dataWritten                  // of one WRITE
	wholeCall                    // with the RPC header
	wholeReply                   // with the RPC header
	quantityKind                 // how many there are
)

// most returns how many octets of q the path carries.
func (q quantity) most(p *ulb.Path) uint32 {
	return [quantityKind]uint32{
		dataRead:    p.MaxIO,
		dataWritten: p.Write(),
		wholeCall:   max(p.Call, integritySlack) - integritySlack, // a session may be used under integrity
		wholeReply:  max(p.MaxReply, integritySlack) - integritySlack,
	}[q]
}

// octets returns the octets of n in the arguments or results m[start:end].
func (n *number) octets(m []byte, start, end int) []byte {
	at := start + int(n.at)
	if n.at < 0 {
		at = end + int(n.at)
	}
	if n.wide {
		return m[at : at+8]
	}
	return m[at : at+4]
}

// exceeds reports whether n is more than most in the arguments m[start:end].
func (n *number) exceeds(m []byte, start, end int, most uint32) bool {
	return binary.BigEndian.Uint32(n.octets(m, start, end)) > most
}

// lower writes most over the integer in b if that is greater. It reports whether it has.
func lower(b []byte, most uint32) bool {
	switch {
	case len(b) == 8 && binary.BigEndian.Uint64(b) > uint64(most):
		binary.BigEndian.PutUint64(b, uint64(most))
	case len(b) == 4 && binary.BigEndian.Uint32(b) > most:
		binary.BigEndian.PutUint32(b, most)
	default:
		return false
	}
	return true
}

// lowerEach lowers the numbers of all in m[start:end] to what p carries.
func lowerEach(all []number, m []byte, start, end int, p *ulb.Path) (changed bool) {
	for i := range all {
		n := &all[i]
		changed = lower(n.octets(m, start, end), n.of.most(p)) || changed
	}
	return changed
}

// excessive reports whether arguments m[start:end], which have the numbers of all, ask for more data than l
// allows.
func excessive(all []number, m []byte, start, end int, l *ulb.Limits) bool {
	for i := range all {
		if all[i].exceeds(m, start, end, l.MaxIO) {
			return true
		}
	}
	return false
}

// LowerArguments implements ulb.Lowerer.
func (p *program) LowerArguments(c *oncrpc.Call, path *ulb.Path) bool {
	pr := p.procedure(c.Procedure)
	return pr != nil && lowerEach(pr.asks, c.Message, c.Args, len(c.Message), path)
}

// LowerResults implements ulb.Lowerer.
func (p *program) LowerResults(proc uint32, reply []byte, path *ulb.Path) bool {
	pr := p.procedure(proc)
	var r oncrpc.Reply
	if pr == nil || len(pr.says) == 0 || oncrpc.ParseReply(reply, &r) != nil || !r.Succeeded() {
		return false
	}
	w := walkResults(reply, r.Results, false)
	pr.saying.Walk(&w)
	if !w.OK() || w.Len() != 0 || be(reply, r.Results) != 0 {
		return false
	}
	return lowerEach(pr.says, reply, r.Results, len(reply), path)
}

// plainHeader is the most octets of the header of a Reply whose results are not wrapped.
const plainHeader = oncrpc.ReplyHeader + oncrpc.MaxAuth

// counts reports whether the length of o's results follows from what its arguments ask for.
func (o *op4) counts() bool { return o.size != nil && len(o.asks) > 0 }

// wants returns the most octets of the results that the arguments at pos of m ask for.
func (o *op4) wants(m []byte, pos int, l *ulb.Limits) uint64 {
	s := o.size(m, pos, l)
	return s.octets + (uint64(s.item)+3)&^3
}

// eachOp4 calls f for each operation of c, a COMPOUND that Analyse has walked to its end. The arguments of the
// operation begin at pos.
func eachOp4(c *oncrpc.Call, f func(o *op4, number uint32, pos int)) {
	w := ulb.Walk{Cursor: xdr.NewCursor(c.Message, c.Args)}
	w.Opaque()
	minor := w.Uint32()
	for count := w.Uint32(); count > 0 && w.OK(); count-- {
		number, pos := w.Uint32(), w.Pos()
		o := op(minor, number)
		if o == nil {
			return
		}
		if o.args.Walk(&w); !w.OK() {
			return
		}
		f(o, number, pos)
	}
}

// LowerArguments implements ulb.Lowerer. If the results of all operations together may be too long for a Reply,
// each operation that asks for data gets an equal part of what the others leave. One that asks for less leaves
// its rest to the operations behind it.
func (compound) LowerArguments(c *oncrpc.Call, p *ulb.Path) (changed bool) {
	l := &p.Limits
	s := summary{octets: opsHeader + uint64(xdr.Roundup(int(be(c.Message, c.Args))))} // the tag comes first
	var wanted, asking uint64
	var none ulb.Walk // which data a WRITE has matters only to Analyse
	eachOp4(c, func(o *op4, number uint32, pos int) {
		changed = lowerEach(o.asks, c.Message, pos, 0, p) || changed
		s.add(o, number, pos, &none, c.Message, l)
		if o.counts() {
			wanted += o.wants(c.Message, pos, l)
			asking++
		}
	})
	room, all := uint64(l.MaxReply-plainHeader), s.octets+s.items
	if all <= room || all-wanted >= room {
		return changed
	}
	room -= all - wanted
	eachOp4(c, func(o *op4, _ uint32, pos int) {
		if !o.counts() {
			return
		}
		changed = o.share(c.Message, pos, room/asking, l) || changed
		asking--
		room -= min(room, o.wants(c.Message, pos, l))
	})
	return changed
}

// share lowers what the arguments at pos of m ask for, so that the results have at most room octets.
func (o *op4) share(m []byte, pos int, room uint64, l *ulb.Limits) (changed bool) {
	set := func(most uint64) {
		for i := range o.asks {
			changed = lower(o.asks[i].octets(m, pos, 0), uint32(most)) || changed
		}
	}
	if o.wants(m, pos, l) <= room {
		return false
	}
	bound := o.asks[len(o.asks)-1].octets(m, pos, 0) // of the results
	most := min(uint64(be(bound, 0)), room)
	set(most)
	// Some results have more octets than were asked for, because of what is between the data.
	if n := o.wants(m, pos, l); n > room {
		most -= min(most, n-room)
	}
	const page = 4 << 10
	if most > page {
		most &^= page - 1
	}
	set(most)
	return changed
}

// Attributes of NFSv4 that say how much a server returns and takes at once.
const (
	attrMaxRead  = 30
	attrMaxWrite = 31

	// maxIOBits stands for both in the first unit of a bitmap4.
	maxIOBits = 1<<attrMaxRead | 1<<attrMaxWrite
)

// says4 are the numbers of these attributes, each in the attribute's value.
var says4 = [...]number{
	{wide: true, of: dataRead},    // attrMaxRead
	{wide: true, of: dataWritten}, // attrMaxWrite, the next attribute
}

// values4 are the layouts of the attributes before them, and their own.
var values4 = func() (all [32]ulb.Layout) {
	for i, s := range [...]string{
		"B", "4", "4", "8", "8", "4", "4", "4", "16", "4", "4", "4", "[" + nfsace4 + "]", "4", "4", "4",
		"4", "4", "4", "O", "8", "8", "8", "8", "[O] [[O] [O]]", "4", "4", "8", "4", "4", "8", "8",
	} {
		all[i] = ulb.Compile(s)
	}
	return all
}()

// LowerResults implements ulb.Lowerer.
func (compound) LowerResults(proc uint32, reply []byte, p *ulb.Path) (changed bool) {
	var r oncrpc.Reply
	if proc != compoundProc || oncrpc.ParseReply(reply, &r) != nil || !r.Succeeded() {
		return false
	}
	for _, whole := range [...]bool{false, true} {
		w := walkResults(reply, r.Results, false)
		w.Skip(4)
		w.Opaque()
		for count := w.Uint32(); count > 0 && w.OK(); count-- {
			pos := w.Pos()
			if n, status := walkResult4(&w); whole && n == opGetattr && status == 0 {
				changed = lowerAttributes(reply[:w.Pos()], pos+8, p) || changed
			}
		}
		if !w.OK() || w.Len() != 0 {
			return false
		}
	}
	return changed
}

// lowerAttributes lowers the numbers of the fattr4 at pos, which ends with m.
func lowerAttributes(m []byte, pos int, p *ulb.Path) (changed bool) {
	n := be(m, pos)
	if n == 0 || be(m, pos+4)&maxIOBits == 0 {
		return false
	}
	w := ulb.Walk{Cursor: xdr.NewCursor(m, pos+4+4*int(n)+4)}
	for a := range values4 {
		if be(m, pos+4)>>a&1 == 0 {
			continue
		}
		at := w.Pos()
		if values4[a].Walk(&w); !w.OK() {
			return changed
		}
		if a >= attrMaxRead {
			changed = lowerEach(says4[a-attrMaxRead:][:1], m, at, w.Pos(), p) || changed
		}
	}
	return changed
}
