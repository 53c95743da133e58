package nfs

import (
	"fmt"
	"strings"

	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

// EachOperation calls f for each operation of the COMPOUND whose arguments begin at start, before it steps over the
// operation. The operation's own arguments begin at pos. It ends where m is cut off or cannot be decoded, or f returns
// false.
func EachOperation(m []byte, start int, f func(number uint32, pos int) bool) {
	w := ulb.Walk{Cursor: xdr.NewCursor(m, start)}
	w.Opaque()
	minor := w.Uint32()
	for count := w.Uint32(); count > 0; count-- {
		number, pos := w.Uint32(), w.Pos()
		o := op(minor, number)
		if !w.OK() || o == nil || !f(number, pos) {
			return
		}
		o.args.Walk(&w)
	}
}

// EachResult is EachOperation for the results of a COMPOUND. What follows the status of the operation is at pos.
func EachResult(m []byte, start int, f func(number, status uint32, pos int) bool) {
	w := ulb.Walk{Cursor: xdr.NewCursor(m, start)}
	w.Skip(4)
	w.Opaque()
	for count := w.Uint32(); count > 0; count-- {
		ahead := w.Cursor
		number, status := ahead.Uint32(), ahead.Uint32()
		if !ahead.OK() || !f(number, status, ahead.Pos()) {
			return
		}
		walkResult4(&w)
	}
}

// OpenName steps to the name that an OPEN is about, from its arguments: RFC 8881 Section 18.16.1. creates says that the OPEN may
// create the file. named is false for claims that are about the current filehandle itself.
func OpenName(x *xdr.Cursor) (creates, named bool) {
	x.Skip(20) // seqid, access, deny, clientid
	x.Opaque()
	if creates = x.Uint32() == 1; creates {
		mode := x.Uint32()
		if mode >= 2 {
			x.Skip(8)
		}
		if mode != 2 {
			x.SkipArray(x.Uint32(), 4)
			x.Opaque()
		}
	}
	switch x.Uint32() {
	case 0, 3: // CLAIM_NULL, CLAIM_DELEGATE_PREV
		return creates, true
	case 2: // CLAIM_DELEGATE_CUR
		x.Skip(16)
		return creates, true
	}
	return creates, false
}

// OperationName names an operation of NFSv4, such as REMOVE.
func OperationName(number uint32) string {
	if number < uint32(len(ops4)) && ops4[number].name != "" {
		return strings.TrimPrefix(ops4[number].name, "COMPOUND/")
	}
	return fmt.Sprintf("operation %d", number)
}
