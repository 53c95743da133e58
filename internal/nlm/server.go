package nlm

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/rdmabridge/rdmabridge/internal/arrival"
	"github.com/rdmabridge/rdmabridge/internal/crowd"
	"github.com/rdmabridge/rdmabridge/internal/loglimit"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ask"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

// Bounds of what peers can cause.
const (
	maxDatagram   = 4 << 10
	maxRecord     = 16 << 10
	maxConns      = 512
	maxHostConns  = 64
	maxCalls      = 4096 // under way
	maxHostCalls  = 256
	maxRepeats    = 8 // of one Call under way
	idleTimeout   = 5 * time.Minute
	recordTimeout = 30 * time.Second // from the first octet of a record to the last
	writeTimeout  = 10 * time.Second
	pause         = 50 * time.Millisecond // after a failed read or accept
)

// A call is a Call that has arrived. Its message is its own.
type call struct {
	oncrpc.Call
	from  netip.AddrPort // unmapped
	local netip.Addr     // this host's address that it was sent to
	udp   bool
	send  func(reply []byte)

	// Of a Call about locks: before is closed when the Call is next, or nil, and after when the one that follows is.
	before, after chan struct{}
}

// A turn is of the Calls of one owner about one file. They go to the server one after the other, as they have come: a LOCK
// that a client has sent twice must not follow its UNLOCK.
type turn struct {
	client netip.Addr
	svid   uint32
	handle string
}

// A flight tells a Call under way from others.
type flight struct {
	client                  netip.Addr
	xid, program, procedure uint32
}

// accept serves the TCP port.
func (s *Server) accept() {
	var failures loglimit.Seldom
	for {
		c, err := s.tcp.AcceptTCP()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			failures.Line(&s.log, zerolog.ErrorLevel, "nlm_failed").Err(err).Msg("nlm: accepting connections")
			time.Sleep(pause)
			continue
		}
		if !s.join(c) {
			c.Close()
			continue
		}
		s.work.Go(func() {
			defer s.leave(c)
			s.serve(c)
		})
	}
}

func unmapped(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }

func addrOf(a net.Addr) netip.AddrPort {
	p, _ := netip.ParseAddrPort(a.String())
	return unmapped(p)
}

// join counts a connection, or reports that it must be closed.
func (s *Server) join(c *net.TCPConn) bool {
	peer := addrOf(c.RemoteAddr()).Addr()
	if !s.allowed(peer) {
		s.series.refuse(refusedDenied)
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h := crowd.HostOf(peer)
	if s.closed || s.hosts.All() >= maxConns || s.hosts.Of(h) >= maxHostConns {
		s.series.refuse(refusedConnections)
		return false
	}
	s.hosts.Add(h)
	s.conns[c] = struct{}{}
	return true
}

func (s *Server) leave(c *net.TCPConn) {
	c.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	s.hosts.Remove(crowd.HostOf(addrOf(c.RemoteAddr()).Addr()))
}

// allowed reports whether a may send anything.
func (s *Server) allowed(a netip.Addr) bool {
	allow := *s.allow.Load()
	return len(allow) == 0 || s.upstream.is(a.WithZone("")) || crowd.Within(allow, a)
}

// serve reads the Calls of one connection.
func (s *Server) serve(c *net.TCPConn) {
	from, local := addrOf(c.RemoteAddr()), addrOf(c.LocalAddr()).Addr()
	send := func(reply []byte) {
		_ = c.SetWriteDeadline(time.Now().Add(writeTimeout))
		if _, err := c.Write(ask.Record(reply)); err != nil {
			c.Close() // the rest of the record may be lost
		}
	}
	for {
		_ = c.SetReadDeadline(time.Now().Add(idleTimeout))
		m, err := readRecord(c, func() { _ = c.SetReadDeadline(time.Now().Add(recordTimeout)) })
		if errors.Is(err, ask.ErrLong) {
			s.series.refuse(refusedLong)
		}
		if err != nil || !s.arrived(&call{from: from, local: local, send: send}, m) {
			return
		}
	}
}

// readRecord reads a record of at most maxRecord octets. It calls begun when a fragment has begun.
func readRecord(r io.Reader, begun func()) ([]byte, error) {
	return ask.ReadRecord(r, maxRecord, func(int) error {
		begun()
		return nil
	})
}

// datagrams serves the UDP port.
func (s *Server) datagrams() {
	buf, oob := make([]byte, maxDatagram), make([]byte, 256)
	var failures loglimit.Seldom
	for {
		n, oobn, flags, from, err := s.udp.ReadMsgUDPAddrPort(buf, oob)
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			failures.Line(&s.log, zerolog.ErrorLevel, "nlm_failed").Err(err).Msg("nlm: reading datagrams")
			time.Sleep(pause)
			continue
		}
		a := arrival.Parse(oob[:oobn])
		switch {
		case !s.allowed(from.Addr().Unmap()):
			s.series.refuse(refusedDenied)
			continue
		case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0:
			s.series.refuse(refusedLong)
			continue
		case a.Group || !a.Local.IsValid():
			s.series.refuse(refusedGroup)
			continue
		}
		s.arrived(&call{from: unmapped(from), local: a.Local, udp: true, send: func(reply []byte) {
			if !s.mayAnswer(len(reply)-n, time.Now()) {
				s.series.refuse(refusedRate)
				return
			}
			_, _, _ = s.udp.WriteMsgUDPAddrPort(reply, a.Control(), from) // the client asks again
		}}, slices.Clone(buf[:n]))
	}
}

// mayAnswer reports whether a datagram may be answered by one that is so many octets longer.
func (s *Server) mayAnswer(longer int, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.datagram.May(longer, now)
}

