package proxy

import (
	"container/list"
	"errors"
	"net/netip"
	"sync"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
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
// The table forgets a session that ends, or that has had no connection for sessionForgotten. Beyond
// maxSessions it forgets the session that has been without a connection for the longest time, or the
// oldest, whose client is closed and comes back.

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
	now   func() int64      // the clock of the loops; constant, as the next
	evict func(*laneClient) // closes a client for whose session there is no room

	mu     sync.RWMutex // guards the rest, and the sessions; a leaf
	all    map[nfs.SessionID]*session
	served list.List // of *session that have a connection, the oldest first
	away   list.List // of *session that have none, in the order they lost it
}

// A session is an NFSv4.1 session, or what was seen of it. id is constant, and the table's lock
// guards the rest.
type session struct {
	id      nfs.SessionID
	client  *laneClient // that is called; nil while there is none
	heir    *laneClient // that has used the session since, and may be the same client
	conn    *laneConn   // on which the server calls; nil if it is not known
	lost    int64       // when client was lost
	addr    netip.Addr  // of client
	program uint32      // of the callbacks, or 0 if it is not known
	signed  bool        // the session was bound by a Call under RPCSEC_GSS
	guessed bool        // client has used the session and has not bound it
	doubted bool        // such a connection has ended with a reverse Call that was not answered
	mute    bool        // such connections do not answer: the next one has to bind the session

	list              *list.List // the table's that has the session, or nil
	place             *list.Element
	before, following *session // of client, linked from laneClient.sessions
}

// sessionIn returns the session that e, which may be nil, stands for.
func sessionIn(e *list.Element) *session {
	if e == nil {
		return nil
	}
	return e.Value.(*session)
}

func newSessionTable(now func() int64) *sessionTable {
	return &sessionTable{
		now: now, evict: func(r *laneClient) { r.front.close(errForgotten) },
		all: make(map[nfs.SessionID]*session),
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
	case s == nil:
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
	return s != nil && s.conn == conn
}

// look says whether the table is to learn from the Reply to a SEQUENCE of session id that r sends, and
// whether it need not look at any later one: the session is called on r, or on a connection that is
// newer.
func (t *sessionTable) look(id nfs.SessionID, r *laneClient) (learns, settled bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	s := t.all[id]
	switch {
	case s == nil:
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
	s := t.get(id)
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
	case s == nil:
		s = t.get(id) // forgotten, or older than the bridge
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
	for e, n := t.away.Back(), 0; e != nil && n < hiddenLook; e, n = e.Prev(), n+1 {
		if s := sessionIn(e); s.returnsOn(r) {
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

// usedHidden looks at hiddenLook sessions, and is called for a client in the first hiddenFor.
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
		s.take()
		s.lost = now
		s.move(&t.away)
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
	case s == nil:
		return nil, sessionUnknown
	case s.client != nil:
		return s.client, sessionHere
	case t.now()-s.lost < int64(sessionAway):
		return nil, sessionAbsent
	}
	return nil, sessionUnknown
}

// newestOf returns the client of the session that was bound last to conn and has this callback program,
// or nil.
func (t *sessionTable) newestOf(program uint32, conn *laneConn) *laneClient {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for e, n := t.served.Back(), 0; e != nil && n < newestLook; e, n = e.Prev(), n+1 {
		if s := sessionIn(e); s.conn == conn && (s.program == program || s.program == 0) {
			return s.client
		}
	}
	return nil
}

// newestLook is how many sessions newestOf looks at.
const newestLook = 64

// count returns how many sessions the table has.
func (t *sessionTable) count() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.all)
}

// get returns session id, and adds it if there is none. t.mu is held.
func (t *sessionTable) get(id nfs.SessionID) *session {
	if s := t.all[id]; s != nil {
		return s
	}
	t.expire(t.now())
	for len(t.all) >= maxSessions {
		if s := sessionIn(t.away.Front()); s != nil {
			t.remove(s)
			continue
		}
		s := sessionIn(t.served.Front())
		t.evict(s.client)
		t.remove(s)
	}
	s := &session{id: id}
	t.all[id] = s
	return s
}

// give has s called on r. t.mu is held.
func (t *sessionTable) give(s *session, r *laneClient) {
	if s.client != nil {
		s.take()
	}
	s.client, s.lost, s.addr = r, 0, r.front.ledger.addr()
	if s.following = r.sessions; s.following != nil {
		s.following.before = s
	}
	r.sessions = s
	s.move(&t.served)
}

// take ends the back channel of s, which has one. t.mu is held.
func (s *session) take() {
	if s.before != nil {
		s.before.following = s.following
	} else {
		s.client.sessions = s.following
	}
	if s.following != nil {
		s.following.before = s.before
	}
	s.client, s.heir, s.before, s.following = nil, nil, nil, nil
}

// remove removes s. t.mu is held.
func (t *sessionTable) remove(s *session) {
	if s.client != nil {
		s.take()
	}
	s.move(nil)
	delete(t.all, s.id)
}

// expire removes the sessions that have been without a connection for too long. t.mu is held.
func (t *sessionTable) expire(now int64) {
	for s := sessionIn(t.away.Front()); s != nil && now-s.lost > int64(sessionForgotten); s = sessionIn(t.away.Front()) {
		t.remove(s)
	}
}

// move moves s to the end of l, which may be nil. t.mu is held.
func (s *session) move(l *list.List) {
	if s.list != nil {
		s.list.Remove(s.place)
	}
	if s.list = l; l != nil {
		s.place = l.PushBack(s)
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
