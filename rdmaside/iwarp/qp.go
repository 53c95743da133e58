package iwarp

import (
	"fmt"
	"math"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp/wire"
)

// A qpState is how far a connection has come, in the words of RDMA verbs, for one
// that is never reused:
//
//	IDLE ---start---> RTS ---close---> CLOSING ---drained, FIN, peer's FIN---> (gone)
//	                   |                  |
//	                   +---peer's error---+---> TERMINATE ---Terminate out---> (gone)
//	                   |                  |
//	                   +---socket's end---+---> ERROR
type qpState uint8

const (
	// stateIdle: start-up is over, the ULP posts its first Receives. Nothing is
	// read or written. start leaves it.
	stateIdle qpState = iota
	// stateRTS: full operation. close, a protocol error, a Terminate, or the end
	// of the socket leave it.
	stateRTS
	// stateClosing: the ULP asked for an orderly end. Nothing can be posted; what
	// was is written, and what arrives is placed and delivered, until nothing is
	// left. After that (fin) input is dropped.
	stateClosing
	// stateTerminate: a Terminate is the last thing to be written. Input is
	// dropped, all Work Requests are flushed, no handle is alive.
	stateTerminate
	// stateError: over. Nothing is written.
	stateError
)

func (s qpState) String() string {
	return [...]string{"IDLE", "RTS", "CLOSING", "TERMINATE", "ERROR"}[s]
}

// qpConfig is what start-up agreed on and the ULP asked for.
type qpConfig struct {
	crc     bool
	markers bool // the peer wants them in what we send
	hold    bool // MPA responder: the first FPDU is the peer's
	rtrSend bool // the peer may begin with a zero-length Send that is not delivered

	ird, ord                  int
	receives, sends, handlesN int

	limits *limits
	pool   *batchPool
}

// A qp is the iWARP protocol engine of one connection. It does no I/O, takes no
// locks and reads no clock; it belongs to the goroutine that owns the connection.
//
//	input, sink, sunk    octets from the socket
//	post*, close         the ULP
//	output, wrote        octets for the socket
//	take                 completions
//
// Invariants on Work Request buffers (STYLE.md B1 to B3): from post to completion
// they are the qp's. Once a completion is queued, nothing in the qp refers to its
// buffer: end seals the batch before it flushes.
type qp struct {
	cfg   qpConfig // constant after start
	state qpState
	err   error // why the connection ended; nil for an orderly end
	ended bool  // flushed: nothing will be delivered beyond what is queued
	fin   bool  // CLOSING and drained

	stags table
	rx    rx
	tx    tx

	// Work Requests, oldest first.
	recvs ring[receive]
	wq    ring[sendWR] // Sends and Writes
	built int          // how many of wq are in the stream, waiting for the kernel
	reads ring[readWR]
	asked int           // how many of reads are outstanding at the peer
	irq   ring[inbound] // the peer's Reads: Responses to send; at most cfg.ird

	// Completions. What is queued counts as posted until it is taken, which bounds
	// the queue by what may be posted.
	cs, csSpare     []fabric.Completion
	received, posts int

	copied int // octets of payload placed by copying, for the Provider
}

// A receive is a posted Receive.
type receive struct {
	id  uint64
	buf []byte
}

// A sendWR is a posted Send or Write.
type sendWR struct {
	id    uint64
	op    wire.Opcode
	parts [][]byte // capacity is kept for the next user of the element
	len   int
	stag  uint32 // of a Write: where to; of a Send with Invalidate: what
	to    uint64
	end   uint64 // stream position behind its last FPDU, once built
}

// A readWR is a posted Read. Its sink is not in the table of STags: the Response to
// this very Read is all that finds it.
type readWR struct {
	id     uint64
	silent bool // ours, not the ULP's: RTR
	into   []byte
	got    int // of a Response in progress
	req    wire.Read
}

// An inbound is the peer's Read Request.
type inbound struct {
	wire.Read
	msn  uint32
	done uint32 // octets answered
}

func newQP(cfg qpConfig) *qp {
	q := &qp{cfg: cfg}
	q.stags.limit, q.stags.shared = cfg.handlesN, cfg.limits
	q.rx.reset()
	q.rx.msn = [3]uint32{1, 1, 1}
	q.tx.init(cfg)
	return q
}

