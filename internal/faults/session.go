package faults

import (
	"errors"
	"net/netip"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/rdmaside"
)

// errNoCall ends a session whose client has sent something that is no RPC message.
var errNoCall = errors.New("faults: not an RPC message")

// A front is the client's side of a session. Its methods but exclusive are called inside a function that
// was given to exclusive.
type front interface {
	// exclusive runs f while nothing else uses the session, now or a little later.
	exclusive(f func())
	// send sends the Reply m to the Call p, with the fault of p, and takes m.
	send(p *pending, m *regmem.Lease)
	// forget ends the Call p without an answer.
	forget(p *pending)
	// callBack sends a Call of the server to the client, and takes m.
	callBack(m *regmem.Lease)
	// close ends the connection.
	close(err error)
}

// A pending is a Call of a client until it is answered.
type pending struct {
	incident
	fault *injection         // nil for none
	x     *rdmaside.Exchange // on RDMA

	held    *regmem.Lease // the Reply, of a Call that is held
	left    int           // Replies that must overtake it
	dropped bool          // what the Responder sends for it is dropped
	spoilt  bool          // its chunks were not written
}

// is reports whether the fault of p has this name.
func (p *pending) is(fault string) bool { return p.fault != nil && p.fault.Fault == fault }

// A session is a client's connection and its connection to the server behind.
type session struct {
	server    *Server
	front     front
	transport transport
	peer      netip.Addr

	// Used inside front.exclusive.
	up       *upstream
	ended    bool
	calls    map[uint32][]*pending // given to the server, by XID; several after a retransmission
	held     []*pending            // with their Replies, oldest first
	parsed   oncrpc.Call
	analysis ulb.Analysis
}

func (s *Server) newSession(f front, t transport, peer netip.Addr) *session {
	return &session{server: s, front: f, transport: t, peer: peer, calls: make(map[uint32][]*pending)}
}

// received takes the message m of the client, which is lent. p is the Call, with its x and with what
// it offers.
func (s *session) received(m []byte, p *pending) {
	if s.ended {
		s.front.forget(p)
		return
	}
	if err := oncrpc.ParseCall(m, &s.parsed); err != nil {
		if _, kind, ok := oncrpc.MessageType(m); ok && kind == 1 && s.transport == overTCP && s.up != nil {
			s.up.write(m) // the Reply to a Call of the server
			return
		}
		s.front.forget(p)
		s.front.close(errNoCall)
		return
	}
	c := &s.parsed
	s.analysis = ulb.Analysis{}
	s.server.registry.Analyse(c, &s.analysis)
	p.transport, p.peer = s.transport, s.peer
	p.xid, p.program, p.version, p.operation, p.length = c.XID, c.Program, c.Version, s.analysis.Procedure, len(m)
	p.fault = s.server.judge.decide(&p.incident)
	if p.fault != nil && p.fault.kind.stage == atCall {
		s.instead(p)
		return
	}
	if s.up == nil {
		s.up = s.server.upstreamFor(s)
	}
	s.calls[p.xid] = append(s.calls[p.xid], p)
	if !s.up.write(m) {
		s.front.close(errors.New("faults: the server is not there, or does not read its Calls"))
	}
}

// rpcErrors are the answers of fault rpc_error.
var rpcErrors = map[string]func(b []byte, xid uint32) []byte{
	"PROG_UNAVAIL":      accepted(1),
	"PROC_UNAVAIL":      accepted(3),
	"GARBAGE_ARGS":      accepted(4),
	"SYSTEM_ERR":        accepted(5),
	"AUTH_BADCRED":      denied(1),
	"AUTH_REJECTEDCRED": denied(2),
	"AUTH_TOOWEAK":      denied(5),
}

func accepted(stat uint32) func([]byte, uint32) []byte {
	return func(b []byte, xid uint32) []byte { return oncrpc.AppendAccepted(b, xid, stat) }
}

func denied(stat uint32) func([]byte, uint32) []byte {
	return func(b []byte, xid uint32) []byte { return oncrpc.AppendAuthError(b, xid, stat) }
}

// instead injects a fault that strikes before the server has the Call.
func (s *session) instead(p *pending) {
	if p.fault.Fault == dropCall {
		s.server.judge.injected(p.fault, &p.incident)
		s.front.forget(p)
		return
	}
	answer := rpcErrors["SYSTEM_ERR"]
	if p.fault.Fault == rpcError {
		answer = rpcErrors[p.fault.Error]
		s.server.judge.injected(p.fault, &p.incident)
	}
	m, err := s.server.memory.Lease(32)
	if err != nil {
		s.front.forget(p)
		s.front.close(err)
		return
	}
	b := answer(m.Bytes()[:0], p.xid)
	m.Resize(len(b))
	s.front.send(p, m)
}

// answered takes the message m of the server.
func (s *session) answered(m *regmem.Lease) {
	xid, kind, ok := oncrpc.MessageType(m.Bytes())
	if s.ended || !ok {
		m.Release()
		return
	}
	if kind == 0 {
		s.front.callBack(m)
		return
	}
	waiting := s.calls[xid]
	if len(waiting) == 0 {
		m.Release()
		return
	}
	p := waiting[0]
	if s.calls[xid] = waiting[1:]; len(waiting) == 1 {
		delete(s.calls, xid)
	}
	switch {
	case p.is(dropReply):
		s.server.judge.injected(p.fault, &p.incident)
		m.Release()
		s.front.forget(p)
	case p.is(delay), p.is(reorder):
		s.server.judge.injected(p.fault, &p.incident)
		s.hold(p, m)
	default:
		s.front.send(p, m)
		s.overtaken()
	}
}

// hold keeps the Reply m back for a time.
func (s *session) hold(p *pending, m *regmem.Lease) {
	p.held, p.left = m, p.fault.Replies
	s.held = append(s.held, p)
	time.AfterFunc(p.fault.wait, func() {
		s.front.exclusive(func() { s.letGo(p) })
	})
}

// letGo sends the Reply of p if it is still held.
func (s *session) letGo(p *pending) {
	if p.held == nil {
		return
	}
	for i := range s.held {
		if s.held[i] == p {
			s.held = append(s.held[:i], s.held[i+1:]...)
			break
		}
	}
	m := p.held
	p.held = nil
	s.front.send(p, m)
}

// overtaken counts a Reply that has gone to the client, for fault reorder.
func (s *session) overtaken() {
	var due []*pending
	for _, p := range s.held {
		if p.is(reorder) {
			if p.left--; p.left == 0 {
				due = append(due, p)
			}
		}
	}
	for _, p := range due {
		s.letGo(p)
	}
}

// end is called when the client's connection has ended.
func (s *session) end() {
	if s.ended {
		return
	}
	s.ended = true
	for _, p := range s.held {
		p.held.Release()
		p.held = nil
		s.front.forget(p)
	}
	for _, waiting := range s.calls {
		for _, p := range waiting {
			s.front.forget(p)
		}
	}
	s.held, s.calls = nil, nil
	if s.up != nil {
		s.server.park(s.up)
		s.up = nil
	}
}
