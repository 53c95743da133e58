package proxy

import (
	"container/list"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/crowd"
	"github.com/rdmabridge/rdmabridge/internal/loglimit"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// The session table
//
// A reverse Call on a lane names a session, and the table knows which client connection the session
// can be called on. Clients say so themselves, and the table reads the Replies: CREATE_SESSION and
// BIND_CONN_TO_SESSION make the connection that they come on the back channel of a session, where
// the server agrees. For the server that is the connection of the lane.
//
// When the client's connection is lost, the server notices nothing, because its own goes on. The
// client connects again and uses its session there. It sends no BIND_CONN_TO_SESSION, because the
// server does not ask for one. So the first SEQUENCE that succeeds on a connection which is newer
// than the loss, or hardly older, gives the session its back channel again. Until then the server is
// told to try later, for as long as sessionAway. After that its Calls fail, as they would without a
// bridge, and it tells the client in the next Reply.
//
// The table also has the server's bounds on Replies of each session, which all clients use, on lanes and
// elsewhere. Off lanes it does not notice that a session has ended. That costs only memory: a server does not
// use the ID again, and if it does, the Reply to CREATE_SESSION replaces the bounds.
//
// The table forgets a session that ends, or that was called on a connection and has had none for
// sessionForgotten. One host could have all maxSessions. So when the table is full, the host with the most
// sessions gives way, or the newcomer's own if no other has more. Of that host's sessions the table forgets
// the one that has had no connection for the longest time, or else the oldest, whose client is closed and
// comes back.

const (
	maxSessions = 1 << 16
	// sessionAway is how long the server is told to try later. A Linux client that is idle connects again
	// with the next renewal of its lease: after 60 s of 90.
	sessionAway      = 75 * time.Second
	sessionForgotten = 10 * time.Minute
	// sessionOverlap is how long before the loss of a connection is noticed its client may have made
	// the next one.
	sessionOverlap = time.Second
)

// errForgotten closes a client whose session the table had to forget. Its next connection brings the
// session back.
var errForgotten = errors.New("proxy: too many sessions")

// A sessionTable holds the sessions of one upstream. It is safe for concurrent use.
type sessionTable struct {
	now     func() int64      // the clock of the loops; constant, as the next three
	evict   func(*laneClient) // closes a client for whose session there is no room
	log     zerolog.Logger
	evicted *metrics.Counter // sessions for which there was no room
	crowded loglimit.Seldom  // of lines about them

	mu     sync.RWMutex // guards the rest, and the sessions; a leaf
	most   int          // sessions that there may be
	all    map[nfs.SessionID]*session
	hosts  crowd.Crowd[*session]    // all sessions, the oldest of each host first
	idle   crowd.Crowd[*session]    // those of them that are called on no connection, in the order they lost it
	away   list.List                // of *session that have lost their connection, in the order they lost it
	called map[callee]*sessionQueue // those that are called on a connection; no queue is empty
}

// A callee is where a server calls sessions back.
type callee struct {
	conn    *laneConn
	program uint32 // of the callbacks, or 0 if it is not known
}

// A sessionQueue has the sessions of one callee, the oldest first.
type sessionQueue struct {
	callee
	list.List // of *session
}

// A session is an NFSv4.1 session, or what was seen of it. id is constant, anybody may read limits, and the
// table's lock guards the rest. A session that has neither a client nor a time when that was lost is in the
// table for its limits alone.
type session struct {
	id      nfs.SessionID
	limits  atomic.Uint64 // the bounds on Replies: the fields of nfs.SessionLimits; or noLimits, or sessionGone
	client  *laneClient   // that is called; nil while there is none
	heir    *laneClient   // that has used the session since, and may be the same client
	conn    *laneConn     // on which the server calls; nil if it is not known
	lost    int64         // when client was lost
	addr    netip.Addr    // of client, or of the client that the limits are from
	program uint32        // of the callbacks, or 0 if it is not known
	signed  bool          // the session was bound by a Call under RPCSEC_GSS
	guessed bool          // client has used the session and has not bound it
	doubted bool          // such a connection has ended with a reverse Call that was not answered
	mute    bool          // such connections do not answer: the next one has to bind the session

	host, rest        crowd.Member[*session] // in the table's hosts and idle
	queue             *sessionQueue          // that has the session; nil without a client
	place             *list.Element          // in queue or in the table's away; nil for neither
	before, following *session               // of client, linked from laneClient.sessions
}

const (
	noLimits    = 0
	sessionGone = 1 // the table does not have the session any more
)

// known reports whether the table knows more of s, which may be nil, than its limits.
func (s *session) known() bool { return s != nil && (s.client != nil || s.lost != 0) }

// sessionIn returns the session that e, which may be nil, stands for.
func sessionIn(e *list.Element) *session {
	if e == nil {
		return nil
	}
	return e.Value.(*session)
}

func newSessionTable(now func() int64) *sessionTable {
	return &sessionTable{
		now: now, evict: func(r *laneClient) { r.front.close(errForgotten) }, log: zerolog.Nop(), most: maxSessions,
		all: make(map[nfs.SessionID]*session), called: make(map[callee]*sessionQueue),
	}
}

// learn notes the bounds on Replies of session id, which a client at a has created.
func (t *sessionTable) learn(id nfs.SessionID, l nfs.SessionLimits, a netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.get(id, a).limits.Store(max(uint64(l.Response)<<32|uint64(l.Cached), sessionGone+1))
}

// find returns session id, or nil.
func (t *sessionTable) find(id nfs.SessionID) *session {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.all[id]
}

// tighten lowers the bounds in a, the Analysis of the Call m, to those of session id, which m names. The queue
// keeps the session, so that a client with one session does not search the table for each Call.
func (q *clientQueue) tighten(id nfs.SessionID, m []byte, a *ulb.Analysis) {
	s := q.session
	if s == nil || s.id != id || s.limits.Load() == sessionGone {
		s = q.u.table.find(id)
		q.session = s
	}
	if s == nil {
		return
	}
	if l := s.limits.Load(); l > sessionGone {
		nfs.SessionLimits{Response: uint32(l >> 32), Cached: uint32(l)}.Tighten(m, a)
	}
}

// connOf returns the connection on which the server calls the session id back, if its client is away.
// A client that comes back has its place there. signed is whether the client has bound the session
// with Calls under RPCSEC_GSS.
func (t *sessionTable) connOf(id nfs.SessionID) (conn *laneConn, signed bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	s := t.all[id]
	switch {
	case !s.known():
		return nil, false
	case s.client != nil:
		return nil, s.signed
	}
	return s.conn, s.signed
}

// calledOn reports whether the server calls session id back on conn.
func (t *sessionTable) calledOn(id nfs.SessionID, conn *laneConn) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	s := t.all[id]
	return s.known() && s.conn == conn
}

