package session

import (
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
)

// connOf returns the connection on which the server calls the session id back, if its client is away.
// A client that comes back has its place there. signed is whether the client has bound the session
// with Calls under RPCSEC_GSS.
func (t *Table) connOf(id nfs.SessionID) (conn *Conn, signed bool) {
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
func (t *Table) calledOn(id nfs.SessionID, conn *Conn) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	s := t.all[id]
	return s.known() && s.conn == conn
}

// look says whether the table is to learn from the Reply to a SEQUENCE of session id that r sends, and
// whether it need not look at any later one: the session is called on r, or on a connection that is
// newer.
func (t *Table) look(id nfs.SessionID, r *Client) (learns, settled bool) {
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
func (s *session) returnsOn(r *Client) bool {
	return !s.mute && s.lost != 0 && s.addr == r.o.Addr && r.since >= s.lost-int64(sessionOverlap)
}

// bind makes r the back channel of session id: the client has said so, in a Call under RPCSEC_GSS if
// signed is set. program is 0 if the client has not named it.
func (t *Table) bind(id nfs.SessionID, r *Client, program uint32, signed bool) {
	conn := r.bound.Load()
	t.mu.Lock()
	defer t.mu.Unlock()
	if conn == nil || r.o.Peer.Gone() {
		return
	}
	s := t.get(id, r.o.Addr)
	if program != 0 {
		s.program = program
	}
	s.conn, s.signed, s.guessed, s.doubted, s.mute = conn, signed, false, false, false
	t.give(s, r)
}

// used notes that a SEQUENCE of session id has succeeded on r.
func (t *Table) used(id nfs.SessionID, r *Client) {
	conn := r.bound.Load()
	t.mu.Lock()
	defer t.mu.Unlock()
	if conn == nil || r.o.Peer.Gone() {
		return
	}
	s := t.all[id]
	switch {
	case !s.known():
		s = t.get(id, r.o.Addr) // new, forgotten, or older than the bridge
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
func (t *Table) usedHidden(r *Client) (settled bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.sessions != nil || r.o.Peer.Gone() {
		return true
	}
	var found *session
	n := 0
	for m := range t.idle.Newest(r.o.Addr) {
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
func (t *Table) answered(id nfs.SessionID, r *Client) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.all[id]; s != nil && s.client == r {
		s.guessed, s.doubted = false, false
	}
}

// silent notes that r, on which session id is called, has not answered a reverse Call. Perhaps it is not
// called on that connection: a Linux client with nconnect has several, and is called on one.
func (t *Table) silent(id nfs.SessionID, r *Client) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.all[id]; r != nil && s != nil && s.client == r && s.guessed {
		s.mute = true
	}
}

// broken notes that r, on which session id is called, has ended before it answered a reverse Call. A Linux
// client ends a connection on which it is not called but gets a reverse Call. But the end may also have had
// another reason, and have come just after the Call. So it takes two such connections in a row.
func (t *Table) broken(id nfs.SessionID, r *Client) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.all[id]; s != nil && s.client == r && s.guessed {
		s.mute, s.doubted = s.mute || s.doubted, true
	}
}

// forget removes session id, which has ended: r has learnt so. If the session is called on another
// client, and by another connection than that of r, it stays: servers that are independent of each
// other may use one ID.
func (t *Table) forget(id nfs.SessionID, r *Client) {
	conn := r.bound.Load()
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.all[id]; s != nil && (s.client == nil || s.client == r || s.conn == conn) {
		t.remove(s)
	}
}

// leave notes that r has ended.
func (t *Table) leave(r *Client) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	for s := r.sessions; s != nil; s = r.sessions {
		h := s.heir
		t.take(s)
		s.lost = now
		t.idle.Add(&s.rest, s.addr, 1)
		s.place = t.away.PushBack(s)
		if h != nil && s.returnsOn(h) && !h.o.Peer.Gone() {
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
func (t *Table) locate(id nfs.SessionID) (*Client, sessionPlace) {
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
func (t *Table) newestOf(program uint32, conn *Conn) *Client {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, p := range []uint32{program, 0} {
		if q := t.called[callee{conn, p}]; q != nil {
			return sessionIn(q.Back()).client
		}
	}
	return nil
}
