package rdmaside

import (
	"bytes"
	"testing/synctest"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// responderErrorRules are the rules of Sections 4.5 and 4.5.1: discarded messages,
// RDMA_ERROR, and versions.
var responderErrorRules = []responderRule{
	{section: "4.5", says: "a message shorter than 28 bytes MUST be silently discarded before any parsing: every length, of a version not spoken too", run: tooShortDiscarded},
	{section: "4.5", says: "RDMA_ERROR: rdma_xid and rdma_vers MUST be those of the failing request, rdma_proc MUST be RDMA_ERROR", run: errorFields},
	silence("4.5", "an RDMA_ERROR that cannot be decoded MUST be silently discarded",
		words(1, 1, 8, 4), words(1, 1, 8, 4, 0), words(1, 1, 8, 4, 3, 0, 0), words(1, 1, 8, 4, 1), words(1, 1, 8, 4, 1, 1), words(1, 2, 8, 4, 1, 1, 1)),
	{section: "4.5.1", says: "a version that is not supported: MUST reply RDMA_ERROR, ERR_VERS, with the low and high versions supported", run: unknownVersions},
}

func tooShortDiscarded(tc *responderCase) {
	for _, m := range [][]byte{plain(1, 8), words(1, 2, 8, 0, 0, 0, 0), words(1, 1, 8, 7, 0, 0, 0), words(1, 1, 8, 1, 0, 0, 0)} {
		for n := range 28 {
			tc.peer.send(0, m[:n])
			tc.wantNoCall("too short")
			tc.peer.wantIdle("discarded")
		}
	}
	tc.alive()
	tc.drained()
}

func errorFields(tc *responderCase) {
	for _, xid := range []uint32{0, 1, 0x80000000, 0xffffffff} {
		tc.peer.send(0, words(xid, 1, 8, 9, 0, 0, 0))
		m, _ := tc.peer.next()
		if len(m.octets) != 20 || !bytes.Equal(m.octets[:8], words(xid, 1)) || !bytes.Equal(m.octets[12:], words(4, 2)) {
			tc.t.Errorf("sent %x", m.octets)
		}
		tc.peer.send(0, words(xid, 7, 8, 0, 0, 0, 0))
		m, _ = tc.peer.next()
		if len(m.octets) != 28 || !bytes.Equal(m.octets[:8], words(xid, 7)) || !bytes.Equal(m.octets[12:], words(4, 1, 1, 1)) {
			tc.t.Errorf("sent %x", m.octets)
		}
	}
	tc.alive()
	tc.drained()
}

func unknownVersions(tc *responderCase) {
	for _, v := range []uint32{0, 2, 3, 0x01000000, 0xffffffff} {
		for _, proc := range []uint32{0, 1, 2, 3, 99} {
			tc.peer.send(0, words(5, v, 8, proc, 0xffffffff, 1, 2))
			m, _ := tc.peer.next()
			if len(m.octets) != 28 || !bytes.Equal(m.octets[:8], words(5, v)) || !bytes.Equal(m.octets[12:], words(4, 1, 1, 1)) {
				tc.t.Errorf("version %d, procedure %d: sent %x", v, proc, m.octets)
			}
		}
	}
	tc.wantNoCall("none was one")
	tc.alive()
	tc.drained()
}

// responderHeaderRules are the rules of Section 4.5.2: malformed headers of every kind.
var responderHeaderRules = []responderRule{
	malformedBefore("rdma_proc 5", 1, 1, 8, 5, 0, 0, 0),
	malformedBefore("rdma_proc 2^32-1", 1, 1, 8, 0xffffffff, 0, 0, 0),
	malformed("RDMA_NOMSG, all lists not present", 1, 1, 8, 1, 0, 0, 0),
	malformedBefore("Read list, discriminator 2", 1, 1, 8, 0, 2, 0, 0),
	malformedBefore("Read list, second discriminator 7", 1, 1, 8, 0, 1, 40, 1, 4, 0, 0, 7, 0, 0),
	malformed("Read list, cut short in a segment", 1, 1, 8, 0, 1, 40, 1),
	malformed("Read list without an end", 1, 1, 8, 0, 1, 40, 1, 4, 0, 0),
	malformedBefore("Write list, discriminator 2", 1, 1, 8, 0, 0, 2, 0),
	malformed("Write list without an end", 1, 1, 8, 0, 0, 1, 1, 1, 4, 0, 0),
	malformed("Write chunk, one segment more than there is", 1, 1, 8, 0, 0, 1, 2, 1, 4, 0, 0, 0, 0),
	malformed("Write chunk of 2^32-1 segments", 1, 1, 8, 0, 0, 1, 0xffffffff, 0, 0),
	malformed("Write chunk of 2^28 segments, whose octets are 2^32", 1, 1, 8, 0, 0, 1, 0x10000000, 0, 0),
	malformedBefore("Reply chunk, discriminator -1", 1, 1, 8, 0, 0, 0, 0xffffffff),
	malformed("Reply chunk, cut short", 1, 1, 8, 0, 0, 0, 1, 1, 1, 4),
	malformed("Reply chunk of 2^31 segments", 1, 1, 8, 0, 0, 0, 1, 0x80000000),
	malformedCall("5 segments short of 1,000 in a Reply chunk", func(*responderCase) [][]byte {
		return [][]byte{words(1, 1, 8, 0, 0, 0, 1, 200), make([]byte, 195*16)}
	}),
	malformedCall("more Write chunks than are taken", func(*responderCase) [][]byte {
		return message(rpcrdma.Msg, getAttrCall(1), func(h *rpcrdma.Header) {
			for range 64 + 1 {
				h.AddWrite(rpcrdma.Segment{Handle: 1, Length: 4})
			}
		})
	}),
	malformedCall("no RPC message behind RDMA_MSG", func(*responderCase) [][]byte {
		return message(rpcrdma.Msg, nil, func(*rpcrdma.Header) {})
	}),
	malformedCall("RDMA_MSG with a Position Zero Read chunk", func(tc *responderCase) [][]byte {
		return message(rpcrdma.Msg, writeOf1000[:writePos], func(h *rpcrdma.Header) { addReads(h, 0, tc.pulled(pattern(1000, 1))) })
	}),
	malformedCall("Read chunk behind the end of the Payload stream", func(tc *responderCase) [][]byte {
		return message(rpcrdma.Msg, writeOf1000[:writePos], func(h *rpcrdma.Header) { addReads(h, writePos+4, tc.pulled(pattern(1000, 1))) })
	}),
	malformedCall("Read chunk at the last Position there is", func(tc *responderCase) [][]byte {
		return message(rpcrdma.Msg, writeOf1000[:writePos], func(h *rpcrdma.Header) { addReads(h, 0xfffffffc, tc.pulled(pattern(1000, 1))) })
	}),
	malformedCall("Read chunks that overlap", func(tc *responderCase) [][]byte {
		// The Payload stream has octets left behind the first chunk.
		m := compoundCall(1, writeOp(pattern(1000, 1)), writeOp(pattern(100, 2)))
		at := bytes.Index(m, pattern(1000, 1))
		return message(rpcrdma.Msg, cut(m, at, 1000), func(h *rpcrdma.Header) {
			addReads(h, at, tc.pulled(pattern(1000, 1)))
			addReads(h, at+500, tc.pulled(pattern(100, 2)))
		})
	}),
	malformedCall("Read chunk of 4 GiB", func(*responderCase) [][]byte {
		return message(rpcrdma.Msg, writeOf1000[:writePos], func(h *rpcrdma.Header) { h.AddRead(uint32(writePos), rpcrdma.Segment{Handle: 1, Length: 0xffffffff}) })
	}),
	malformedCall("Position Zero Read chunk of 4 GiB more than the Call", func(tc *responderCase) [][]byte {
		return message(rpcrdma.NoMsg, nil, func(h *rpcrdma.Header) {
			s := tc.pulled(opaqueCall(1, 9000))[0]
			n := s.Length
			s.Length = 0xffffffff
			h.AddRead(0, s)
			h.AddRead(0, shortened(s, int(n)+1))
		})
	}),
	smallCalls(malformedCall("Position Zero Read chunk of 70,000 octets where Calls have no more than 65,536", func(tc *responderCase) [][]byte {
		return message(rpcrdma.NoMsg, nil, func(h *rpcrdma.Header) { addReads(h, 0, tc.pulled(opaqueCall(1, 70000-40))) })
	})),
	smallCalls(malformedCall("Read chunk of 70,000 octets where Calls have no more than 65,536", func(tc *responderCase) [][]byte {
		m := writeCall(1, pattern(70000, 1))
		return message(rpcrdma.Msg, m[:len(m)-70000], func(h *rpcrdma.Header) { addReads(h, len(m)-70000, tc.pulled(pattern(70000, 1))) })
	})),
	garbageItem("the Payload stream ends before the item's count", func(tc *responderCase) [][]byte {
		return message(rpcrdma.Msg, writeOf1000[:writePos-8], func(h *rpcrdma.Header) { addReads(h, writePos-8, tc.pulled(pattern(1000, 1))) })
	}),
	garbageItem("octets behind the item that do not belong there", func(tc *responderCase) [][]byte {
		return message(rpcrdma.Msg, append(bytes.Clone(writeOf1000[:writePos]), words(1, 2)...), func(h *rpcrdma.Header) { addReads(h, writePos, tc.pulled(pattern(1000, 1))) })
	}),
	garbageItem("a chunk where another item is", func(tc *responderCase) [][]byte {
		return message(rpcrdma.Msg, append(bytes.Clone(writeOf1000[:44]), writeOf1000[76:]...), func(h *rpcrdma.Header) { addReads(h, 44, tc.pulled(writeOf1000[44:76])) })
	}),
}

// malformed returns a rule of Section 4.5.2 about a header of the given words.
func malformed(name string, ws ...uint32) responderRule {
	return malformedCall(name, func(*responderCase) [][]byte { return [][]byte{words(ws...)} })
}

// malformedBefore is like malformed, with a valid Call behind the words. A Responder that
// overlooked the defect would serve the Call, or answer it otherwise.
func malformedBefore(name string, ws ...uint32) responderRule {
	return malformedCall(name, func(*responderCase) [][]byte { return [][]byte{words(ws...), getAttrCall(1)} })
}

// malformedCall returns a rule of Section 4.5.2 about the message that build
// returns.
func malformedCall(name string, build func(tc *responderCase) [][]byte) responderRule {
	return errChunkRule("4.5.2", "an XDR parsing error: MUST reply ERR_CHUNK: "+name, build)
}

// smallCalls returns r for a Responder that takes Calls of 65,536 octets at most.
func smallCalls(r responderRule) responderRule {
	r.setup = func(tc *responderCase) { tc.opts.MaxCall = 64 << 10 }
	return r
}

// garbageItem returns a rule of Section 4.5.2 about a message whose header is
// valid, but whose arguments are not.
func garbageItem(name string, build func(tc *responderCase) [][]byte) responderRule {
	return garbageArgs("4.5.2", "the ULP cannot parse the arguments: SHOULD return GARBAGE_ARGS in RDMA_MSG: "+name, build)
}

// responderFailureRules are the rules of Sections 4.5.3 to 4.6: remote failures and
// procedures that are not used.
var responderFailureRules = []responderRule{
	writes("4.5.3", "a Reply chunk too small for a Long Reply: detected before writing past its end, ERR_CHUNK", writesCase{
		results: []result{longRead}, reply: []int{3000, 3000}, proc: rpcrdma.Error,
	}),
	writes("4.5.3", "a Write chunk too small for its item: ERR_CHUNK, no reply is possible", writesCase{
		results: []result{linkText, longRead}, writes: [][]int{{33}, {6000}}, reply: []int{9000}, proc: rpcrdma.Error,
	}),
	writes("4.5.3", "no Reply chunk for a reply beyond the inline threshold: ERR_CHUNK", writesCase{results: []result{longRead}, proc: rpcrdma.Error}),
	{section: "4.5.3", says: "a memory region that is no longer registered: a Remote Access Error, fatal to the connection", run: staleHandle},
	{section: "4.5.3", says: "a chunk length that exceeds the end of the registered memory region: fatal to the connection, nothing is answered", run: chunkBeyondRegion},
	{section: "4.5.3", says: "a Requester that does not serve RDMA Reads: the memory they are to fill is not lent for ever", run: readsNotServed},
	{section: "4.5.3", says: "a slow Requester, which serves an RDMA Read every 50 s, is waited for", run: readsServedSlowly},
	{section: "4.5", says: "RDMA_ERROR indicates a permanent error: a Call for which there is no memory now waits, and is served", setup: smallMemory, run: memoryLater},
	{section: "4.5.4", says: "unable to construct and transmit a Reply: MUST close the connection: no memory to put it together", setup: smallMemory, run: noMemoryForReply},
	{section: "4.5.4", says: "unable to construct and transmit a Reply: MUST close the connection: nobody answers the Call", same: TestResponderAbort},
	{section: "4.5.4", says: "unable to construct and transmit a Reply: MUST close the connection: the provider takes no more Work Requests", same: TestResponderPostFails},
	errChunkRule("4.6.1", "when receiving RDMA_MSGP, Responders SHOULD reply RDMA_ERROR, ERR_CHUNK", func(*responderCase) [][]byte {
		return message(rpcrdma.MsgP, getAttrCall(1), func(h *rpcrdma.Header) { h.Align, h.Thresh = 4, 64 })
	}),
	silence("4.6.2", "receivers MUST silently discard RDMA_DONE", words(1, 1, 8, 3), words(1, 1, 8, 3, 0, 0, 0), append(words(1, 1, 8, 3, 0, 0, 0), getAttrCall(1)...)),
}

func staleHandle(tc *responderCase) {
	tc.peer.send(0, header(1, 8, rpcrdma.NoMsg, func(h *rpcrdma.Header) { h.AddRead(0, rpcrdma.Segment{Handle: 77, Length: 100}) }))
	tc.wantNoCall("it cannot be read")
	if synctest.Wait(); tc.ended != 1 || tc.endedErr == nil || !tc.c.asked {
		tc.t.Errorf("ended %d times, %v; by the Responder: %v", tc.ended, tc.endedErr, tc.c.asked)
	}
}

func chunkBeyondRegion(tc *responderCase) {
	o := tc.chunk(5000)
	o.segments[0].Length = 9000
	tc.peer.send(0, header(1, 8, rpcrdma.Msg, func(h *rpcrdma.Header) { h.SetReply(o.segments...) }), opaqueCall(1, 8))
	tc.answer(tc.wantCall("a call", opaqueCall(1, 8)), accepted(1, pattern(8000, 1)))
	tc.peer.wantIdle("the Write failed")
	if synctest.Wait(); tc.ended != 1 || tc.endedErr == nil || !tc.c.asked {
		tc.t.Errorf("ended %d times, %v; by the Responder: %v", tc.ended, tc.endedErr, tc.c.asked)
	}
}

func readsNotServed(tc *responderCase) {
	tc.answered()
	tc.holdReads(0)
	used := tc.replies.Used()
	tc.peer.send(0, header(1, 8, rpcrdma.NoMsg, func(h *rpcrdma.Header) { addReads(h, 0, tc.pulled(opaqueCall(1, 60000))) }))
	tc.wantNoCall("it is not here")
	if n := tc.replies.Used(); n < used+60000 {
		tc.t.Errorf("%d octets are lent, %d before", n, used)
	}
	tc.sleep(59 * time.Second)
	tc.wantUp("59 s")
	tc.sleep(62 * time.Second)
	tc.wantEnded("121 s", errReadStall)
	if n := tc.replies.Used(); n >= used {
		tc.t.Errorf("%d octets are lent, %d before", n, used)
	}
}

func readsServedSlowly(tc *responderCase) {
	tc.answered()
	served := tc.holdReads(0)
	m := opaqueCall(1, 60000)
	tc.peer.send(0, header(1, 8, rpcrdma.NoMsg, func(h *rpcrdma.Header) { addReads(h, 0, tc.pulled(m, 1, 2, 3, 40000, 50000)) }))
	for range 6 {
		tc.wantNoCall("it is not here")
		tc.sleep(50 * time.Second)
		tc.wantUp("a Read every 50 s")
		served(1)
	}
	tc.answer(tc.wantCall("in the end", m), accepted(1))
	tc.peer.wantSend("its reply")
	tc.sleep(time.Hour)
	tc.alive()
}

func memoryLater(tc *responderCase) {
	tc.answered()
	hold := tc.hold(64 << 10)
	m := opaqueCall(1, 60000)
	tc.peer.send(0, header(1, 8, rpcrdma.NoMsg, func(h *rpcrdma.Header) { addReads(h, 0, tc.pulled(m)) }))
	tc.wantNoCall("there is no memory")
	tc.peer.wantIdle("and that is no answer")
	hold.Release()
	tc.answer(tc.wantCall("there is memory", m), accepted(1))
	tc.peer.wantSend("its reply")
}

func noMemoryForReply(tc *responderCase) {
	tc.answered()
	o := tc.chunk(8000)
	call := compoundCall(1, readOp(8000))
	tc.peer.send(0, header(1, 8, rpcrdma.Msg, func(h *rpcrdma.Header) { h.AddWrite(o.segments...) }), call)
	x := tc.wantCall("a call", call)
	hold := tc.hold(8 << 10)
	defer hold.Release()
	whole, _ := compoundReply(1, readResult(pattern(8000, 1)))
	tc.answer(x, whole, 30, 70)
	tc.peer.wantIdle("ERR_CHUNK would be for good")
	tc.wantEnded("the reply is lost", regmem.ErrBudget)
}