// look says whether the table is to learn from the Reply to a SEQUENCE of session id that r sends, and
// whether it need not look at any later one: the session is called on r, or on a connection that is
// newer.
func (t *sessionTable) look(id nfs.SessionID, r *laneClient) (learns, settled bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	s := t.all[id]
	switch {
	case !s.known():
		return true, false
	case s.client == r:
		return false, true
	case s.client == nil:
		return s.returnsOn(r), false
	case r.since <= s.client.since:
		return false, true
	}
	return s.heir != r, false
}

// returnsOn reports whether the client of s, which has lost its connection, has come back with r.
// Another host that uses the session, which the server may allow, is not called. t.mu is held.
func (s *session) returnsOn(r *laneClient) bool {
	return !s.mute && s.lost != 0 && s.addr == r.front.ledger.addr() && r.since >= s.lost-int64(sessionOverlap)
}

// bind makes r the back channel of session id: the client has said so, in a Call under RPCSEC_GSS if
// signed is set. program is 0 if the client has not named it.
func (t *sessionTable) bind(id nfs.SessionID, r *laneClient, program uint32, signed bool) {
	conn := r.bound.Load()
	t.mu.Lock()
	defer t.mu.Unlock()
	if conn == nil || r.front.gone() {
		return
	}
	s := t.get(id, r.front.ledger.addr())
	if program != 0 {
		s.program = program
	}
	s.conn, s.signed, s.guessed, s.doubted, s.mute = conn, signed, false, false, false
	t.give(s, r)
}

// used notes that a SEQUENCE of session id has succeeded on r.
func (t *sessionTable) used(id nfs.SessionID, r *laneClient) {
	conn := r.bound.Load()
	t.mu.Lock()
	defer t.mu.Unlock()
	if conn == nil || r.front.gone() {
		return
	}
	s := t.all[id]
	switch {
	case !s.known():
		s = t.get(id, r.front.ledger.addr()) // new, forgotten, or older than the bridge
	case s.client == r:
		return
	case s.client != nil:
		s.heir = r
		return
	case !s.returnsOn(r):
		return
	}
	if s.conn == nil {
		s.conn = conn
	}
	s.guessed = true
	t.give(s, r)
}

// usedHidden notes that a COMPOUND that only client and server can read has succeeded on r. Linux clients
// with krb5p hide their SEQUENCEs while they work, but not their CREATE_SESSION. If the host of r has
// one session without a connection, r is the client that has come back. usedHidden reports whether
// it need not be called again for r.
func (t *sessionTable) usedHidden(r *laneClient) (settled bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.sessions != nil || r.front.gone() {
		return true
	}
	var found *session
	n := 0
	for m := range t.idle.Newest(r.front.ledger.addr()) {
		if n++; n > hiddenLook {
			break
		}
		if s := m.Value; s.returnsOn(r) {
			if found != nil {
				return true // which one it is only the client knows
			}
			found = s
		}
	}
	if found == nil {
		return t.now()-r.since > int64(hiddenFor)
	}
	found.guessed = true
	t.give(found, r)
	return true
}

