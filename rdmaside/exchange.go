package rdmaside

// An Exchange is one Call that arrived, until its Reply is posted. Its methods
// are for the loop of its connection only: a handler that works elsewhere posts
// to ResponderConn.Loop.
type Exchange struct{}

// Conn is the connection.
func (x *Exchange) Conn() *ResponderConn { return nil }

// XID is the transaction's as it arrived, in the Transport header and the Call.
func (x *Exchange) XID() uint32 { return 0 }

// Message is the plain RPC Call, contiguous and in memory of a regmem arena. It
// may be written to and is valid until Reply or Abort.
func (x *Exchange) Message() []byte { return nil }

// Reply answers with the plain RPC Reply in parts, whose first four octets are
// the XID of the Call, and ends x. The slice of slices is lent until Reply
// returns, the octets, which are in memory of a regmem arena, until
// done.Release is called on the loop; done may be nil. When the connection has
// ended the Reply is dropped and done released at once.
func (x *Exchange) Reply(parts [][]byte, done Releaser) {}

// Abort ends x without an answer, which ends the connection: "If a Responder is
// unable to construct and transmit an RPC Reply or RPC-over-RDMA error message,
// the Responder MUST close the connection to signal to the Requester that a
// reply was lost." RFC 8166 Section 4.5.4.
func (x *Exchange) Abort() {}
