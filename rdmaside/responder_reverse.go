package rdmaside

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/rdmaside/credit"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// A ReverseOwner is notified when the Calls that ResponderConn.ReverseCall
// accepted from it complete. This is the reverse direction of RFC 8167, in which
// NFSv4.1 servers call their clients back.
type ReverseOwner interface {
	// ReverseDone completes the Call xid, on the loop of c, once for each XID and
	// not before ReverseCall has returned. m is the plain RPC Reply, which the
	// owner must release. If m is nil, err says why there is no Reply: ErrClosed
	// when the connection is closed. ReverseDone may call ReverseCall.
	ReverseDone(c *ResponderConn, xid uint32, m *regmem.Lease, err error)
}

// Errors of the reverse direction. Each is about one Call and affects no other.
var (
	// errReverseLong is returned for a Call that does not fit inline: this
	// direction has no chunks.
	errReverseLong = errors.New("rdmaside: reverse call exceeds the inline threshold")
	// errReverseBusy is returned when too many Calls are waiting to be sent to
	// the Requester.
	errReverseBusy = errors.New("rdmaside: too many reverse calls wait")
	// errReverseXID is returned for a Call whose XID is that of another
	// unanswered Call.
	errReverseXID = errors.New("rdmaside: xid of another reverse call in use")
	// errReverseReply is the error of a Call that the Requester answered with
	// RDMA_ERROR, or with a message that is no RPC Reply.
	errReverseReply = errors.New("rdmaside: no reply to a reverse call")
)

const (
	// reverseWaiting is how many Calls may wait for a credit on one connection.
	reverseWaiting = 64
	// reverseTimeout is how long a Call may stay unanswered while other Calls
	// need its credit. Servers give up sooner.
	reverseTimeout = 30 * time.Second
)

// reverseSendID is the first Work Request ID of Sends in the reverse direction.
const reverseSendID = 1 << 32

// A reverseCalls is the reverse direction of a Responder's connection, in which
// the Responder's side sends the Calls. The XIDs and credits of the two
// directions are independent: RFC 8167 Sections 2.4 and 4.1.
//
// A connection without reverse Calls needs no resources for them. From the first
// reverse Calls on there are additional Receives, one for each Call that may be
// outstanding: "a server endpoint posts a Receive buffer to handle the Reply",
// Section 4.3.2. There are twice as many slots for Sends as credits, because the
// peer may answer a Call before the completion of its Send.
type reverseCalls struct {
	credits  credit.Account
	receives int           // Receives posted for Replies
	headers  *regmem.Lease // rpcrdma.PlainLen octets for each slot
	slots    []Releaser    // for each slot, released when its Send completes
	idle     []int32       // free slots
	calls    []reverseCall // oldest first: those outstanding, then those waiting for a credit
}

// A reverseCall is a Call of the reverse direction until it is answered.
type reverseCall struct {
	xid   uint32
	sum   uint64 // hash of the message
	owner ReverseOwner
	m     []byte    // the message; nil once it is sent
	done  Releaser  // releases m; nil once it is sent
	sent  time.Time // when the Call was sent
}

var reverseSeed = maphash.MakeSeed()

func (v *reverseCalls) init(credits int) {
	v.credits = credit.NewAccount(credits)
	v.slots = make([]Releaser, 2*credits)
	v.idle = make([]int32, 2*credits)
	for i := range v.idle {
		v.idle[i] = int32(i)
	}
}

// sent returns how many of calls are outstanding.
func (v *reverseCalls) sent() int { return int(v.credits.Outstanding) }

// find returns the index of xid in calls, or -1.
func (v *reverseCalls) find(xid uint32) int {
	for i := range v.calls {
		if v.calls[i].xid == xid {
			return i
		}
	}
	return -1
}

// take removes the Call at index i, which is outstanding, and returns it.
func (v *reverseCalls) take(i int) reverseCall {
	p := v.calls[i]
	n := len(v.calls) - 1
	copy(v.calls[i:], v.calls[i+1:])
	v.calls[n] = reverseCall{}
	v.calls = v.calls[:n]
	v.credits.Put()
	return p
}

