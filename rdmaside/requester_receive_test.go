package rdmaside

import (
	"bytes"
	"errors"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// An inline Reply longer than copyBelow keeps its Receive buffer, which is
// replaced at once.
// TestRequesterBeside: a Reply that fits behind its Call's message lies there, and takes no memory of its own. The
// message stays as it was. A longer Reply has memory of its own, and so has what came in a chunk.
func TestRequesterBeside(t *testing.T) {
	requesterTest(t, func(tc *requesterCase) { tc.spare, tc.opts.Take = 256, nil }, func(tc *requesterCase) {
		for i, n := range []int{100, 256 - 24, 256 - 20} {
			xid := uint32(i + 1)
			m := getAttrCall(xid)
			tc.onDone = func(c *Call, _ *CallError) {
				if !bytes.Equal(c.Message, m) {
					t.Errorf("a Reply of %d octets has changed its Call", n+24)
				}
			}
			idle := tc.replies.Outstanding()
			tc.onReply = func(c *Call) {
				fits, leases := n+24 <= 256, 0
				if !fits {
					leases = 1
				}
				if got := tc.replies.Outstanding() - idle; c.Reply.Beside() != fits || got != leases {
					t.Errorf("a Reply of %d octets: beside %v, and %d leases", n+24, c.Reply.Beside(), got)
				}
				if held := c.Reply.Held(); fits && held != 0 || !fits && held < n+24 {
					t.Errorf("a Reply of %d octets holds %d", n+24, held)
				}
			}
			tc.send(m)
			tc.peer.wantSend("GETATTR")
			reply := accepted(xid, pattern(n, 7))
			tc.peer.send(0, plain(xid, 8), reply)
			tc.wantReply("beside the Call or not", reply)
		}
		const n = 8000
		tc.onDone, tc.onReply = nil, func(c *Call) {
			if held := c.Reply.Held(); !c.Reply.Beside() || held != regmem.BlockSize(n) {
				t.Errorf("a READ: beside %v, holds %d", c.Reply.Beside(), held)
			}
		}
		tc.send(readCall(9, n))
		seg := tc.peer.wantSend("READ").Writes[0].Segments[0]
		data := pattern(n, 1)
		want, pos := readReply(9, data)
		tc.peer.write(seg, data)
		tc.peer.send(0, header(9, 8, rpcrdma.Msg, func(h *rpcrdma.Header) { h.AddWrite(shortened(seg, n)) }), cut(want, pos, n))
		tc.wantReply("what surrounds the data lies beside the Call", want)
	})
}

func TestRequesterKeepsLongInline(t *testing.T) {
	requesterTest(t, nil, func(tc *requesterCase) {
		for i, n := range []int{copyBelow - 24, copyBelow - 20, 3000, 12000} {
			xid := uint32(i + 1)
			tc.send(getAttrCall(xid))
			tc.peer.wantSend("GETATTR")
			reply := accepted(xid, pattern(n, 7))
			tc.peer.send(0, plain(xid, 8), reply)
			tc.wantReply("a peer may send more than the threshold", reply)
			if got, want := tc.provider.Counts(tc.r.conn).Receives, len(tc.r.recvs.buffers); got != want {
				t.Errorf("%d Receives posted, want %d", got, want)
			}
		}
	})
}

func TestRequesterRemoteInvalidation(t *testing.T) {
	setup := func(tc *requesterCase) { tc.opts.RemoteInvalidation = true }
	requesterTest(t, setup, func(tc *requesterCase) {
		tc.send(writeCall(1, pattern(9000, 1)))
		s := tc.peer.wantSend("WRITE")
		reply := accepted(1, words(0), pattern(100, 1))
		tc.peer.send(fabric.Handle(s.Reads[0].Handle), plain(1, 8), reply)
		tc.wantReply("the peer invalidated the handle", reply)
		tc.wantHandles("it is dead", 0)
	})
	// S13: the Responder invalidates a handle of another Call.
	requesterTest(t, setup, func(tc *requesterCase) {
		tc.open(8)
		tc.send(writeCall(1, pattern(9000, 1)))
		tc.send(getAttrCall(2))
		s := tc.peer.wantSend("WRITE")
		tc.peer.send(fabric.Handle(s.Reads[0].Handle), plain(2, 8), getAttrReply(2))
		tc.wantEnded("the handle is not that call's", errInvalidReply)
		tc.wantFate("the call whose handle it was", 1, InLimbo, errInvalidReply)
		tc.wantFate("the call that was answered, and is not sent again", 2, Answered, errInvalidReply)
		if tc.opts.Metrics.refusals[reasonHandle].Value() != 1 {
			t.Error("not counted")
		}
	})
	// The Responder invalidates a handle with a message that answers no Call.
	requesterTest(t, setup, func(tc *requesterCase) {
		tc.send(writeCall(1, pattern(9000, 1)))
		s := tc.peer.wantSend("WRITE")
		tc.peer.send(fabric.Handle(s.Reads[0].Handle), plain(77, 8), getAttrReply(77))
		tc.wantEnded("a stray message invalidates nothing", errInvalidReply)
	})
}

func TestRequesterErrors(t *testing.T) {
	requesterTest(t, nil, func(tc *requesterCase) {
		tc.send(opaqueCall(1, 9000))
		tc.peer.wantSend("a call")
		tc.peer.send(0, testkit.Unhex(t, `
			00000001 00000001 00000006 00000004   # XID 1, version 1, 6 credits, RDMA_ERROR
			00000002                              # ERR_CHUNK
		`))
		tc.wantFate("ERR_CHUNK", 1, Answered, errChunk)
		tc.wantUp("ERR_CHUNK is about one call")
		tc.wantHandles("both are taken back", 0)
		if tc.r.Grant() != 6 {
			t.Errorf("grant %d, want that of the error", tc.r.Grant())
		}

		tc.send(getAttrCall(2))
		tc.send(getAttrCall(3))
		tc.peer.send(0, testkit.Unhex(t, `
			00000002 00000001 00000005 00000004
			00000001 00000002 00000003            # ERR_VERS, 2 to 3
		`))
		tc.wantFate("ERR_VERS", 2, Answered, errVersion)
		tc.wantNotDone("the peer has answered other Calls: it speaks version 1")
		tc.alive()
		tc.peer.send(0, plain(3, 8), getAttrReply(3))
		tc.wantReply("the other", getAttrReply(3))
	})
	// The first answer is ERR_VERS.
	requesterTest(t, nil, func(tc *requesterCase) {
		tc.send(getAttrCall(2))
		tc.peer.send(0, words(2, 1, 6, 4, 1, 2, 3))
		tc.wantEnded("nothing can be said to this peer", errVersion)
		tc.wantFate("ERR_VERS", 2, Answered, errVersion)
	})
}

// Messages that are discarded are counted, and have no other effect.
func TestRequesterDrops(t *testing.T) {
	requesterTest(t, nil, func(tc *requesterCase) {
		tc.open(8)
		tc.send(getAttrCall(1))
		tc.peer.wantSend("a call")
		m := tc.opts.Metrics
		for _, tt := range []struct {
			name    string
			octets  []byte
			counter *metrics.Counter
		}{
			{"nothing", nil, m.droppedHeader},
			{"27 octets", plain(1, 8)[:27], m.droppedHeader},
			{"an XID of no call", append(plain(2, 8), getAttrReply(2)...), m.droppedStray},
			{"an error for no call", header(9, 8, rpcrdma.Error, func(h *rpcrdma.Header) { h.SetError(9, 1, 8, rpcrdma.ErrChunk) }), m.droppedStray},
			{"an error that cannot be decoded", append(plain(1, 8)[:12], words(4, 99)...), m.droppedHeader},
			{"RDMA_DONE", header(1, 8, rpcrdma.Done), m.droppedProc},
			{"RDMA_MSGP", header(1, 8, rpcrdma.MsgP), m.droppedProc},
			{"version 2, no call's", words(5, 2, 8, 0, 0, 0, 0), m.droppedHeader},
			{"version 2", append(words(1, 2, 8, 0, 0, 0, 0), getAttrReply(1)...), m.droppedHeader},
			{"procedure 5", append(words(1, 1, 8, 5, 0, 0, 0), getAttrReply(1)...), m.droppedHeader},
			{"list cut short", words(1, 1, 8, 0, 0, 1, 1), m.droppedHeader},
			{"huge segment count", words(1, 1, 8, 0, 0, 1, 0xffffffff, 0, 0), m.droppedHeader},
		} {
			before := tt.counter.Value()
			tc.peer.send(0, tt.octets)
			tc.wantNotDone(tt.name)
			tc.wantUp(tt.name)
			if tt.counter.Value() != before+1 {
				t.Errorf("%s: not counted", tt.name)
			}
			if got, want := tc.provider.Counts(tc.r.conn).Receives, len(tc.r.recvs.buffers); got != want {
				t.Fatalf("%s: %d Receives posted, want %d", tt.name, got, want)
			}
		}
		if tc.r.Grant() != 8 {
			t.Errorf("grant %d: only a valid reply may change it", tc.r.Grant())
		}
		tc.peer.send(0, plain(1, 8), getAttrReply(1))
		tc.wantReply("after all that", getAttrReply(1))
	})
}

// Held Replies keep their Receive buffers. The Requester stops sending before it
// has fewer Receives than it needs.
func TestRequesterHeldReplies(t *testing.T) {
	requesterTest(t, func(tc *requesterCase) {
		tc.replies = tc.arena.Account("small", 300<<10)
		tc.opts.Memory = tc.replies
	}, func(tc *requesterCase) {
		tc.open(8)
		held := &holder{}
		xid := uint32(100)
		var err error
		for range 100 {
			xid++
			c := &Call{XID: xid, Message: tc.lend(getAttrCall(xid)), Owner: held}
			var parsed oncrpc.Call
			_ = oncrpc.ParseCall(c.Message, &parsed)
			c.Binding = tc.opts.Registry.Analyse(&parsed, &c.Analysis)
			tc.loop.Do(func() { err = tc.r.Send(c) })
			if err != nil {
				break
			}
			tc.peer.send(0, plain(xid, 8), accepted(xid, pattern(4000, 1)))
		}
		if !errors.Is(err, ErrNoMemory) {
			t.Fatalf("after %d held replies: %v, want ErrNoMemory", len(held.calls), err)
		}
		if n := tc.provider.Counts(tc.r.conn).Receives; n < 1 {
			t.Errorf("%d Receives left", n)
		}
		tc.wantUp("want of memory is no error of the connection")
		for _, c := range held.calls {
			c.Reply.Release()
		}
		tc.send(getAttrCall(1))
		tc.peer.send(0, plain(1, 8), getAttrReply(1))
		tc.wantReply("after the replies were released", getAttrReply(1))
	})
}

type holder struct{ calls []*Call }

func (h *holder) CallDone(c *Call, err *CallError) {
	if err == nil {
		h.calls = append(h.calls, c)
	}
}
