package fabrictest

import (
	"bytes"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

func testOrderlyClose(t *testing.T, f *Fixture) {
	for _, accepted := range []bool{false, true} {
		p := f.connect(t, pairOptions{
			accept:  fabric.ConnOptions{Receives: 128},
			dial:    fabric.ConnOptions{Receives: 128},
			prepare: func(dial, other *endpoint) { dial.receives, other.receives = 128, 128 },
		})
		from, to := p.sides(accepted)
		from.do(func() {
			for i := range 100 {
				if _, err := from.postSend(fabric.Send{Parts: [][]byte{bytes.Clone(fmt.Appendf(nil, "message %d", i))}}); err != nil {
					t.Errorf("PostSend: %v", err)
				}
			}
			from.conn.Close(nil)
			if from.isClosed() {
				t.Error("Closed was called before Close returned")
			}
		})
		if err := from.waitClosed(); err != nil {
			t.Errorf("%s: Closed(%v) after Close(nil)", from.name, err)
		}
		if to.waitClosed() == nil {
			t.Errorf("%s: Closed(nil) though the peer closed", to.name)
		}
		if n := len(to.messages); n != 100 {
			t.Errorf("%s: %d of 100 messages arrived before an orderly end", to.name, n)
		}
	}
}

func (e *endpoint) isClosed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.closed
}

func testCloseInHandler(t *testing.T, f *Fixture) {
	why := errors.New("seen enough")
	p := f.connect(t, pairOptions{prepare: func(_, other *endpoint) {
		other.onReceive = func(e *endpoint, msg []byte) {
			if string(msg) == "enough" {
				e.conn.Close(why)
				if e.isClosed() {
					t.Error("Closed was called inside Close")
				}
				e.conn.Close(nil) // the second one does nothing
			}
		}
	}})
	p.dial.send([]byte("enough"))
	if err := p.other.waitClosed(); !errors.Is(err, why) {
		t.Errorf("Closed(%v), want the reason given to Close", err)
	}
	if p.dial.waitClosed() == nil {
		t.Error("the peer was told nil")
	}
}

func testFlushOnClose(t *testing.T, f *Fixture) {
	why := errors.New("on purpose")
	for _, closer := range []bool{false, true} {
		p := f.connect(t, pairOptions{})
		from, to := p.sides(closer)
		from.close(why)
		if err := from.waitClosed(); !errors.Is(err, why) {
			t.Errorf("%s: Closed(%v), want the reason given to Close", from.name, err)
		}
		if to.waitClosed() == nil {
			t.Errorf("%s: Closed(nil) though the peer closed", to.name)
		}
		for _, e := range []*endpoint{from, to} {
			flushed := 0
			for _, c := range e.completions {
				if c.Op == fabric.OpReceive && c.Err != nil {
					if !errors.Is(c.Err, fabric.ErrFlushed) {
						t.Errorf("%s: Receive completed with %v, want ErrFlushed", e.name, c.Err)
					}
					flushed++
				}
			}
			if flushed != 16 {
				t.Errorf("%s: %d Receives flushed of 16 posted", e.name, flushed)
			}
		}
	}
}

func testPostAfterClose(t *testing.T, f *Fixture) {
	p := f.connect(t, pairOptions{})
	r := p.dial.register(make([]byte, 16), fabric.RemoteWrite)
	p.dial.close(errTestOver)
	_ = p.dial.waitClosed()
	p.dial.do(func() {
		c := p.dial.conn
		_, regErr := c.Register(make([]byte, 16), fabric.RemoteRead)
		for what, err := range map[string]error{
			"PostReceive": c.PostReceive(1, make([]byte, 16)),
			"PostSend":    c.PostSend(2, fabric.Send{Parts: [][]byte{make([]byte, 1)}}),
			"PostWrite":   c.PostWrite(3, fabric.Write{Parts: [][]byte{make([]byte, 1)}}),
			"PostRead":    c.PostRead(4, fabric.Read{Into: make([]byte, 1), From: fabric.Region{Length: 1}}),
			"Register":    regErr,
		} {
			if !errors.Is(err, fabric.ErrClosed) {
				t.Errorf("%s on a closed connection: %v, want ErrClosed", what, err)
			}
		}
		// A handle of a closed connection is dead, which is all Invalidate is for.
		if done, err := c.Invalidate(5, r.Handle); !done && !errors.Is(err, fabric.ErrClosed) {
			t.Errorf("Invalidate on a closed connection: %v, %v", done, err)
		}
		c.Flush()
		c.Close(nil)
		_ = c.Info()
		_ = c.LastActivity()
	})
}

// testCloseUnderLoad ends connections at odd moments; the endpoints check that
// everything posted completes and Closed comes last.
func testCloseUnderLoad(t *testing.T, f *Fixture) {
	for round := range 12 {
		var stop atomic.Bool
		pump := func(e *endpoint, msg []byte) {
			if stop.Load() {
				return
			}
			if _, err := e.postSend(fabric.Send{Parts: [][]byte{msg}}); err != nil && !errors.Is(err, fabric.ErrClosed) {
				t.Errorf("PostSend: %v", err)
			}
		}
		p := f.connect(t, pairOptions{prepare: func(dial, other *endpoint) { dial.onReceive, other.onReceive = pump, pump }})
		buf := make([]byte, 1<<20)
		r := p.dial.register(buf, fabric.RemoteRead|fabric.RemoteWrite)
		p.other.do(func() {
			for range 4 {
				// Posts that do not fit the queue may fail here.
				_, _ = p.other.postWrite(fabric.Write{Parts: [][]byte{make([]byte, 1<<20)}, To: r})
				_, _ = p.other.postRead(fabric.Read{Into: make([]byte, 1<<20), From: r})
			}
		})
		for i := range 4 {
			p.dial.do(func() {
				if !p.dial.isClosed() {
					_, _ = p.dial.postSend(fabric.Send{Parts: [][]byte{bytes.Clone(testkit.Pattern(100+i, 1))}})
				}
			})
		}
		time.Sleep(time.Duration(round) * 300 * time.Microsecond)
		why := errors.New("enough")
		if round%3 == 2 {
			why = nil
		}
		from, to := p.sides(round%2 == 0)
		from.close(why)
		err := from.waitClosed()
		if why != nil && err == nil {
			t.Errorf("Closed(nil) after Close(%v)", why)
		}
		stop.Store(true)
		_ = to.waitClosed()
	}
}