// LongestReverseCall is the length of the longest Call that ReverseCall can send.
func (c *ResponderConn) LongestReverseCall() int { return c.replyInline - rpcrdma.PlainLen }

// ReverseCall sends the Requester m, a plain RPC Call in memory of a regmem
// arena, as soon as there is a credit for it. m is lent until done.Release is
// called, on the loop. The answer goes to o. If a Call with the same XID and the
// same octets is still unanswered, m is a retransmission: it is not sent, and the
// answer to the first goes to o. An error means that m is still the caller's:
// ErrNoMemory, ErrClosed, or an error that says why m cannot be sent.
func (c *ResponderConn) ReverseCall(m []byte, done Releaser, o ReverseOwner) error {
	v, metrics := &c.reverse, &c.responder.metrics.reverse
	if c.state != up {
		return ErrClosed
	}
	xid, mtype, ok := oncrpc.MessageType(m)
	switch n := c.info.MaxParts; {
	case !ok || mtype != oncrpc.TypeCall || len(m)%4 != 0:
		return fmt.Errorf("rdmaside: message of %d octets is no reverse call", len(m))
	case n == 1 || rpcrdma.PlainLen+len(m) > c.replyInline:
		// "they can be no larger than what can be sent inline", Section 5.3.
		// The threshold of forward Replies applies, Section 4.2.
		metrics.refused[callbackLong].Inc()
		return errReverseLong
	}
	sum := maphash.Bytes(reverseSeed, m)
	if i := v.find(xid); i >= 0 {
		if v.calls[i].sum != sum {
			metrics.refused[callbackXID].Inc()
			return errReverseXID
		}
		v.calls[i].owner = o
		done.Release()
		c.giveUpReverse() // or a Call that was not answered would keep the credit for which this one waits
		c.sendReverse()
		return nil
	}
	if len(v.calls)-v.sent() >= reverseWaiting {
		c.giveUpReverse()
		c.sendReverse()
		if len(v.calls)-v.sent() >= reverseWaiting {
			metrics.refused[callbackBusy].Inc()
			return errReverseBusy
		}
	}
	if err := c.readyReverse(); err != nil {
		return err
	}
	v.calls = append(v.calls, reverseCall{xid: xid, sum: sum, owner: o, m: m, done: done})
	c.giveUpReverse()
	c.sendReverse()
	return nil
}

// readyReverse allocates the resources for one more Call: the headers before the
// first, and a Receive for its Reply.
func (c *ResponderConn) readyReverse() error {
	v := &c.reverse
	var err error
	if v.headers == nil {
		v.init(c.responder.opts.ReverseCredits)
		v.headers, err = c.responder.opts.Memory.Lease(rpcrdma.PlainLen * len(v.slots))
	}
	if err == nil && v.receives < min(len(v.calls)+1, int(v.credits.Requested)) {
		if err = c.recvs.fill(c.recvs.posted + 1); err == nil {
			v.receives++
			c.countReceives()
		}
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, regmem.ErrBudget):
		c.responder.metrics.reverse.refused[callbackMemory].Inc()
		return ErrNoMemory
	}
	c.end(fmt.Errorf("rdmaside: post receive: %w", err))
	return ErrClosed
}

// giveUpReverse frees the credits of Calls that have been unanswered for longer
// than servers wait, if other Calls need them. Otherwise a Requester that dropped
// a few Calls could never be called again.
func (c *ResponderConn) giveUpReverse() {
	v := &c.reverse
	for v.sent() > 0 && len(v.calls) > v.sent() && v.credits.Free() == 0 && time.Since(v.calls[0].sent) > reverseTimeout {
		p := v.take(0)
		c.responder.metrics.reverse.unanswered.Inc()
		p.owner.ReverseDone(c, p.xid, nil, ErrDeadline)
	}
}

