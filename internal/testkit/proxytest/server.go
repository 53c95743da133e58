package proxytest

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/rdmaside"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// A Behaviour changes how a server answers.
type Behaviour struct {
	// Intercept, when set, may return another answer, or nil and true to stay
	// silent. It is called on many goroutines.
	Intercept func(c *oncrpc.Call) (reply []byte, taken bool)
	// InterceptTCP is Intercept for a TCPServer, with the connection, which it may close.
	InterceptTCP func(c *oncrpc.Call, from *TCPConn) (reply []byte, taken bool)
	// Ends, when set, reports whether the server ends the connection on which c has come.
	Ends func(c *oncrpc.Call) bool
	// Delay is added to every answer.
	Delay time.Duration
	// Gate, when set, holds answers while it is shut.
	Gate *Gate
	// Threads, when set, answer all Calls.
	Threads *Threads
}

// Threads are the threads of a server: each takes one Call at a time, in the order they came.
type Threads struct {
	queue  chan func()
	Served atomic.Int64 // Calls answered
}

// NewThreads starts n threads that take a time for each Call. They end with t.
func NewThreads(t testing.TB, n int, each time.Duration) *Threads {
	th := &Threads{queue: make(chan func(), 1<<16)}
	ctx := t.Context()
	for range n {
		go func() {
			for {
				select {
				case answer := <-th.queue:
					time.Sleep(each) // how slow the server is
					th.Served.Add(1)
					answer()
				case <-ctx.Done():
					return
				}
			}
		}()
	}
	return th
}

// A Gate holds the answers to Calls that come while it is shut. A new Gate is open.
type Gate struct {
	// PassNull lets the answers to NULL Calls through a gate that is shut: other bridges look with them
	// whether the server is there.
	PassNull bool

	mu   sync.Mutex
	shut chan struct{} // closed when it opens; nil while it is open
}

// Shut shuts a gate that is open.
func (g *Gate) Shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = make(chan struct{})
}

// Open releases all answers, if the gate is shut.
func (g *Gate) Open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut != nil {
		close(g.shut)
		g.shut = nil
	}
}

// wait returns a channel that is closed when the gate opens, or nil if the answer to c passes.
func (g *Gate) wait(c *oncrpc.Call) <-chan struct{} {
	if g == nil || g.PassNull && c.Procedure == 0 {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.shut
}

// reply returns the answer to c, or nil when the server stays silent.
func (b *Behaviour) reply(c *oncrpc.Call) []byte {
	if b.Intercept != nil {
		if r, taken := b.Intercept(c); taken {
			return r
		}
	}
	return answer(c)
}

// schedule calls send at once, or hands it to later when the answer to c must wait.
func (b *Behaviour) schedule(c *oncrpc.Call, send func(), later func(send func())) {
	if b.Threads != nil {
		b.Threads.queue <- func() { later(send) }
		return
	}
	if d := b.Delay + time.Duration(delay(c))*time.Millisecond; d > 0 {
		time.AfterFunc(d, func() { later(send) })
		return
	}
	if shut := b.Gate.wait(c); shut != nil {
		go func() {
			<-shut
			later(send)
		}()
		return
	}
	send()
}

// Served counts the Calls that a server received.
type Served struct {
	Calls atomic.Int64

	mu   sync.Mutex
	xids map[uint32]int
}

// count remembers the XID.
func (s *Served) count(xid uint32) {
	s.Calls.Add(1)
	s.mu.Lock()
	if s.xids == nil {
		s.xids = make(map[uint32]int)
	}
	s.xids[xid]++
	s.mu.Unlock()
}

// XIDs returns how often each XID was seen.
func (s *Served) XIDs() map[uint32]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := make(map[uint32]int, len(s.xids))
	for k, v := range s.xids {
		m[k] = v
	}
	return m
}