// arrived answers the Call m, now or later. It reports false if m is no Call.
func (s *Server) arrived(x *call, m []byte) bool {
	if err := oncrpc.ParseCall(m, &x.Call); err != nil {
		b, why := x.AppendRefusal(nil, err)
		s.series.refuse(refusedMalformed)
		if b != nil {
			x.send(b)
		}
		return why != oncrpc.RefusedNot
	}
	refuse := func(r refusal, reply []byte) bool {
		s.series.refuse(r)
		x.send(reply)
		return true
	}
	accepted := func(stat uint32) []byte { return oncrpc.AppendAccepted(nil, x.XID, stat) }
	low, high := uint32(1), uint32(4)
	switch {
	// The Server has no verifier for RPCSEC_GSS. AUTH_TLS "on any procedure other than the NULL procedure" is
	// AUTH_BADCRED: RFC 9289 Section 4.1.
	case x.Flavor == oncrpc.FlavorGSS || x.TLSProbe() && x.Procedure != 0:
		return refuse(refusedAuth, oncrpc.AppendAuthError(nil, x.XID, oncrpc.AuthBadCredential))
	case x.Program == oncrpc.ProgramMount && x.udp && s.o.Mount:
		if slices.Contains(longMount, x.Procedure) {
			return refuse(refusedProcedure, accepted(oncrpc.ProcedureUnavailable))
		}
		s.begin(x, nil, func() { s.mount(x) })
		return true
	case x.Program == oncrpc.ProgramNSM:
		high = 1
	case x.Program != oncrpc.ProgramNLM:
		return refuse(refusedProgram, accepted(oncrpc.ProgramUnavailable))
	}
	if x.Version < low || x.Version > high || x.Version == 2 {
		return refuse(refusedVersion, oncrpc.AppendProgramMismatch(nil, x.XID, low, high))
	}
	if x.Procedure == 0 {
		x.send(accepted(oncrpc.Success))
		return true
	}
	known, ok := s.perform(x)
	switch {
	case !known:
		return refuse(refusedProcedure, accepted(oncrpc.ProcedureUnavailable))
	case !ok:
		return refuse(refusedArguments, accepted(oncrpc.GarbageArguments))
	}
	return true
}

// perform performs a procedure, here or on a goroutine. It reports whether it knows it, and whether its arguments can be
// read.
func (s *Server) perform(x *call) (known, ok bool) {
	void := func() { x.send(oncrpc.AppendAccepted(nil, x.XID, oncrpc.Success)) }
	if x.Program == oncrpc.ProgramNSM {
		switch {
		case x.Procedure < procNotify:
			x.send(s.monitor(x))
		case x.Procedure == procNotify:
			c := xdr.NewCursor(x.Message, x.Args)
			opaque(&c, x.Message, maxOwner)
			state := c.Uint32()
			if !c.OK() {
				return true, false
			}
			s.notified(x.from.Addr(), state)
			void()
		default:
			return false, false
		}
		return true, true
	}
	var r request
	procedure, _ := plain(x.Procedure)
	do := func() { s.lock(x, &r) }
	switch {
	case procedure <= procUnlock, procedure >= procShare && procedure <= procNMLock:
	case procedure == procGranted:
		do = func() { s.grant(x, &r) }
	case procedure == procFreeAll:
		s.begin(x, nil, func() { s.freeAll(x) })
		return true, true
	case procedure > procGrantedMsg && procedure < procGrantedRes: // the Server asks no questions that these answer
		void()
		return true, true
	case procedure == procGrantedRes:
		if !s.grantedRes(x) {
			return true, false
		}
		void()
		return true, true
	default:
		return false, false
	}
	if !r.parse(x.Message, x.Args, x.Version, procedure) {
		return true, false
	}
	s.begin(x, &r, do)
	return true, true
}

// pass lets the Call that follows x have its turn. The lock is held.
func (s *Server) pass(x *call, r *request) {
	if x.after == nil {
		return
	}
	if k := (turn{x.from.Addr(), r.svid, string(r.handle)}); s.turns[k] == x.after {
		delete(s.turns, k)
	}
	close(x.after)
	x.after = nil
}

// begin runs do on a goroutine. A Call that repeats one under way gets the Reply to that one. r is nil for a Call that
// cannot be answered by asking for it later.
func (s *Server) begin(x *call, r *request, do func()) {
	f, client := flight{x.from.Addr(), x.XID, x.Program, x.Procedure}, x.from.Addr()
	s.mu.Lock()
	sends, repeats := s.flights[f]
	busy := len(s.flights) >= maxCalls || s.calls[client] >= maxHostCalls || s.closed
	switch {
	case repeats && len(sends) < maxRepeats:
		s.flights[f] = append(sends, x.send)
	case !repeats && !busy:
		s.flights[f] = []func([]byte){x.send}
		s.calls[client]++
		if r != nil {
			k := turn{client, r.svid, string(r.handle)}
			x.before, x.after = s.turns[k], make(chan struct{})
			s.turns[k] = x.after
		}
		x.send = func(reply []byte) {
			s.mu.Lock()
			sends := s.flights[f]
			s.flights[f] = nil // those that come from now on, to a Call that is answered already
			s.mu.Unlock()
			for _, send := range sends {
				send(reply)
			}
		}
		s.flying.Go(func() {
			defer func() {
				s.mu.Lock()
				defer s.mu.Unlock()
				delete(s.flights, f)
				s.pass(x, r)
				if s.calls[client]--; s.calls[client] == 0 {
					delete(s.calls, client)
				}
			}()
			do()
		})
	}
	s.mu.Unlock()
	if busy && !repeats {
		s.series.refuse(refusedBusy)
		if !x.udp && r != nil && r.reclaim == 0 {
			x.send(later(x, r))
		}
	}
}
