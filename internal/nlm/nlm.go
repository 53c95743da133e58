// Package nlm carries the locks of NFSv3 between clients and one server: NLM, program 100021, and NSM, program 100024,
// of X/Open XNFS and RFC 1813 Appendix II. It is a lock manager towards the clients, and a client towards the server. It
// is beside the road that Calls of NFS take: it has sockets of its own, and a goroutine for each Call, because locks are
// few.
//
// # Owners
//
// A server tells hosts apart by their address, and all clients have the bridge's. So the Server gives each owner of locks
// a number of its own, an svid, which no owner of another client has. The table remembers which client has which number,
// and what it holds and waits for: see table.go, and journal.go for what survives a restart.
//
// # Ways
//
// A Call of a client becomes a Call to the server, on one connection that all clients share (lock.go, upstream.go). When
// the server grants a lock that a client waits for, it calls the bridge, and the Server calls the client (granted.go,
// caller.go). When the server or a client has restarted, its status monitor says so to the bridge, and the Server tells
// those clients that have locks, or frees the locks of the client that has lost them (notify.go).
//
// If Options.Mount is set, Calls of MOUNT over UDP go to the server's MOUNT over TCP (mount.go).
package nlm

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/arrival"
	"github.com/rdmabridge/rdmabridge/internal/crowd"
	"github.com/rdmabridge/rdmabridge/internal/loglimit"
	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// Options describe a Server. Address and Server are needed.
type Options struct {
	Address    string         // host:port for TCP and UDP; with port 0, Listen picks one that is free on both
	Server     string         // name or address of the host whose lock manager has the locks
	ServerPort uint16         // the TCP port of NLM there; 0 asks its rpcbind
	Name       string         // what the server and clients' status monitors know the bridge by; "" is the name of this host
	State      string         // directory of the file that remembers the owners; "" keeps them in memory alone
	Key        [32]byte       // proxy/identity.Bridge: from it follow the numbers of owners
	Mount      bool           // answers MOUNT over UDP; the server's rpcbind says where its MOUNT is
	Allow      []netip.Prefix // addresses that may send anything, beside the server's; empty allows all
	Log        zerolog.Logger
	Metrics    *metrics.Registry

	RPCBindPort uint16           // the port of rpcbind on other hosts; 0 is 111
	TCP         *net.TCPListener // a socket that listens at Address; the Server closes it. nil opens one
	UDP         *net.UDPConn     // the UDP socket at the port of TCP; set exactly when TCP is
}

// A Server is the bridge's lock manager and status monitor. Its methods are safe for concurrent use.
type Server struct {
	o     Options // constant
	log   zerolog.Logger
	allow atomic.Pointer[[]netip.Prefix]
	tcp   *net.TCPListener
	udp   *net.UDPConn

	ctx    context.Context // ends with Close
	end    context.CancelFunc
	flying sync.WaitGroup // Calls under way
	work   sync.WaitGroup // other goroutines

	series   series
	table    *table
	upstream *upstream     // the server's NLM
	mountd   *upstream     // its MOUNT
	xid      atomic.Uint32 // of the latest Call to a client
	telling  chan struct{} // has a place for each client that is being told of a restart
	unheards loglimit.Limit

	mu       sync.Mutex // guards the fields below; a leaf
	closed   bool
	conns    map[net.Conn]struct{}
	hosts    crowd.Counts                 // of conns
	flights  map[flight][]func([]byte)    // Calls under way, and where their Replies go
	calls    map[netip.Addr]int           // of flights, by client
	turns    map[turn]chan struct{}       // the after of the latest Call
	ports    map[service]port             // of clients
	answers  map[string]answer            // that GRANTED_MSG waits for, by cookie
	offers   map[turn]chan struct{}       // the latest GRANTED under way of an owner; closed when the server has the answer
	releases map[netip.Addr]chan struct{} // clients whose locks are being freed; closed when they are
	told     map[place]uint32             // the state of the server's monitor that clients are being told of
	datagram arrival.Answers
}

// A Snapshot is what a Server has at one time.
type Snapshot struct {
	Held    int // ranges that clients have locked
	Waiting int // ranges that they wait for
	Clients int // addresses that have at least one of them
	Most    []ClientLocks
}

// ClientLocks are what one client has. The Snapshot has those of the clients that have the most.
type ClientLocks struct {
	Client        netip.Addr
	Held, Waiting int
}