// usedHidden looks at hiddenLook sessions of the host, and is called for a client in the first hiddenFor.
const (
	hiddenLook = 256
	hiddenFor  = 2 * sessionOverlap
)

// answered notes that r has answered a reverse Call for session id.
func (t *sessionTable) answered(id nfs.SessionID, r *laneClient) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.all[id]; s != nil && s.client == r {
		s.guessed, s.doubted = false, false
	}
}

// silent notes that r, on which session id is called, has not answered a reverse Call. Perhaps it is not
// called on that connection: a Linux client with nconnect has several, and is called on one.
func (t *sessionTable) silent(id nfs.SessionID, r *laneClient) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.all[id]; s != nil && s.client == r && s.guessed {
		s.mute = true
	}
}

// broken notes that r, on which session id is called, has ended before it answered a reverse Call. A Linux
// client ends a connection on which it is not called but gets a reverse Call. But the end may also have had
// another reason, and have come just after the Call. So it takes two such connections in a row.
func (t *sessionTable) broken(id nfs.SessionID, r *laneClient) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.all[id]; s != nil && s.client == r && s.guessed {
		s.mute, s.doubted = s.mute || s.doubted, true
	}
}

// forget removes session id, which has ended: r has learnt so. If the session is called on another
// client, and by another connection than that of r, it stays: servers that are independent of each
// other may use one ID.
func (t *sessionTable) forget(id nfs.SessionID, r *laneClient) {
	conn := r.bound.Load()
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.all[id]; s != nil && (s.client == nil || s.client == r || s.conn == conn) {
		t.remove(s)
	}
}

// leave notes that r has ended.
func (t *sessionTable) leave(r *laneClient) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	for s := r.sessions; s != nil; s = r.sessions {
		h := s.heir
		t.take(s)
		s.lost = now
		t.idle.Add(&s.rest, s.addr, 1)
		s.place = t.away.PushBack(s)
		if h != nil && s.returnsOn(h) && !h.front.gone() {
			s.guessed = true
			t.give(s, h)
		}
	}
	t.expire(now)
}

// A sessionPlace is what the table knows of the client that a reverse Call is for.
type sessionPlace uint8

const (
	sessionUnknown sessionPlace = iota // no client, or one that has been away for too long
	sessionAbsent                      // the client may come back soon
	sessionHere                        // the client is there
)

// locate returns the client that session id is called on.
func (t *sessionTable) locate(id nfs.SessionID) (*laneClient, sessionPlace) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	s := t.all[id]
	switch {
	case !s.known():
		return nil, sessionUnknown
	case s.client != nil:
		return s.client, sessionHere
	case t.now()-s.lost < int64(sessionAway):
		return nil, sessionAbsent
	}
	return nil, sessionUnknown
}

// newestOf returns the client of the session that was bound last to conn and has this callback program, or one
// that is not known, or nil.
func (t *sessionTable) newestOf(program uint32, conn *laneConn) *laneClient {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, p := range []uint32{program, 0} {
		if q := t.called[callee{conn, p}]; q != nil {
			return sessionIn(q.Back()).client
		}
	}
	return nil
}

// count returns for how many sessions the table knows which client is called, or was.
func (t *sessionTable) count() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.hosts.Len() - t.idle.Len() + t.away.Len()
}

// get returns session id, and adds it for a client at a if there is none. t.mu is held.
func (t *sessionTable) get(id nfs.SessionID, a netip.Addr) *session {
	if s := t.all[id]; s != nil {
		return s
	}
	t.expire(t.now())
	for len(t.all) >= t.most {
		t.makeRoom(a)
	}
	s := &session{id: id, addr: a}
	s.host.Value, s.rest.Value = s, s
	t.all[id] = s
	t.hosts.Add(&s.host, a, 1)
	t.idle.Add(&s.rest, a, 1)
	return s
}

// makeRoom forgets a session for another one of a client at a. t.mu is held.
func (t *sessionTable) makeRoom(a netip.Addr) {
	host, ok := t.hosts.Yields(a, 1)
	if !ok {
		host = a
	}
	m := t.idle.Oldest(host)
	if m == nil {
		m = t.hosts.Oldest(host)
	}
	if m == nil { // each host has one
		m = t.idle.Largest()
	}
	if m == nil {
		m = t.hosts.Largest()
	}
	s := m.Value
	t.evicted.Inc()
	t.crowded.Line(&t.log, zerolog.WarnLevel, "session_forgotten").Stringer("address", crowd.HostOf(s.addr).Addr()).Stringer("newcomer", a).Bool("closed", s.client != nil).
		Msg("no more NFSv4.1 sessions are remembered; one of the address with the most is forgotten for a new one, and its client is closed if it is connected")
	if s.client != nil {
		t.evict(s.client)
	}
	t.remove(s)
}

