package rdmaside

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

func TestRequesterInline(t *testing.T) {
	requesterTest(t, nil, func(tc *requesterCase) {
		tc.send(getAttrCall(0x01020304))
		s := tc.peer.wantSend("a short call goes inline")
		want := append(testkit.Unhex(t, `
			01020304 00000001 00000008 00000000   # XID, version 1, 8 credits requested, RDMA_MSG
			00000000 00000000 00000000            # no Read list, no Write list, no Reply chunk
		`), getAttrCall(0x01020304)...)
		if !bytes.Equal(s.octets, want) {
			t.Errorf("sent\n%x\nwant\n%x", s.octets, want)
		}
		tc.peer.send(0, plain(0x01020304, 4), getAttrReply(0x01020304))
		tc.wantReply("inline", getAttrReply(0x01020304))
		if fmt.Sprint(tc.grants) != "[4]" {
			t.Errorf("grants %v, want one of 4", tc.grants)
		}
	})
}

// All four residues of roundup, with data from one octet to a megabyte.
func TestRequesterReadByWriteChunk(t *testing.T) {
	requesterTest(t, nil, func(tc *requesterCase) {
		for i, n := range []int{8192, 8193, 8194, 8195, 1, 2, 3, 4, 1 << 20} {
			xid := uint32(i + 1)
			asked := max(n, 8000)
			tc.send(readCall(xid, asked))
			s := tc.peer.wantSend("READ goes inline with one Write chunk")
			if s.Proc != rpcrdma.Msg || len(s.Reads) != 0 || len(s.Writes) != 1 || len(s.Writes[0].Segments) != 1 || s.Reply != nil {
				t.Fatalf("header %+v", &s.Header)
			}
			seg := s.Writes[0].Segments[0]
			if int(seg.Length) < asked {
				t.Errorf("Write chunk of %d octets for a READ of %d", seg.Length, asked)
			}
			data := pattern(n, byte(i))
			want, pos := readReply(xid, data)
			tc.peer.write(seg, data)
			tc.wantNotDone("data alone is no reply")
			tc.peer.send(0, header(xid, 8, rpcrdma.Msg, func(h *rpcrdma.Header) { h.AddWrite(shortened(seg, n)) }), cut(want, pos, n))
			tc.wantReply("data, padding and what follows are put together", want)
			tc.wantHandles("the Write chunk is taken back", 0)
		}
	})
}

func TestRequesterReadUnusedChunk(t *testing.T) {
	requesterTest(t, nil, func(tc *requesterCase) {
		tc.send(readCall(1, 8192))
		seg := tc.peer.wantSend("READ").Writes[0].Segments[0]
		failed := accepted(1, words(70, 0)) // NFS3ERR_STALE, no attributes
		tc.peer.send(0, header(1, 8, rpcrdma.Msg, func(h *rpcrdma.Header) { h.AddWrite(shortened(seg, 0)) }), failed)
		tc.wantReply("an unused chunk", failed)

		tc.send(readCall(2, 8192))
		tc.peer.wantSend("READ")
		whole, _ := readReply(2, pattern(100, 1))
		tc.peer.send(0, plain(2, 8), whole)
		tc.wantReply("a responder that ignores the Write list", whole)
		tc.wantHandles("both chunks are taken back", 0)
	})
}

func TestRequesterWriteByReadChunk(t *testing.T) {
	requesterTest(t, nil, func(tc *requesterCase) {
		for i, n := range []int{8192, 8193, 8194, 8195} {
			xid := uint32(i + 1)
			data := pattern(n, byte(i))
			m := writeCall(xid, data)
			tc.send(m)
			s := tc.peer.wantSend("WRITE goes with one Read chunk")
			pos := len(m) - (n+3)&^3
			if s.Proc != rpcrdma.Msg || len(s.Reads) != 1 || len(s.Writes) != 0 || s.Reply != nil {
				t.Fatalf("header %+v", &s.Header)
			}
			if p := int(s.Reads[0].Position); p != pos {
				t.Errorf("position %d, want %d", p, pos)
			}
			if got := int(s.Reads[0].Length); got != n {
				t.Errorf("Read chunk of %d octets, want %d: no roundup", got, n)
			}
			if !bytes.Equal(s.payload, m[:pos]) {
				t.Errorf("payload %x", s.payload)
			}
			if got := tc.peer.read(s.Reads[0].Segment); !bytes.Equal(got, data) {
				t.Error("the Read chunk is not the data")
			}
			reply := accepted(xid, words(0), pattern(100, 1))
			tc.peer.send(0, plain(xid, 8), reply)
			tc.wantReply("WRITE", reply)
			tc.wantHandles("the Read chunk is taken back", 0)
		}
	})
}

