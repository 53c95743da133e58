package rdmaside

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// A requesterCase is a Requester and a fake Responder in a bubble.
type requesterCase struct {
	*bed
	opts RequesterOptions
	priv rpcrdma.PrivateData
	peer *fakePeer
	r    *Requester
	logs bytes.Buffer
	reg  *metrics.Registry

	// Written by callbacks on the loop; read after synctest.Wait.
	done     []doneCall
	grants   []int
	ended    int
	endedErr error
	onDone   func(c *Call, err *CallError)
	outcomes []string // the fates of all Calls
}

type doneCall struct {
	xid   uint32
	err   *CallError
	plain []byte
}

func (tc *requesterCase) CallDone(c *Call, err *CallError) {
	d := doneCall{xid: c.XID, err: err}
	outcome := "answered"
	if err != nil {
		outcome = err.Fate.String()
	}
	tc.outcomes = append(tc.outcomes, outcome)
	if tc.ended > 0 {
		tc.t.Error("CallDone after Ended")
	}
	if err == nil {
		d.plain = bytes.Join(c.Reply.Parts(), nil)
		if len(d.plain) == 0 || len(d.plain)%4 != 0 {
			tc.t.Errorf("a Reply of %d octets", len(d.plain))
		}
		// A Reply may hold a Receive buffer, and a chunk that is not much longer
		// than its content.
		if n, most := c.Reply.Held(), 20<<10+max(4*len(d.plain), len(d.plain)/shrinkBelow<<30); n > most {
			tc.t.Errorf("a Reply of %d octets holds %d", len(d.plain), n)
		}
		c.Reply.Release()
	} else if len(c.Reply.Parts()) != 0 {
		tc.t.Error("a failed call has a Reply")
	}
	tc.done = append(tc.done, d)
	if tc.onDone != nil {
		tc.onDone(c, err)
	}
}

func (tc *requesterCase) Granted(_ *Requester, grant int) { tc.grants = append(tc.grants, grant) }

func (tc *requesterCase) Ended(_ *Requester, err error) {
	tc.ended++
	tc.endedErr = err
}

