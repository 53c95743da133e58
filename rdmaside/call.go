package rdmaside

import "github.com/rdmabridge/rdmabridge/internal/rpc/ulb"

// A Call is an RPC Call that a Requester carries. The caller fills the exported
// fields but Reply and lends the Call, with Message, from Send until
// CallOwner.CallDone. Calls may be pooled: Reset makes one as new.
type Call struct {
	// XID is the transaction's, the same as in the first four octets of Message.
	XID uint32
	// Message is the plain RPC Call, in memory of a regmem arena. Nobody writes
	// to it while it is lent: the Responder may be reading it.
	Message []byte
	// Analysis and Binding are what ulb.Registry.Analyse found in Message.
	Analysis ulb.Analysis
	Binding  ulb.Binding
	// Owner is told of the end.
	Owner CallOwner

	// Reply is filled when CallDone reports no error, and released by the owner.
	Reply Reply

	need int // octets that Send could not lease
}

// Reset clears c for its next use. A Reply that was not released is lost.
func (c *Call) Reset() { *c = Call{} }

// A CallOwner is told of the end of its Calls.
type CallOwner interface {
	// CallDone is called on the Requester's loop, exactly once for each Call that
	// Send accepted, after every handle on the Call's memory is dead. err is nil
	// when c.Reply holds the Reply. c belongs to the owner again. CallDone may call Requester.Send.
	CallDone(c *Call, err *CallError)
}
