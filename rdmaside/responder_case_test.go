package rdmaside

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// A responderCase is a connection of a Responder and a fake Requester in a
// bubble.
type responderCase struct {
	*bed
	opts  ResponderOptions
	peer  *fakePeer
	dial  fabric.ConnOptions
	c     *ResponderConn
	logs  bytes.Buffer
	reply func(x *Exchange) // nil means keep x in exchanges

	// Written by callbacks on the loop; read after synctest.Wait.
	exchanges []*Exchange
	opened    int
	ended     int
	endedErr  error
}

func (tc *responderCase) Call(x *Exchange) {
	if tc.opened != 1 || tc.ended != 0 {
		tc.t.Error("a Call outside the life of its connection")
	}
	if tc.reply != nil {
		tc.reply(x)
		return
	}
	tc.exchanges = append(tc.exchanges, x)
}

func (tc *responderCase) Opened(c *ResponderConn) {
	tc.opened++
	tc.c = c
}

func (tc *responderCase) Ended(_ *ResponderConn, err error) {
	tc.ended++
	tc.endedErr = err
}

func responderTest(t *testing.T, setup, f func(tc *responderCase)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		tc := &responderCase{bed: newBed(t, 16<<20)}
		defer tc.strike()
		tc.opts = responderOptions(ResponderOptions{
			Memory: tc.replies, Registry: newRegistry(), Credits: 8,
			Log: zerolog.New(&tc.logs), Metrics: NewResponderMetrics(metrics.New(), "test"),
		})
		tc.dial = fabric.ConnOptions{PrivateData: rpcrdma.AppendPrivateData(nil, rpcrdma.PrivateData{RemoteInvalidation: true, SendSize: 4096, RecvSize: 4096})}
		if setup != nil {
			setup(tc)
		}
		s, err := NewResponder(tc.opts, tc)
		if err != nil {
			t.Fatal(err)
		}
		l, err := tc.provider.Listen("front", fabrictest.NoLimits(), func(in fabric.Incoming) {
			if _, err := s.Accept(context.Background(), in, tc.loop); err != nil {
				t.Error(err)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		tc.peer = &fakePeer{bed: tc.bed, receives: 64}
		if _, err := tc.provider.Dial(context.Background(), tc.peerLoop, "front", tc.dial, tc.peer); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		f(tc)
		tc.loop.Do(func() {
			tc.c.Close(nil)
			for _, x := range tc.exchanges {
				x.Abort()
			}
		})
		synctest.Wait()
		if tc.ended != 1 {
			t.Errorf("Ended was called %d times", tc.ended)
		}
		if n := tc.c.Outstanding(); n != 0 {
			t.Errorf("%d calls outstanding at the end", n)
		}
	})
}

// offer registers n octets, or data, of the fake Requester's memory.
func (tc *responderCase) offer(buf []byte, a fabric.Access) rpcrdma.Segment {
	tc.t.Helper()
	var g fabric.Region
	var err error
	fabrictest.Do(tc.peerLoop, func() { g, err = tc.peer.conn.Register(buf, a) })
	if err != nil {
		tc.t.Fatal(err)
	}
	return segment(g)
}

func (tc *responderCase) wantCall(why string, m []byte) *Exchange {
	tc.t.Helper()
	synctest.Wait()
	if len(tc.exchanges) == 0 {
		tc.t.Fatalf("no call; want: %s; ended: %v", why, tc.endedErr)
	}
	x := tc.exchanges[0]
	tc.exchanges = tc.exchanges[1:]
	if !bytes.Equal(x.Message(), m) {
		tc.t.Fatalf("%s: call of %d octets\n%x\nwant %d\n%x", why, len(x.Message()), head(x.Message()), len(m), head(m))
	}
	return x
}

func (tc *responderCase) wantNoCall(why string) {
	tc.t.Helper()
	synctest.Wait()
	if len(tc.exchanges) > 0 {
		tc.t.Fatalf("a call; want none: %s", why)
	}
}

// answer replies with m in arena memory, in as many parts as cuts make, and
// asserts that the memory is released once.
func (tc *responderCase) answer(x *Exchange, m []byte, cuts ...int) {
	tc.t.Helper()
	b := tc.lend(m)
	var parts [][]byte
	at := 0
	for _, c := range append(cuts, len(b)) {
		parts = append(parts, b[at:c])
		at = c
	}
	n := &releases{}
	tc.loop.Do(func() { x.Reply(parts, n) })
	synctest.Wait()
	if n.n != 1 {
		tc.t.Errorf("the reply was released %d times", n.n)
	}
}

func (tc *responderCase) wantEnded(why string, is error) {
	tc.t.Helper()
	synctest.Wait()
	if tc.ended != 1 || !errors.Is(tc.endedErr, is) {
		tc.t.Errorf("ended %d times, %v; want once, %v: %s", tc.ended, tc.endedErr, is, why)
	}
}

func (tc *responderCase) wantUp(why string) {
	tc.t.Helper()
	synctest.Wait()
	if tc.ended != 0 || tc.c.state != up {
		tc.t.Fatalf("the connection ended: %v; want it up: %s", tc.endedErr, why)
	}
}

func (tc *responderCase) wantError(why string, xid uint32, code rpcrdma.ErrCode) {
	tc.t.Helper()
	m, ok := tc.peer.next()
	if !ok {
		tc.t.Fatalf("nothing was sent; want: %s", why)
	}
	// The answer has the version of the Call.
	if len(m.octets) < 20 || !bytes.Equal(m.octets[:4], words(xid)) || bytes.Equal(m.octets[8:12], words(0)) ||
		!bytes.Equal(m.octets[12:20], words(4, uint32(code))) || m.invalidated != 0 {
		tc.t.Fatalf("%s: %x, want %v for %#x with credits", why, m.octets, code, xid)
	}
}

// pulled offers data in segments, which end at the given cuts.
func (tc *responderCase) pulled(data []byte, cuts ...int) (segs []rpcrdma.Segment) {
	at := 0
	for _, c := range append(cuts, len(data)) {
		segs = append(segs, tc.offer(bytes.Clone(data[at:c]), fabric.RemoteRead))
		at = c
	}
	return segs
}

func addReads(h *rpcrdma.Header, pos int, segs []rpcrdma.Segment) {
	for _, s := range segs {
		h.AddRead(uint32(pos), s)
	}
}

type releases struct{ n int }

func (r *releases) Release() { r.n++ }
