// Package rpcbind answers program 100000, RFC 1833: the port mapper, version 2,
// and rpcbind, versions 3 and 4, on one TCP and one UDP port. It tells where the
// bridge's own listeners are and knows nothing else.
//
// # What is answered
//
// The table is what Options.Services gave, and later [Server.Publish]. Nobody
// registers: SET and UNSET are FALSE. Nothing is called on anybody's behalf: CALLIT
// and BCAST are silent, which is how RFC 1833 Sections 2.2.1 and 3.2 have them
// fail, and INDIRECT is PROC_UNAVAIL. A GETPORT or GETADDR for a version that is not there gets the
// address of one that is, as from every rpcbind, so that the program itself can
// say which versions it has. GETVERSADDR does not.
//
// # Addresses
//
// A listener on every address is at the address that the question arrived at. One
// on an address of its own is told by GETPORT only to who asked there: the answer
// is a port, and the client will try it where it asked.
//
// RFC 1833 Section 2.2.1 infers the netid from the transport of the question.
// Nobody can ask over RDMA here, so a netid that is known counts when it is given;
// the transport's own counts when it is not.
//
// # Datagrams
//
// The source of a datagram may be forged, so UDP must not send more than it
// receives: datagrams.go has the limits. What is long is for TCP.
//
// # Ownership
//
// The table is replaced whole, and read without a lock. TCP questions are answered
// on their connection's loop, one at a time; datagrams by one goroutine, which
// ends with [Server.Close].
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

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// maxMessage is the longest Call in octets, on TCP and UDP alike, and the longest
// Reply in a datagram. Clients make room for 8800 octets.
const maxMessage = 8 << 10

// Options describe a Server. Engine and Address are needed.
type Options struct {
	Address  string           // host:port, for TCP and UDP; port 0 takes one that is free on both
	Allow    []netip.Prefix   // who may ask; empty: everybody
	Services []Service        // what is advertised, until Publish replaces it
	TCP      *net.TCPListener // listens at Address already, and is taken; nil opens one
	UDP      *net.UDPConn     // with TCP: its other half
	Engine   *tcpframe.Engine
	Log      zerolog.Logger
	Metrics  *metrics.Registry
}

// A Server answers. Its methods are safe for concurrent use, but not on a loop.
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
	t := makeTable(netip.AddrPort{}, o.Services) // for who asks before the address is known here
	s.entries.Store(&t)
	s.setAllow(o.Allow)
	if err := s.listen(o); err != nil {
		s.closeClients()
		return nil, fmt.Errorf("rpcbind: %w", err)
	}
	s.Publish(o.Services)
	s.udp.start()
	o.Log.Info().Stringer("address", s.Addr()).Msg("rpcbind listening")
	return s, nil
}

// Allow replaces the list of who may ask, for datagrams and connections to come.
func (s *Server) Allow(prefixes []netip.Prefix) {
	s.setAllow(prefixes)
	o := s.opts
	o.Allow, o.TCP = prefixes, nil
	s.tcp.Update(s.listenOptions(o))
}

func (s *Server) setAllow(prefixes []netip.Prefix) {
	allow := make([]netip.Prefix, 0, len(prefixes))
	for _, p := range prefixes {
		if p.Addr().Is4In6() && p.Bits() >= 96 {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		allow = append(allow, p.Masked())
	}
	s.allow.Store(&allow)
}

// portTries is how often port 0 is tried until TCP's is free on UDP too.
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

// Files are other descriptors of its sockets, for who hands them to another process.
func (s *Server) Files() (tcp, udp *os.File, err error) {
	if tcp, err = s.tcp.File(); err != nil {
		return nil, nil, err
	}
	if udp, err = s.udp.conn.File(); err != nil {
		tcp.Close()
		return nil, nil, err
	}
	return tcp, udp, nil
}

// Addr is where it listens, on TCP and UDP.
func (s *Server) Addr() netip.AddrPort { return s.tcp.Addr() }

// Publish replaces what is advertised, the Server itself aside.
func (s *Server) Publish(services []Service) {
	t := makeTable(s.Addr(), services)
	s.stats.expect(t)
	s.entries.Store(&t)
}

// errClosing ends the connections of a Server that is closed.
var errClosing = errors.New("rpcbind: closing")

// Close ends the Server. A connection is closed when what it was answered is
// written.
func (s *Server) Close() error {
	err := errors.Join(s.tcp.Close(), s.udp.close())
	s.closeClients()
	return err
}

// closeClients closes those there are and those that are on their way.
func (s *Server) closeClients() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for x := range s.clients {
		x.conn.Loop().Post(loop.TaskFunc(func() { x.conn.Close(errClosing) }))
	}
}

// join reports false when the Server is closed: so is the client then.
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
