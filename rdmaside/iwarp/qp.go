package iwarp

import (
	"fmt"
	"math"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp/wire"
)

// A qpState is the state of a connection, in the words of RDMA verbs. A qp is not
// reused, so no state leads back to IDLE:
//
//	IDLE ---start---> RTS ---close---> CLOSING ---drained, FIN, peer's FIN---> (gone)
//	                   |                  |
//	                   +---peer's error---+---> TERMINATE ---Terminate out---> (gone)
//	                   |                  |
//	                   +---socket's end---+---> ERROR
type qpState uint8

const (
	// stateIdle: start-up has completed, and the ULP posts its first Receives. Nothing
	// is read or written. Left by start.
	stateIdle qpState = iota
	// stateRTS: full operation. Left by close, a protocol error, a Terminate, or the
	// end of the socket.
	stateRTS
	// stateClosing: the ULP asked for an orderly close. It cannot post any more. Posted
	// work is written, and input is placed and delivered, until no work is left. After
	// that (fin) input is dropped.
	stateClosing
	// stateTerminate: a Terminate is the last FPDU to be written. Input is dropped, all
	// Work Requests are flushed, and no handle is live.
	stateTerminate
	// stateError: the connection has ended. Nothing is read or written.
	stateError
)

func (s qpState) String() string {
	return [...]string{"IDLE", "RTS", "CLOSING", "TERMINATE", "ERROR"}[s]
}

// qpConfig has the parameters that start-up agreed on, and those that the ULP set.
type qpConfig struct {
	crc     bool
	markers bool                // the peer wants Markers in the FPDUs that this side sends
	hold    bool                // MPA responder: the first FPDU is the peer's
	rtrSend bool                // the peer may begin with a zero-length Send that is not delivered
	inPlace bool                // fabric.ConnOptions.InPlace
	take    func(m []byte) bool // fabric.ConnOptions.Take

	ird, ord        int
	receives, sends int32
	handlesN        int

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
// Invariants on Work Request buffers: from post to completion they belong to the qp.
// Once a completion is queued, nothing in the qp refers to its buffer. That is why end
// seals the batch before it flushes.
type qp struct {
	cfg   qpConfig // constant after start
	state qpState
	err   error // why the connection ended; nil for an orderly end
	ended bool  // all work is flushed: no completion will be queued any more
	fin   bool  // CLOSING, and no posted work is left

	stags table
	rx    rx
	tx    tx

	// Work Requests, oldest first.
	recvs ring[receive]
	wq    ring[sendWR] // Sends and Writes
	built int          // number of wq's elements that are in FPDUs the kernel has not yet
	reads ring[readWR]
	asked int           // number of reads that are outstanding at the peer
	irq   ring[inbound] // the peer's Reads, which Responses will answer; at most cfg.ird

	// Work counts as posted until take has lent its completion. So the bounds on posted
	// work bound the queue of completions too.
	cs, csSpare []fabric.Completion
	received    int32 // Receives posted
	posts       int32 // Sends, Writes and Reads posted
	took        int32 // messages that cfg.take took and that conn.deliver has not seen yet

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
	stag  uint32 // of a Write: the destination; of a Send with Invalidate: the STag to invalidate
	to    uint64
	end   uint64 // stream position behind its last FPDU, once built
}

// A readWR is a posted Read. Its sink is not in the table of STags, so only the Response
// to this Read can reach it.
type readWR struct {
	id     uint64
	silent bool // the RTR of start-up, not a Read of the ULP
	into   []byte
	got    int // octets received of a Response in progress
	req    wire.Read
}

// An inbound is the peer's Read Request.
type inbound struct {
	wire.Read
	msn  uint32
	done uint32 // octets of the Response that are in FPDUs
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

// alive reports whether input is processed.
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

// checkPost reports why no Send, Write or Read can be posted.
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
	n := octets(parts)
	if uint64(n) > math.MaxUint32 {
		return fmt.Errorf("iwarp: message of %d octets", n)
	}
	short := op != wire.OpWrite && q.buildShort(op, stag, parts, n)
	q.posts++
	w := q.wq.push()
	w.id, w.op, w.len, w.stag, w.to = id, op, n, stag, to
	if short {
		w.end = q.tx.built
		q.built++
	} else {
		w.end, w.parts = 0, append(w.parts[:0], parts...)
	}
	return nil
}

// sendCopy builds the FPDU of a short Send at once, and forgets it. Otherwise it reports false.
func (q *qp) sendCopy(parts [][]byte) bool { return q.buildShort(wire.OpSend, 0, parts, octets(parts)) }

func octets(parts [][]byte) (n int) {
	for _, p := range parts {
		n += len(p)
	}
	return n
}

// postRead appends a Read.
func (q *qp) postRead(id uint64, into []byte, from fabric.Region) error {
	if err := q.checkPost(); err != nil {
		return err
	}
	switch {
	case q.cfg.ord <= 0:
		return errNoReads
	case uint64(from.Length) > uint64(len(into)):
		return fmt.Errorf("iwarp: read of %d octets into %d", from.Length, len(into))
	}
	into = into[:from.Length]
	if !q.stags.addSpan(into) {
		return errAliased
	}
	q.posts++
	*q.reads.push() = readWR{id: id, into: into, req: wire.Read{
		SinkSTag: q.stags.mint(), SinkTO: q.stags.base(),
		Size: from.Length, SrcSTag: uint32(from.Handle), SrcTO: from.Offset,
	}}
	return nil
}

// register lets the peer access buf.
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

// invalidate invalidates an STag, so that its memory belongs to the ULP again at once.
// The rest of a segment that is half received is dropped, and the segment is a protocol
// error when it is complete. Octets that are still to be sent are copied.
func (q *qp) invalidate(stag uint32) {
	buf, ok := q.stags.remove(stag)
	if !ok {
		return
	}
	if q.rx.phase == rxPayload && q.rx.stag == stag {
		q.rx.dst = nil
		q.rx.fault = fault{code: wire.CodeTaggedSTag, head: headDDP}
	}
	if b := q.tx.batch; b != nil {
		b.release(buf)
	}
}

// complete queues the completion of a Send, Write or Read.
func (q *qp) complete(id uint64, op fabric.Op, err error) {
	if id == 0 && err == nil {
		q.posts--
		return
	}
	c := q.completed()
	c.ID, c.Op, c.Err = id, op, err
}

// completed appends an empty completion, which the caller fills in: field by field, because a copy
// of one that was just made waits for all stores before it.
func (q *qp) completed() *fabric.Completion {
	q.cs = append(q.cs, fabric.Completion{})
	return &q.cs[len(q.cs)-1]
}

// take lends the queued completions until its next call.
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
