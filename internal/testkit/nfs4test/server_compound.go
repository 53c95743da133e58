package nfs4test

import (
	"encoding/binary"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// An answer is a Reply, with what is to be done when its time has come.
type answer struct {
	reply []byte
	delay time.Duration
	slot  *slot // busy until the Reply is sent; may be nil
}

// send calls f with the Reply when its time has come.
func (a *answer) send(s *Server, f func(reply []byte)) {
	if a.delay == 0 {
		f(a.reply)
		return
	}
	time.AfterFunc(a.delay, func() {
		if a.slot != nil {
			s.mu.Lock()
			a.slot.busy = false
			s.mu.Unlock()
		}
		f(a.reply)
	})
}

// call answers the Call m, which came on c.
func (c *conn) call(m []byte) (a answer, err error) {
	var h oncrpc.Call
	if err := oncrpc.ParseCall(m, &h); err != nil {
		return a, err
	}
	switch {
	case h.Program != oncrpc.ProgramNFS:
		return answer{reply: oncrpc.AppendAccepted(nil, h.XID, oncrpc.ProgramUnavailable)}, nil
	case h.Procedure == 0:
		return answer{reply: oncrpc.AppendAccepted(nil, h.XID, oncrpc.Success)}, nil
	case h.Version != 4 || h.Procedure != 1:
		return answer{reply: oncrpc.AppendAccepted(nil, h.XID, oncrpc.ProcedureUnavailable)}, nil
	}
	c.s.Calls.Add(1)
	x := compound{c: c, s: c.s, m: m, Cursor: xdr.NewCursor(m, h.Args)}
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	result := x.run()
	a = answer{reply: append(oncrpc.AppendAccepted(make([]byte, 0, 24+len(result)), h.XID, oncrpc.Success), result...)}
	if c.s.o.Delay > 0 && x.slot != nil && !x.replay {
		x.slot.busy = true
		a.delay, a.slot = c.s.o.Delay, x.slot
	}
	return a, nil
}

// A compound is a COMPOUND while it is executed. Server.mu is held.
type compound struct {
	c *conn
	s *Server
	m []byte
	xdr.Cursor

	out []byte // resarray, without its count
	ops uint32 // operations in the COMPOUND
	op  uint32 // the index of the operation
	num uint32 // its number

	session  *session
	slot     *slot
	number   uint32 // of the slot
	sequence uint32
	cache    bool
	replay   bool
}

// run executes the COMPOUND and returns COMPOUND4res. It changes the slot only at the end.
func (x *compound) run() []byte {
	at, n := x.Opaque()
	tag := x.m[at : at+n]
	minor := x.Uint32()
	x.ops = x.Uint32()
	status := OK
	switch {
	case !x.OK():
		status, x.ops = errBadXDR, 0
	case minor != 1 && minor != 2:
		status, x.ops = errMinorVersion, 0
	}
	var done uint32
	for x.op = 0; x.op < x.ops && status == OK; x.op++ {
		x.num = x.Uint32()
		var result []byte
		status, result = x.execute()
		if x.replay {
			return x.replayed(tag)
		}
		if !x.OK() {
			status, result = errBadXDR, nil
		}
		x.out = append(testkit.AppendWords(x.out, x.num, uint32(status)), result...)
		done++
	}
	b := testkit.AppendOpaque(testkit.Words(uint32(status)), tag)
	b = append(testkit.AppendWords(b, done), x.out...)
	if x.slot != nil {
		x.s.Executed.Add(1)
		x.slot.sequence = x.sequence
		x.slot.result, x.slot.cached = b, x.cache || x.ops == 1
	}
	return b
}

// replayed is the Reply to a COMPOUND that was executed before.
func (x *compound) replayed(tag []byte) []byte {
	x.s.Replays.Add(1)
	if x.slot.cached {
		return x.slot.result
	}
	b := testkit.AppendOpaque(testkit.Words(uint32(errRetryUncached)), tag)
	b = append(testkit.AppendWords(b, 2, opSequence, uint32(OK)), x.sequenceResult()...)
	return testkit.AppendWords(b, x.Uint32(), uint32(errRetryUncached))
}

// execute executes the operation at the cursor, behind its number.
func (x *compound) execute() (Status, []byte) {
	switch x.num {
	case opExchangeID, opCreateSession, opBindConn, opDestroyClientID:
		if x.ops != 1 {
			return errNotOnlyOp, nil
		}
	case opSequence:
		if x.op != 0 {
			return errSequencePosition, nil
		}
	case opDestroySession:
	default:
		if x.session == nil {
			return errOpNotInSession, nil
		}
	}
	switch x.num {
	case opExchangeID:
		return x.exchangeID()
	case opCreateSession:
		return x.createSession()
	case opBindConn:
		return x.bindConn()
	case opDestroySession:
		return x.destroySession(), nil
	case opDestroyClientID:
		return x.destroyClientID(), nil
	case opSequence:
		return x.sequenced()
	case opReclaimComplete:
		x.Skip(4)
		if x.session.host.reclaimed {
			return errCompleteAlready, nil
		}
		x.session.host.reclaimed = true
		return OK, nil
	case opPutrootfh:
		return OK, nil
	case opGetattr:
		x.SkipArray(x.Uint32(), 4)
		b := testkit.Words(1, 1<<20, 8) // the attribute fileid
		return OK, binary.BigEndian.AppendUint64(b, attributesOf(x.number, x.sequence))
	case opRead:
		x.Skip(16)
		offset, count := x.Uint64(), x.Uint32()
		b := testkit.Words(0) // not the end of the file
		return OK, testkit.AppendPattern(b, int(min(count, 1<<20)), uint32(offset))
	}
	return errIllegal, nil
}

// exchangeID is EXCHANGE_ID. RFC 8881 Section 18.35.
func (x *compound) exchangeID() (Status, []byte) {
	pos := x.Pos()
	x.Skip(8)
	at, n := x.Opaque()
	x.Skip(4) // flags
	machine := false
	var protect []byte
	switch x.Uint32() {
	case 0:
		protect = testkit.Words(0)
	case 1:
		from := x.Pos()
		x.SkipArray(x.Uint32(), 4)
		x.SkipArray(x.Uint32(), 4)
		machine = true
		protect = testkit.Words(1)
		if x.OK() {
			protect = append(protect, x.m[from:x.Pos()]...)
		}
	default:
		x.Fail()
	}
	for k := x.Uint32(); k > 0 && x.OK(); k-- {
		x.Opaque()
		x.Opaque()
		x.Skip(12)
	}
	if !x.OK() {
		return errBadXDR, nil
	}
	owner, verifier := string(x.m[at:at+n]), [8]byte(x.m[pos:])
	h := x.s.owners[owner]
	if h == nil || h.verifier != verifier {
		if old := x.s.news[owner]; old != nil {
			old.remove()
		}
		x.s.nextHost++
		h = &host{s: x.s, id: x.s.nextHost, owner: owner, verifier: verifier, addr: x.c.peer, machine: machine}
		x.s.hosts[h.id], x.s.news[owner] = h, h
	}
	flags := uint32(exchangeNonPNFS)
	if h.confirmed {
		flags |= exchangeConfirmed
	}
	b := testkit.AppendWords(binary.BigEndian.AppendUint64(nil, h.id), h.created+1, flags)
	b = append(b, protect...)
	b = testkit.AppendOpaque(testkit.AppendWords(b, 0, 0), []byte("nfs4test")) // server_owner4
	b = testkit.AppendOpaque(b, []byte("nfs4test"))                            // scope
	return OK, testkit.AppendWords(b, 0)
}

// channel reads channel_attrs4: header, request, response, cached, operations, requests.
func (x *compound) channel() (a [6]uint32) {
	for i := range a {
		a[i] = x.Uint32()
	}
	x.SkipArray(x.Uint32(), 4)
	return a
}

// createSession is CREATE_SESSION. RFC 8881 Section 18.36. nfsd needs a back channel for Calls of
// 540 octets and Replies of 112 octets of two operations.
func (x *compound) createSession() (Status, []byte) {
	id, sequence, flags := x.Uint64(), x.Uint32(), x.Uint32()
	fore, back := x.channel(), x.channel()
	program := x.Uint32()
	for k := x.Uint32(); k > 0 && x.OK(); k-- {
		if x.Uint32() == oncrpc.FlavorSys {
			x.Skip(4)
			x.Opaque()
			x.Skip(8)
			x.SkipArray(x.Uint32(), 4)
		}
	}
	if !x.OK() {
		return errBadXDR, nil
	}
	h := x.s.hosts[id]
	switch {
	case h == nil:
		return errStaleClientID, nil
	case h.addr != x.c.peer:
		return errClientInUse, nil
	case sequence == h.created && h.createResult != nil:
		return OK, h.createResult
	case sequence != h.created+1:
		return errSeqMisordered, nil
	case back[1] < 540 || back[2] < 112 || back[4] < 2:
		return errTooSmall, nil
	}
	if !h.confirmed {
		if old := x.s.owners[h.owner]; old != nil {
			old.remove() // the host has started again
		}
		h.confirmed = true
		delete(x.s.news, h.owner)
		x.s.owners[h.owner] = h
	}
	h.created++
	h.number++
	fore[5] = min(fore[5], x.s.o.Slots)
	back[5] = 1
	v := &session{host: h, id: sessionID(h.id, h.number), most: fore[5], callback: 1, program: program}
	x.s.sessions[v.id] = v
	h.sessions = append(h.sessions, v)
	v.bind(x.c, flags&createBackChan != 0)
	x.s.Created.Add(1)
	b := testkit.AppendWords(append([]byte(nil), v.id[:]...), sequence, flags&createBackChan)
	b = testkit.AppendWords(testkit.AppendWords(b, fore[:]...), 0)
	b = testkit.AppendWords(testkit.AppendWords(b, back[:]...), 0)
	h.createResult = b
	return OK, b
}

func (x *compound) sessionArgument() *session {
	pos := x.Pos()
	x.Skip(16)
	if !x.OK() {
		return nil
	}
	return x.s.sessions[SessionID(x.m[pos:])]
}

// bindConn is BIND_CONN_TO_SESSION. RFC 8881 Section 18.34.
func (x *compound) bindConn() (Status, []byte) {
	v := x.sessionArgument()
	direction := x.Uint32()
	x.Skip(4)
	if v == nil {
		return errBadSession, nil
	}
	result := uint32(bindFore)
	switch direction {
	case bindBack, bindBackOrBoth:
		result = bindBack
		v.bind(x.c, true)
	case bindForeOrBoth:
		result = bindFore | bindBack
		v.bind(x.c, true)
	default:
		v.bind(x.c, false)
	}
	x.s.Bound.Add(1)
	return OK, testkit.AppendWords(append([]byte(nil), v.id[:]...), result, 0)
}

func (x *compound) destroySession() Status {
	v := x.sessionArgument()
	if v == nil {
		return errBadSession
	}
	v.remove()
	return OK
}

func (x *compound) destroyClientID() Status {
	h := x.s.hosts[x.Uint64()]
	switch {
	case h == nil:
		return errStaleClientID
	case len(h.sessions) > 0:
		return errClientIDBusy
	}
	h.remove()
	return OK
}

// sequenced is SEQUENCE. RFC 8881 Section 18.46. A connection that the server does not know is
// bound to the fore channel, unless the client protects its state.
func (x *compound) sequenced() (Status, []byte) {
	v := x.sessionArgument()
	sequence, number := x.Uint32(), x.Uint32()
	x.Skip(4)
	cache := x.Uint32() != 0
	switch {
	case !x.OK():
		return errBadXDR, nil
	case v == nil:
		x.s.Unknown.Add(1)
		return errBadSession, nil
	case number >= v.most:
		return errBadSlot, nil
	}
	s := v.slot(number)
	x.number, x.sequence, x.cache = number, sequence, cache
	switch {
	case sequence == s.sequence && s.busy:
		x.s.Busy.Add(1)
		return errDelay, nil
	case sequence == s.sequence && s.result != nil:
		x.session, x.slot, x.replay = v, s, true
		return OK, nil
	case sequence != s.sequence+1 || s.busy:
		x.s.Misordered.Add(1)
		return errSeqMisordered, nil
	}
	if _, known := x.c.bound[v]; !known {
		if v.host.machine {
			x.s.Unbound.Add(1)
			return errConnNotBound, nil
		}
		v.bind(x.c, false)
	}
	x.session, x.slot = v, s
	return OK, x.sequenceResult()
}

func (x *compound) sequenceResult() []byte {
	b := append([]byte(nil), x.session.id[:]...)
	return testkit.AppendWords(b, x.sequence, x.number, x.session.most-1, x.session.most-1, x.session.host.flags())
}
