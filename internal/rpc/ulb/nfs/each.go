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

// OperationName names an operation of NFSv4, such as REMOVE.
func OperationName(number uint32) string {
	if number < uint32(len(ops4)) && ops4[number].name != "" {
		return strings.TrimPrefix(ops4[number].name, "COMPOUND/")
	}
	return fmt.Sprintf("operation %d", number)
}
