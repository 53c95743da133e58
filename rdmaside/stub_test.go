package rdmaside

import (
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// A stubLoop runs tasks when the test says so.
type stubLoop struct{ tasks []loop.Task }

func (l *stubLoop) Post(t loop.Task) { l.tasks = append(l.tasks, t) }

func (l *stubLoop) run() {
	for len(l.tasks) > 0 {
		t := l.tasks[0]
		l.tasks = l.tasks[1:]
		t.Run()
	}
}

// A stubConn is one end of a connection whose other end is the test. It does not
// allocate in the steady state. It fails when its user breaks a rule of package
// fabric.
type stubConn struct {
	h        fabric.Handler
	info     fabric.Info
	receives []fabric.Completion // ID and, in Bytes, the buffer's index
	bufs     [][]byte
	free     []int
	pending  []fabric.Completion
	spare    []fabric.Completion
	handles  map[fabric.Handle]stubRegion
	last     fabric.Handle
	closing  bool
	closed   bool
	reason   error
	one      [1]fabric.Completion

	fail           error // the error of PostSend and PostWrite
	failRegister   error
	failInvalidate error
	async          bool // Invalidate completes later
	sends          int
	sent           [4096]byte // the latest Send
	sentLen        int
	onSend         func(s fabric.Send)
	onRead         func(into []byte)
}

type stubRegion struct {
	buf    []byte
	access fabric.Access
}

func newStubConn(h fabric.Handler) *stubConn {
	return &stubConn{
		h: h, handles: make(map[fabric.Handle]stubRegion),
		info: fabric.Info{
			Provider: "stub", Peer: netip.MustParseAddrPort("192.0.2.1:20049"), IRD: 16, ORD: 16,
			PrivateData: rpcrdma.AppendPrivateData(nil, rpcrdma.PrivateData{RemoteInvalidation: true, SendSize: 4096, RecvSize: 4096}),
		},
	}
}

func (s *stubConn) PostReceive(id uint64, buf []byte) error {
	if s.closing {
		return fabric.ErrClosed
	}
	var i int
	if n := len(s.free); n > 0 {
		i = s.free[n-1]
		s.free = s.free[:n-1]
		s.bufs[i] = buf
	} else {
		i = len(s.bufs)
		s.bufs = append(s.bufs, buf)
	}
	s.receives = append(s.receives, fabric.Completion{ID: id, Op: fabric.OpReceive, Bytes: int32(i)})
	return nil
}

func (s *stubConn) PostSend(id uint64, m fabric.Send) error {
	if s.closing {
		return fabric.ErrClosed
	}
	if s.fail != nil {
		return s.fail
	}
	s.sends++
	s.sentLen = 0
	for _, p := range m.Parts {
		s.sentLen += copy(s.sent[s.sentLen:], p)
	}
	if s.onSend != nil {
		s.onSend(m)
	}
	s.pending = append(s.pending, fabric.Completion{ID: id, Op: fabric.OpSend})
	return nil
}

func (s *stubConn) PostWrite(_ uint64, w fabric.Write) error {
	if s.closing {
		return fabric.ErrClosed
	}
	if s.fail != nil {
		return s.fail
	}
	n := 0
	for _, p := range w.Parts {
		n += len(p)
	}
	if n != int(w.To.Length) {
		panic(fmt.Sprintf("write of %d octets to a region of %d", n, w.To.Length))
	}
	return nil
}

func (s *stubConn) PostRead(id uint64, r fabric.Read) error {
	if s.closing {
		return fabric.ErrClosed
	}
	if r.From.Length == 0 || int(r.From.Length) != len(r.Into) {
		panic(fmt.Sprintf("read of %d octets into %d", r.From.Length, len(r.Into)))
	}
	if s.onRead != nil {
		s.onRead(r.Into)
	}
	s.pending = append(s.pending, fabric.Completion{ID: id, Op: fabric.OpRead})
	return nil
}

func (s *stubConn) Flush() {}

func (s *stubConn) Register(buf []byte, a fabric.Access) (fabric.Region, error) {
	if s.closing {
		return fabric.Region{}, fabric.ErrClosed
	}
	if s.failRegister != nil {
		return fabric.Region{}, s.failRegister
	}
	s.last++
	s.handles[s.last] = stubRegion{buf, a}
	return fabric.Region{Handle: s.last, Offset: 1 << 40, Length: uint32(len(buf))}, nil
}

func (s *stubConn) Invalidate(id uint64, h fabric.Handle) (bool, error) {
	if s.failInvalidate != nil {
		return false, s.failInvalidate
	}
	if s.async && !s.closing {
		s.pending = append(s.pending, fabric.Completion{ID: id, Op: fabric.OpInvalidate})
		return false, nil
	}
	delete(s.handles, h)
	return true, nil
}

func (s *stubConn) Info() fabric.Info       { return s.info }
func (s *stubConn) LastActivity() time.Time { return time.Time{} }

func (s *stubConn) Close(err error) {
	if !s.closing {
		s.closing, s.reason = true, err
	}
}

// deliver puts m into the next Receive, or breaks the connection if there is
// none.
func (s *stubConn) deliver(m []byte, inv fabric.Handle) {
	if c, ok := s.receive(m, inv); ok {
		s.one[0] = c
		s.h.Completed(s.one[:])
	}
}

// receive returns the completion that deliver tells of.
func (s *stubConn) receive(m []byte, inv fabric.Handle) (c fabric.Completion, ok bool) {
	if s.closing {
		return c, false
	}
	if len(s.receives) == 0 || len(m) > len(s.bufs[s.receives[0].Bytes]) {
		s.Close(fabric.ErrQueueFull)
		return c, false
	}
	if inv != 0 {
		if _, ok := s.handles[inv]; !ok {
			s.Close(fabric.ErrLimit)
			return c, false
		}
		delete(s.handles, inv)
	}
	c = s.receives[0]
	s.receives = s.receives[:copy(s.receives, s.receives[1:])]
	i := c.Bytes
	c.Bytes, c.Invalidated = int32(copy(s.bufs[i], m)), inv
	s.free = append(s.free, int(i))
	return c, true
}

// step reports the Work Requests that have completed.
func (s *stubConn) step() {
	if len(s.pending) > 0 && !s.closing {
		batch := s.pending
		s.pending = s.spare[:0]
		s.h.Completed(batch)
		s.spare = batch[:0]
	}
}

// stepFirst completes the oldest Work Request alone.
func (s *stubConn) stepFirst() {
	batch := []fabric.Completion{s.pending[0]}
	s.pending = s.pending[:copy(s.pending, s.pending[1:])]
	s.h.Completed(batch)
}

// settle steps until nothing happens any more, and closes the connection if that
// was asked for.
func (s *stubConn) settle(l *stubLoop) {
	for len(s.pending) > 0 && !s.closing || len(l.tasks) > 0 {
		s.step()
		l.run()
	}
	if s.closing && !s.closed {
		s.closed = true
		batch := append(s.pending, s.receives...)
		s.pending, s.receives = nil, nil
		for i := range batch {
			batch[i].Err = fabric.ErrFlushed
		}
		s.h.Completed(batch)
		s.h.Closed(s.reason)
		l.run()
	}
}

var sharedRegistry = sync.OnceValue(newRegistry)

// A stubRequester is a Requester on a stubConn.
type stubRequester struct {
	*Requester
	conn *stubConn
	loop *stubLoop
}

func newStubRequester(t testing.TB, m *regmem.Account, edit func(o *RequesterOptions)) *stubRequester {
	t.Helper()
	o := RequesterOptions{Memory: m, Registry: sharedRegistry(), Credits: 8, RemoteInvalidation: true, Deadline: -1, Log: zerolog.Nop()}
	if edit != nil {
		edit(&o)
	}
	loop := &stubLoop{}
	r, err := newRequester(requesterOptions(o), loop, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := &stubRequester{Requester: r, loop: loop, conn: newStubConn((*requesterHandler)(r))}
	if err := s.conn.h.Setup(s.conn); err != nil {
		t.Fatal(err)
	}
	return s
}

// A stubResponder is a connection of a Responder on a stubConn.
type stubResponder struct {
	*ResponderConn
	conn *stubConn
	loop *stubLoop
}

func newStubResponder(t testing.TB, m *regmem.Account, h CallHandler, edit func(o *ResponderOptions)) *stubResponder {
	t.Helper()
	o := ResponderOptions{Memory: m, Registry: sharedRegistry(), Credits: 8, RemoteInvalidation: true, Log: zerolog.Nop()}
	if edit != nil {
		edit(&o)
	}
	responder, err := NewResponder(responderOptions(o), h)
	if err != nil {
		t.Fatal(err)
	}
	loop := &stubLoop{}
	c := responder.newConn(loop, rpcrdma.AppendPrivateData(nil, rpcrdma.PrivateData{RemoteInvalidation: true, SendSize: 4096, RecvSize: 4096}))
	s := &stubResponder{ResponderConn: c, loop: loop, conn: newStubConn((*responderHandler)(c))}
	if err := s.conn.h.Setup(s.conn); err != nil {
		t.Fatal(err)
	}
	return s
}

func newTestArena(t testing.TB) *regmem.Arena {
	t.Helper()
	a, err := regmem.New(regmem.Options{Budget: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return a
}

// prepare returns a Call of m, which is in arena memory already.
func prepare(t testing.TB, r *Requester, m []byte, owner CallOwner) *Call {
	t.Helper()
	c := &Call{Message: m, Owner: owner}
	var parsed oncrpc.Call
	if err := oncrpc.ParseCall(m, &parsed); err != nil {
		t.Fatal(err)
	}
	c.XID = parsed.XID
	c.Binding = r.opts.Registry.Analyse(&parsed, &c.Analysis)
	return c
}

type callFunc func(x *Exchange)

func (f callFunc) Call(x *Exchange) { f(x) }