// give has s called on r. t.mu is held.
func (t *sessionTable) give(s *session, r *laneClient) {
	if s.client != nil {
		t.take(s)
	}
	t.rested(s)
	t.hosts.Remove(&s.host)
	s.client, s.lost, s.addr = r, 0, r.front.ledger.addr()
	t.hosts.Add(&s.host, s.addr, 1)
	if s.following = r.sessions; s.following != nil {
		s.following.before = s
	}
	r.sessions = s
	k := callee{s.conn, s.program}
	q := t.called[k]
	if q == nil {
		q = &sessionQueue{callee: k}
		t.called[k] = q
	}
	s.queue, s.place = q, q.PushBack(s)
}

// take ends the back channel of s, which has one. t.mu is held.
func (t *sessionTable) take(s *session) {
	if s.before != nil {
		s.before.following = s.following
	} else {
		s.client.sessions = s.following
	}
	if s.following != nil {
		s.following.before = s.before
	}
	q := s.queue
	if q.Remove(s.place); q.Len() == 0 {
		delete(t.called, q.callee)
	}
	s.client, s.heir, s.before, s.following, s.queue, s.place = nil, nil, nil, nil, nil, nil
}

// rested takes s, which has no client, out of the sessions without one. t.mu is held.
func (t *sessionTable) rested(s *session) {
	t.idle.Remove(&s.rest)
	if s.place != nil {
		t.away.Remove(s.place)
		s.place = nil
	}
}

// remove removes s. t.mu is held.
func (t *sessionTable) remove(s *session) {
	if s.client != nil {
		t.take(s)
	}
	t.rested(s)
	t.hosts.Remove(&s.host)
	delete(t.all, s.id)
	s.limits.Store(sessionGone)
}

// expire removes the sessions that have been without a connection for too long. t.mu is held.
func (t *sessionTable) expire(now int64) {
	for s := sessionIn(t.away.Front()); s != nil && now-s.lost > int64(sessionForgotten); s = sessionIn(t.away.Front()) {
		t.remove(s)
	}
}

// learns reports whether the table is to learn from the Reply to a Call of session id.
func (r *laneClient) learns(id nfs.SessionID) bool {
	if id == r.seen {
		return false
	}
	learns, settled := r.lane.u.table.look(id, r)
	if settled {
		r.seen = id
	}
	return learns
}

// hides reports whether the table is to learn from the success of a Call that only client and server
// can read.
func (r *laneClient) hides(h *oncrpc.Call) bool {
	return h.Protection == oncrpc.ProtectPrivacy && h.Program == oncrpc.ProgramNFS && h.Version == 4 && !r.settled.get()
}

// watch has the table learn from the Reply to c, whose client is on a lane. It runs on the loop of the
// connection that has brought the Reply, while c still has its message.
func (c *call) watch() {
	t, r, a := c.up.table, c.queue.lane, &c.rdma.Analysis
	if c.learns && a.Session == 0 {
		var p oncrpc.Reply
		if oncrpc.ParseReply(c.reply.parts[0], &p) == nil && p.Succeeded() && t.usedHidden(r) {
			r.settled.set()
		}
		return
	}
	if id, ok := nfs.SequenceSession(c.rdma.Message, a); ok {
		switch status, ok := nfs.SequenceStatus(c.reply.parts[0], a); {
		case !ok:
		case status == nfs.StatusOK && c.learns:
			t.used(id, r)
		case status == nfs.StatusBadSession, status == nfs.StatusDeadSession:
			t.forget(id, r)
		}
	}
	if a.SessionOps == 0 {
		return
	}
	if c.foreAlone {
		nfs.ForeAlone(c.reply.parts[0], a) // which is all of it: nothing is reduced
		return
	}
	reply := c.reply.whole()
	if a.SessionOps&ulb.CreateSession != 0 {
		if id, back, ok := nfs.CreatedSession(reply, a); ok && back {
			program, _ := nfs.CallbackProgram(c.rdma.Message, a)
			t.bind(id, r, program, c.signed)
		}
	}
	if a.SessionOps&ulb.BindConnToSession != 0 {
		if id, back, ok := nfs.BoundSession(reply, a); ok && back {
			t.bind(id, r, 0, c.signed)
		}
	}
	if a.SessionOps&ulb.DestroySession != 0 {
		if status, ok := nfs.Status(reply, a); ok && status == nfs.StatusOK {
			if id, ok := nfs.DestroyedSession(&c.h); ok {
				t.forget(id, r)
			}
		}
	}
}
