package proxy

import "github.com/rdmabridge/rdmabridge/internal/rpc/ulb"

// path is what the way between the listener's clients and their servers carries. Any goroutine.
func (l *listener) path() ulb.Path { return l.p.registry.Path(l.settings().opts.MaxRecord) }

// lowerArguments lowers what c asks for to what its path carries. It is called before anything compares or
// hashes the arguments, so that a retransmission is the same Call.
func (c *call) lowerArguments() {
	if b, ok := c.rdma.Binding.(ulb.Lowerer); ok {
		p := c.owner.front.listener.path()
		b.LowerArguments(&c.h, &p)
	}
}

// lowerResults lowers what the Reply to c tells the client to ask for and to send to what the path carries.
func (c *call) lowerResults() {
	if b, ok := c.rdma.Binding.(ulb.Lowerer); ok && len(c.reply.parts) == 1 {
		p := c.owner.front.listener.path()
		b.LowerResults(c.h.Procedure, c.reply.parts[0], &p)
	}
}
