package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/loglimit"
	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/rdmaside"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// ServerOptions configure a Server.
type ServerOptions struct {
	Address string // host:port

	// Provider listens over RDMA. With nil, and without Open, the Server uses TCP.
	Provider fabric.Provider
	// Open makes the Provider, for one that registers memory. memory returns the extents of the
	// Server's memory, which keeps its pages from then on.
	Open func(memory func() [][]byte) (fabric.Provider, error)
	// Credits is the grant of each RDMA connection.
	Credits int
	// CallInline and ReplyInline are the inline thresholds over RDMA in octets.
	CallInline, ReplyInline int

	Loops  int   // event loops; 0 is one per CPU, but one less where there are more than two
	Budget int64 // octets of memory for messages
	// Full compares all data of every Call rather than both ends.
	Full bool

	Log     zerolog.Logger
	Metrics *metrics.Registry // may be nil
}

// A Server answers Calls to the echo program and NFSv3, over TCP or RDMA. Its
// methods are safe for concurrent use.
type Server struct {
	service service
	engine  *tcpframe.Engine
	arena   *regmem.Arena
	memory  *regmem.Account
	static  *regmem.Lease // the pattern
	loops   []*serverLoop

	tcp  *tcpframe.Listener
	rdma fabric.Listener
	next atomic.Uint32 // index of the loop for the next RDMA connection

	refused loglimit.Limit
}

const (
	inlineThreshold = 4096           // of a Loader's RDMA connection, in octets
	maxCall         = 4<<20 + 64<<10 // octets of the longest Call accepted over RDMA
)

// StartServer starts a Server.
func StartServer(o ServerOptions) (s *Server, err error) {
	o.Loops = cmp.Or(o.Loops, serverLoops())
	s = &Server{service: service{full: o.Full}}
	if s.arena, err = regmem.New(regmem.Options{Budget: o.Budget}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
			s = nil
		}
	}()
	if o.Open != nil {
		if o.Provider, err = o.Open(s.arena.Pin); err != nil {
			return s, err
		}
	}
	s.memory = s.arena.Account("messages", 0)
	if s.static, err = s.memory.Lease(patternLen); err != nil {
		return s, fmt.Errorf("bench: budget of %d octets: %w", o.Budget, err)
	}
	s.service.pattern = s.static.Bytes()
	copy(s.service.pattern, pattern())
	s.engine, err = tcpframe.Start(tcpframe.EngineOptions{Loops: o.Loops, Log: o.Log, Metrics: o.Metrics})
	if err != nil {
		return s, err
	}
	for _, l := range s.engine.Loops() {
		s.loops = append(s.loops, &serverLoop{Loop: l, server: s})
	}
	if o.Provider == nil {
		return s, s.listenTCP(o)
	}
	return s, s.listenRDMA(o)
}

// Addr returns the address that the Server listens at.
func (s *Server) Addr() netip.AddrPort {
	if s.tcp != nil {
		return s.tcp.Addr()
	}
	return s.rdma.Addr()
}

// Wrong returns how many Calls had wrong data. The Server answered them with SYSTEM_ERR.
func (s *Server) Wrong() uint64 { return s.service.wrong.Load() }

// Close ends the Server and its connections.
func (s *Server) Close() error {
	var errs []error
	if s.tcp != nil {
		errs = append(errs, s.tcp.Close())
	}
	if s.rdma != nil {
		errs = append(errs, s.rdma.Close())
	}
	for _, l := range s.loops {
		done := make(chan struct{})
		l.Loop.Post(loop.TaskFunc(func() { l.hurry(); close(done) }))
		select {
		case <-done:
		case <-time.After(5 * time.Second):
			errs = append(errs, errors.New("bench: an event loop does not respond"))
		}
	}
	if s.engine != nil {
		s.engine.Stop()
	}
	for _, l := range s.loops {
		l.release()
	}
	if s.static != nil {
		s.static.Release()
	}
	return errors.Join(append(errs, s.arena.Close())...)
}

func (s *Server) listenTCP(o ServerOptions) (err error) {
	s.tcp, err = s.engine.Listen(tcpframe.ListenOptions{
		Address: o.Address, MaxConns: -1, MaxConnsPerAddr: -1,
		Conn: tcpframe.ConnOptions{
			Memory:      func(int) tcpframe.Memory { return memory{s.memory} },
			MaxRecord:   4<<20 + 64<<10,
			MaxOutbound: 64 << 20, OutboundLimit: 256 << 20,
			StallTimeout: 30 * time.Second, SendTimeout: 2 * time.Minute,
		},
	}, func(c *tcpframe.Conn) tcpframe.RecordHandler {
		return &tcpHandler{loop: s.loops[c.Loop().Index()]}
	})
	return err
}

