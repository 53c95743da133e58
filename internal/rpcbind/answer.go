package rpcbind

import (
	"net/netip"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

// A question is the way in which a Call arrived.
type question struct {
	local    netip.Addr // this host's address that it was sent to, unmapped and without a zone
	datagram bool       // UDP
	version  uint32     // of rpcbind, from the Call
}

// netid returns the netid of the transport of the question.
func (q *question) netid() netid {
	four, six := netTCP, netTCP6
	if q.datagram {
		four, six = netUDP, netUDP6
	}
	if q.local.Is4() {
		return four
	}
	return six
}

// A procedure appends its results to b, the header of a successful Reply. If it returns
// another refusal than refusedNot, the Call is counted as refused.
type procedure struct {
	name string
	run  func(s *Server, q *question, args *arguments, b []byte) ([]byte, refusal)
}

// arguments are a Cursor over the arguments of a Call.
type arguments struct {
	xdr.Cursor
	message []byte
}

// opaque consumes an opaque or a string and lends its data. They are empty after a
// failure.
func (a *arguments) opaque() []byte {
	pos, n := a.Opaque()
	return a.message[pos : pos+n]
}

// versions are the procedures of versions 2, 3 and 4, by number. RFC 1833
// Sections 2.1 and 3.1.
var versions = [...][]procedure{
	{
		{"null", (*Server).null},
		{"set", (*Server).setMapping},
		{"unset", (*Server).setMapping},
		{"getport", (*Server).getPort},
		{"dump", (*Server).dumpPorts},
		{"callit", (*Server).callIt},
	},
	rpcbind3,
	append(
		rpcbind3[:len(rpcbind3):len(rpcbind3)],
		procedure{"getversaddr", (*Server).getVersionAddr},
		procedure{"indirect", (*Server).indirect},
		procedure{"getaddrlist", (*Server).getAddrList},
		procedure{"getstat", (*Server).getStat},
	),
}

// rpcbind3 are the procedures of version 3 and the first procedures of version 4, which
// calls CALLIT by the name BCAST.
var rpcbind3 = []procedure{
	{"null", (*Server).null},
	{"set", (*Server).set},
	{"unset", (*Server).set},
	{"getaddr", (*Server).getAddr},
	{"dump", (*Server).dump},
	{"callit", (*Server).callIt},
	{"gettime", (*Server).getTime},
	{"uaddr2taddr", (*Server).uaddrToTaddr},
	{"taddr2uaddr", (*Server).taddrToUaddr},
}

// answer returns the Reply to the message m, which it borrows. A nil reply means that no
// Reply is sent. ok is false when m is no Call. Like every RPC server, answer ignores
// octets behind the arguments.
func (s *Server) answer(m []byte, q question) (reply []byte, ok bool) {
	var h oncrpc.Call
	if err := oncrpc.ParseCall(m, &h); err != nil {
		b, why := h.AppendRefusal(nil, err)
		return s.refuse(q, refusedHeaders[why], b), why != oncrpc.RefusedNot
	}
	accepted := func(r refusal, stat uint32) ([]byte, bool) {
		return s.refuse(q, r, oncrpc.AppendAccepted(nil, h.XID, stat)), true
	}
	// Other flavors only identify the client, and every client gets the same answer.
	// RPCSEC_GSS requires a verifier that this Server cannot make. AUTH_TLS "on any
	// procedure other than the NULL procedure" is AUTH_BADCRED: RFC 9289 Section 4.1.
	if h.Flavor == oncrpc.FlavorGSS || h.TLSProbe() && h.Procedure != 0 {
		return s.refuse(q, refusedAuth, oncrpc.AppendAuthError(nil, h.XID, oncrpc.AuthBadCredential)), true
	}
	if h.Program != oncrpc.ProgramRPCBind {
		return accepted(refusedProgram, oncrpc.ProgramUnavailable)
	}
	if h.Version < version2 || h.Version > version4 {
		return s.refuse(q, refusedVersion, oncrpc.AppendProgramMismatch(nil, h.XID, version2, version4)), true
	}
	q.version = h.Version
	procs := versions[h.Version-version2]
	if h.Procedure >= uint32(len(procs)) {
		return accepted(refusedProcedure, oncrpc.ProcedureUnavailable)
	}
	p := &procs[h.Procedure]
	s.series.called(p.name, q.datagram)
	s.stats.called(h.Version, h.Procedure)

	args := arguments{xdr.NewCursor(m, h.Args), m}
	b := oncrpc.AppendAccepted(make([]byte, 0, 256), h.XID, oncrpc.Success)
	b, r := p.run(s, &q, &args, b)
	switch {
	case r == refusedCall:
		return s.refuse(q, r, nil), true
	case r == refusedIndirect:
		return accepted(r, oncrpc.ProcedureUnavailable)
	case !args.OK():
		return accepted(refusedArguments, oncrpc.GarbageArguments)
	case q.datagram && len(b) > maxMessage:
		return accepted(refusedLong, oncrpc.SystemError)
	case r != refusedNot:
		s.refuse(q, r, nil)
	}
	return b, true
}

// refuse counts a refusal and returns reply.
func (s *Server) refuse(q question, r refusal, reply []byte) []byte {
	s.series.refuse(r, q.datagram)
	return reply
}

func (s *Server) null(_ *question, _ *arguments, b []byte) ([]byte, refusal) { return b, refusedNot }

// mapping steps over a version 2 mapping.
func mapping(args *arguments) (p Program, protocol uint32) {
	p = Program{args.Uint32(), args.Uint32()}
	protocol = args.Uint32()
	args.Uint32() // the port
	return p, protocol
}

// setMapping is SET and UNSET of version 2. It returns FALSE.
func (s *Server) setMapping(_ *question, args *arguments, b []byte) ([]byte, refusal) {
	mapping(args)
	return xdr.AppendUint32(b, 0), refusedRegistration
}

// getPort answers GETPORT. "A port value of zeros means the program has not been registered":
// RFC 1833 Section 3.2.
func (s *Server) getPort(q *question, args *arguments, b []byte) ([]byte, refusal) {
	p, protocol := mapping(args)
	n, ok := netidByProtocol(protocol, q.local)
	if !ok || !args.OK() {
		return xdr.AppendUint32(b, 0), refusedNot
	}
	e := s.entries.Load().find(p, n, q.local, everywhere, false)
	s.stats.looked(q.version, lookup{p, n}, e != nil)
	if e == nil {
		return xdr.AppendUint32(b, 0), refusedNot
	}
	return xdr.AppendUint32(b, uint32(e.addr.Port())), refusedNot
}

// dumpPorts answers DUMP of version 2 with the entries that GETPORT finds.
//
//	*(1, prog, vers, prot, port), 0
func (s *Server) dumpPorts(q *question, _ *arguments, b []byte) ([]byte, refusal) {
	for _, e := range *s.entries.Load() {
		protocol := netConfig[e.netid].protocol
		if protocol == 0 || !e.netid.family(q.local) || e.reach(q.local) < everywhere {
			continue
		}
		for _, v := range []uint32{1, e.Number, e.Version, protocol, uint32(e.addr.Port())} {
			b = xdr.AppendUint32(b, v)
		}
	}
	return xdr.AppendUint32(b, 0), refusedNot
}

// callIt is CALLIT and BCAST: "only sends a response if the procedure was
// successfully executed and is silent (no response) otherwise". RFC 1833
// Section 2.2.1.
func (s *Server) callIt(*question, *arguments, []byte) ([]byte, refusal) { return nil, refusedCall }

// indirect is INDIRECT, which RFC 1833 does not let fail silently.
func (s *Server) indirect(*question, *arguments, []byte) ([]byte, refusal) {
	return nil, refusedIndirect
}

// rpcb steps over an rpcb: prog, vers, netid, addr, owner. It returns the netid in the question
// if it knows it, else the transport's netid. Other servers use the address in rpcb to guess
// the interface. This server ignores it, because it knows the address to which the client sent
// the question.
func rpcb(q *question, args *arguments) (p Program, n netid) {
	p = Program{args.Uint32(), args.Uint32()}
	name := args.opaque()
	args.Opaque() // addr
	args.Opaque() // owner
	n, ok := netidByName(name)
	if !ok {
		n = q.netid()
	}
	return p, n
}

// set is SET and UNSET of versions 3 and 4. It returns FALSE.
func (s *Server) set(q *question, args *arguments, b []byte) ([]byte, refusal) {
	rpcb(q, args)
	return xdr.AppendUint32(b, 0), refusedRegistration
}

// getAddr answers GETADDR. It returns an empty string when it finds no address.
func (s *Server) getAddr(q *question, args *arguments, b []byte) ([]byte, refusal) {
	return s.lookUp(q, args, b, false), refusedNot
}

func (s *Server) getVersionAddr(q *question, args *arguments, b []byte) ([]byte, refusal) {
	return s.lookUp(q, args, b, true), refusedNot
}

func (s *Server) lookUp(q *question, args *arguments, b []byte, exact bool) []byte {
	p, n := rpcb(q, args)
	if !args.OK() {
		return b
	}
	e := s.entries.Load().find(p, n, q.local, elsewhere, exact)
	s.stats.looked(q.version, lookup{p, n}, e != nil)
	if e == nil {
		return xdr.AppendOpaque(b, nil)
	}
	return xdr.AppendOpaque(b, uaddr(e.merged(q.local)))
}

// owner is the r_owner of every entry.
var owner = []byte("rdmabridge")

// dump answers DUMP of versions 3 and 4 with the whole table.
//
//	*(1, prog, vers, netid, addr, owner), 0
func (s *Server) dump(_ *question, _ *arguments, b []byte) ([]byte, refusal) {
	for _, e := range *s.entries.Load() {
		for _, v := range []uint32{1, e.Number, e.Version} {
			b = xdr.AppendUint32(b, v)
		}
		b = xdr.AppendOpaque(b, []byte(e.netid.String()))
		b = xdr.AppendOpaque(b, uaddr(e.addr))
		b = xdr.AppendOpaque(b, owner)
	}
	return xdr.AppendUint32(b, 0), refusedNot
}

// getTime is GETTIME, in seconds since 1970.
func (s *Server) getTime(_ *question, _ *arguments, b []byte) ([]byte, refusal) {
	return xdr.AppendUint32(b, uint32(time.Now().Unix())), refusedNot
}

// uaddrToTaddr is UADDR2TADDR. It returns an empty netbuf for a string that is no address.
func (s *Server) uaddrToTaddr(_ *question, args *arguments, b []byte) ([]byte, refusal) {
	var t []byte
	if a, ok := parseUaddr(args.opaque()); ok {
		t = taddr(a)
	}
	b = xdr.AppendUint32(b, uint32(len(t))) // maxlen
	return xdr.AppendOpaque(b, t), refusedNot
}

// taddrToUaddr is TADDR2UADDR. It returns an empty string for a netbuf that is no address.
func (s *Server) taddrToUaddr(_ *question, args *arguments, b []byte) ([]byte, refusal) {
	args.Uint32() // maxlen
	var u []byte
	if a, ok := parseTaddr(args.opaque()); ok {
		u = uaddr(a)
	}
	return xdr.AppendOpaque(b, u), refusedNot
}

// getAddrList is GETADDRLIST: the addresses of that version of the program on every
// transport, as far as the client can reach them.
//
//	*(1, maddr, netid, semantics, protofmly, proto), 0
func (s *Server) getAddrList(q *question, args *arguments, b []byte) ([]byte, refusal) {
	p, _ := rpcb(q, args)
	for _, e := range *s.entries.Load() {
		a := e.merged(q.local)
		if e.Program != p || e.reach(q.local) == unreachable || a.Addr().IsUnspecified() {
			continue
		}
		c := &netConfig[e.netid]
		b = xdr.AppendUint32(b, 1)
		b = xdr.AppendOpaque(b, uaddr(a))
		b = xdr.AppendOpaque(b, []byte(c.name))
		b = xdr.AppendUint32(b, c.semantics)
		b = xdr.AppendOpaque(b, []byte(c.family))
		b = xdr.AppendOpaque(b, []byte(c.protoent))
	}
	return xdr.AppendUint32(b, 0), refusedNot
}

// getStat answers GETSTAT.
func (s *Server) getStat(_ *question, _ *arguments, b []byte) ([]byte, refusal) {
	return s.stats.append(b), refusedNot
}
