package proxy

import "github.com/rdmabridge/rdmabridge/internal/rpc/ulb"

// lowerArguments lowers what c asks for to what its path carries. It is called before anything compares or
// hashes the arguments, so that a retransmission is the same Call.
func (c *call) lowerArguments() {
	if b, ok := c.rdma.Binding.(ulb.Lowerer); ok {
		b.LowerArguments(&c.h, &c.client().settings().Path)
	}
}

// lowerResults lowers what the Reply to c tells the client to ask for and to send to what the path carries.
func (c *call) lowerResults() {
	if b, ok := c.rdma.Binding.(ulb.Lowerer); ok && len(c.reply.parts) == 1 {
		b.LowerResults(c.h.Procedure, c.reply.parts[0], &c.client().settings().Path)
	}
}

// uncut changes the Reply to c, which was cut: it says which operation was refused.
func (c *call) uncut(l *eventLoop) error {
	if !c.stump.Uncut(c.reply.parts) {
		return nil
	}
	// Four octets more. An RDMA client needs them in memory of the arena.
	before := c.reply.lease
	if err := c.setReply(l, c.reply.parts, 4); err != nil {
		return err
	}
	l.releaseReply(before)
	return nil
}
