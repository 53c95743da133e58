package chaos

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
)

// A fault is something that goes wrong.
type fault uint8

const (
	// Of a Responder.
	lateReply    fault = iota // the Reply comes late
	lostCall                  // the Call is dropped, executed or not
	wrongXID                  // answered under an XID of no Call
	strayReply                // a Reply to no Call, beside the right one
	twiceReply                // the Reply is sent twice
	twoXIDs                   // header and payload name different XIDs
	badHeader                 // the Transport header ends early
	grantZero                 // credits
	grantOne                  //
	grantHuge                 // 100,000
	longChunk                 // a chunk comes back longer than it was offered
	shortChunk                // a chunk comes back shorter than its data
	unwritten                 // a chunk comes back with octets that were never written
	emptyChunk                // a READ of no data comes back with a Write chunk of no segment, which is right
	backwards                 // chunks are written from the last octets to the first, which is right
	errChunk                  // RDMA_ERROR, ERR_CHUNK
	refuseReads               // ERR_CHUNK to Calls with Read chunks,
	refuseWrites              // with Write chunks,
	refuseReply               // and with Reply chunks
	errVers                   // RDMA_ERROR, ERR_VERS
	alienHandle               // another Call's handle is invalidated
	lateWrite                 // the chunk is written to after the Reply
	lateRead                  // and the Read chunk read
	longMessage               // the Reply comes inline and is longer than any Receive
	overWrite                 // octets are written behind the chunk
	hangUp                    // the Responder ends the connection

	// Of a TCP server: lostCall, lateReply, wrongXID, strayReply, twiceReply, hangUp and
	longRecord    // the Reply is longer than any may be
	shortRecord   // it is an XID alone
	badReply      // it is neither a Call nor a Reply
	cutRecord     // the connection is reset inside the record of the Reply
	haltRecord    // nothing comes after a part of the record
	trickleRecord // the record comes in pieces of a few octets

	// Of a wire.
	resetWire   // reset, at any octet
	finWire     // both sides see a FIN, at any octet
	halfClose   // one side sees a FIN, the other nothing
	stallWire   // nothing gets through for a while
	blackhole   // nothing ever will
	corruptWire // a bit is turned over
	trickleWire // octets come one by one
	delayWire   // all come late
	refuseWire  // the connection is reset when it is made
	shutWire    // no socket listens

	// Of a provider in memory.
	lostSend   // a Send is completed, and never delivered
	failedWork // work fails, and the connection with it
	cutWrite   // so does a Write half done

	// Of clients.
	rogueReset      // reset inside a record
	rogueDeaf       // asks for much and reads nothing
	rogueTrickle    // sends octet by octet
	rogueTwice      // sends its Calls again on new connections, the old ones open or not
	rogueGarbage    // sends octets that are no Call
	rogueHalfRecord // begins a record and stays
	rogueHalfClose  // sends FIN and waits for its Replies
	rogueAnnounce   // announces a long record, and sends it octet by octet

	// Of RDMA clients.
	rdmaOverrun // more Calls than credits
	rdmaHeader  // Transport headers that are none
	rdmaReads   // Read chunks that cannot be read
	rdmaWrites  // Write and Reply chunks that cannot be written, or hold too little
	rdmaGone    // chunks that are taken back too early

	// Of many clients at a server without other faults: quiet_test.go.
	stuckOne        // one client has many Calls to a file system that does not answer
	stuckMany       // many clients have a few each
	stuckSessions   // clients of NFSv4.1 do
	rdmaInterrupted // an RDMA client gives up its Calls, and sends others with their credits
	rdmaSlow        // an RDMA client announces Read chunks and serves them octet by octet
	silentTCP       // connections on which nothing comes
	silentMPA       // set-ups that stop in the middle
	throng          // very many connections from one address

	// Of the bridge itself.
	bridgeChanged    // other settings
	bridgeReplaced   // another upstream by the same name, in front of the same server
	bridgeRenamed    // another listener at the same address
	bridgeAway       // a listener goes, and comes back
	bridgeRestarted  // it is drained and ended, and another one begins
	bridgeHandedOver // another one begins with its sockets, and it is drained
	faults
)

