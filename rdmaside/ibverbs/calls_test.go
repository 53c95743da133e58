//go:build ibverbs

package ibverbs

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
)

// Octets of a message of the tests below, and of a chunk.
const (
	messageSize = 256
	chunkSize   = 16 << 10
)

// Numbers of work. That of a Receive is its index plus 1.
const (
	sendID       = 1 << 20
	writeID      = 1 << 21
	invalidateID = 1 << 22 // plus the index of the Call
)

// A callPair is two connections of this process: what the Calls of a bridge do to the provider, without
// the bridge. A Call is a Send each way. With a chunk it registers memory, which the other side writes to,
// and which is invalidated when the Reply has come.
//
// The connections are on the stand-in, or on the device at RDMABRIDGE_VERBS.
type callPair struct {
	t      testing.TB
	loops  [2]*fabrictest.Loop // of client and server; the same if there is one
	l      fabric.Listener
	client callClient
	server callServer
}

// newCallPair connects with room for depth Calls at once.
func newCallPair(t testing.TB, depth, loops int, o Options) *callPair {
	t.Helper()
	size := depth*(6*messageSize+chunkSize) + chunkSize
	mem, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Munmap(mem) })
	o.DialTimeout, o.AcceptTimeout, o.Memory = patience, patience, [][]byte{mem}
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	lease := func(n int) []byte {
		b := mem[:n:n]
		mem = mem[n:]
		return b
	}
	x := &callPair{t: t}
	for i := range loops {
		x.loops[i] = fabrictest.NewLoop()
	}
	if loops == 1 {
		x.loops[1] = x.loops[0]
	}
	x.client = callClient{messages: newMessages(t, depth, lease), donec: make(chan struct{}, 1), closedc: make(chan struct{})}
	x.server = callServer{messages: newMessages(t, depth, lease), data: [][]byte{lease(chunkSize)}, closedc: make(chan struct{})}
	x.server.data[0][0] = 1
	for range depth {
		x.client.chunks = append(x.client.chunks, lease(chunkSize))
		x.client.handles = append(x.client.handles, 0)
	}
	co := fabric.ConnOptions{Sends: 4 * depth, Receives: depth}
	addr := net.JoinHostPort(cmp.Or(os.Getenv("RDMABRIDGE_VERBS"), "127.0.0.1"), "0")
	acceptedc := make(chan error, 1)
	x.l, err = p.Listen(addr, fabric.ListenOptions{MaxConnections: -1, MaxStarting: -1, MaxStartingPerAddr: -1}, func(in fabric.Incoming) {
		_, err := in.Accept(context.Background(), x.loops[1], co, &x.server)
		acceptedc <- err
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := p.Dial(ctx, x.loops[0], x.l.Addr().String(), co, &x.client); err != nil {
		t.Fatal(err)
	}
	if err := <-acceptedc; err != nil {
		t.Fatal(err)
	}
	return x
}

func (x *callPair) close() {
	x.loops[0].Do(func() { x.client.c.Close(nil) })
	<-x.client.closedc
	<-x.server.closedc
	x.l.Close()
	x.loops[0].Stop()
	x.loops[1].Stop()
}

// run makes n Calls, with a chunk each or without.
func (x *callPair) run(n int, chunk bool) {
	x.client.left, x.client.chunk = n, chunk
	x.loops[0].Post(&x.client)
	select {
	case <-x.client.donec:
	case <-x.client.closedc:
		x.t.Fatal("the connection ended")
	}
}

// messages are one side's: for each Call one to send, and as many to receive.
type messages struct {
	t         testing.TB
	c         fabric.Conn
	out       [][][]byte // the one part of each
	in        [][]byte
	completed uint64
}

func newMessages(t testing.TB, depth int, lease func(int) []byte) messages {
	m := messages{t: t}
	for range depth {
		m.out = append(m.out, [][]byte{lease(messageSize)[:128]})
		m.in = append(m.in, lease(messageSize))
	}
	return m
}

func (m *messages) must(err error) {
	if err != nil {
		m.t.Error(err)
	}
}

func (m *messages) setup(c fabric.Conn) error {
	m.c = c
	for i := range m.in {
		if err := c.PostReceive(uint64(i+1), m.in[i]); err != nil {
			return err
		}
	}
	return nil
}

// A callClient makes Calls. It is also the task that begins.
type callClient struct {
	messages
	chunks  [][]byte
	handles []fabric.Handle
	donec   chan struct{} // one deep
	closedc chan struct{}
	reason  error // set when closedc is closed

	chunk        bool
	left, flying int
}

func (h *callClient) Setup(c fabric.Conn) error { return h.setup(c) }
func (h *callClient) Closed(err error)          { h.reason = err; close(h.closedc) }

func (h *callClient) Run() {
	for i := range h.out {
		if h.left > 0 {
			h.flying++
			h.call(i)
		}
	}
	h.c.Flush()
}

func (h *callClient) call(i int) {
	h.left--
	m := h.out[i][0]
	m[0] = byte(i)
	binary.BigEndian.PutUint32(m[4:], 0)
	if h.chunk {
		h.chunks[i][0] = 0
		r, err := h.c.Register(h.chunks[i], fabric.RemoteWrite)
		h.must(err)
		h.handles[i] = r.Handle
		binary.BigEndian.PutUint32(m[4:], uint32(r.Handle))
		binary.BigEndian.PutUint64(m[8:], r.Offset)
	}
	h.must(h.c.PostSend(sendID, fabric.Send{Parts: h.out[i]}))
}

func (h *callClient) Completed(cs []fabric.Completion) {
	for _, c := range cs {
		switch {
		case errors.Is(c.Err, fabric.ErrFlushed): // the end of the connection
		case c.Err != nil:
			h.t.Error(c.Err)
		case c.Op == fabric.OpInvalidate:
			h.answered(int(c.ID - invalidateID))
		case c.Op == fabric.OpReceive:
			i := int(h.in[c.ID-1][0])
			h.must(h.c.PostReceive(c.ID, h.in[c.ID-1]))
			if h.chunk {
				done, err := h.c.Invalidate(invalidateID+uint64(i), h.handles[i])
				h.must(err)
				if !done {
					continue
				}
			}
			h.answered(i)
		}
	}
}

func (h *callClient) answered(i int) {
	if h.chunk && h.chunks[i][0] != 1 {
		h.t.Error("the chunk was not written")
	}
	h.completed++
	if h.left > 0 {
		h.call(i)
	} else if h.flying--; h.flying == 0 {
		h.donec <- struct{}{}
	}
}

// A callServer answers.
type callServer struct {
	messages
	data    [][]byte
	closedc chan struct{}
	reason  error // set when closedc is closed
}

func (h *callServer) Setup(c fabric.Conn) error { return h.setup(c) }
func (h *callServer) Closed(err error)          { h.reason = err; close(h.closedc) }

func (h *callServer) Completed(cs []fabric.Completion) {
	for _, c := range cs {
		if c.Op != fabric.OpReceive || c.Err != nil {
			continue // the client closes the connection
		}
		m := h.in[c.ID-1]
		i := int(m[0])
		if handle := binary.BigEndian.Uint32(m[4:]); handle != 0 {
			to := fabric.Region{Handle: fabric.Handle(handle), Offset: binary.BigEndian.Uint64(m[8:])}
			h.must(h.c.PostWrite(writeID, fabric.Write{Parts: h.data, To: to}))
		}
		h.must(h.c.PostReceive(c.ID, m))
		h.out[i][0][0] = byte(i)
		h.must(h.c.PostSend(sendID, fabric.Send{Parts: h.out[i]}))
		h.completed++
	}
}

var _ loop.Task = (*callClient)(nil)

// TestCallAllocs checks that the provider allocates nothing for a Call, on either side, when it has
// carried some.
func TestCallAllocs(t *testing.T) {
	if standIn == nil || testkit.RaceEnabled {
		t.Skip("needs the stand-in, and no race detector, which allocates")
	}
	for _, tt := range []struct {
		name, driver string
		chunk        bool
	}{
		{"no chunk", "rxe", false},
		{"registration", "rxe", true},
		{"window", "mlx5_core", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			Pretend(t, tt.driver)
			x := newCallPair(t, 16, 1, Options{})
			defer x.close()
			const calls = 100
			x.run(20*calls, tt.chunk)
			if n := testing.AllocsPerRun(20, func() { x.run(calls, tt.chunk) }); n != 0 {
				t.Errorf("%.0f allocations for %d Calls", n, calls)
			}
			x.loops[0].Do(func() {
				if want := uint64(41 * calls); x.client.completed != want || x.server.completed != want {
					t.Errorf("%d Calls and %d Replies, want %d", x.server.completed, x.client.completed, want)
				}
			})
		})
	}
}