func TestRequesterLong(t *testing.T) {
	requesterTest(t, nil, func(tc *requesterCase) {
		for i, n := range []int{4, 3900, 4100, 100_000} {
			xid := uint32(i + 1)
			m := opaqueCall(xid, n)
			tc.send(m)
			s := tc.peer.wantSend("a call of an unknown program")
			if s.Reply == nil || len(s.Reply.Segments) != 2 || len(s.Writes) != 0 {
				t.Fatalf("header %+v: want a Reply chunk", &s.Header)
			}
			if n < 3900 {
				if s.Proc != rpcrdma.Msg || !bytes.Equal(s.payload, m) {
					t.Fatalf("header %+v: want it inline", &s.Header)
				}
			} else if n > 4096 {
				if s.Proc != rpcrdma.NoMsg || len(s.Reads) != 1 || s.Reads[0].Position != 0 || len(s.payload) != 0 {
					t.Fatalf("header %+v: want a Position Zero Read chunk", &s.Header)
				}
				if got := tc.peer.read(s.Reads[0].Segment); !bytes.Equal(got, m) {
					t.Error("the Position Zero Read chunk is not the call")
				}
			}
			reply := accepted(xid, pattern(8*n, 3))
			seg := s.Reply.Segments[0]
			tc.peer.write(seg, reply)
			tc.peer.send(0, header(xid, 8, rpcrdma.NoMsg, func(h *rpcrdma.Header) { h.SetReply(shortened(seg, len(reply))) }))
			tc.wantReply("by Reply chunk", reply)

			// The same Call, answered inline with the Reply chunk unused.
			tc.send(opaqueCall(xid+100, n))
			s = tc.peer.wantSend("again")
			seg = s.Reply.Segments[0]
			reply = accepted(xid+100, pattern(2000, 5))
			tc.peer.send(0, header(xid+100, 8, rpcrdma.Msg, func(h *rpcrdma.Header) { h.SetReply(shortened(seg, 0)) }), reply)
			tc.wantReply("inline", reply)
			tc.wantHandles("chunks are taken back", 0)
		}
	})
}

func TestRequesterThresholds(t *testing.T) {
	for _, tt := range []struct {
		name        string
		priv        rpcrdma.PrivateData
		call, reply int
		rfc8797     bool
	}{
		{"no private data", rpcrdma.PrivateData{}, 1024, 1024, false},
		{"smaller", rpcrdma.PrivateData{SendSize: 2048, RecvSize: 3072}, 3072, 2048, true},
		{"larger", rpcrdma.PrivateData{SendSize: 65536, RecvSize: 65536}, 4096, 4096, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			requesterTest(t, func(tc *requesterCase) { tc.priv = tt.priv }, func(tc *requesterCase) {
				i := tc.r.Info()
				if i.CallInline != tt.call || i.ReplyInline != tt.reply || i.rfc8797 != tt.rfc8797 {
					t.Errorf("thresholds %d and %d, %v", i.CallInline, i.ReplyInline, i.rfc8797)
				}
				tc.send(writeCall(1, pattern(tt.call, 1)))
				if s := tc.peer.wantSend("WRITE"); len(s.Reads) != 1 {
					t.Error("a WRITE beyond the threshold without a Read chunk")
				}
			})
		})
	}
}

func TestRequesterPrivateData(t *testing.T) {
	for _, tt := range []struct{ asked, may, want bool }{{true, true, true}, {true, false, false}, {false, true, false}} {
		setup := func(tc *requesterCase) {
			tc.opts.RemoteInvalidation, tc.opts.ReplyInline = tt.asked, 8192
			if !tt.may {
				tc.provider.KeepHandles()
			}
		}
		requesterTest(t, setup, func(tc *requesterCase) {
			p, ok := rpcrdma.FindPrivateData(tc.peer.conn.Info().PrivateData)
			if want := (rpcrdma.PrivateData{RemoteInvalidation: tt.want, SendSize: 4096, RecvSize: 8192}); !ok || p != want {
				t.Errorf("remote invalidation wanted %v, possible %v: private data %+v, want %+v", tt.asked, tt.may, p, want)
			}
		})
	}
}

