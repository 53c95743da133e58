package rdmaside

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"

	"github.com/rdmabridge/rdmabridge/internal/testkit"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

func TestResponderInline(t *testing.T) {
	responderTest(t, nil, func(tc *responderCase) {
		p, ok := rpcrdma.FindPrivateData(tc.peer.conn.Info().PrivateData)
		if want := (rpcrdma.PrivateData{SendSize: 4096, RecvSize: 4096}); !ok || p != want {
			t.Errorf("private data %+v, want %+v", p, want)
		}
		tc.peer.send(0, plain(0x0a, 128), getAttrCall(0x0a))
		x := tc.wantCall("inline", getAttrCall(0x0a))
		if tc.c.Outstanding() != 1 || x.XID() != 0x0a || x.Conn() != tc.c {
			t.Errorf("outstanding %d, XID %#x", tc.c.Outstanding(), x.XID())
		}
		tc.peer.wantIdle("no answer yet")
		tc.answer(x, getAttrReply(0x0a))
		want := append(testkit.Unhex(t, `
			0000000a 00000001 00000008 00000000   # XID, version 1, 8 credits granted, RDMA_MSG
			00000000 00000000 00000000            # no lists
		`), getAttrReply(0x0a)...)
		if s := tc.peer.wantSend("inline"); !bytes.Equal(s.octets, want) {
			t.Errorf("sent\n%x\nwant\n%x", s.octets, want)
		}
		n := tc.provider.Counts(tc.c.conn)
		if n.Receives != 10 {
			t.Errorf("%d Receives posted, want credits and spare", n.Receives)
		}
	})
}

// The octets of an ERR_VERS: RFC 8166 Section 4.5.1.
func TestResponderErrVers(t *testing.T) {
	responderTest(t, nil, func(tc *responderCase) {
		tc.peer.send(0, words(0x77, 9, 5, 0, 0, 0, 0))
		m, _ := tc.peer.next()
		want := testkit.Unhex(t, `
			00000077 00000009 00000005 00000004   # XID and version of the call, RDMA_ERROR
			00000001 00000001 00000001            # ERR_VERS, 1 to 1
		`)
		if !bytes.Equal(m.octets, want) {
			t.Errorf("sent\n%x\nwant\n%x", m.octets, want)
		}
	})
}

func TestResponderCredits(t *testing.T) {
	responderTest(t, nil, func(tc *responderCase) {
		tc.peer.send(0, plain(1, 0), getAttrCall(1))
		tc.answer(tc.wantCall("a call that requests nothing", getAttrCall(1)), getAttrReply(1))
		if s := tc.peer.wantSend("a reply"); s.Credits != 1 {
			t.Errorf("granted %d, want 1, never 0: RFC 8166 3.3.1", s.Credits)
		}
		tc.peer.send(0, plain(2, 0xffffffff), getAttrCall(2))
		tc.answer(tc.wantCall("a call that requests everything", getAttrCall(2)), getAttrReply(2))
		if s := tc.peer.wantSend("a reply"); s.Credits != 8 {
			t.Errorf("granted %d, want the Receives posted, 8", s.Credits)
		}
		for i := range uint32(8) {
			tc.peer.send(0, plain(10+i, 128), getAttrCall(10+i))
		}
		tc.wantUp("8 calls of 8")
		if tc.c.Outstanding() != 8 {
			t.Errorf("outstanding %d", tc.c.Outstanding())
		}
		for i := range uint32(8) {
			tc.peer.send(0, plain(20+i, 128), getAttrCall(20+i))
		}
		tc.wantUp("8 calls beyond the grant wait: RFC 8166 3.3.1 allows, and does not require, to end this")
		if tc.c.Outstanding() != 8 || tc.opts.Metrics.excess.Value() != 8 {
			t.Errorf("outstanding %d, %d waited", tc.c.Outstanding(), tc.opts.Metrics.excess.Value())
		}
		tc.peer.send(0, plain(30, 128), getAttrCall(30))
		tc.wantEnded("17 calls of 8", errOverrun)
		if tc.opts.Metrics.refusals[reasonCredits].Value() != 1 {
			t.Error("not counted")
		}
	})
	responderTest(t, nil, func(tc *responderCase) {
		tc.peer.send(0, plain(1, 128), getAttrCall(1))
		tc.peer.send(0, plain(2, 128), getAttrCall(2))
		tc.wantUp("the first may have been given up")
		tc.peer.send(0, plain(3, 128), getAttrCall(3))
		tc.wantEnded("three calls before the first reply: RFC 8166 3.3.3", errOverrun)
	})
}

// The connection is lost while there are Exchanges in every state.
func TestResponderLoss(t *testing.T) {
	lost := errors.New("cable cut")
	responderTest(t, func(tc *responderCase) {
		tc.replies = tc.arena.Account("small", 256<<10)
		tc.opts.Memory = tc.replies
		tc.opts.Receives = NewReceivePool(tc.arena.Account("receives", 1<<20))
	}, func(tc *responderCase) {
		tc.peer.send(0, plain(9, 8), getAttrCall(9))
		tc.answer(tc.wantCall("the first call", getAttrCall(9)), getAttrReply(9))
		tc.peer.send(0, plain(1, 8), getAttrCall(1))
		handed := tc.wantCall("handed", getAttrCall(1))
		tc.peer.send(0, plain(2, 8), getAttrCall(2))
		sending := tc.wantCall("sending", getAttrCall(2))
		tc.provider.Inject(func(op fabrictest.Operation) fabrictest.Verdict {
			if op.Dialed {
				return fabrictest.Pass
			}
			return fabrictest.Hold
		})
		done := &releases{}
		reply := tc.lend(getAttrReply(2))
		tc.loop.Do(func() { sending.Reply([][]byte{reply}, done) })
		for i := range uint32(4) {
			tc.peer.send(0, header(20+i, 128, rpcrdma.NoMsg, func(h *rpcrdma.Header) { addReads(h, 0, tc.pulled(opaqueCall(20+i, 60000))) }))
		}
		tc.wantNoCall("Reads are held")
		if tc.c.starved.first == nil {
			t.Error("no call is starved")
		}
		if done.n != 0 {
			t.Error("released while it is posted: B1")
		}
		tc.provider.Break(tc.c.conn, lost)
		tc.wantEnded("the loss", lost)
		if done.n != 1 {
			t.Errorf("a reply that was posted is released %d times", done.n)
		}
		tc.answer(handed, getAttrReply(1)) // dropped, and released
	})
}

