package proxytest

import (
	"context"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/rdmaside"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// Behaviour changes how a server answers.
type Behaviour struct {
	// Intercept, when set, may return another answer, or nil and true to stay
	// silent. It is called on many goroutines.
	Intercept func(c *oncrpc.Call) (reply []byte, taken bool)
	// InterceptTCP is Intercept for a TCPServer, with the connection, which it may close.
	InterceptTCP func(c *oncrpc.Call, from *TCPConn) (reply []byte, taken bool)
	// Delay is added to every answer.
	Delay time.Duration
	// Gate, when set, keeps answers back while it is shut.
	Gate *Gate
}

// A Gate keeps the answers of a server to Calls that come while it is shut. It begins open.
type Gate struct {
	mu   sync.Mutex
	shut chan struct{} // closed when it opens; nil while it is open
}

// Shut shuts a gate that is open.
func (g *Gate) Shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = make(chan struct{})
}

// Open lets all answers go, if the gate is shut.
func (g *Gate) Open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut != nil {
		close(g.shut)
		g.shut = nil
	}
}

// wait returns a channel that is closed when answers may go, or nil if they may now.
func (g *Gate) wait() <-chan struct{} {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.shut
}

// Served counts.
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

// A TCPServer answers Calls over TCP.
type TCPServer struct {
	Served
	Behaviour
	l  net.Listener
	wg sync.WaitGroup

	mu    sync.Mutex
	conns []*TCPConn // in the order they came
}

// A TCPConn is one connection of a TCPServer. A server may use it to call its client.
type TCPConn struct {
	net.Conn
	s   *TCPServer
	wmu sync.Mutex // guards writing
	got chan []byte
}

// ListenTCP starts a server at addr.
func ListenTCP(addr string, b Behaviour) (*TCPServer, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	s := &TCPServer{Behaviour: b, l: l}
	s.wg.Add(1)
	go s.accept()
	return s, nil
}

// Addr is where it listens.
func (s *TCPServer) Addr() string { return s.l.Addr().String() }

func (s *TCPServer) accept() {
	defer s.wg.Done()
	for {
		nc, err := s.l.Accept()
		if err != nil {
			return
		}
		c := &TCPConn{Conn: nc, s: s, got: make(chan []byte, 1024)}
		s.mu.Lock()
		s.conns = append(s.conns, c)
		s.mu.Unlock()
		s.wg.Add(1)
		go s.serve(c)
	}
}

// Conns are the connections that are up, in the order they came.
func (s *TCPServer) Conns() []*TCPConn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.conns)
}

func (s *TCPServer) serve(c *TCPConn) {
	defer s.wg.Done()
	defer close(c.got)
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.conns = slices.DeleteFunc(s.conns, func(x *TCPConn) bool { return x == c })
	}()
	defer c.Close()
	for {
		m, err := testkit.ReadRecord(c)
		if err != nil {
			return
		}
		if IsReply(m) {
			c.got <- m
			continue
		}
		var call oncrpc.Call
		if oncrpc.ParseCall(m, &call) != nil {
			return
		}
		s.count(call.XID)
		reply := answer(&call)
		if s.Intercept != nil {
			if r, taken := s.Intercept(&call); taken {
				reply = r
			}
		}
		if s.InterceptTCP != nil {
			if r, taken := s.InterceptTCP(&call, c); taken {
				reply = r
			}
		}
		if reply == nil {
			continue
		}
		send := func() { c.Send(reply) }
		if d := s.Delay + time.Duration(delay(&call))*time.Millisecond; d > 0 {
			time.AfterFunc(d, send)
			continue
		}
		if shut := s.Gate.wait(); shut != nil {
			go func() {
				<-shut
				send()
			}()
			continue
		}
		send()
	}
}

// Send sends one record. It ignores errors: serve sees the end of the connection.
func (c *TCPConn) Send(m []byte) {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	_ = testkit.WriteRecord(c.Conn, m)
}

// Call sends the Call m to the client.
func (c *TCPConn) Call(m []byte, _ uint32) { c.Send(m) }

// Next is the client's next Reply.
func (c *TCPConn) Next(wait time.Duration) ([]byte, error) {
	return next(c.got, wait)
}

// Drop ends the connection.
func (c *TCPConn) Drop(error) { c.Close() }

// DropConnections ends all connections.
func (s *TCPServer) DropConnections() {
	for _, c := range s.Conns() {
		c.Close()
	}
}

// Close ends the server.
func (s *TCPServer) Close() {
	s.l.Close()
	s.DropConnections()
	s.wg.Wait()
}

// An RDMAServer answers Calls over RPC-over-RDMA.
type RDMAServer struct {
	Served
	Behaviour
	l    fabric.Listener
	resp *rdmaside.Responder
	mem  *regmem.Account

	mu    sync.Mutex
	conns map[*rdmaside.ResponderConn]struct{}

	// MaxOutstanding is the most Calls ever outstanding on one connection.
	MaxOutstanding atomic.Int64
}

// ListenRDMA starts a server at addr. Connections are spread over loops.
func ListenRDMA(p fabric.Provider, loops []loop.Loop, addr string, credits int, arena *regmem.Arena, reg *ulb.Registry, b Behaviour) (*RDMAServer, error) {
	s := &RDMAServer{Behaviour: b, conns: make(map[*rdmaside.ResponderConn]struct{}), mem: arena.Account("server", arena.Budget())}
	var err error
	s.resp, err = rdmaside.NewResponder(rdmaside.ResponderOptions{
		Memory: s.mem, Registry: reg, Credits: credits, FirstCredits: credits,
		CallInline: 4096, ReplyInline: 4096, MaxCall: 4<<20 + 64<<10, RemoteInvalidation: true,
	}, s)
	if err != nil {
		return nil, err
	}
	var n atomic.Int64
	s.l, err = p.Listen(addr, fabric.ListenOptions{MaxConnections: 1024, MaxStarting: 128, MaxStartingPerAddr: 16}, func(in fabric.Incoming) {
		l := loops[int(n.Add(1))%len(loops)]
		_, _ = s.resp.Accept(context.Background(), in, l) // a failed start-up is the dialer's to report
	})
	return s, err
}

// Addr is where it listens.
func (s *RDMAServer) Addr() string { return s.l.Addr().String() }

// Opened is part of rdmaside.ConnHandler.
func (s *RDMAServer) Opened(c *rdmaside.ResponderConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns[c] = struct{}{}
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
	s.count(call.XID)
	reply := answer(&call)
	if s.Intercept != nil {
		if r, taken := s.Intercept(&call); taken {
			reply = r
		}
	}
	if reply == nil {
		return // silent: the exchange stays open until its connection ends
	}
	send := func() {
		b, err := s.mem.Lease(len(reply))
		if err != nil {
			x.Abort()
			return
		}
		copy(b.Bytes(), reply)
		x.Reply([][]byte{b.Bytes()}, b)
	}
	if d := s.Delay + time.Duration(delay(&call))*time.Millisecond; d > 0 {
		on := x.Conn().Loop()
		time.AfterFunc(d, func() { on.Post(loop.TaskFunc(send)) })
		return
	}
	if shut := s.Gate.wait(); shut != nil {
		on := x.Conn().Loop()
		go func() {
			<-shut
			on.Post(loop.TaskFunc(send))
		}()
		return
	}
	send()
}

// Close stops listening and ends all connections.
func (s *RDMAServer) Close() {
	_ = s.l.Close()
	s.DropConnections(fabric.ErrClosed)
}