// The Requester obeys its grant: RFC 8166 Section 3.3.
func TestRequesterCredits(t *testing.T) {
	requesterTest(t, nil, func(tc *requesterCase) {
		tc.send(getAttrCall(1))
		if err := tc.try(getAttrCall(2)); !errors.Is(err, ErrNoCredit) {
			t.Errorf("second call before the first reply: %v, want ErrNoCredit: RFC 8166 3.3.3", err)
		}
		if tc.r.Free() != 0 || tc.r.Outstanding() != 1 || tc.r.Grant() != 1 {
			t.Errorf("free %d, outstanding %d, grant %d", tc.r.Free(), tc.r.Outstanding(), tc.r.Grant())
		}
		tc.peer.wantSend("the first call")
		tc.peer.wantIdle("one credit until the first Reply")
		tc.peer.send(0, plain(1, 0), getAttrReply(1))
		tc.wantReply("grant of 0", getAttrReply(1))
		if tc.r.Free() != 1 {
			t.Errorf("free %d after a grant of 0, want 1", tc.r.Free())
		}

		tc.send(getAttrCall(3))
		tc.peer.wantSend("a call")
		tc.peer.send(0, plain(3, 0xffffffff), getAttrReply(3))
		tc.wantReply("a huge grant", getAttrReply(3))
		if tc.r.Free() != 8 || tc.r.Grant() != 8 {
			t.Errorf("free %d after a huge grant, want the 8 requested", tc.r.Free())
		}
		for i := range uint32(8) {
			tc.send(getAttrCall(10 + i))
			tc.peer.wantSend("as many as requested")
		}
		if err := tc.try(getAttrCall(30)); !errors.Is(err, ErrNoCredit) {
			t.Errorf("ninth call: %v, want ErrNoCredit", err)
		}
		tc.peer.send(0, plain(10, 3), getAttrReply(10))
		tc.wantReply("the grant shrinks below what is outstanding", getAttrReply(10))
		for i := range uint32(5) {
			if err := tc.try(getAttrCall(40 + i)); !errors.Is(err, ErrNoCredit) {
				t.Errorf("%d outstanding, 3 granted: %v", tc.r.Outstanding(), err)
			}
			tc.peer.send(0, plain(11+i, 3), getAttrReply(11+i))
			tc.wantReply("one less", getAttrReply(11+i))
		}
		tc.send(getAttrCall(50))
		if err := tc.try(getAttrCall(51)); !errors.Is(err, ErrNoCredit) {
			t.Errorf("%d outstanding, 3 granted: %v", tc.r.Outstanding(), err)
		}
		if fmt.Sprint(tc.grants) != "[8 3]" {
			t.Errorf("grants %v, want 8 and 3", tc.grants)
		}
		if n := tc.provider.Counts(tc.r.conn); n.LowReceives < 8 {
			t.Errorf("only %d Receives posted when a reply came", n.LowReceives)
		}
	})
}

func TestRequesterDeadline(t *testing.T) {
	requesterTest(t, func(tc *requesterCase) { tc.opts.Deadline = time.Minute }, func(tc *requesterCase) {
		tc.open(8)
		tc.sleep(50 * time.Second)
		tc.send(getAttrCall(1))
		tc.sleep(20 * time.Second)
		tc.send(readCall(2, 65536))
		tc.wantUp("the timer of an answered call does not end the connection")
		tc.sleep(39 * time.Second)
		tc.wantUp("59 s")
		tc.sleep(2 * time.Second)
		tc.wantEnded("61 s", ErrDeadline)
		tc.wantFate("the call that passed its deadline", 1, InLimbo, ErrDeadline)
		tc.wantFate("and the one beside it", 2, InLimbo, ErrDeadline)
		if fmt.Sprint(tc.grants) != "[0]" {
			t.Errorf("grants %v, want 0 before the calls end", tc.grants)
		}
		if err := tc.try(getAttrCall(3)); !errors.Is(err, ErrClosed) {
			t.Errorf("Send on an ended connection: %v", err)
		}
	})
}