// Listen starts a Server.
func Listen(o Options) (*Server, error) {
	if o.RPCBindPort == 0 {
		o.RPCBindPort = 111
	}
	if o.Name == "" {
		name, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("nlm: the name of this host: %w", err)
		}
		o.Name = name
	}
	s := &Server{
		o: o, log: o.Log, tcp: o.TCP, udp: o.UDP, table: newTable(o.Key), telling: make(chan struct{}, maxNotices),
		conns: make(map[net.Conn]struct{}), flights: make(map[flight][]func([]byte)), calls: make(map[netip.Addr]int), turns: make(map[turn]chan struct{}), offers: make(map[turn]chan struct{}), ports: make(map[service]port),
		answers: make(map[string]answer), releases: make(map[netip.Addr]chan struct{}), told: make(map[place]uint32),
	}
	s.xid.Store(rand.Uint32())
	s.upstream = newUpstream(s, "lock manager", oncrpc.ProgramNLM, 4, o.ServerPort)
	s.mountd = newUpstream(s, "MOUNT", oncrpc.ProgramMount, 3, 0)
	s.series.resolve(o.Metrics, s.table)
	s.ctx, s.end = context.WithCancel(context.Background())
	s.Allow(o.Allow)
	if s.tcp == nil || s.udp == nil {
		var err error
		if s.tcp, s.udp, err = listen(o.Address); err != nil {
			s.end()
			return nil, fmt.Errorf("nlm: %w", err)
		}
	}
	if o.State == "" {
		s.log.Warn().Str("event", "nlm_no_state").Msg("nlm: nlm.state is not set, so a bridge that restarts forgets who has which locks: a lock that is granted then is found by asking again, and the locks of a client that crashes stay")
	} else if err := openJournal(o.State, s.table, &s.log); err != nil {
		s.log.Error().Str("event", "nlm_state_failed").Err(err).Msg("nlm: locks are remembered in memory alone")
	}
	ctx, cancel := context.WithTimeout(s.ctx, resolveTimeout)
	defer cancel()
	_, _ = s.upstream.resolve(ctx) // connecting does it again, and says so
	for host, state := range s.table.owed() {
		s.work.Go(func() { s.follow(host, state) })
	}
	s.work.Go(s.accept)
	s.work.Go(s.datagrams)
	s.log.Info().Str("event", "nlm_listening").Stringer("address", s.Addr()).Str("server", o.Server).Msg("nlm listening")
	return s, nil
}

// portTries bounds the attempts to find a port that is free on both TCP and UDP.
const portTries = 16

func listen(address string) (*net.TCPListener, *net.UDPConn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, nil, err
	}
	var errs []error
	for range portTries {
		tcp, err := net.Listen(loop.Network("tcp", address), address)
		if err != nil {
			return nil, nil, err
		}
		at := net.JoinHostPort(host, strconv.Itoa(tcp.Addr().(*net.TCPAddr).Port))
		lc := net.ListenConfig{Control: arrival.Want}
		udp, err := lc.ListenPacket(context.Background(), loop.Network("udp", at), at)
		if err == nil {
			return tcp.(*net.TCPListener), udp.(*net.UDPConn), nil
		}
		errs = append(errs, err, tcp.Close())
		if port != "0" {
			break
		}
	}
	return nil, nil, errors.Join(errs...)
}

// Addr returns the address that the Server listens at, on TCP and UDP.
func (s *Server) Addr() netip.AddrPort {
	a := s.tcp.Addr().(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// Allow replaces the addresses that may send anything, for future datagrams and connections.
func (s *Server) Allow(prefixes []netip.Prefix) {
	allow := crowd.Unmapped(prefixes)
	s.allow.Store(&allow)
}

// Files returns new descriptors of the sockets, for handing them to another process.
func (s *Server) Files() (tcp, udp *os.File, err error) {
	if tcp, err = loop.Duplicate(s.tcp); err != nil {
		return nil, nil, err
	}
	if udp, err = loop.Duplicate(s.udp); err != nil {
		tcp.Close()
		return nil, nil, err
	}
	return tcp, udp, nil
}

// Close ends the Server and waits for its goroutines. Calls under way are answered with a status that makes the client
// ask again.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.end()
	err := s.tcp.Close()
	s.flying.Wait()
	err = errors.Join(err, s.udp.Close())
	s.mu.Lock()
	for c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	s.work.Wait()
	s.table.close()
	if errors.Is(err, net.ErrClosed) {
		return nil // twice
	}
	return err
}

// Snapshot returns what clients hold and wait for.
func (s *Server) Snapshot() Snapshot { return s.table.snapshot() }