func (s *Server) listenRDMA(o ServerOptions) error {
	registry := ulb.NewRegistry(ulb.Limits{})
	nfs.Register(registry)
	responder, err := rdmaside.NewResponder(rdmaside.ResponderOptions{
		Memory: s.memory, Registry: registry, Credits: o.Credits,
		CallInline: o.CallInline, ReplyInline: o.ReplyInline, MaxCall: maxCall, RemoteInvalidation: true, Log: o.Log,
	}, rdmaHandler{s})
	if err != nil {
		return err
	}
	s.rdma, err = o.Provider.Listen(o.Address, fabric.ListenOptions{MaxConnections: 1024, MaxStarting: 128, MaxStartingPerAddr: 16}, func(in fabric.Incoming) {
		l := s.loops[int(s.next.Add(1))%len(s.loops)]
		if _, err := responder.Accept(context.Background(), in, l); err != nil {
			s.refused.Line(&o.Log, zerolog.WarnLevel, "client_refused").Err(err).Stringer("peer", in.Peer()).Msg("RDMA connection not set up")
		}
	})
	return err
}

// A serverLoop is an event loop with its spare Replies. It implements
// loop.SocketLoop.
type serverLoop struct {
	Loop   *tcpframe.Loop
	server *Server
	free   *reply
	all    []*reply
}

// Post is part of loop.Loop.
func (l *serverLoop) Post(t loop.Task) { l.Loop.Post(t) }

// Attach is part of loop.SocketLoop.
func (l *serverLoop) Attach(c net.Conn, s loop.Stream) error { return l.Loop.Attach(c, s) }

// memory lends an arena's memory to tcpframe: it implements tcpframe.Memory.
type memory struct{ *regmem.Account }

// Lease is part of tcpframe.Memory.
func (memory) Return(b tcpframe.Buffer) { b.Release() }

func (m memory) Lease(n int) (tcpframe.Buffer, error) {
	l, err := m.Account.Lease(n)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// A reply is an answer with memory for its head and the connection that it is for. It
// belongs to a loop, which reuses it.
type reply struct {
	loop  *serverLoop
	next  *reply
	lease *regmem.Lease // replyRoom octets
	answer
	gather [3][]byte

	// Either conn or exchange is set.
	conn     *tcpframe.Conn
	exchange *rdmaside.Exchange

	timer   *time.Timer // of the delay; made when first needed
	waiting bool        // for the timer
}

// take returns a spare reply. It fails when there is no memory for another one.
func (l *serverLoop) take() (*reply, error) {
	if r := l.free; r != nil {
		l.free, r.next = r.next, nil
		return r, nil
	}
	lease, err := l.server.memory.Lease(replyRoom)
	if err != nil {
		return nil, err
	}
	r := &reply{loop: l, lease: lease}
	l.all = append(l.all, r)
	return r, nil
}

// Release makes r spare. The connection calls it when it has sent the Reply.
func (r *reply) Release() {
	r.data, r.conn, r.exchange = nil, nil, nil
	r.gather = [3][]byte{}
	r.next, r.loop.free = r.loop.free, r
}

// start answers c, at once or after the delay in the Call.
func (r *reply) start(c *oncrpc.Call) {
	r.answer = answer{head: r.lease.Bytes()[:0]}
	r.loop.server.service.answer(c, &r.answer)
	if r.delay == 0 {
		r.send()
		return
	}
	r.waiting = true
	if r.timer == nil {
		r.timer = time.AfterFunc(r.delay, func() { r.loop.Loop.Post(r) })
	} else {
		r.timer.Reset(r.delay)
	}
}

// Run sends the Reply at the end of its delay.
func (r *reply) Run() {
	if r.waiting {
		r.waiting = false
		r.send()
	}
}

func (r *reply) send() {
	parts := r.parts(&r.gather)
	if r.exchange != nil {
		r.exchange.ReplyCopy(parts, r)
		return
	}
	r.conn.Send(parts, r)
}

// hurry ends all delays.
func (l *serverLoop) hurry() {
	for _, r := range l.all {
		if r.waiting {
			r.timer.Stop()
			r.Run()
		}
	}
}

// release returns the memory of all replies. The loop must have stopped.
func (l *serverLoop) release() {
	for _, r := range l.all {
		r.lease.Release()
	}
	l.all, l.free = nil, nil
}

// A tcpHandler answers the Calls of one TCP connection.
type tcpHandler struct {
	loop *serverLoop
	call oncrpc.Call
}

// Opened is part of tcpframe.RecordHandler.
func (*tcpHandler) Opened(*tcpframe.Conn) {}

// Closed is part of tcpframe.RecordHandler.
func (*tcpHandler) Closed(*tcpframe.Conn, error) {}

// Record is part of tcpframe.RecordHandler.
func (h *tcpHandler) Record(c *tcpframe.Conn, b tcpframe.Buffer) {
	defer b.Release()
	if err := oncrpc.ParseCall(b.Bytes(), &h.call); err != nil {
		c.Close(err)
		return
	}
	r, err := h.loop.take()
	if err != nil {
		c.Abort(err)
		return
	}
	r.conn = c
	r.start(&h.call)
}

// An rdmaHandler answers the Calls of all RDMA connections.
type rdmaHandler struct{ s *Server }

// Call is part of rdmaside.CallHandler.
func (h rdmaHandler) Call(x *rdmaside.Exchange) {
	loop := x.Conn().Loop().(*serverLoop)
	r, err := loop.take()
	if err != nil {
		x.Abort()
		return
	}
	r.exchange = x
	r.start(x.Header())
}