var faultNames = [faults]string{
	"reply late", "call dropped", "wrong XID", "stray reply", "duplicate reply", "two XIDs", "bad header",
	"grant 0", "grant 1", "grant 100000", "chunk too long", "chunk too short", "chunk not written", "empty chunk", "chunk written backwards", "ERR_CHUNK", "Read chunks refused", "Write chunks refused", "Reply chunks refused", "ERR_VERS", "alien handle",
	"late write", "late read", "message too long", "write behind the chunk", "responder hangs up",
	"record too long", "record too short", "neither Call nor Reply", "record cut", "record halted", "record trickled",
	"wire reset", "wire FIN", "wire half-closed", "wire stalled", "black hole", "bit flipped", "trickle", "wire slow", "connection reset at accept", "connection refused",
	"send lost", "work failed", "write cut",
	"client resets in a record", "client never reads", "client trickles", "client retransmits", "client sends garbage", "client stops in a record", "client half-closes", "client announces a record",
	"RDMA client overruns its credits", "RDMA client sends a bad header", "RDMA client offers bad Read chunks", "RDMA client offers bad Write chunks", "RDMA client takes chunks back",
	"one client stuck", "many clients stuck", "clients in sessions stuck", "RDMA client interrupted", "RDMA client serves slowly",
	"silent connections", "silent MPA set-ups", "many connections of one address",
	"bridge reconfigured", "upstream replaced", "listener renamed", "listener away", "bridge restarted", "bridge handed over",
}

func (f fault) String() string { return faultNames[f] }

// counts are the faults injected.
type counts [faults]atomic.Int64

func (c *counts) String() string {
	var b strings.Builder
	for f := range faults {
		if n := c[f].Load(); n > 0 {
			fmt.Fprintf(&b, "%s%s %d", map[bool]string{true: ", "}[b.Len() > 0], f, n)
		}
	}
	return b.String()
}

// A weather is how often each fault happens, in a million.
type weather [faults]int32

// A sky is the weather over one thing, which changes. It is safe for concurrent
// use.
type sky struct {
	now     atomic.Pointer[weather]
	pending [faults]atomic.Int32 // faults that strike once, at the next chance
	counts  *counts
}

func newSky(c *counts) *sky {
	s := &sky{counts: c}
	s.now.Store(&weather{})
	return s
}

// strikes reports whether f happens now, and counts it if so.
func (s *sky) strikes(r *rand.Rand, f fault) bool {
	if s.pending[f].Load() > 0 && s.pending[f].CompareAndSwap(1, 0) {
		s.counts[f].Add(1)
		return true
	}
	p := s.now.Load()[f]
	if p == 0 || r.Int32N(1e6) >= p {
		return false
	}
	s.counts[f].Add(1)
	return true
}

func (s *sky) set(w weather) { s.now.Store(&w) }

// responderFaults are the faults of a Responder and the wire to it, each with how
// often in a million Calls, or pieces of up to 16 KiB on a wire, at its worst.
var responderFaults = weather{
	lateReply: 200000, lostCall: 3000, wrongXID: 3000, strayReply: 30000, twiceReply: 30000, twoXIDs: 2000, badHeader: 3000,
	grantZero: 300000, grantOne: 300000, grantHuge: 500000, longChunk: 10000, shortChunk: 10000, unwritten: 60000, emptyChunk: 500000, backwards: 200000, errChunk: 20000, errVers: 2000,
	refuseReads: 500000, refuseWrites: 500000, refuseReply: 500000,
	alienHandle: 2000, lateWrite: 20000, lateRead: 20000, longMessage: 2000, overWrite: 2000, hangUp: 3000,
	resetWire: 3000, finWire: 3000, halfClose: 2000, stallWire: 3000, blackhole: 1000, corruptWire: 3000, trickleWire: 20000, delayWire: 50000,
	refuseWire: 300000,
}

// tcpFaults are those of a TCP server.
var tcpFaults = weather{
	lateReply: 200000, lostCall: 3000, wrongXID: 3000, strayReply: 30000, twiceReply: 30000, hangUp: 3000, longRecord: 3000, shortRecord: 3000, badReply: 3000, cutRecord: 3000, haltRecord: 1000, trickleRecord: 20000,
	resetWire: 3000, finWire: 3000, halfClose: 2000, stallWire: 3000, blackhole: 1000, trickleWire: 20000, delayWire: 50000,
	refuseWire: 300000,
}

// draw picks up to four of the faults in worst, each as bad as chance has it. One
// time in five the sky is clear.
func draw(r *rand.Rand, worst *weather) (w weather) {
	if r.IntN(5) == 0 {
		return w
	}
	var can []fault
	for f, p := range worst {
		if p > 0 {
			can = append(can, fault(f))
		}
	}
	for range 1 + r.IntN(4) {
		f := can[r.IntN(len(can))]
		w[f] = 1 + r.Int32N(worst[f])
	}
	return w
}
