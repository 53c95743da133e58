package nfs

import (
	"encoding/binary"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

// Refusals of Calls that change files
//
// A proxy that lets a client only read has to answer its other Calls so that the client reports "read-only
// file system" to its user and goes on. [RefusalReply] makes such a Reply for most Calls, and one that says that
// the client is to try again later. Two kinds of Calls need more.
//
//   - A COMPOUND that begins with SEQUENCE uses a slot of a session. Only the server can answer SEQUENCE,
//     and a slot whose Calls have no results is a slot that some clients stop using: FreeBSD's. So
//     [Cut] lets the server execute what stands before the operation that changes something. It ends the
//     COMPOUND with ILLEGAL in the place of that operation. The server answers ILLEGAL with an error, as
//     it must, and [Uncut] writes into the Reply which operation it was and why it is refused. The client sees what a server with a read-only export sends. A retransmission is cut in
//     the same way, and the server answers it from the slot.
//   - A Reply under RPCSEC_GSS needs a verifier that only the server can make. Without integrity and
//     privacy the arguments and results are not signed, so a COMPOUND can be cut. All else is denied.
//
// NFSv4.0 counts OPENs and LOCKs of an owner by a number that the client increments when such an operation
// has a result, also an error. RFC 7530 Section 9.1.7. So the error stands in the place of the first
// operation, and the client takes the others for not executed.

// A Refusal says what a client is told whose Call is refused because it changes files.
type Refusal uint8

// The refusals.
const (
	ReadOnly Refusal = iota // the file system is read-only
	Later                   // the client is to send the Call again after a while, as kernels do; programs do not see it
)

// Statuses that refuse a change.
const (
	statusIO          = 5     // NFSERR_IO of NFSv2 and NFSACL, which have no word for later
	statusROFS        = 30    // NFS3ERR_ROFS and the like of versions 2 and 4, and of NFSACL
	statusLayoutNone  = 10059 // NFS4ERR_LAYOUTUNAVAILABLE: the client reads and writes through the server
	statusMinor       = 10021 // NFS4ERR_MINOR_VERS_MISMATCH
	nlm4ROFS          = 7     // NLM4_ROFS
	nlmDeniedNoLocks  = 2     // LCK_DENIED_NOLOCKS: versions 1 and 3 have no word for read-only
	nlmShareProcedure = 20
)

// RefusalReply makes the Reply to the Call h that says why its program cannot change files here. It
// builds the Reply in the memory of the Call, which is lost. The credential of h must need no verifier in the
// Reply. A Call that cannot be read, or that calls what is not known, gets the error that a server has
// for that.
func RefusalReply(h *oncrpc.Call, why Refusal) []byte {
	p, low, high := binding(h.Program, h.Version)
	m := h.Message
	switch p := p.(type) {
	case compound:
		return compoundReply(h, why)
	case *program:
		pr := p.procedure(h.Procedure)
		switch {
		case pr == nil, pr.status == ulb.NoStatus:
			return oncrpc.AppendAccepted(m[:0], h.XID, oncrpc.ProcedureUnavailable)
		case pr.status == ulb.LockStatus:
			return lockReply(h)
		}
		n := oncrpc.ReplyHeader + 4 + int(pr.failure)
		if n > len(m) {
			break
		}
		b := oncrpc.AppendAccepted(m[:0], h.XID, oncrpc.Success)
		b = xdr.AppendUint32(b, why.status(h))[:n]
		clear(b[oncrpc.ReplyHeader+4:])
		return b
	case nil:
		if high > 0 {
			return oncrpc.AppendProgramMismatch(m[:0], h.XID, low, high)
		}
		return oncrpc.AppendAccepted(m[:0], h.XID, oncrpc.ProgramUnavailable)
	}
	return oncrpc.AppendAccepted(m[:0], h.XID, oncrpc.GarbageArguments)
}

// bindings are those of Bindings.
var bindings = Bindings()

// binding returns the binding of a program and version. If there is none, it returns the lowest and the
// highest version of the program that has one.
func binding(program, version uint32) (b ulb.Binding, low, high uint32) {
	for _, x := range bindings {
		if x.Program != program {
			continue
		}
		if x.Version == version {
			return x.Binding, 0, 0
		}
		if high == 0 || x.Version < low {
			low = x.Version
		}
		high = max(high, x.Version)
	}
	return nil, low, high
}

// lockReply answers a Call of NLM: cookie, stat, and for SHARE sequence.
func lockReply(h *oncrpc.Call) []byte {
	m := h.Message
	c := xdr.NewCursor(m, h.Args)
	c.Opaque()
	n := c.Pos() - h.Args // the cookie and its length
	size := oncrpc.ReplyHeader + n + 4
	if h.Procedure == nlmShareProcedure {
		size += 4
	}
	if !c.OK() || size > len(m) {
		return oncrpc.AppendAccepted(m[:0], h.XID, oncrpc.GarbageArguments)
	}
	copy(m[oncrpc.ReplyHeader:], m[h.Args:][:n])
	b := oncrpc.AppendAccepted(m[:0], h.XID, oncrpc.Success)[:size]
	clear(b[oncrpc.ReplyHeader+n:])
	stat := uint32(nlmDeniedNoLocks)
	if h.Version >= 4 {
		stat = nlm4ROFS
	}
	binary.BigEndian.PutUint32(b[oncrpc.ReplyHeader+n:], stat)
	return b
}

// compoundReply answers a COMPOUND with an error of its first operation:
//
//	status, tag<>, count, operation, status, for SETATTR an empty bitmap
func compoundReply(h *oncrpc.Call, why Refusal) []byte {
	m := h.Message
	if h.Procedure != compoundProc {
		return oncrpc.AppendAccepted(m[:0], h.XID, oncrpc.ProcedureUnavailable)
	}
	c := xdr.NewCursor(m, h.Args)
	_, n := c.Opaque()
	minor, count, number := c.Uint32(), uint32(0), uint32(0)
	n = 4 + xdr.Roundup(n) // the tag and its length
	tag := h.Args
	const tagAt = oncrpc.ReplyHeader + 4
	if c.OK() && minor >= uint32(len(lastOp)) {
		copy(m[tagAt:], m[tag:][:n])
		b := oncrpc.AppendAccepted(m[:0], h.XID, oncrpc.Success)
		xdr.AppendUint32(b, statusMinor)
		return xdr.AppendUint32(m[:tagAt+n], 0)
	}
	count, number = c.Uint32(), c.Uint32()
	if !c.OK() || count == 0 {
		return oncrpc.AppendAccepted(m[:0], h.XID, oncrpc.GarbageArguments)
	}
	status := uint32(opIllegal) // NFS4ERR_OP_ILLEGAL
	if op(minor, number) == nil {
		number = opIllegal
	}
	if number != opIllegal {
		status = why.of(number)
	}
	copy(m[tagAt:], m[tag:][:n])
	b := oncrpc.AppendAccepted(m[:0], h.XID, oncrpc.Success)
	xdr.AppendUint32(b, status)
	b = xdr.AppendUint32(m[:tagAt+n], 1)
	b = xdr.AppendUint32(b, number)
	b = xdr.AppendUint32(b, status)
	if number == opSetattr && len(b)+4 <= len(m) {
		b = xdr.AppendUint32(b, 0)
	}
	return b
}

// of is the status that refuses an operation of NFSv4.
func (why Refusal) of(number uint32) uint32 {
	switch {
	case why == Later:
		return StatusDelay
	case number == opLayoutget:
		return statusLayoutNone
	}
	return statusROFS
}

// status is the status that refuses the Call h, which is none of NFSv4.
func (why Refusal) status(h *oncrpc.Call) uint32 {
	switch {
	case why == ReadOnly:
		return statusROFS
	case h.Program == oncrpc.ProgramNFS && h.Version == 3:
		return StatusDelay // NFS3ERR_JUKEBOX has the same number
	}
	return statusIO
}

// A Stump says how [Cut] has cut a COMPOUND. The zero Stump says that it has not, or that the operation
// in whose place ILLEGAL stands is not one that a server knows: the server's answer is right. Otherwise it is the
// number of the operation, and has stumpLater set if the Refusal is Later.
type Stump uint8

const stumpLater Stump = 0x80

// Cut makes the first operation of the COMPOUND h that may change a file the last one, and replaces it by
// ILLEGAL. It cuts a COMPOUND of a minor version above 0, that begins with SEQUENCE, in the place of that
// operation, and any other in the place of its first operation, as compoundReply does. h.Message is shorter
// afterwards. ok is false, and nothing has changed, when the COMPOUND cannot be cut because its arguments
// are signed or cannot be walked that far.
func Cut(h *oncrpc.Call, why Refusal) (s Stump, ok bool) {
	if h.Program != oncrpc.ProgramNFS || h.Version != 4 || h.Procedure != compoundProc || h.Protection != oncrpc.ProtectNone {
		return 0, false
	}
	m := h.Message
	w := ulb.Walk{Cursor: xdr.NewCursor(m, h.Args)}
	w.Opaque()
	minor := w.Uint32()
	countAt := w.Pos()
	count := w.Uint32()
	if !w.OK() || minor >= uint32(len(lastOp)) || count > maxOps {
		return 0, false
	}
	for i := range count {
		at := w.Pos()
		number := w.Uint32()
		if !w.OK() {
			return 0, false
		}
		o := op(minor, number)
		if o != nil {
			pos := w.Pos()
			o.args.Walk(&w)
			if w.OK() && (o.keeps || o.keepsIf != nil && o.keepsIf(m, pos)) && (i > 0 || number == opSequence) {
				continue
			}
		}
		if o != nil && number != opIllegal && (w.OK() || i == 0) {
			if s = Stump(number); why == Later {
				s |= stumpLater
			}
		}
		binary.BigEndian.PutUint32(m[countAt:], i+1)
		binary.BigEndian.PutUint32(m[at:], opIllegal)
		h.Message = m[:at+4]
		return s, true
	}
	return 0, false
}

// Uncut changes the Reply to a COMPOUND that was cut: where the server says that ILLEGAL is an illegal
// operation, the Reply says that the operation in whose place it stood was refused. The Reply consists
// of parts, which begin and end between units. more is whether four octets of zero have to follow the Reply,
// the empty bitmap of a SETATTR. A Reply to a COMPOUND of which an earlier operation has failed stays as
// it is.
func (s Stump) Uncut(parts [][]byte) (more bool) {
	if s == 0 || len(parts) == 0 {
		return false
	}
	first, last := parts[0], parts[len(parts)-1]
	var r oncrpc.Reply
	if oncrpc.ParseReply(first, &r) != nil || !r.Succeeded() || len(first) < r.Results+4 || len(last) < 8 {
		return false
	}
	end := last[len(last)-8:]
	if be(first, r.Results) != opIllegal || be(end, 0) != opIllegal || be(end, 4) != opIllegal {
		return false
	}
	number, why := uint32(s&^stumpLater), ReadOnly
	if s&stumpLater != 0 {
		why = Later
	}
	status := why.of(number)
	binary.BigEndian.PutUint32(first[r.Results:], status)
	binary.BigEndian.PutUint32(end, number)
	binary.BigEndian.PutUint32(end[4:], status)
	return number == opSetattr
}
