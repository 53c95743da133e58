package explain

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// transportProblem describes the error of a Transport header and the answer of the
// bridge.
func transportProblem(err error) string {
	var h *rpcrdma.HeaderError
	if !errors.As(err, &h) {
		return err.Error()
	}
	s := fmt.Sprintf("not an RPC-over-RDMA message: %s: %v", h.Field, h.Err)
	if h.Answer == rpcrdma.Silence {
		return s + "; the bridge discards it"
	}
	return s + "; the bridge answers a Call with " + h.Answer.String()
}

// rpcProblem describes the error of the RPC header of b, which is a Call or a
// Reply as what says.
func rpcProblem(what string, b []byte, err error) string {
	var h *oncrpc.Error
	if !errors.As(err, &h) {
		return fmt.Sprintf("not a %s: %v", what, err)
	}
	field := map[string]string{"cred": "credential", "verf": "verifier"}[h.Field]
	word := func() (uint32, bool) {
		if h.Position+4 > len(b) {
			return 0, false
		}
		return binary.BigEndian.Uint32(b[h.Position:]), true
	}
	v, ok := word()
	switch {
	case h.Field == "call" || h.Field == "reply":
		return fmt.Sprintf("not a %s: it has %d octets, fewer than any %[1]s", what, len(b))
	case field != "" && ok && errors.Is(h, oncrpc.ErrBound):
		return fmt.Sprintf("not a %s: the %s at offset %[4]d has %[3]d octets, and %[5]d are allowed", what, field, v, h.Position, oncrpc.MaxAuth)
	case field != "" && ok:
		return fmt.Sprintf("not a %s: the %s at offset %[4]d has %[3]d octets, and the message ends at %[5]d", what, field, v, h.Position, len(b))
	case h.Field == "rpcvers" && ok:
		return fmt.Sprintf("not a %s: RPC version %d at offset %d; the only one is %d", what, v, h.Position, oncrpc.RPCVersion)
	case ok && errors.Is(h, oncrpc.ErrValue):
		return fmt.Sprintf("not a %s: %s at offset %[4]d is %[3]d, an undefined value", what, h.Field, v, h.Position)
	}
	return fmt.Sprintf("not a %s: it ends at offset %d, inside %s", what, h.Position, h.Field)
}
