package rdmaside

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

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
	onReply  func(c *Call) // before the Reply is released
	spare    uint32        // Call.Spare; 0 for what there is, of each Call with an odd XID
	outcomes []string      // the fates of all Calls

	taken map[*Call][]byte // Replies that take has taken, of each fourth XID
}

type doneCall struct {
	xid   uint32
	err   *CallError
	plain []byte
}

// take is RequesterOptions.Take.
func (tc *requesterCase) take(c *Call, reply []byte) bool {
	if c.Owner != tc || c.XID%4 != 1 || len(c.Reply.Parts()) > 0 {
		return false
	}
	tc.taken[c] = reply
	return true
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
		if reply := tc.taken[c]; reply != nil {
			if len(d.plain) > 0 {
				tc.t.Error("a Reply that its owner has taken is there, too")
			}
			d.plain = bytes.Clone(reply)
			clear(reply) // it is lent until CallDone returns
			delete(tc.taken, c)
		}
		if len(d.plain) == 0 || len(d.plain)%4 != 0 {
			tc.t.Errorf("a Reply of %d octets", len(d.plain))
		}
		// A Reply may hold a Receive buffer, and a chunk that is not much longer
		// than its content.
		if n, most := c.Reply.Held(), 20<<10+max(4*len(d.plain), len(d.plain)/shrinkBelow<<30); n > most {
			tc.t.Errorf("a Reply of %d octets holds %d", len(d.plain), n)
		}
		if tc.onReply != nil {
			tc.onReply(c)
		}
		c.Reply.Release()
	} else if len(c.Reply.Parts()) != 0 || tc.taken[c] != nil {
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
		tc := &requesterCase{bed: newBed(t, 32<<20), taken: map[*Call][]byte{}}
		defer tc.strike()
		tc.reg = metrics.New()
		tc.opts = requesterOptions(RequesterOptions{
			Memory: tc.replies, Registry: newRegistry(), Credits: 8,
			Take: tc.take, Log: zerolog.New(&tc.logs), Metrics: NewRequesterMetrics(tc.reg, "test"),
		})
		tc.priv = rpcrdma.PrivateData{SendSize: 4096, RecvSize: 4096}
		if setup != nil {
			setup(tc)
		}
		tc.peer = &fakePeer{bed: tc.bed, receives: 64}
		l, err := tc.provider.Listen("server", fabrictest.NoLimits(), func(in fabric.Incoming) {
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
	if c.Spare = tc.spare; tc.spare == 0 && c.XID%2 > 0 { // half of all Calls of all tests
		c.Spare = uint32(cap(c.Message) - len(c.Message))
	}
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
