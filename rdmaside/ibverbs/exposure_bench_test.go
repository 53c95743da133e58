//go:build ibverbs

package ibverbs_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
	"github.com/rdmabridge/rdmabridge/rdmaside/ibverbs"
)

// BenchmarkExposure measures what it costs to let the peer access the memory of a Call. Each operation
// is a message there, with a handle, and a message back, after which the handle is invalidated; nobody
// uses it. "none" has no handle. It runs on the device of RDMABRIDGE_VERBS, or on the stand-in, where
// registering and binding cost next to nothing and what remains is the provider's own work.
func BenchmarkExposure(b *testing.B) {
	type variant struct {
		name     string
		exposure ibverbs.Exposure
		handles  bool
	}
	for _, v := range []variant{
		{"none", ibverbs.ExposeRegistration, false},
		{"registration", ibverbs.ExposeRegistration, true},
		{"windows", ibverbs.ExposeWindows, true},
	} {
		for _, depth := range []int{1, 16} {
			for _, size := range []int{4 << 10, 64 << 10, 1 << 20} {
				if !v.handles && size > 4<<10 {
					continue
				}
				b.Run(fmt.Sprintf("%s/depth=%d/size=%dKiB", v.name, depth, size>>10), func(b *testing.B) {
					benchmarkExposure(b, v.exposure, v.handles, depth, size)
				})
			}
		}
	}
}

func benchmarkExposure(b *testing.B, e ibverbs.Exposure, handles bool, depth, size int) {
	addr := os.Getenv("RDMABRIDGE_VERBS")
	if addr == "" {
		addr = "127.0.0.1"
		ibverbs.Pretend(b, "mlx5_core")
	}
	mem := newArena(b)
	caller, echo := newBenchEnd(b, mem, depth), newBenchEnd(b, mem, depth)
	echo.echoes = true
	caller.size = size
	if handles {
		for range depth {
			caller.bufs = append(caller.bufs, mem.alloc(size))
		}
	}
	accepted := make(chan error, 1)
	l, err := newProvider(b, ibverbs.ExposeRegistration, mem).Listen(addr+":0", fabrictest.NoLimits(), func(in fabric.Incoming) {
		_, err := in.Accept(b.Context(), echo.loop, benchConn, echo)
		accepted <- err
	})
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	c, err := newProvider(b, e, mem).Dial(b.Context(), caller.loop, l.Addr().String(), benchConn, caller)
	if err != nil {
		b.Fatal(err)
	}
	if err := <-accepted; err != nil {
		b.Fatal(err)
	}
	may := fabric.InvalidatesRemotely(c)
	run := func(n int) {
		caller.left = n
		caller.loop.Post(loop.TaskFunc(func() {
			for slot := range min(depth, n) {
				caller.call(slot, may)
			}
			c.Flush()
		}))
		<-caller.donec
	}
	caller.may = may
	run(4 * 64 * depth) // all windows exist, and the arena is registered
	b.ReportAllocs()
	b.ResetTimer()
	run(max(b.N, depth))
	b.StopTimer()
	caller.loop.Post(loop.TaskFunc(func() { c.Close(nil) }))
	<-caller.closedc
	<-echo.closedc
}

var benchConn = fabric.ConnOptions{Sends: 64, Receives: 64, Handles: 64}

// A benchEnd is one side of BenchmarkExposure.
type benchEnd struct {
	b        *testing.B
	loop     *fabrictest.Loop
	conn     fabric.Conn
	receives [][]byte
	messages [][]byte // by slot
	parts    [][]byte // of the Send that is being posted
	echoes   bool
	closedc  chan struct{}

	// Of the side that calls.
	bufs    [][]byte // by slot; nil without handles
	handles []fabric.Handle
	size    int
	left    int  // calls that have not begun, and those under way
	may     bool // the peer may invalidate
	donec   chan struct{}
}

const benchMessage = 16

func newBenchEnd(b *testing.B, mem *arena, depth int) *benchEnd {
	e := &benchEnd{
		b: b, loop: fabrictest.NewLoop(), handles: make([]fabric.Handle, depth), parts: make([][]byte, 1),
		closedc: make(chan struct{}), donec: make(chan struct{}, 1),
	}
	b.Cleanup(e.loop.Stop)
	for range 2 * depth {
		e.receives = append(e.receives, mem.alloc(benchMessage))
	}
	for range depth {
		e.messages = append(e.messages, mem.alloc(benchMessage))
	}
	return e
}

// Setup implements fabric.Handler.
func (e *benchEnd) Setup(c fabric.Conn) error {
	e.conn = c
	for i, b := range e.receives {
		if err := c.PostReceive(uint64(i), b); err != nil {
			return err
		}
	}
	return nil
}

// Closed implements fabric.Handler.
func (e *benchEnd) Closed(error) { close(e.closedc) }

// Completed implements fabric.Handler.
func (e *benchEnd) Completed(cs []fabric.Completion) {
	for i := range cs {
		c := &cs[i]
		switch {
		case c.Err != nil:
		case c.Op == fabric.OpInvalidate:
			e.next(int(c.ID))
		case c.Op == fabric.OpReceive:
			m := e.receives[c.ID]
			slot, handle := int(binary.BigEndian.Uint32(m)), fabric.Handle(binary.BigEndian.Uint32(m[4:]))
			e.check(e.conn.PostReceive(c.ID, m))
			switch {
			case e.echoes:
				e.send(slot, handle)
			case e.bufs == nil || c.Invalidated != 0:
				e.next(slot)
			default:
				done, err := e.conn.Invalidate(uint64(slot), e.handles[slot])
				if e.check(err); done {
					e.next(slot)
				}
			}
		}
	}
}

// call begins a call.
func (e *benchEnd) call(slot int, may bool) {
	var tell fabric.Handle
	if e.bufs != nil {
		r, err := e.conn.Register(e.bufs[slot], fabric.RemoteWrite)
		e.check(err)
		e.handles[slot] = r.Handle
		if may {
			tell = r.Handle
		}
	}
	binary.BigEndian.PutUint32(e.messages[slot], uint32(slot))
	binary.BigEndian.PutUint32(e.messages[slot][4:], uint32(tell))
	e.parts[0] = e.messages[slot]
	e.check(e.conn.PostSend(1, fabric.Send{Parts: e.parts}))
}

// send answers a call, and invalidates the handle unless it is 0.
func (e *benchEnd) send(slot int, h fabric.Handle) {
	binary.BigEndian.PutUint32(e.messages[slot], uint32(slot))
	e.parts[0] = e.messages[slot]
	e.check(e.conn.PostSend(1, fabric.Send{Parts: e.parts, Invalidate: h}))
}

// next ends a call, and begins another one if there is one.
func (e *benchEnd) next(slot int) {
	e.left--
	switch depth := len(e.handles); {
	case e.left >= depth:
		e.call(slot, e.may)
	case e.left == 0:
		e.donec <- struct{}{}
	}
}

func (e *benchEnd) check(err error) {
	if err != nil {
		e.b.Error(err)
	}
}
