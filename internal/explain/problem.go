package explain

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// transportProblem says what is wrong with a Transport header, and what the bridge
// would answer.
func transportProblem(err error) string {
	var h *rpcrdma.HeaderError
	if !errors.As(err, &h) {
		return err.Error()
	}
	s := fmt.Sprintf("not an RPC-over-RDMA message: %s: %v", h.Field, h.Err)
	if h.Answer == rpcrdma.Silence {
		return s + "; it is discarded"
	}
	return s + "; the answer to a Call is " + h.Answer.String()
}

// rpcProblem says what is wrong with the header of the message b.
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
		return fmt.Sprintf("not a %s: %d octets, which is shorter than any", what, len(b))
	case field != "" && ok && errors.Is(h, oncrpc.ErrBound):
		return fmt.Sprintf("not a %s: %s of %d octets at offset %d, %d are allowed", what, field, v, h.Position, oncrpc.MaxAuth)
	case field != "" && ok:
		return fmt.Sprintf("not a %s: %s of %d octets at offset %d, the message ends at %d", what, field, v, h.Position, len(b))
	case h.Field == "rpcvers" && ok:
		return fmt.Sprintf("not a %s: RPC version %d at offset %d, there is only %d", what, v, h.Position, oncrpc.RPCVersion)
	case ok && errors.Is(h, oncrpc.ErrValue):
		return fmt.Sprintf("not a %s: %s is %d at offset %d, which means nothing", what, h.Field, v, h.Position)
	}
	return fmt.Sprintf("not a %s: it ends at offset %d, inside %s", what, h.Position, h.Field)
}