// Every Call completes once, in any state that it is in when the connection is
// lost.
func TestRequesterLoss(t *testing.T) {
	lost := errors.New("cable cut")
	for _, async := range []bool{false, true} {
		requesterTest(t, nil, func(tc *requesterCase) {
			tc.open(8)
			tc.send(getAttrCall(1))                 // answered
			tc.send(getAttrCall(2))                 // sent, inline
			tc.send(readCall(3, 65536))             // sent, chunk half written
			tc.send(writeCall(4, pattern(9000, 1))) // sent, chunk read
			tc.send(opaqueCall(5, 100))             // sent, Reply chunk
			tc.peer.send(0, plain(1, 8), getAttrReply(1))
			tc.wantReply("before the loss", getAttrReply(1))
			tc.peer.wantSend("1")
			tc.peer.wantSend("2")
			tc.peer.write(tc.peer.wantSend("3").Writes[0].Segments[0], pattern(100, 1))
			tc.peer.read(tc.peer.wantSend("4").Reads[0].Segment)
			tc.peer.wantSend("5")
			tc.provider.AsyncInvalidate(async)
			if async {
				// The Reply is here, but its handle is not invalidated yet.
				tc.provider.Inject(func(op fabrictest.Operation) fabrictest.Verdict { return fabrictest.Pass })
				tc.provider.HoldCompletions(tc.r.conn, true)
			}
			// Posted but not started. The Requester cannot tell such a Send from
			// one that was started.
			tc.provider.Inject(func(op fabrictest.Operation) fabrictest.Verdict {
				if op.Dialed {
					return fabrictest.Hold
				}
				return fabrictest.Pass
			})
			tc.send(getAttrCall(6))
			tc.provider.Break(tc.r.conn, lost)
			tc.wantEnded("the loss", lost)
			for xid := range uint32(5) {
				tc.wantFate("lost", xid+2, InLimbo, lost)
			}
			tc.wantNotDone("each ends once")
			if fmt.Sprint(tc.grants) != "[0]" {
				t.Errorf("grants %v, want 0 before the calls end", tc.grants)
			}
		})
	}
}

// The XIDs of the two directions are independent: RFC 8167.
func TestRequesterReverseCall(t *testing.T) {
	requesterTest(t, nil, func(tc *requesterCase) {
		tc.send(getAttrCall(5))
		tc.peer.wantSend("a call")
		callback := words(5, 0, 2, 0x40000000, 1, 1, 0, 0, 0, 0)
		tc.peer.send(0, plain(5, 2), callback)
		s := tc.peer.wantSend("the reverse call is answered")
		want := testkit.Unhex(t, `
			00000005 00000001 00000004 00000000 00000000 00000000 00000000  # 4 credits
			00000005 00000001 00000000 00000000 00000000 00000001           # PROG_UNAVAIL
		`)
		if !bytes.Equal(s.octets, want) {
			t.Errorf("sent\n%x\nwant\n%x", s.octets, want)
		}
		tc.wantNotDone("the XID is that of a pending call, but not the direction")
		if tc.opts.Metrics.reverseCalls.Value() != 1 {
			t.Error("not counted")
		}
		for range 20 {
			tc.peer.send(0, plain(5, 2), callback)
			tc.peer.wantSend("again")
		}
		tc.peer.send(0, plain(5, 8), getAttrReply(5))
		tc.wantReply("the forward call", getAttrReply(5))
	})
}

func TestRequesterCloseByPeer(t *testing.T) {
	requesterTest(t, nil, func(tc *requesterCase) {
		tc.send(getAttrCall(1))
		fabrictest.Do(tc.peerLoop, func() { tc.peer.conn.Close(nil) })
		tc.wantEnded("closed by peer", io.EOF)
		tc.wantFate("closed by peer", 1, InLimbo, io.EOF)
	})
}

func TestRequesterDialFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, 1<<20)
		defer b.strike()
		o := requesterOptions(RequesterOptions{Memory: b.replies, Registry: newRegistry()})
		if _, err := DialRequester(context.Background(), b.provider, b.loop, "nowhere", o, nil); err == nil {
			t.Error("connected to nowhere")
		}
		l, _ := b.provider.Listen("there", fabrictest.NoLimits(), func(in fabric.Incoming) {
			_, _ = in.Accept(context.Background(), b.peerLoop, fabric.ConnOptions{}, &fakePeer{bed: b})
		})
		defer l.Close()
		// 134 Receives of 16 KiB do not fit into 1 MiB.
		if _, err := DialRequester(context.Background(), b.provider, b.loop, "there", o, nil); err == nil {
			t.Error("connected without memory")
		}
		synctest.Wait()
	})
}
