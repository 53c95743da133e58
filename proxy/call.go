package proxy

import (
	"encoding/binary"
	"sync/atomic"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/pool"
	"github.com/rdmabridge/rdmabridge/rdmaside"
)

// A client is where a call came from: a TCP or an RDMA connection. Methods run
// on its loop, except gone, home and close.
type client interface {
	// home is the loop that owns the client.
	home() *eventLoop
	// gone reports that the connection has ended. Any goroutine.
	gone() bool
	// deliver sends c.out to the client and releases c when that is done.
	deliver(c *call)
	// abandon closes the connection, because c cannot be answered, and releases c.
	abandon(c *call, reason error)
	// dropped releases c, which is answered, or never will be.
	dropped(c *call)
	// close ends the connection. Any goroutine.
	close(reason error)
}

// A call is one RPC Call on its way. It is owned by its client's loop, then by
// its member's, then by its client's again; entry.Seat tells which member.
type call struct {
	entry pool.Entry
	rdma  rdmaside.Call // for an upstream on RDMA, and for the analysis
	h     oncrpc.Call

	client   client // guarded by the XID table while remembered; else constant
	up       *upstream
	queue     *clientQueue              // whose pool it is in
	m        upstreamConn             // the connection it was dispatched to
	exchange *rdmaside.Exchange // of an RDMA client: holds msg, until it is answered
	heir     *rdmaside.Exchange // of the client that adopted the call; guarded as client
	adopted  *clientQueue              // of that client; guarded as client
	next     *call              // in rdmaClient.waiting
	msg      []byte             // the whole Call, in the arena
	buf      releaser           // owns msg

	clientXID  uint32
	tag        uint64 // in the XID table
	remembered bool
	gss        bool // XID and message must not change; never replayed
	tries      int
	pause      time.Duration // before it is tried again, the last time
	writing    bool          // to a TCP upstream
	sentAt     time.Time     // there
	older      *call         // there, in the order sent
	newer      *call
	bigReply   bool // ERR_CHUNK was answered once with the largest Reply chunk

	expect    int   // octets its Reply may have, about
	size      int   // octets of memory that its Reply takes
	charged   bool  // the client's ledger counts it
	slowStart bool  // counted by the upstream's slow start
	lent      bool  // and its Reply
	began     int64 // on the clock of the loops

	result result
	stage  stage
	err    error // for stageAbandon and stageUnsent

	// The Reply, before it is delivered.
	out      [][]byte // first part begins with the XID and may be written to
	reply    releaser // owns out; nil when it is local
	local    [32]byte // a Reply of our own
	outArray [1][]byte
}

// A result is what became of a call that was read, as its listener counts it:
// once for each, when it is dropped.
type result uint8

const (
	resultGone      result = iota // its client had gone, or went before it had the Reply
	resultReplied                 // the upstream's Reply was delivered
	resultLocal                   // a Reply of our own was
	resultAbsorbed                // it came again, and the one in flight counts
	resultAbandoned               // the client's connection was closed because of it
	resultMalformed               // it was none
	results
)

var resultNames = [results]string{"client_gone", "replied", "local", "absorbed", "abandoned", "malformed"}

// A releaser gives memory back.
type releaser interface{ Release() }

// A stage is what a posted call does when its loop runs it.
type stage uint8

const (
	stageSend    stage = iota // on the member's loop: send it
	stageDeliver              // on the client's loop: deliver the Reply
	stageAbandon              // on the client's loop: close the client
	stageUnsent               // on the member's loop: see what else can be done
)

// Run is the call's work on the loop it was posted to. loop.Task.
func (c *call) Run() {
	switch c.stage {
	case stageSend:
		c.m.send(c)
	case stageDeliver:
		c.client.deliver(c)
	case stageAbandon:
		c.client.abandon(c, c.err)
	case stageUnsent:
		c.resubmit(c.m, c.err)
	}
}

// replayable reports whether c may be sent again although it may have been
// executed: notes on retry safety in ulb. What a repetition would harm, and
// what only the client can encode again, goes back to the client by closing its
// connection: it retransmits, and the XID table gives it the same XID.
// A COMPOUND that begins with SEQUENCE is executed once, whatever the rest of it
// is.
func (c *call) replayable() bool {
	return !c.gss && (c.rdma.Analysis.Class < ulb.NonIdempotent || c.rdma.Analysis.Session != 0)
}

// setXID writes the XID that the upstream sees into the message.
func (c *call) setXID(xid uint32) {
	c.rdma.XID = xid
	binary.BigEndian.PutUint32(c.msg, xid)
}

// answer makes c's Reply one of ours, of at most len(c.local) octets.
func (c *call) answer(b []byte) {
	c.outArray[0] = b
	c.out = c.outArray[:]
	c.reply = nil
	c.result = resultLocal
}

// delivered notes that c's Reply is on its way to the client.
func (c *call) delivered() {
	if c.result == resultGone {
		c.result = resultReplied
	}
}

// restoreXID puts the client's XID into the Reply.
func (c *call) restoreXID() {
	if c.rdma.XID != c.clientXID {
		binary.BigEndian.PutUint32(c.out[0], c.clientXID)
	}
}

// releaseMessage gives the Call's memory back: it will not be sent again.
func (c *call) releaseMessage() {
	if c.buf != nil {
		c.buf.Release()
	}
	c.buf, c.msg, c.rdma.Message, c.h.Message = nil, nil, nil, nil
}

// releaseMemory gives the Call's and the Reply's memory back.
func (c *call) releaseMemory() {
	c.releaseMessage()
	if c.reply != nil {
		c.reply.Release()
	}
	c.reply, c.out = nil, nil
}

// reset makes c as new, keeping what points back to itself.
func (c *call) reset() {
	*c = call{}
	c.entry.Owner = c
	c.rdma.Owner = c
}

// flag is a bool that one goroutine sets and others read.
type flag struct{ v atomic.Bool }

func (f *flag) set()      { f.v.Store(true) }
func (f *flag) get() bool { return f.v.Load() }
