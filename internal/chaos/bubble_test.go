package chaos

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/rdmaside"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
)

// A bubble is one Requester after another, and the Responder to which they connect, on one
// loop and in virtual time. Its run is a function of its seed. No time passes while
// anything can happen, so deadlines are exact: a Call ends at its deadline at the latest,
// and its handles are dead when it has ended.
type bubble struct {
	book   *book
	counts counts
	loop   *fabrictest.Loop
	fabric *inMemory
	r      *responder
	arena  *regmem.Arena
	mem    *regmem.Account
	reg    *ulb.Registry
	log    zerolog.Logger

	// Owned by loop.
	dice    *rand.Rand
	xid     uint32
	left    int // Calls to begin
	again   []*bubbleCall
	waiting int                 // sent
	present *rdmaside.Requester // while it lives
	ended   chan error          // of the present connection
	trace   hash.Hash64         // of everything that happened
	base    time.Time
}

// harsh is memoryFaults for runs of hundreds of Calls.
var harsh = func() weather {
	w := memoryFaults
	for f := range w {
		w[f] = min(10*w[f], 500000)
	}
	return w
}()

const (
	bubbleDeadline = 2 * time.Second
	bubbleCredits  = 16
)

// A bubbleCall is a Call until it is answered.
type bubbleCall struct {
	rdmaside.Call
	b    *bubble
	kind kind
	id   uint32
	m    *regmem.Lease
	sent time.Time
}

func newBubble(t testing.TB, s seed, calls int) *bubble {
	b := &bubble{
		book: newBook(t, s), loop: fabrictest.NewLoop(), dice: s.dice("bubble", 0), left: calls,
		reg: ulb.NewRegistry(ulb.Limits{}), log: zerolog.Nop(),
		trace: fnv.New64a(), base: time.Now(),
	}
	nfs.Register(b.reg)
	var err error
	if b.arena, err = regmem.New(regmem.Options{Budget: 64 << 20, Poison: true}); err != nil {
		t.Fatal(err)
	}
	b.mem = b.arena.Account("bubble", b.arena.Budget())
	sk := newSky(&b.counts)
	b.fabric = newInMemory(s, sk, b.dice.IntN(2) == 0)
	b.fabric.exact = true
	b.r = &responder{name: "bubble", seed: s, server: newServer(b.book, true), sky: sk, exact: true}
	if err := b.r.listen(b.fabric, b.loop, "bubble"); err != nil {
		t.Fatal(err)
	}
	return b
}

// note adds to the trace.
func (b *bubble) note(format string, args ...any) {
	fmt.Fprintf(b.trace, "%v ", time.Since(b.base))
	fmt.Fprintf(b.trace, format, args...)
}

// run makes connections until all Calls are answered.
func (b *bubble) run() {
	n := 0
	for done := false; !done && !b.book.broken.Load(); n++ {
		ended := make(chan error, 1)
		fabrictest.Do(b.loop, func() { b.ended = ended })
		r, err := rdmaside.DialRequester(context.Background(), b.fabric, b.loop, "bubble", rdmaside.RequesterOptions{
			Memory: b.mem, Registry: b.reg, Credits: bubbleCredits, CallInline: 4096, ReplyInline: 4096,
			Deadline: bubbleDeadline, RemoteInvalidation: true, Log: b.log,
		}, b)
		if err != nil {
			b.book.wrong("dial: %v", err)
			break
		}
		b.loop.Post(loop.TaskFunc(func() {
			if len(ended) == 0 {
				b.present = r
				b.push()
			}
		}))
		b.note("ended well: %v\n", <-ended == nil) // its text has handles, which are random
		fabrictest.Do(b.loop, func() { done = b.idle() })
	}
	b.note("%d connections\n", n)
	fabrictest.Do(b.loop, func() {
		for _, c := range b.again {
			c.m.Release()
		}
	})
	_ = b.r.l.Close()
	b.r.ended.Wait()
	b.loop.Stop()
	if err := b.arena.Close(); err != nil {
		b.book.wrong("%v: %+v", err, b.arena.Stats().Accounts)
	}
}

func (b *bubble) idle() bool { return b.left == 0 && len(b.again) == 0 && b.waiting == 0 }