// An RDMAServer answers Calls over RPC-over-RDMA.
type RDMAServer struct {
	Served
	Behaviour
	l    fabric.Listener
	resp *rdmaside.Responder
	mem  *regmem.Account
	stop context.CancelFunc // ends connections that are being set up

	mu    sync.Mutex
	conns map[*rdmaside.ResponderConn]bool // whether a Call has come

	// MaxOutstanding is the most Calls ever outstanding on one connection.
	MaxOutstanding atomic.Int64
}

// ListenRDMA starts a server at addr. Connections are spread over loops.
func ListenRDMA(p fabric.Provider, loops []loop.Loop, addr string, credits int, arena *regmem.Arena, reg *ulb.Registry, b Behaviour) (*RDMAServer, error) {
	s := &RDMAServer{Behaviour: b, conns: make(map[*rdmaside.ResponderConn]bool), mem: arena.Account("server", arena.Budget())}
	var err error
	s.resp, err = rdmaside.NewResponder(rdmaside.ResponderOptions{
		Memory: s.mem, Registry: reg, Credits: credits, FirstCredits: credits,
		CallInline: 4096, ReplyInline: 4096, MaxCall: 4<<20 + 64<<10, RemoteInvalidation: true,
	}, s)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	var n atomic.Int64
	s.l, err = p.Listen(addr, fabric.ListenOptions{MaxConnections: 1024, MaxStarting: 128, MaxStartingPerAddr: 16}, func(in fabric.Incoming) {
		l := loops[int(n.Add(1))%len(loops)]
		_, _ = s.resp.Accept(ctx, in, l) // a failed start-up is the dialer's to report
	})
	return s, err
}

// Addr is the address at which the server listens.
func (s *RDMAServer) Addr() string { return s.l.Addr().String() }

// Opened is part of rdmaside.ConnHandler.
func (s *RDMAServer) Opened(c *rdmaside.ResponderConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns[c] = false
}

// Ended is part of rdmaside.ConnHandler.
func (s *RDMAServer) Ended(c *rdmaside.ResponderConn, _ error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

// Connections is how many there are.
func (s *RDMAServer) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// DropConnections ends all connections with err.
func (s *RDMAServer) DropConnections(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.Loop().Post(loop.TaskFunc(func() { c.Close(err) }))
	}
}

// Call is part of rdmaside.CallHandler.
func (s *RDMAServer) Call(x *rdmaside.Exchange) {
	for n := int64(x.Conn().Outstanding()); ; {
		most := s.MaxOutstanding.Load()
		if n <= most || s.MaxOutstanding.CompareAndSwap(most, n) {
			break
		}
	}
	var call oncrpc.Call
	if oncrpc.ParseCall(x.Message(), &call) != nil {
		x.Abort()
		return
	}
	if s.primes(x.Conn(), &call) {
		s.send(x, oncrpc.AppendAccepted(nil, call.XID, oncrpc.Success))
		return
	}
	s.count(call.XID)
	if s.Ends != nil && s.Ends(&call) {
		x.Abort()
		return
	}
	reply := s.reply(&call)
	if reply == nil {
		return // silent: the exchange stays open until its connection ends
	}
	on := x.Conn().Loop()
	s.schedule(&call, func() { s.send(x, reply) }, func(send func()) { on.Post(loop.TaskFunc(send)) })
}

// primes reports whether call is a NULL Call and the first on its connection: the bridge primes
// connections so. It is answered at once, and no test sees it.
func (s *RDMAServer) primes(c *rdmaside.ResponderConn, call *oncrpc.Call) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := !s.conns[c]
	s.conns[c] = true
	return first && call.Procedure == 0
}

// send answers x.
func (s *RDMAServer) send(x *rdmaside.Exchange, reply []byte) {
	b, err := Lease(s.mem, reply)
	if err != nil {
		x.Abort()
		return
	}
	x.Reply([][]byte{b.Bytes()}, b)
}

// Close stops listening and ends all connections.
func (s *RDMAServer) Close() {
	_ = s.l.Close()
	s.stop()
	s.DropConnections(fabric.ErrClosed)
}
