package proxy

import "github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"

// parse walks the header of the message of c, and has its arguments analysed. It refuses a Call whose header cannot be
// walked. isCall is false when the message is no RPC Call; then parse has closed the connection.
func (f *front) parse(c *call) (isCall, ok bool) {
	h := &c.h
	var err error
	seen := false
	switch x := c.exchange(); {
	case x != nil:
		*h = *x.Header()
	case f.cache != nil && f.cache.user.Parse(c.rdma.Message, h):
		seen = true
	default:
		err = oncrpc.ParseCall(c.rdma.Message, h)
	}
	refusal, why := []byte(nil), oncrpc.RefusedNot
	if err != nil {
		if refusal, why = h.AppendRefusal(c.local[:0], err); why == oncrpc.RefusedNot {
			f.malformed(c, err)
			return false, false
		}
	}
	f.account().begun(c)
	if err != nil {
		f.refuseHeader(c, refusal, why, err)
		return true, false
	}
	if !seen {
		f.see(h)
	}
	c.rdma.Binding = f.listener.Registry.Analyse(h, &c.rdma.Analysis)
	f.account().analysed(c)
	return true, true
}

// see compares the credential of h, the header of the client's latest Call, with that of the Calls before.
func (f *front) see(h *oncrpc.Call) {
	if f.cache == nil {
		f.cache = new(clientCache)
	}
	f.cache.user.See(h)
}