func TestResponderAbort(t *testing.T) {
	responderTest(t, nil, func(tc *responderCase) {
		tc.peer.send(0, plain(1, 8), getAttrCall(1))
		x := tc.wantCall("a call", getAttrCall(1))
		tc.loop.Do(x.Abort)
		tc.wantEnded("RFC 8166 4.5.4", errAborted)
		if closed, err := tc.peer.ended(); !closed || !errors.Is(err, io.EOF) && err == nil {
			t.Errorf("peer: %v %v", closed, err)
		}
	})
	responderTest(t, nil, func(tc *responderCase) {
		tc.peer.send(0, plain(1, 8), getAttrCall(1))
		x := tc.wantCall("a call", getAttrCall(1))
		tc.answer(x, getAttrReply(2))
		if tc.ended != 1 {
			t.Error("a reply with another XID was taken")
		}
	})
}

// Close(nil) lets the posted Sends complete.
func TestResponderCloseOrderly(t *testing.T) {
	responderTest(t, nil, func(tc *responderCase) {
		tc.peer.send(0, plain(1, 8), getAttrCall(1))
		x := tc.wantCall("a call", getAttrCall(1))
		m := tc.lend(getAttrReply(1))
		tc.loop.Do(func() {
			x.Reply([][]byte{m}, nil)
			tc.c.Close(nil)
		})
		tc.peer.wantSend("the reply")
		tc.wantEnded("asked for", nil)
	})
}

// An Accept that fails releases what Setup leased.
func TestResponderAcceptFails(t *testing.T) {
	for _, tt := range []struct {
		name   string
		memory int64
		taken  int  // octets of memory that are leased elsewhere
		setup  bool // Setup fails, rather than Accept
	}{
		{"the pool knows", 8 << 10, 0, false},
		{"the pool does not know", 76 << 10, 64 << 10, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBed(t, 16<<20)
				defer b.strike()
				tc := &responderCase{bed: b}
				m := b.arena.Account("tiny", tt.memory)
				if tt.taken > 0 {
					l, err := m.Lease(tt.taken)
					if err != nil {
						t.Fatal(err)
					}
					defer l.Release()
				}
				s, err := NewResponder(responderOptions(ResponderOptions{Memory: m, Registry: newRegistry()}), tc)
				if err != nil {
					t.Fatal(err)
				}
				l, _ := b.provider.Listen("front", fabrictest.NoLimits(), func(in fabric.Incoming) {
					// Three Receives of 4 KiB do not fit.
					if _, err := s.Accept(context.Background(), in, b.loop); !errors.Is(err, ErrNoReceives) {
						t.Errorf("accepted without memory: %v", err)
					}
				})
				defer l.Close()
				_, err = b.provider.Dial(context.Background(), b.peerLoop, "front", fabric.ConnOptions{}, &fakePeer{bed: b})
				if err == nil || errors.Is(err, fabric.ErrRejected) == tt.setup {
					t.Errorf("dialled: %v", err)
				}
				synctest.Wait()
				if tc.opened != tc.ended {
					t.Errorf("opened %d times, ended %d times", tc.opened, tc.ended)
				}
				if p := s.opts.Receives; p.used.Load() != 0 || p.conns.Load() != 0 {
					t.Errorf("%d octets and %d connections are left", p.used.Load(), p.conns.Load())
				}
			})
		})
	}
}

// A releaserFunc is a function that is a Releaser.
type releaserFunc func()

func (f releaserFunc) Release() { f() }

// TestResponderAnsweredByClosing: when the connection has ended and the memory of one Reply is released, the handler may answer
// another Call, whose turn to be dropped has not come.
func TestResponderAnsweredByClosing(t *testing.T) {
	a := newTestArena(t)
	var got []*Exchange
	s := newStubResponder(t, a.Account("calls", 16<<20), callFunc(func(x *Exchange) { got = append(got, x) }), nil)
	deliver := func(xid uint32) { s.conn.deliver(append(plain(xid, 8), getAttrCall(xid)...), 0) }
	deliver(9) // its Reply grants more credits than one
	got[0].Reply([][]byte{getAttrReply(9)}, nil)
	s.conn.step()
	got = nil
	for xid := range uint32(3) {
		deliver(xid)
	}
	if len(got) != 3 {
		t.Fatalf("%d Calls", len(got))
	}
	s.conn.fail = fabric.ErrQueueFull
	last := &releases{}
	got[0].Reply([][]byte{getAttrReply(0)}, releaserFunc(func() {
		got[2].Reply([][]byte{getAttrReply(2)}, last)
		got[1].Abort()
	}))
	s.conn.settle(s.loop)
	if s.state != ended || last.n != 1 {
		t.Errorf("state %d, the last Reply released %d times", s.state, last.n)
	}
}
