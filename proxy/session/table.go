package session

import (
	"container/list"
	"errors"
	"net/netip"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/crowd"
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

// known reports whether the table knows more of s, which may be nil, than its limits.
func (s *session) known() bool { return s != nil && (s.client != nil || s.lost != 0) }

// sessionIn returns the session that e, which may be nil, stands for.
func sessionIn(e *list.Element) *session {
	if e == nil {
		return nil
	}
	return e.Value.(*session)
}

// newTable returns an empty table, whose clock is now. It counts in evicted the sessions for which there was no room.
func newTable(now func() int64, log zerolog.Logger, evicted *metrics.Counter) *Table {
	return &Table{
		now: now, evict: func(r *Client) { r.o.Peer.Close(errForgotten) }, log: log, evicted: evicted, most: maxSessions,
		all: make(map[nfs.SessionID]*session), called: make(map[callee]*sessionQueue),
	}
}

// SetMost bounds the sessions to n.
func (t *Table) SetMost(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.most = n
}

// Sessions returns for how many sessions the table knows which client is called, or was.
func (t *Table) Sessions() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.hosts.Len() - t.idle.Len() + t.away.Len()
}

// get returns session id, and adds it for a client at a if there is none. t.mu is held.
func (t *Table) get(id nfs.SessionID, a netip.Addr) *session {
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
func (t *Table) makeRoom(a netip.Addr) {
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
	t.crowded.Line(&t.log, zerolog.WarnLevel, "session_forgotten").
		Stringer("address", crowd.HostOf(s.addr).Addr()).Stringer("newcomer", a).Bool("closed", s.client != nil).
		Msg("no more NFSv4.1 sessions are remembered; one of the address with the most is forgotten for a new one, " +
			"and its client is closed if it is connected")
	if s.client != nil {
		t.evict(s.client)
	}
	t.remove(s)
}

// give has s called on r. t.mu is held.
func (t *Table) give(s *session, r *Client) {
	if s.client != nil {
		t.take(s)
	}
	t.rested(s)
	t.hosts.Remove(&s.host)
	s.client, s.lost, s.addr = r, 0, r.o.Addr
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
func (t *Table) take(s *session) {
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
func (t *Table) rested(s *session) {
	t.idle.Remove(&s.rest)
	if s.place != nil {
		t.away.Remove(s.place)
		s.place = nil
	}
}

// remove removes s. t.mu is held.
func (t *Table) remove(s *session) {
	if s.client != nil {
		t.take(s)
	}
	t.rested(s)
	t.hosts.Remove(&s.host)
	delete(t.all, s.id)
	s.limits.Store(sessionGone)
}

// expire removes the sessions that have been without a connection for too long. t.mu is held.
func (t *Table) expire(now int64) {
	for s := sessionIn(t.away.Front()); s != nil && now-s.lost > int64(sessionForgotten); s = sessionIn(t.away.Front()) {
		t.remove(s)
	}
}
