package faults

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/rdmaside"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// Options configure a Server.
type Options struct {
	Plan *Plan
	// To is the address of the server behind, host:port of TCP.
	To string

	// TCP is the address for clients over TCP, RDMA the one for clients over RDMA. At least one must be
	// set. RDMA needs Open.
	TCP, RDMA string
	// Open makes the provider. memory returns the extents of the Server's memory, which keeps
	// its pages from then on.
	Open func(memory func() [][]byte) (fabric.Provider, error)

	Credits                 int // the grant of each RDMA connection
	CallInline, ReplyInline int // inline thresholds over RDMA in octets
	Loops                   int // event loops; 0 is one per CPU
	Budget                  int64

	Log zerolog.Logger
}

const maxConns = 1024 // of clients, over each transport

// A Server passes Calls on to another server and injects faults. Its methods are safe for
// concurrent use.
type Server struct {
	to       string
	judge    *judge
	log      zerolog.Logger
	registry *ulb.Registry
	arena    *regmem.Arena
	memory   *regmem.Account
	engine   *tcpframe.Engine
	tcp      *net.TCPListener
	rdma     fabric.Listener

	ctx      context.Context // ends when Close is called
	cancel   context.CancelFunc
	running  sync.WaitGroup // goroutines
	inFlight atomic.Int64   // messages of the server on their way to a session
	next     atomic.Uint32  // index of the loop for the next RDMA connection

	mu        sync.Mutex // guards the rest; before upstream.mu
	closed    bool
	upstreams map[*upstream]struct{}
	parked    []*upstream // without a client, oldest first
	conns     map[*net.TCPConn]struct{}
}

// Start starts a Server.
func Start(o Options) (s *Server, err error) {
	plan := *o.Plan
	if plan.Seed == 0 {
		var b [8]byte
		rand.Read(b[:]) // never fails
		plan.Seed = binary.BigEndian.Uint64(b[:])>>32 | 1
	}
	s = &Server{
		to: o.To, judge: newJudge(&plan, o.Log), log: o.Log, registry: ulb.NewRegistry(ulb.Limits{}),
		upstreams: make(map[*upstream]struct{}), conns: make(map[*net.TCPConn]struct{}),
	}
	nfs.Register(s.registry)
	s.ctx, s.cancel = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
			s = nil
		}
	}()
	if s.arena, err = regmem.New(regmem.Options{Budget: o.Budget}); err != nil {
		return s, err
	}
	s.memory = s.arena.Account("messages", 0)
	if o.TCP == "" && o.RDMA == "" {
		return s, errors.New("faults: no address to listen at")
	}
	if o.TCP != "" {
		l, err := loop.Listen(o.TCP)
		if err != nil {
			return s, fmt.Errorf("faults: %w", err)
		}
		s.tcp = l
		s.running.Go(func() { s.serveTCP(s.tcp) })
	}
	if o.RDMA != "" {
		err = s.listenRDMA(o)
	}
	return s, err
}

func (s *Server) listenRDMA(o Options) error {
	p, err := o.Open(s.arena.Pin)
	if err != nil {
		return err
	}
	s.engine, err = tcpframe.Start(tcpframe.EngineOptions{Loops: cmp.Or(o.Loops, runtime.NumCPU()), Log: o.Log})
	if err != nil {
		return err
	}
	responder, err := rdmaside.NewResponder(rdmaside.ResponderOptions{
		Memory: s.memory, Registry: s.registry, Credits: o.Credits, FirstCredits: min(o.Credits, 32),
		CallInline: o.CallInline, ReplyInline: o.ReplyInline, MaxCall: maxRecord, RemoteInvalidation: true, Log: o.Log,
	}, rdmaHandler{})
	if err != nil {
		return err
	}
	s.rdma, err = p.Listen(o.RDMA, fabric.ListenOptions{MaxConnections: maxConns, MaxStarting: 128, MaxStartingPerAddr: 128}, func(in fabric.Incoming) {
		s.incoming(responder, in)
	})
	return err
}

// Seed returns the seed of the plan, which repeats this run's faults.
func (s *Server) Seed() uint64 { return s.judge.plan.Seed }

// TCP returns the address for clients over TCP.
func (s *Server) TCP() netip.AddrPort { return s.tcp.Addr().(*net.TCPAddr).AddrPort() }

// RDMA returns the address for clients over RDMA.
func (s *Server) RDMA() netip.AddrPort { return s.rdma.Addr() }

// Counts returns what each rule has done so far.
func (s *Server) Counts() []Count { return s.judge.Counts() }

// Close ends the Server and all connections.
func (s *Server) Close() error {
	var errs []error
	s.cancel()
	if s.tcp != nil {
		s.tcp.Close()
	}
	if s.rdma != nil {
		errs = append(errs, s.rdma.Close())
	}
	s.mu.Lock()
	s.closed = true
	for u := range s.upstreams {
		u.close()
	}
	for c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	s.running.Wait()
	for end := time.Now().Add(5 * time.Second); s.inFlight.Load() > 0 && time.Now().Before(end); time.Sleep(time.Millisecond) {
		// The loops still have tasks.
	}
	if s.engine != nil {
		s.engine.Stop()
	}
	if s.arena != nil {
		errs = append(errs, s.arena.Close())
	}
	return errors.Join(errs...)
}

// connects decides about a new connection.
func (s *Server) connects(t transport, peer netip.Addr) *injection {
	c := incident{transport: t, peer: peer, connection: true}
	i := s.judge.decide(&c)
	if i != nil {
		s.judge.injected(i, &c)
	}
	return i
}

// wait waits, and reports false if the Server is closed meanwhile.
func (s *Server) wait(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-s.ctx.Done():
		return false
	}
}

// admit counts a TCP connection, unless there are too many.
func (s *Server) admit(c *net.TCPConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.conns) >= maxConns {
		return false
	}
	s.conns[c] = struct{}{}
	return true
}

func (s *Server) gone(c *net.TCPConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

// loopOf returns the loop for the next RDMA connection.
func (s *Server) loopOf() loop.SocketLoop {
	ls := s.engine.Loops()
	return ls[int(s.next.Add(1))%len(ls)]
}