// requesterTest runs f in a bubble with a connected Requester.
func requesterTest(t *testing.T, setup func(tc *requesterCase), f func(tc *requesterCase)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		tc := &requesterCase{bed: newBed(t, 32<<20)}
		defer tc.strike()
		tc.reg = metrics.New()
		tc.opts = requesterOptions(RequesterOptions{
			Memory: tc.replies, Registry: newRegistry(), Credits: 8,
			Log: zerolog.New(&tc.logs), Metrics: NewRequesterMetrics(tc.reg, "test"),
		})
		tc.priv = rpcrdma.PrivateData{SendSize: 4096, RecvSize: 4096}
		if setup != nil {
			setup(tc)
		}
		tc.peer = &fakePeer{bed: tc.bed, receives: 64}
		l, err := tc.provider.Listen("server", fabric.ListenOptions{}, func(in fabric.Incoming) {
			o := fabric.ConnOptions{ORD: 16}
			if tc.priv.SendSize != 0 {
				o.PrivateData = rpcrdma.AppendPrivateData(nil, tc.priv)
			}
			if _, err := in.Accept(context.Background(), tc.peerLoop, o, tc.peer); err != nil {
				t.Error(err)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if tc.r, err = DialRequester(context.Background(), tc.provider, tc.loop, "server", tc.opts, tc); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		f(tc)
		tc.loop.Do(func() { tc.r.Close(nil) })
		synctest.Wait()
		if tc.ended != 1 {
			t.Errorf("Ended was called %d times", tc.ended)
		}
		if n := tc.r.Outstanding(); n != 0 {
			t.Errorf("%d calls outstanding at the end", n)
		}
	})
}

// try sends the Call m and returns Send's error.
func (tc *requesterCase) try(m []byte) error {
	tc.t.Helper()
	c := &Call{Message: tc.lend(m), Owner: tc}
	var parsed oncrpc.Call
	if err := oncrpc.ParseCall(c.Message, &parsed); err != nil {
		tc.t.Fatal(err)
	}
	c.XID = parsed.XID
	c.Binding = tc.opts.Registry.Analyse(&parsed, &c.Analysis)
	var err error
	tc.loop.Do(func() { err = tc.r.Send(c) })
	synctest.Wait()
	return err
}

// sleep lets time pass. The race detector must see that the test's reads so far
// come before what the loop does meanwhile.
func (tc *requesterCase) sleep(d time.Duration) {
	tc.loop.Do(func() {})
	time.Sleep(d)
}

func (tc *requesterCase) send(m []byte) {
	tc.t.Helper()
	if err := tc.try(m); err != nil {
		tc.t.Fatalf("Send: %v", err)
	}
}

// open raises the grant to n with one exchange of GETATTR.
func (tc *requesterCase) open(n uint32) {
	tc.t.Helper()
	tc.send(getAttrCall(0xfeed))
	tc.peer.wantSend("the first call")
	tc.peer.send(0, plain(0xfeed, n), getAttrReply(0xfeed))
	tc.wantReply("the first call is answered", getAttrReply(0xfeed))
	tc.grants = nil
}

func (tc *requesterCase) nextDone(why string) doneCall {
	tc.t.Helper()
	synctest.Wait()
	if len(tc.done) == 0 {
		tc.t.Fatalf("no call is done; want: %s", why)
	}
	d := tc.done[0]
	tc.done = tc.done[1:]
	return d
}

func (tc *requesterCase) wantReply(why string, plain []byte) {
	tc.t.Helper()
	d := tc.nextDone(why)
	if d.err != nil {
		tc.t.Fatalf("%s: %v", why, d.err)
	}
	if !bytes.Equal(d.plain, plain) {
		tc.t.Fatalf("%s: reply of %d octets\n%x\nwant %d\n%x", why, len(d.plain), head(d.plain), len(plain), head(plain))
	}
}

func head(b []byte) []byte { return b[:min(len(b), 256)] }

func (tc *requesterCase) wantFate(why string, xid uint32, fate Fate, is error) {
	tc.t.Helper()
	d := tc.nextDone(why)
	if d.xid != xid || d.err == nil || d.err.Fate != fate || !errors.Is(d.err, is) {
		tc.t.Errorf("%s: call %#x: %v, want call %#x %v and %v", why, d.xid, d.err, xid, fate, is)
	}
}

func (tc *requesterCase) wantNotDone(why string) {
	tc.t.Helper()
	synctest.Wait()
	if len(tc.done) > 0 {
		tc.t.Fatalf("call %#x is done; want none: %s", tc.done[0].xid, why)
	}
}

func (tc *requesterCase) wantEnded(why string, is error) {
	tc.t.Helper()
	synctest.Wait()
	if tc.ended != 1 || !errors.Is(tc.endedErr, is) {
		tc.t.Errorf("ended %d times, %v; want once, %v: %s", tc.ended, tc.endedErr, is, why)
	}
}

func (tc *requesterCase) wantUp(why string) {
	tc.t.Helper()
	synctest.Wait()
	if tc.ended != 0 || tc.r.state != up {
		tc.t.Fatalf("the connection ended: %v; want it up: %s", tc.endedErr, why)
	}
}

func (tc *requesterCase) wantHandles(why string, n int) {
	tc.t.Helper()
	synctest.Wait()
	if got := tc.provider.Counts(tc.r.conn).Handles; got != n {
		tc.t.Errorf("%d live handles, want %d: %s", got, n, why)
	}
}

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
			if s.Reply == nil || len(s.Reply.Segments) != 1 || len(s.Writes) != 0 {
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

// An inline Reply longer than copyBelow keeps its Receive buffer, which is
// replaced at once.
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
	requesterTest(t, func(tc *requesterCase) { tc.opts.RemoteInvalidation, tc.opts.ReplyInline = true, 8192 }, func(tc *requesterCase) {
		p, ok := rpcrdma.FindPrivateData(tc.peer.conn.Info().PrivateData)
		if want := (rpcrdma.PrivateData{RemoteInvalidation: true, SendSize: 4096, RecvSize: 8192}); !ok || p != want {
			t.Errorf("private data %+v, want %+v", p, want)
		}
	})
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

func TestRequesterBusyXID(t *testing.T) {
	requesterTest(t, nil, func(tc *requesterCase) {
		tc.open(8)
		tc.send(getAttrCall(7))
		if err := tc.try(getAttrCall(7)); !errors.Is(err, ErrBusyXID) {
			t.Errorf("the same XID again: %v, want ErrBusyXID", err)
		}
		tc.peer.send(0, plain(7, 8), getAttrReply(7))
		tc.wantReply("the first", getAttrReply(7))
		tc.send(getAttrCall(7))
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
		if tc.opts.Metrics.deadlines.Value() != 1 {
			t.Error("deadline not counted")
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

// A handle that is not invalidated at once delays its Reply: rule B4.
func TestRequesterAsyncInvalidate(t *testing.T) {
	data := pattern(65535, 1)
	want, pos := readReply(1, data)
	answer := func(tc *requesterCase, s *wantedSend) {
		seg := s.Writes[0].Segments[0]
		tc.peer.write(seg, data)
		tc.peer.send(0, header(1, 8, rpcrdma.Msg, func(h *rpcrdma.Header) { h.AddWrite(shortened(seg, len(data))) }), cut(want, pos, len(data)))
	}
	// hold delays Sends, and the Invalidates that are queued behind them.
	hold := func(tc *requesterCase) {
		tc.provider.Inject(func(op fabrictest.Operation) fabrictest.Verdict {
			if op.Dialed {
				return fabrictest.Hold
			}
			return fabrictest.Pass
		})
	}
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprintf("lost=%v", lost), func(t *testing.T) {
			requesterTest(t, nil, func(tc *requesterCase) {
				tc.open(8)
				tc.provider.AsyncInvalidate(true)
				tc.send(readCall(1, 65536))
				s := tc.peer.wantSend("READ")
				hold(tc)
				tc.send(getAttrCall(2))
				answer(tc, s)
				tc.wantHandles("it is not dead yet", 1)
				tc.wantNotDone("the peer may still write")
				if lost {
					tc.provider.Break(tc.r.conn, io.ErrUnexpectedEOF)
					tc.wantReply("with the connection the handle is dead, and the Reply is whole", want)
					tc.wantFate("the other", 2, InLimbo, io.ErrUnexpectedEOF)
					return
				}
				tc.provider.Inject(nil)
				tc.provider.Resume(tc.r.conn)
				tc.wantReply("after the handle is dead", want)
				tc.wantHandles("it is", 0)
			})
		})
	}
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
		tc.wantFate("the call that was answered", 2, InLimbo, errInvalidReply)
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
			00000002 00000001 00000006 00000004
			00000001 00000002 00000003            # ERR_VERS, 2 to 3
		`))
		tc.wantEnded("ERR_VERS is about the connection", errVersion)
		tc.wantFate("ERR_VERS", 2, Answered, errVersion)
		tc.wantFate("the other", 3, InLimbo, errVersion)
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

// Without memory a Call is refused, nothing leaks, and outstanding Calls can
// still be answered.
func TestRequesterNoMemory(t *testing.T) {
	requesterTest(t, func(tc *requesterCase) {
		tc.replies = tc.arena.Account("small", 512<<10)
		tc.opts.Memory = tc.replies
	}, func(tc *requesterCase) {
		tc.open(8)
		tc.send(readCall(1, 65536))
		tc.send(readCall(2, 65536))
		var sent int
		var err error
		for sent = range 6 {
			if err = tc.try(readCall(uint32(sent)+3, 65536)); err != nil {
				break
			}
		}
		if !errors.Is(err, ErrNoMemory) {
			t.Fatalf("%d calls with a Write chunk of 64 KiB: %v, want ErrNoMemory", sent+2, err)
		}
		tc.send(getAttrCall(50))
		called := false
		c := &Call{need: 65536}
		tc.r.Wait(c, func() { called = true })
		synctest.Wait()
		if called {
			t.Error("Wait called at once")
		}
		seg := tc.peer.wantSend("READ").Writes[0].Segments[0]
		tc.peer.send(0, header(1, 8, rpcrdma.Msg, func(h *rpcrdma.Header) { h.AddWrite(shortened(seg, 0)) }), accepted(1, words(70, 0)))
		tc.wantReply("a READ without memory to spare", accepted(1, words(70, 0)))
		if !called {
			t.Error("Wait did not call when memory came back")
		}
		if err := tc.try(readCall(51, 65536)); err != nil {
			t.Errorf("after memory came back: %v", err)
		}
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

// CallDone may send the next Call.
func TestRequesterSendFromDone(t *testing.T) {
	requesterTest(t, nil, func(tc *requesterCase) {
		n := 0
		tc.onDone = func(c *Call, err *CallError) {
			if err != nil || n == 5 {
				return
			}
			n++
			next := &Call{XID: c.XID + 1, Message: c.Message, Owner: tc, Analysis: c.Analysis, Binding: c.Binding}
			copy(next.Message, words(next.XID))
			if err := tc.r.Send(next); err != nil {
				t.Errorf("Send inside CallDone: %v", err)
			}
		}
		tc.send(getAttrCall(1))
		for i := range uint32(6) {
			tc.peer.wantSend("one after another")
			tc.peer.send(0, plain(i+1, 1), getAttrReply(i+1))
			tc.wantReply("and its reply", getAttrReply(i+1))
		}
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
		l, _ := b.provider.Listen("there", fabric.ListenOptions{}, func(in fabric.Incoming) {
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

func TestRequesterOptions(t *testing.T) {
	for _, tt := range []struct {
		name   string
		o      RequesterOptions
		fields []string
	}{
		{
			"out of range",
			RequesterOptions{Credits: -1, CallInline: 1000, ReplyInline: 1 << 20, ReceiveSize: 5},
			[]string{"Credits", "CallInline", "ReplyInline", "ReceiveSize", "Memory", "Registry", "Deadline"},
		},
		{"zero", RequesterOptions{}, []string{"Credits", "CallInline", "ReplyInline", "Memory", "Registry", "Deadline"}},
	} {
		_, err := tt.o.validated()
		for _, field := range tt.fields {
			if err == nil || !strings.Contains(err.Error(), field+" ") {
				t.Errorf("%s: no word about %s in: %v", tt.name, field, err)
			}
		}
	}
}
