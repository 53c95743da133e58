// Package rpcbind answers program 100000, RFC 1833: the port mapper, version 2,
// and rpcbind, versions 3 and 4, on one TCP and one UDP port. It knows only the bridge's
// own listeners. [Ask] asks the rpcbind of another host.
//
// # Answers
//
// The table comes from Options.Services, and later from [Server.Publish]. Clients cannot
// register programs: SET and UNSET return FALSE. The Server calls no program for a client:
// it does not answer CALLIT and BCAST, which is how RFC 1833 Sections 2.2.1 and 3.2 let
// them fail, and it answers INDIRECT with PROC_UNAVAIL. GETPORT and GETADDR for a version
// without a listener return the address of another version, like every rpcbind, so that
// the program itself can tell its versions. GETVERSADDR does not.
//
// # Addresses
//
// For a listener on every address, the Server returns the address that the question was
// sent to. GETPORT finds a listener on a single address only when the question was sent to
// that address: the answer is a port, and the client tries it at the address that it
// asked.
//
// RFC 1833 Section 2.2.1 infers the netid from the transport of the question. Clients cannot
// ask over RDMA here, so the Server uses the netid in the question if it knows that netid, and
// otherwise the transport's.
//
// # Datagrams
//
// The source address of a datagram may be forged, so the Server limits how much more it
// sends over UDP than it receives: see arrival.Answers. Clients get long Replies over TCP.
//
// # Ownership
//
// Publish replaces the table as a whole; answers read it without a lock. Each TCP question
// is answered on the loop of its connection, one at a time. One goroutine answers
// datagrams; [Server.Close] ends it.
package rpcbind

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/crowd"
	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// maxMessage is the longest Call in octets, on TCP and UDP alike, and the longest
// Reply in a datagram. Clients have room for 8800 octets.
const maxMessage = 8 << 10

// Options describe a Server. Engine and Address are needed.
type Options struct {
	Address  string           // host:port for TCP and UDP; with port 0, Listen picks one that is free on both
	Allow    []netip.Prefix   // addresses of clients that may ask; empty allows all
	Services []Service        // services to advertise until Publish replaces them
	TCP      *net.TCPListener // a socket that listens at Address; the Server closes it. nil opens one
	UDP      *net.UDPConn     // the UDP socket at the port of TCP; set exactly when TCP is
	Engine   *tcpframe.Engine
	Log      zerolog.Logger
	Metrics  *metrics.Registry
}

// A Server answers rpcbind Calls. Its methods are safe for concurrent use, but must not be
// called on an event loop.
type Server struct {
	log     zerolog.Logger
	opts    Options // constant
	allow   atomic.Pointer[[]netip.Prefix]
	tcp     *tcpframe.Listener
	udp     *datagrams
	series  series
	entries atomic.Pointer[table]
	stats   statistics

	mu      sync.Mutex // guards clients and closed; a leaf
	clients map[*client]struct{}
	closed  bool
}

// Listen starts a Server.
func Listen(o Options) (*Server, error) {
	s := &Server{log: o.Log, opts: o, clients: make(map[*client]struct{})}
	s.series.resolve(o.Metrics)
	t := makeTable(netip.AddrPort{}, o.Services) // for Calls that arrive before Publish below
	s.entries.Store(&t)
	s.setAllow(o.Allow)
	if err := s.listen(o); err != nil {
		s.closeClients()
		return nil, fmt.Errorf("rpcbind: %w", err)
	}
	s.Publish(o.Services)
	s.udp.start()
	o.Log.Info().Str("event", "rpcbind_listening").Stringer("address", s.Addr()).Msg("rpcbind listening")
	return s, nil
}

// Allow replaces the addresses of clients that may ask, for future datagrams and
// connections.
func (s *Server) Allow(prefixes []netip.Prefix) {
	s.setAllow(prefixes)
	o := s.opts
	o.Allow, o.TCP = prefixes, nil
	s.tcp.Update(s.listenOptions(o))
}

func (s *Server) setAllow(prefixes []netip.Prefix) {
	allow := crowd.Unmapped(prefixes)
	s.allow.Store(&allow)
}

// portTries bounds the attempts to find a port that is free on both TCP and UDP.
const portTries = 16

func (s *Server) listen(o Options) error {
	var errs []error
	if o.TCP != nil && o.UDP != nil {
		tcp, err := o.Engine.Listen(s.listenOptions(o), func(*tcpframe.Conn) tcpframe.RecordHandler { return &client{s: s} })
		if err != nil {
			_ = o.UDP.Close()
			return err
		}
		s.tcp, s.udp = tcp, newDatagrams(s, o.UDP)
		return nil
	}
	for range portTries {
		tcp, err := o.Engine.Listen(s.listenOptions(o), func(*tcpframe.Conn) tcpframe.RecordHandler { return &client{s: s} })
		if err != nil {
			return err
		}
		at, free, err := sameHost(o.Address, tcp.Addr().Port())
		if err == nil {
			if s.udp, err = listenDatagrams(s, at); err == nil {
				s.tcp = tcp
				return nil
			}
		}
		errs = append(errs, err, tcp.Close())
		if !free {
			break
		}
	}
	return errors.Join(errs...)
}

// Files returns new descriptors of the sockets, for handing them to another process.
func (s *Server) Files() (tcp, udp *os.File, err error) {
	if tcp, err = s.tcp.File(); err != nil {
		return nil, nil, err
	}
	if udp, err = loop.Duplicate(s.udp.conn); err != nil {
		tcp.Close()
		return nil, nil, err
	}
	return tcp, udp, nil
}

// Addr returns the address that the Server listens at, on TCP and UDP.
func (s *Server) Addr() netip.AddrPort { return s.tcp.Addr() }

// Publish replaces the advertised services. The Server always advertises itself.
func (s *Server) Publish(services []Service) {
	t := makeTable(s.Addr(), services)
	s.stats.expect(t)
	s.entries.Store(&t)
}

// errClosing is the reason for closing the connections of a closed Server.
var errClosing = errors.New("rpcbind: closing")

// Close ends the Server. It closes each connection after writing the Reply under way.
func (s *Server) Close() error {
	err := errors.Join(s.tcp.Close(), s.udp.close())
	s.closeClients()
	return err
}

// closeClients closes all connections, including those being accepted.
func (s *Server) closeClients() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for x := range s.clients {
		x.conn.Loop().Post(loop.TaskFunc(func() { x.conn.Close(errClosing) }))
	}
}

// join adds a client. It reports false when the Server is closed; the caller then closes
// the connection.
func (s *Server) join(x *client) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.clients[x] = struct{}{}
	return true
}

func (s *Server) leave(x *client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.clients, x)
}
