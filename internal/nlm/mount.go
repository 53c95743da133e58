package nlm

import (
	"context"
	"encoding/binary"
)

// longMount are the procedures of MOUNT whose Replies may be too long for a datagram: DUMP, EXPORT and EXPORTALL.
var longMount = []uint32{2, 5, 6}

// mount passes a Call of MOUNT that came over UDP to the server over TCP, and the Reply back. Both stay as they are but for
// the XID. If there is no Reply the client asks again.
func (s *Server) mount(x *call) {
	ctx, cancel := context.WithTimeout(s.ctx, serverTimeout)
	defer cancel()
	r, err := s.mountd.send(ctx, x.Message)
	if err != nil {
		return
	}
	binary.BigEndian.PutUint32(r.Message, x.XID)
	x.send(r.Message)
}