// sendReverse sends the Calls for which there are credits.
//
// "a Requester MUST NOT assume more than one credit is available and MUST receive
// a valid reply from the Responder carrying the actual number of available
// credits, prior to sending its next request": RFC 8166 Section 3.3.3, with the
// roles exchanged.
func (c *ResponderConn) sendReverse() {
	v := &c.reverse
	for c.state == up && len(v.calls) > v.sent() && len(v.idle) > 0 && v.credits.Take() {
		p := &v.calls[v.sent()-1]
		slot := v.idle[len(v.idle)-1]
		v.idle = v.idle[:len(v.idle)-1]
		at := rpcrdma.PlainLen * int(slot)
		b := rpcrdma.AppendPlain(v.headers.Bytes()[at:at:at+rpcrdma.PlainLen], p.xid, v.credits.Requested)
		c.parts = append(c.parts[:0], b, p.m)
		v.slots[slot] = p.done
		p.m, p.done, p.sent = nil, nil, time.Now()
		if err := c.conn.PostSend(reverseSendID+uint64(slot), fabric.Send{Parts: c.parts}); err != nil {
			c.reverseSent(slot)
			c.end(fmt.Errorf("rdmaside: reverse call: %w", err))
			return
		}
		c.responder.metrics.reverse.calls.Inc()
	}
}

// reverseSendDone handles the completion of a Call's Send.
func (c *ResponderConn) reverseSendDone(p *fabric.Completion) {
	if p.Err != nil {
		c.broken("reverse send", p.Err)
	}
	c.reverseSent(int32(p.ID - reverseSendID))
	c.sendReverse() // a Call may have waited for the slot
}

func (c *ResponderConn) reverseSent(slot int32) {
	v := &c.reverse
	done := v.slots[slot]
	v.slots[slot] = nil
	v.idle = append(v.idle, slot)
	done.Release()
}

// reverseReply handles the RPC Reply b, which is in Receive buffer i: the Payload
// stream of an RDMA_MSG without chunks, whose header has the values given.
func (c *ResponderConn) reverseReply(i int, xid, granted uint32, b []byte) {
	v, metrics := &c.reverse, c.responder.metrics
	n := v.find(xid)
	if n < 0 || n >= v.sent() || binary.BigEndian.Uint32(b) != xid {
		metrics.droppedReply.Inc()
		c.repostBuffer(i)
		return
	}
	v.credits.Grant(granted)
	p := v.take(n)
	var l *regmem.Lease
	err := errReverseReply
	if !oncrpc.IsReply(b, xid) {
		metrics.reverse.refused[callbackMalformed].Inc()
	} else if l, err = c.responder.opts.Memory.Lease(len(b)); err != nil {
		metrics.reverse.refused[callbackMemory].Inc()
	} else {
		metrics.reverse.replies.Inc()
		metrics.copied.Add(uint64(copy(l.Bytes(), b)))
	}
	// Post the Receive first. ReverseDone and sendReverse may send a Call whose
	// Reply needs it.
	c.repostBuffer(i)
	p.owner.ReverseDone(c, xid, l, err)
	c.sendReverse()
}

// reverseError handles an RDMA_ERROR with which the Requester answers a reverse
// Call. It returns false if there is no such Call: no other RDMA_ERROR is meant
// for a Responder.
//
// "it is not possible for the receiver to tell with certainty whether the header
// credit value is a request or grant. In such cases, the receiver MUST ignore the
// header's credit value." RFC 8167 Section 4.1.
func (c *ResponderConn) reverseError(xid uint32) bool {
	v := &c.reverse
	n := v.find(xid)
	if n < 0 || n >= v.sent() {
		return false
	}
	p := v.take(n)
	c.responder.metrics.reverse.refused[callbackError].Inc()
	p.owner.ReverseDone(c, xid, nil, errReverseReply)
	c.sendReverse()
	return true
}

// closeReverse completes all reverse Calls. Every Work Request has completed.
func (c *ResponderConn) closeReverse() {
	v := &c.reverse
	if len(v.idle) != len(v.slots) {
		panic(fmt.Sprintf("BUG: fabric: %s closed with a Send posted", c.info.Provider))
	}
	sent, calls := v.sent(), v.calls
	v.calls = nil
	v.credits.Outstanding = 0
	c.responder.metrics.reverse.unanswered.Add(uint64(sent))
	if v.headers != nil {
		v.headers.Release()
		v.headers = nil
	}
	for i := range calls {
		p := &calls[i]
		if p.done != nil {
			p.done.Release()
		}
		p.owner.ReverseDone(c, p.xid, nil, ErrClosed)
	}
}