// TestBusyPoll checks that a connection that polls busily asks for no event, and that it asks for one
// when its time has passed.
func TestBusyPoll(t *testing.T) {
	if standIn == nil {
		t.Skip("needs the stand-in")
	}
	defer setFault(noFault, 0)
	x := newCallPair(t, 4, 2, Options{BusyPoll: time.Hour})
	x.run(4, true) // the first completions cause the event that was asked for at set-up
	setFault(faultArm, uint32(syscall.EIO))
	x.run(100, true)
	setFault(noFault, 0)
	x.close()

	x = newCallPair(t, 4, 2, Options{BusyPoll: time.Millisecond})
	x.run(4, true)
	setFault(faultArm, uint32(syscall.EIO))
	x.loops[0].Do(x.client.c.(*conn).stir)
	<-x.client.closedc
	<-x.server.closedc
	mustSay(t, fmt.Errorf("%w, and %w", x.client.reason, x.server.reason), "arm the completion queue") // of the first
	x.close()
}

// BenchmarkCall is the cost of a Call to the provider, both sides together, each on a loop of its own.
func BenchmarkCall(b *testing.B) {
	for _, busy := range []time.Duration{0, 50 * time.Microsecond} {
		for _, chunk := range []string{"inline", "chunk"} {
			for _, depth := range []int{1, 16} {
				b.Run(fmt.Sprintf("busy=%v/%s/depth=%d", busy, chunk, depth), func(b *testing.B) {
					x := newCallPair(b, depth, 2, Options{BusyPoll: busy})
					defer x.close()
					x.run(1000, chunk == "chunk")
					b.ReportAllocs()
					b.ResetTimer()
					x.run(b.N, chunk == "chunk")
				})
			}
		}
	}
}
