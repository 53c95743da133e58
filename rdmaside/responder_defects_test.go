package rdmaside

import (
	"bytes"
	"testing"
	"testing/synctest"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// A defectAnswer is how a Responder must react to a callDefect.
type defectAnswer int

const (
	defectSilence  defectAnswer = iota
	defectErrVers               // RDMA_ERROR, ERR_VERS
	defectErrChunk              // RDMA_ERROR, ERR_CHUNK
	defectGarbage               // an RPC Reply with GARBAGE_ARGS
	defectMismatch
	defectBadCred // AUTH_BADCRED
	defectBadVerf // AUTH_BADVERF
	defectClose   // the connection is closed
)

// A callDefect is a message that is no Call that a Responder can execute: the
// octets raw, or a header of the procedure proc, which edit changes, and payload.
type callDefect struct {
	name    string
	proc    rpcrdma.Proc
	edit    func(tc *responderCase, h *rpcrdma.Header)
	payload []byte
	raw     []byte
	want    defectAnswer
}

// offerReads offers Read chunks of the given lengths at pos.
func offerReads(pos int, lengths ...int) func(tc *responderCase, h *rpcrdma.Header) {
	return func(tc *responderCase, h *rpcrdma.Header) {
		for _, n := range lengths {
			addReads(h, pos, tc.pulled(make([]byte, n)))
		}
	}
}

func offerNone(*responderCase, *rpcrdma.Header) {}

// protectedWrite is writeOf1000 under RPCSEC_GSS integrity.
var protectedWrite = append(words(1, 0, 2, oncrpc.ProgramNFS, 3, procWrite, 6, 20, 1, 0, 1, 2, 0, 0, 0), writeOf1000[40:]...)

var callDefects = []callDefect{
	{name: "nothing", raw: []byte{}, want: defectSilence},
	{name: "27 octets", raw: plain(1, 8)[:27], want: defectSilence},
	{name: "version 2", raw: words(1, 2, 8, 0, 0, 0, 0), want: defectErrVers},
	{name: "procedure 5", raw: words(1, 1, 8, 5, 0, 0, 0), want: defectErrChunk},
	{name: "a list without end", raw: words(1, 1, 8, 0, 1, 40, 1), want: defectErrChunk},
	{name: "a list of 4 billion segments", raw: words(1, 1, 8, 0, 0, 1, 0xffffffff), want: defectErrChunk},
	{name: "position 3", proc: rpcrdma.Msg, edit: offerReads(writePos+3, 1000), payload: writeOf1000[:writePos], want: defectErrChunk},
	{name: "RDMA_MSGP", proc: rpcrdma.MsgP, edit: offerNone, payload: getAttrCall(1), want: defectErrChunk},
	{name: "RDMA_DONE", proc: rpcrdma.Done, edit: offerNone, want: defectSilence},
	{name: "RDMA_ERROR", proc: rpcrdma.Error, edit: func(_ *responderCase, h *rpcrdma.Header) { h.Err = rpcrdma.ErrChunk }, want: defectSilence},
	{name: "RDMA_NOMSG without chunks", raw: words(1, 1, 8, 1, 0, 0, 0), want: defectErrChunk},
	{name: "RDMA_NOMSG without a Read list", proc: rpcrdma.NoMsg, edit: func(tc *responderCase, h *rpcrdma.Header) {
		h.SetReply(rpcrdma.Segment{Handle: 1, Length: 5000})
	}, want: defectErrChunk},
	{name: "RDMA_NOMSG with a payload", proc: rpcrdma.NoMsg, edit: offerReads(0, 1000), payload: writeOf1000, want: defectErrChunk},
	{name: "RDMA_MSG with a Position Zero Read chunk", proc: rpcrdma.Msg, edit: offerReads(0, 1000), payload: writeOf1000[:writePos], want: defectErrChunk},
	{name: "position behind the payload", proc: rpcrdma.Msg, edit: offerReads(writePos+4, 1000), payload: writeOf1000[:writePos], want: defectErrChunk},
	{name: "position in the last octets of 32 bits", proc: rpcrdma.Msg, edit: offerReads(0xfffffffc, 1000), payload: writeOf1000[:writePos], want: defectErrChunk},
	{name: "overlap", proc: rpcrdma.Msg, edit: func(tc *responderCase, h *rpcrdma.Header) {
		offerReads(writePos, 1000)(tc, h)
		offerReads(writePos+500, 100)(tc, h)
	}, payload: writeOf1000[:writePos], want: defectErrChunk},
	{name: "4 GiB", proc: rpcrdma.Msg, edit: func(tc *responderCase, h *rpcrdma.Header) {
		h.AddRead(uint32(writePos), rpcrdma.Segment{Handle: 1, Length: 0xffffffff})
	}, payload: writeOf1000[:writePos], want: defectErrChunk},
	{name: "16 times 4 GiB", proc: rpcrdma.NoMsg, edit: func(tc *responderCase, h *rpcrdma.Header) {
		for range 16 {
			h.AddRead(0, rpcrdma.Segment{Handle: 1, Length: 0xffffffff})
		}
	}, want: defectErrChunk},
	{name: "another XID inside", proc: rpcrdma.Msg, edit: offerNone, payload: getAttrCall(2), want: defectErrChunk},
	{name: "another XID in the Position Zero Read chunk", proc: rpcrdma.NoMsg, edit: func(tc *responderCase, h *rpcrdma.Header) {
		addReads(h, 0, tc.pulled(getAttrCall(2)))
	}, want: defectErrChunk},
	{name: "no payload", proc: rpcrdma.Msg, edit: offerNone, want: defectErrChunk},
	{name: "an empty Position Zero Read chunk", proc: rpcrdma.NoMsg, edit: func(tc *responderCase, h *rpcrdma.Header) {
		h.AddRead(0, rpcrdma.Segment{Handle: 1})
	}, want: defectErrChunk},
	{name: "a chunk that is longer than its item", proc: rpcrdma.Msg, edit: offerReads(writePos, 1004), payload: writeOf1000[:writePos], want: defectGarbage},
	{name: "a chunk that is shorter", proc: rpcrdma.Msg, edit: offerReads(writePos, 900), payload: writeOf1000[:writePos], want: defectGarbage},
	{name: "a chunk where no item is", proc: rpcrdma.Msg, edit: offerReads(44, 32), payload: append(writeOf1000[:44:44], writeOf1000[76:]...), want: defectGarbage},
	{name: "two chunks, one where no item is", proc: rpcrdma.Msg, edit: func(tc *responderCase, h *rpcrdma.Header) {
		offerReads(writePos, 1000)(tc, h)
		offerReads(8, 4)(tc, h)
	}, payload: writeOf1000[:writePos], want: defectMismatch},
	{name: "a chunk of a protected call", proc: rpcrdma.Msg, edit: offerReads(writePos+20, 1000), payload: protectedWrite[:writePos+20], want: defectErrChunk},
	{name: "a reply", proc: rpcrdma.Msg, edit: offerNone, payload: getAttrReply(1), want: defectSilence},
	{name: "RPC version 3", proc: rpcrdma.Msg, edit: offerNone, payload: append(words(1, 0, 3), getAttrCall(1)[12:]...), want: defectMismatch},
	{name: "half an RPC header", proc: rpcrdma.Msg, edit: offerNone, payload: getAttrCall(1)[:30], want: defectGarbage},
	{name: "XID and direction", proc: rpcrdma.Msg, edit: offerNone, payload: getAttrCall(1)[:8], want: defectGarbage},
	{name: "an XID alone", proc: rpcrdma.Msg, edit: offerNone, payload: getAttrCall(1)[:4], want: defectClose},
	{name: "no direction", proc: rpcrdma.Msg, edit: offerNone, payload: append(words(1, 2), getAttrCall(1)[8:]...), want: defectClose},
	{name: "a credential without end", proc: rpcrdma.Msg, edit: offerNone, payload: words(1, 0, 2, 100003, 3, 0, 1, 400, 0, 0, 0, 0), want: defectGarbage},
	{name: "a GSS credential without end", proc: rpcrdma.Msg, edit: offerNone, payload: words(1, 0, 2, 100003, 3, 0, 6, 400, 0, 0, 0, 0), want: defectBadCred},
	{name: "a credential of 404 octets", proc: rpcrdma.Msg, edit: offerNone, payload: append(words(1, 0, 2, 100003, 3, 0, 1, 404), make([]byte, 412)...), want: defectBadCred},
	{name: "a verifier of 404 octets", proc: rpcrdma.Msg, edit: offerNone, payload: append(words(1, 0, 2, 100003, 3, 0, 0, 0, 0, 404), make([]byte, 404)...), want: defectBadVerf},
	{name: "a verifier of 404 octets in a Long Call", proc: rpcrdma.NoMsg, edit: func(tc *responderCase, h *rpcrdma.Header) {
		addReads(h, 0, tc.pulled(append(words(1, 0, 2, 100003, 3, 0, 0, 0, 0, 404), make([]byte, 404)...)))
	}, want: defectBadVerf},
	{name: "a credential of 404 octets before a Read chunk", proc: rpcrdma.Msg, edit: offerReads(writePos, 1000), payload: append(words(1, 0, 2, 100003, 3, 7, 1, 404), make([]byte, 412)...), want: defectBadCred},
	{name: "another XID inside, before a Read chunk", proc: rpcrdma.Msg, edit: offerReads(writePos, 1000), payload: append(words(2, 0, 2, 100003, 3, 7, 1, 404), make([]byte, 412)...), want: defectErrChunk},
	{name: "a handle that is none", proc: rpcrdma.NoMsg, edit: func(tc *responderCase, h *rpcrdma.Header) {
		h.AddRead(0, rpcrdma.Segment{Handle: 1, Length: 100})
	}, want: defectClose},
	{name: "longer than the Receive", raw: make([]byte, 5000), want: defectClose},
}

// run sends the defect and checks the reaction, and that the connection goes on.
func (d *callDefect) run(tc *responderCase) {
	octets := d.raw
	if octets == nil {
		octets = header(1, 8, d.proc, func(h *rpcrdma.Header) { d.edit(tc, h) })
	}
	tc.peer.send(0, octets, d.payload)
	tc.wantNoCall("it is no call")
	switch d.want {
	case defectSilence:
		tc.peer.wantIdle("RFC 8166 Section 4.5")
	case defectErrVers:
		tc.wantError(d.name, 1, rpcrdma.ErrVers)
	case defectErrChunk:
		tc.wantError(d.name, 1, rpcrdma.ErrChunk)
	case defectGarbage:
		s := tc.peer.wantSend(d.name)
		if want := accepted(1); s.Proc != rpcrdma.Msg || !bytes.Equal(s.payload, append(want[:20], 0, 0, 0, 4)) {
			tc.t.Fatalf("%+v %x, want GARBAGE_ARGS", &s.Header, s.payload)
		}
	case defectMismatch:
		if s := tc.peer.wantSend(d.name); s.Proc != rpcrdma.Msg || !bytes.Equal(s.payload, words(1, 1, 1, 0, 2, 2)) {
			tc.t.Fatalf("%+v %x, want RPC_MISMATCH", &s.Header, s.payload)
		}
	case defectBadCred, defectBadVerf:
		stat := uint32(oncrpc.AuthBadCredential)
		if d.want == defectBadVerf {
			stat = oncrpc.AuthBadVerifier
		}
		if s := tc.peer.wantSend(d.name); s.Proc != rpcrdma.Msg || !bytes.Equal(s.payload, words(1, 1, 1, 1, stat)) {
			tc.t.Fatalf("%+v %x, want auth_stat %d", &s.Header, s.payload, stat)
		}
	case defectClose:
		tc.peer.wantIdle("no answer")
		synctest.Wait()
		if tc.ended != 1 || tc.endedErr == nil {
			tc.t.Errorf("ended %d times, %v", tc.ended, tc.endedErr)
		}
		return
	}
	tc.wantUp(d.name)
	n := tc.provider.Counts(tc.c.conn)
	if n.Receives != 10 || tc.c.Outstanding() != 0 {
		tc.t.Errorf("%d Receives posted, %d calls outstanding", n.Receives, tc.c.Outstanding())
	}
	tc.peer.send(0, plain(3, 8), getAttrCall(3))
	tc.answer(tc.wantCall("a good call", getAttrCall(3)), getAttrReply(3))
	if s := tc.peer.wantSend("its reply"); s.Credits != 8 {
		tc.t.Errorf("%d credits", s.Credits)
	}
}

// A Responder answers, discards, or closes the connection as RFC 8166 Section 4.5
// says.
func TestResponderDefects(t *testing.T) {
	for _, tt := range callDefects {
		t.Run(tt.name, func(t *testing.T) {
			responderTest(t, nil, tt.run)
		})
	}
}
