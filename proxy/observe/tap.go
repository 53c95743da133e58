package observe

import (
	"net/netip"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
)

// Taps
//
// A Tap sees RPC messages where they enter and leave the proxy, for a capture. There are four places
// on the road of a Call and its Reply, and the same four on the way of a reverse Call:
//
//	client --in--> proxy --out--> upstream        the Call
//	client <-out-- proxy <--in--- upstream        its Reply
//
// The Tap is asked about each Call once, when it is read. The messages of the Calls that it does not want cost the
// loop no more than that. A Tap that needs few of many Calls is a Sampler, which costs less to ask.

// A Tap sees messages. Its methods run on loops, several at the same time, and must not block. They
// borrow all that they are given.
type Tap interface {
	// Wants is asked about each Call when it is read, and about each reverse Call at each of its
	// places. The Tap sees the messages of the Call unless Wants returns 0, and gets the answer with each.
	Wants(c *TapCall) uint32
	// Message sees a message.
	Message(m *TapMessage)
	// Over is called after the last message of a Call: its client has the Reply, or never will have it.
	Over(o *TapOver)
	// Ended is called when a connection has ended of which the Tap has seen messages. err may be nil.
	Ended(c *TapConn, loop int, wanted uint32, err error)
}

// A Sampler is a Tap that looks at some Calls only. It is asked about a client's Call first.
type Sampler interface {
	// Looks is asked on a loop about a Call for o, at a time of the loop's clock. Wants is not asked, and the Tap does not
	// see the Call, if the answer is 0. It gets another answer in TapCall.Lookers.
	Looks(loop int, now int64, o *ulb.Operation) (lookers uint32)
}

// TapClientsAlone is set in an answer of Wants by a Tap that needs only the messages between clients and the proxy.
// It is not shown the others then, which saves the loop about half of what a Tap costs.
const TapClientsAlone = 1 << 31

// A TapCall is a Call that a Tap is asked about.
type TapCall struct {
	Client   netip.AddrPort // not valid for a reverse Call
	Listener string         // "" for a reverse Call
	Upstream string         // "" if the proxy answers the Call itself
	Identity string         // of the client, as in CallRecord
	Reverse  bool
	Leg      TapLeg // of a reverse Call

	Program, Version, Procedure uint32
	Operation                   string // the name of a ulb.Operation; "" for a reverse Call

	Lookers uint32 // what Sampler.Looks has answered; 0: it was not asked
}

// A TapLeg is a side of the proxy.
type TapLeg uint8

// The legs.
const (
	TapClients TapLeg = iota
	TapUpstreams
)

// A TapConn is a connection that messages were seen on. It never changes.
type TapConn struct {
	ID          uint64 // tells all connections of the process apart
	Leg         TapLeg
	RDMA        bool
	Name        string         // of the listener or the upstream
	Local, Peer netip.AddrPort // not valid if the provider does not know
}

// A TapMessage is a message that a Tap sees.
type TapMessage struct {
	Loop   int // the loop that the message is seen on
	Wanted uint32
	Call   uint64 // the same for all messages of a Call, and for no other Call; 0 for reverse Calls
	Conn   *TapConn
	At     time.Time
	Out    bool // it leaves the proxy
	Reply  bool // it is a Reply
	Parts  [][]byte

	// Data and DataLength are the position and length of the octets in Parts that RDMA moves apart
	// from the message, or would move if there were enough of them: what a READ or WRITE is about.
	// DataLength is 0 if there are none.
	Data, DataLength int

	Program, Version, Procedure uint32 // of a Call
	Operation                   string // of a Call and its Reply: the name of a ulb.Operation
	Identity                    string // of the client that has sent a Call, as in CallRecord

	// RDMA says how a Call travels over RDMA. It is for Calls to RDMA upstreams, and zero for others.
	RDMA TapRDMA
	// Granted and Outstanding are the upstream connection's Calls that may be outstanding, and are.
	Granted, Outstanding int

	// Refuse may be set by the Tap where a client's Call enters the proxy. The client is told to send the Call again later then,
	// unless it repeats one in flight.
	Refuse bool
}

// A TapRDMA says how a Call travels over RDMA.
type TapRDMA struct {
	Known    bool
	Shape    ulb.Shape
	Position uint32 // of the Read chunk
	Length   uint32 // of the Read chunk
}

// A TapOver is the end of a Call.
type TapOver struct {
	Loop   int
	Wanted uint32
	Call   uint64
	At     time.Time
	Result string // what became of the Call, as in rdmabridge_listener_calls_total
	Status string // the class of the Reply, one of package status; "" if there is none
	Failed bool   // status.Failure of Status
	Sent   bool   // it was given to a connection to the upstream, and may have been executed

	// Postponed is set if the Call was refused because a Tap has set TapMessage.Refuse. If it was Sent nevertheless, then
	// without what it changes.
	Postponed bool

	// Repeated is set if another transmission of the same Call says what became of it: one that the bridge has sent, whose
	// Reply this one gets a copy of, or one that was sent in the place of this one.
	Repeated bool
}