// start begins full operation.
func (q *qp) start() {
	if q.state == stateIdle {
		q.state = stateRTS
	}
}

// alive reports whether the peer is listened to.
func (q *qp) alive() bool {
	switch q.state {
	case stateRTS:
		return true
	case stateClosing:
		return !q.fin
	case stateIdle, stateTerminate, stateError:
	}
	return false
}

// postable reports whether the ULP may post.
func (q *qp) postable() bool { return q.state == stateRTS || q.state == stateIdle }

// postReceive appends a Receive.
func (q *qp) postReceive(id uint64, buf []byte) error {
	switch {
	case !q.postable():
		return fabric.ErrClosed
	case q.received >= q.cfg.receives:
		return fabric.ErrQueueFull
	}
	q.received++
	*q.recvs.push() = receive{id, buf}
	return nil
}

// checkPost is what Sends, Writes and Reads have in common.
func (q *qp) checkPost() error {
	switch {
	case !q.postable():
		return fabric.ErrClosed
	case q.posts >= q.cfg.sends:
		return fabric.ErrQueueFull
	}
	return nil
}

// post appends a Send or a Write.
func (q *qp) post(id uint64, op wire.Opcode, parts [][]byte, stag uint32, to uint64) error {
	if err := q.checkPost(); err != nil {
		return err
	}
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	if uint64(n) > math.MaxUint32 {
		return fmt.Errorf("iwarp: message of %d octets", n)
	}
	q.posts++
	w := q.wq.push()
	*w = sendWR{id: id, op: op, parts: append(w.parts[:0], parts...), len: n, stag: stag, to: to}
	return nil
}

// postRead appends a Read.
func (q *qp) postRead(id uint64, into []byte, from fabric.Region) error {
	if err := q.checkPost(); err != nil {
		return err
	}
	switch {
	case q.cfg.ord <= 0:
		return ErrNoReads
	case uint64(from.Length) > uint64(len(into)):
		return fmt.Errorf("iwarp: read of %d octets into %d", from.Length, len(into))
	}
	into = into[:from.Length]
	if !q.stags.addSpan(into) {
		return ErrAliased
	}
	q.posts++
	*q.reads.push() = readWR{id: id, into: into, req: wire.Read{
		SinkSTag: q.stags.mint(), SinkTO: q.stags.base(),
		Size: from.Length, SrcSTag: uint32(from.Handle), SrcTO: from.Offset,
	}}
	return nil
}

// register makes buf reachable for the peer.
func (q *qp) register(buf []byte, a fabric.Access) (fabric.Region, error) {
	if !q.postable() {
		return fabric.Region{}, fabric.ErrClosed
	}
	r, err := q.stags.add(buf, a)
	if err != nil {
		return fabric.Region{}, err
	}
	return fabric.Region{Handle: fabric.Handle(r.stag), Offset: r.to, Length: uint32(len(buf))}, nil
}

// invalidate takes an STag back, and what is under way through it: the rest of a
// segment half received is dropped (and refused at its end), what is half sent is
// copied, so that the memory is the ULP's again at once.
func (q *qp) invalidate(stag uint32) {
	buf, ok := q.stags.remove(stag)
	if !ok {
		return
	}
	if q.rx.phase == rxPayload && q.rx.stag == stag {
		q.rx.dst = nil
		q.rx.fault = fault{wire.CodeTaggedSTag, headDDP}
	}
	if b := q.tx.batch; b != nil {
		b.release(buf)
	}
}

// complete queues a completion of a Send, Write or Read.
func (q *qp) complete(id uint64, op fabric.Op, err error) {
	if id == 0 && err == nil {
		q.posts--
		return
	}
	q.cs = append(q.cs, fabric.Completion{ID: id, Op: op, Err: err})
}

// take lends the completions queued so far until the next call.
func (q *qp) take() []fabric.Completion {
	cs := q.cs
	for i := range cs {
		if cs[i].Op == fabric.OpReceive {
			q.received--
		} else {
			q.posts--
		}
	}
	q.cs, q.csSpare = q.csSpare[:0], cs
	return cs
}
