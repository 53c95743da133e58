package rdmaside

import "github.com/rdmabridge/rdmabridge/internal/rpc/ulb"

// A Call is an RPC Call that a Requester carries. The caller fills the exported
// fields except Reply. It lends the Call, with Message, from Send until
// CallOwner.CallDone. Calls may be pooled: Reset empties one for its next use.
type Call struct {
	// XID is the transaction ID, the same as in the first four octets of Message.
	XID  uint32
	need uint32 // octets that Send failed to lease
	// Message is the plain RPC Call, in memory of a regmem arena. It must not be
	// written to while it is lent: the Responder may be reading it.
	Message []byte
	// Spare is how many octets behind Message, in the capacity of its slice, a short Reply may be kept in, so
	// that it takes no memory of its own. Reply.Beside tells whether it is.
	Spare uint32
	// Owner is called when the Call has completed.
	Owner CallOwner
	// Shape is how the Call travels. Send sets it, if it succeeds.
	Shape ulb.Shape
	// Analysis and Binding are the results of ulb.Registry.Analyse for Message.
	Analysis ulb.Analysis
	_        uint64 // has what a Reply needs, from Binding on, in one cache line: call of package proxy
	Binding  ulb.Binding

	// Reply is filled when CallDone reports no error. The owner must release it. It is the last field, because
	// most Replies leave its last octets alone.
	Reply Reply
}

// Reset clears c for its next use. The owner has released the Reply, or there is none.
func (c *Call) Reset() {
	c.XID, c.Message, c.Analysis, c.Binding, c.Owner, c.Shape, c.need, c.Spare = 0, nil, ulb.Analysis{}, nil, nil, ulb.Shape{}, 0, 0
}

// beside returns n octets behind Message. n is at most Spare.
func (c *Call) beside(n int) []byte {
	end := len(c.Message)
	return c.Message[end : end+n : end+n]
}

// A CallOwner is called when its Calls complete.
type CallOwner interface {
	// CallDone is called on the Requester's loop, exactly once for each Call that
	// Send accepted, after every handle on the Call's memory is invalidated. When
	// err is nil, c.Reply holds the Reply. c belongs to the owner again. CallDone
	// may call Requester.Send.
	CallDone(c *Call, err *CallError)
}