// push sends Calls while there are credits, the oldest first, and closes the connection when
// nothing is left.
func (b *bubble) push() {
	r := b.present
	if r == nil {
		return
	}
	for r.Free() > 0 {
		c := b.next()
		if c == nil {
			break
		}
		b.book.transmit(c.id)
		c.sent = time.Now()
		if err := r.Send(&c.Call); err != nil {
			b.book.unsent(c.id)
			b.again = append([]*bubbleCall{c}, b.again...)
			if !errors.Is(err, rdmaside.ErrClosed) {
				b.book.wrong("send: %v", err)
			}
			break
		}
		b.note("sent %#x\n", c.XID)
		b.waiting++
	}
	r.Flush()
	if b.idle() {
		// The last handles may need until the end of the pass.
		b.loop.Post(loop.TaskFunc(func() {
			if n := b.fabric.handles(); n != 0 {
				b.book.wrong("%d handles are live, and no Call is", n)
			}
			r.Close(nil)
		}))
	}
	if b.book.broken.Load() {
		r.Close(nil)
	}
}

// Granted is part of rdmaside.Watcher.
func (b *bubble) Granted(_ *rdmaside.Requester, n int) {
	b.note("granted %d\n", n)
	b.loop.Post(loop.TaskFunc(b.push))
}

// Ended is part of rdmaside.Watcher.
func (b *bubble) Ended(_ *rdmaside.Requester, err error) {
	b.present = nil
	b.ended <- err
}

// next is the next Call to send. The weather changes with every fifty.
func (b *bubble) next() *bubbleCall {
	if len(b.again) > 0 {
		c := b.again[0]
		b.again = b.again[1:]
		return c
	}
	if b.left == 0 {
		return nil
	}
	if b.left%50 == 0 {
		b.r.sky.set(draw(b.dice, &harsh))
	}
	b.left--
	b.xid++
	id := b.book.next.Add(1)
	k, m := randomCall(b.dice, b.xid, id, false, false)
	l, err := proxytest.Lease(b.mem, m)
	if err != nil {
		b.book.wrong("%v", err)
		return nil
	}
	c := &bubbleCall{b: b, kind: k, id: id, m: l}
	c.Owner = c
	if err := proxytest.PrepareCall(&c.Call, l, b.reg); err != nil {
		panic(err)
	}
	b.book.begin("bubble", k, id, m)
	return c
}

// CallDone is part of rdmaside.CallOwner.
func (c *bubbleCall) CallDone(_ *rdmaside.Call, err *rdmaside.CallError) {
	b := c.b
	b.waiting--
	waited := time.Since(c.sent)
	b.note("done %#x %v\n", c.XID, err == nil)
	if waited > bubbleDeadline {
		b.book.wrong("call %#x (%v) took %v, its deadline is %v", c.id, c.kind, waited, bubbleDeadline)
	}
	switch {
	case err == nil:
		got := bytes.Join(c.Reply.Parts(), nil)
		c.Reply.Release()
		b.book.judge("bubble", &outstanding{kind: c.kind, id: c.id, m: c.Message}, got)
	case err.Fate == rdmaside.Answered:
		if !b.book.refusable(c.id) {
			b.book.wrong("call %#x (%v): %v, and the Responder did not say so", c.id, c.kind, err)
		}
		b.book.failed.Add(1)
	default:
		if err.Fate == rdmaside.NotSent {
			b.book.unsent(c.id)
		}
		// With the same XID on the next connection, as RFC 8166 Section 4.2.1 has it;
		// the server remembers.
		b.again = append(b.again, c)
		return
	}
	c.m.Release()
	b.book.end(c.id, waited)
	b.loop.Post(loop.TaskFunc(b.push))
}

// TestBubble runs a Requester through many seeds, or CHAOS_SEED alone.
func TestBubble(t *testing.T) {
	first, seeds := seedOf(t), 15
	if testing.Short() {
		seeds = 5
	}
	if os.Getenv("CHAOS_TIME") != "" {
		seeds = 300
	}
	if os.Getenv("CHAOS_SEED") != "" {
		seeds = 1
	}
	var total counts
	calls := int64(0)
	for i := range seeds {
		s := first + seed(i)
		synctest.Test(t, func(t *testing.T) {
			b := newBubble(t, s, 400)
			b.run()
			calls += b.book.done.Load()
			for f := range faults {
				total[f].Add(b.counts[f].Load())
			}
		})
		if t.Failed() {
			break
		}
	}
	t.Logf("%d Calls; %s", calls, &total)
}

// TestBubbleRepeats: the same seed gives the same run, to the nanosecond.
func TestBubbleRepeats(t *testing.T) {
	for i := range 2 {
		s := seedOf(t) + seed(i)
		var sums [2]uint64
		for j := range sums {
			synctest.Test(t, func(t *testing.T) {
				b := newBubble(t, s, 300)
				b.run()
				sums[j] = b.trace.Sum64()
			})
		}
		if sums[0] != sums[1] {
			t.Errorf("%s: two runs differ", s)
		}
	}
}
