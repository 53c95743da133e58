package session

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
)

// A tableCase is a session table with a clock of the test's.
type tableCase struct {
	*testing.T
	t    *Table
	time int64
	conn *Conn
}

// A testPeer is a client's connection that is gone when the test says so.
type testPeer struct{ gone bool }

func (p *testPeer) Gone() bool                               { return p.gone }
func (p *testPeer) Close(error)                              {}
func (p *testPeer) Drain()                                   {}
func (p *testPeer) Listens() bool                            { return !p.gone }
func (p *testPeer) Deaf() bool                               { return false }
func (p *testPeer) CallBack([]byte, Releaser, Reverser) bool { return true }

func newTableCase(t *testing.T) *tableCase {
	x := &tableCase{T: t, time: int64(time.Hour), conn: &Conn{}}
	x.t = newTable(func() int64 { return x.time }, zerolog.Nop(), nil)
	return x
}

func (x *tableCase) pass(d time.Duration) { x.time += int64(d) }

// clientAt returns a client at a.
func (x *tableCase) clientAt(a netip.Addr) *Client {
	return &Client{o: ClientOptions{Peer: &testPeer{}, Addr: a}, table: x.t, since: x.time}
}

// client returns a client from host n that is bound to x.conn.
func (x *tableCase) client(n byte) *Client {
	r := x.clientAt(netip.AddrFrom4([4]byte{10, 0, 0, n}))
	r.bound.Store(x.conn)
	return r
}

// gone ends the connection of r.
func (x *tableCase) gone(r *Client) {
	r.o.Peer.(*testPeer).gone = true
	x.t.leave(r)
}

// use does what happens for a Call with a SEQUENCE of session id on r, and its Reply.
func (x *tableCase) use(id nfs.SessionID, r *Client) {
	if learns, _ := x.t.look(id, r); learns {
		x.t.used(id, r)
	}
}

func (x *tableCase) at(what string, id nfs.SessionID, want *Client, place sessionPlace) {
	x.Helper()
	if r, p := x.t.locate(id); r != want || p != place {
		x.Errorf("%s: at %p, %d, want %p, %d", what, r, p, want, place)
	}
}

func sessionOf(n int) (id nfs.SessionID) {
	binary.BigEndian.PutUint64(id[8:], uint64(n))
	return id
}

func TestSessionTable(t *testing.T) {
	x := newTableCase(t)
	id := sessionOf(1)
	a := x.client(1)
	x.at("at the start", id, nil, sessionUnknown)
	x.t.bind(id, a, 7, false)
	x.at("created", id, a, sessionHere)
	if _, settled := x.t.look(id, a); !settled {
		t.Error("its own client's SEQUENCEs are looked at")
	}
	x.pass(time.Minute)
	x.gone(a)
	x.at("lost", id, nil, sessionAbsent)
	if c, _ := x.t.connOf(id); c != x.conn {
		t.Error("a client that comes back is not led to the connection of before")
	}
	b := x.client(1)
	x.use(id, b)
	x.at("back", id, b, sessionHere)
	x.gone(b)
	x.pass(sessionAway)
	x.at("away for long", id, nil, sessionUnknown)
	x.use(id, x.client(1))
	if _, p := x.t.locate(id); p != sessionHere {
		t.Error("a client that comes back late is not called")
	}
	other := x.clientAt(netip.Addr{})
	other.bound.Store(&Conn{})
	if x.t.forget(id, other); x.t.Sessions() != 1 {
		t.Error("a client of another server has ended the session")
	}
	x.t.forget(id, x.client(3))
	x.at("destroyed", id, nil, sessionUnknown)
	if x.t.Sessions() != 0 || len(x.t.all)+len(x.t.called)+x.t.hosts.Len()+x.t.idle.Len()+x.t.away.Len() != 0 {
		t.Error("something is left")
	}
}

// TestSessionTableTrunk: a session that is used on several connections is called on the one that was
// bound, and if that is lost on the next of the same client, but not on the others.
func TestSessionTableTrunk(t *testing.T) {
	x := newTableCase(t)
	id := sessionOf(1)
	main, other := x.client(1), x.client(1)
	x.t.bind(id, main, 0, false)
	x.pass(time.Minute)
	x.use(id, other)
	x.at("used on two", id, main, sessionHere)
	x.gone(main)
	x.use(id, other)
	x.at("the other is older than the loss", id, nil, sessionAbsent)
	next := x.client(1)
	x.use(id, next)
	x.at("the next", id, next, sessionHere)

	// The client has connected again before the bridge notices the loss.
	x.pass(time.Minute)
	early := x.client(1)
	x.use(id, early)
	x.at("before the loss", id, next, sessionHere)
	x.pass(sessionOverlap / 2)
	x.gone(next)
	x.at("after the loss", id, early, sessionHere)

	// It does not answer there: it has to bind the session.
	x.t.silent(id, early)
	x.gone(early)
	last := x.client(1)
	x.use(id, last)
	x.at("a client that is called elsewhere", id, nil, sessionAbsent)
	x.t.bind(id, last, 0, false)
	x.at("bound", id, last, sessionHere)
	x.t.silent(id, last) // slow, but it has said that it is called here
	x.gone(last)
	again := x.client(1)
	x.use(id, again)
	x.at("back", id, again, sessionHere)
	x.t.answered(id, again)
	x.t.silent(id, again)
	x.gone(again)
	x.use(id, x.client(1))
	if _, p := x.t.locate(id); p != sessionHere {
		t.Error("a client that has answered before has to bind its session")
	}
}

// TestSessionTableSilentAndBroken: a connection that has left a reverse Call without an answer is not
// called again because it ends with another one.
func TestSessionTableSilentAndBroken(t *testing.T) {
	x := newTableCase(t)
	id := sessionOf(1)
	bound := x.client(1)
	x.t.bind(id, bound, 0, false)
	x.gone(bound)
	next := x.client(1)
	x.use(id, next)
	x.at("the next", id, next, sessionHere)
	x.t.silent(id, next)
	x.t.broken(id, next)
	x.gone(next)
	x.use(id, x.client(1))
	x.at("after it was silent", id, nil, sessionAbsent)
}

// TestSessionTableBroken: a connection that ends before it has answered a reverse Call may have ended for another
// reason. If the next one does, too, the client is not called there.
func TestSessionTableBroken(t *testing.T) {
	x := newTableCase(t)
	id := sessionOf(1)
	bound := x.client(1)
	x.t.bind(id, bound, 0, false)
	x.gone(bound)
	back := func() *Client {
		r := x.client(1)
		x.use(id, r)
		return r
	}
	end := func(r *Client) {
		x.t.broken(id, r)
		x.gone(r)
	}
	end(back())
	r := back()
	x.at("after one", id, r, sessionHere)
	x.t.answered(id, r)
	x.gone(r)
	end(back())
	r = back()
	x.at("after one that answered, and one that did not", id, r, sessionHere)
	end(r)
	back()
	x.at("after two in a row", id, nil, sessionAbsent)
}

// TestSessionTableStranger: a host that uses the session of another one, because it has guessed the ID
// and the server lets it, is not called.
func TestSessionTableStranger(t *testing.T) {
	x := newTableCase(t)
	id := sessionOf(1)
	a := x.client(1)
	x.t.bind(id, a, 0, false)
	stranger := x.client(2)
	x.use(id, stranger)
	x.gone(a)
	x.at("with a stranger there", id, nil, sessionAbsent)
	x.use(id, stranger)
	late := x.client(2)
	x.use(id, late)
	x.at("with another", id, nil, sessionAbsent)
	b := x.client(1)
	x.use(id, b)
	x.at("its own client", id, b, sessionHere)
}

// TestSessionTableHidden: a client whose SEQUENCEs cannot be read comes back, unless its host has
// several.
func TestSessionTableHidden(t *testing.T) {
	x := newTableCase(t)
	a, b, c := x.client(1), x.client(2), x.client(2)
	x.t.bind(sessionOf(1), a, 0, false)
	x.t.bind(sessionOf(2), b, 0, false)
	x.t.bind(sessionOf(3), c, 0, false)
	if !x.t.usedHidden(a) {
		t.Error("a client with a session is looked at again")
	}
	x.pass(time.Minute)
	early := x.client(1)
	if x.t.usedHidden(early) {
		t.Error("a client is settled before the loss of its connection is noticed")
	}
	for _, r := range []*Client{a, b, c} {
		x.gone(r)
	}
	if !x.t.usedHidden(early) {
		t.Error("not settled")
	}
	x.at("the only one of its host", sessionOf(1), early, sessionHere)
	if !x.t.usedHidden(x.client(2)) {
		t.Error("not settled")
	}
	x.at("one of two", sessionOf(2), nil, sessionAbsent)
	x.at("one of two", sessionOf(3), nil, sessionAbsent)
	stranger := x.client(3)
	if x.t.usedHidden(stranger) {
		t.Error("settled at once")
	}
	x.pass(hiddenFor + 1)
	if !x.t.usedHidden(stranger) {
		t.Error("never settled")
	}
}

// TestSessionTableBounded: a host that has filled the table loses its own sessions, those that are away before
// others, and the client of a session that is forgotten is closed.
func TestSessionTableBounded(t *testing.T) {
	x := newTableCase(t)
	x.t.most = 100
	var evicted []*Client
	x.t.evict = func(r *Client) { evicted = append(evicted, r) }
	var log bytes.Buffer
	x.t.log = zerolog.New(&log)
	neighbour, absent := x.client(1), x.client(2)
	x.t.bind(sessionOf(1), neighbour, 0, false)
	x.t.bind(sessionOf(2), absent, 0, false)
	x.gone(absent)
	away, here := x.client(3), x.client(3)
	for n := range 10 {
		x.t.bind(sessionOf(100+n), away, 0, false)
	}
	x.gone(away)
	for n := range x.t.most - 2 {
		x.t.bind(sessionOf(1000+n), here, 0, false)
	}
	if n := len(x.t.all); n != x.t.most || len(evicted) != 0 {
		t.Errorf("%d sessions and %d clients closed, want %d and none", n, len(evicted), x.t.most)
	}
	for n := range 10 {
		x.at("away", sessionOf(100+n), nil, sessionUnknown)
	}
	x.at("here", sessionOf(1000), here, sessionHere)

	x.t.bind(sessionOf(3), x.client(4), 0, false)
	x.at("the oldest, when another host wants in", sessionOf(1000), nil, sessionUnknown)
	x.t.bind(sessionOf(5000), here, 0, false)
	x.at("the next, when its host wants in", sessionOf(1001), nil, sessionUnknown)
	if n := len(x.t.all); n != x.t.most || !slices.Equal(evicted, []*Client{here, here}) {
		t.Errorf("%d sessions and %d clients closed, want %d and one twice", n, len(evicted), x.t.most)
	}
	x.at("the neighbour", sessionOf(1), neighbour, sessionHere)
	x.at("the neighbour that is away", sessionOf(2), nil, sessionAbsent)
	if n := strings.Count(log.String(), `"event":"session_forgotten"`); n != 1 || !strings.Contains(log.String(), `"address":"10.0.0.3"`) {
		t.Errorf("the log has %d lines, want one with the address of the many: %s", n, &log)
	}

	// Those that are away for long go with time.
	x.gone(here)
	x.pass(sessionForgotten + 1)
	x.t.bind(sessionOf(4), x.client(5), 0, false)
	if n := x.t.Sessions(); n != 3 {
		t.Errorf("%d sessions, want the 3 that are served", n)
	}
}

// TestSessionTableManyHosts: when each host has one session, one that is away gives way, or else the oldest.
func TestSessionTableManyHosts(t *testing.T) {
	x := newTableCase(t)
	x.t.most = 4
	var evicted []*Client
	x.t.evict = func(r *Client) { evicted = append(evicted, r) }
	var all []*Client
	for n := range byte(4) {
		all = append(all, x.client(n))
		x.t.bind(sessionOf(int(n)), all[n], 0, false)
	}
	x.gone(all[2])
	x.t.bind(sessionOf(4), x.client(4), 0, false)
	x.at("away", sessionOf(2), nil, sessionUnknown)
	x.t.bind(sessionOf(5), x.client(5), 0, false)
	x.at("the oldest", sessionOf(0), nil, sessionUnknown)
	if !slices.Equal(evicted, all[:1]) {
		t.Errorf("%d clients closed, want one", len(evicted))
	}
}

// TestSessionTableIPv6: the addresses of an IPv6 /64 are one host.
func TestSessionTableIPv6(t *testing.T) {
	x := newTableCase(t)
	x.t.most = 20
	x.t.evict = func(*Client) {}
	neighbour := x.client(1)
	x.t.bind(sessionOf(1), neighbour, 0, false)
	for n := range 40 {
		r := x.client(1)
		r.o.Addr = netip.MustParsePrefix(fmt.Sprintf("2001:db8::%x/128", n+1)).Addr()
		x.t.bind(sessionOf(100+n), r, 0, false)
	}
	x.at("the neighbour", sessionOf(1), neighbour, sessionHere)
}

// TestSessionLimitsFair: the bounds on Replies of a host's sessions stay while another host creates sessions
// without end.
func TestSessionLimitsFair(t *testing.T) {
	x := newTableCase(t)
	x.t.most = 100
	x.t.evict = func(*Client) {}
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	l := nfs.SessionLimits{Response: 16 << 10, Cached: 4096}
	for n := range 10 {
		x.t.learn(sessionOf(n), l, a)
	}
	for n := range 10 * x.t.most {
		x.t.learn(sessionOf(1000+n), l, b)
	}
	for n := range 10 {
		if s := x.t.find(sessionOf(n)); s == nil || s.limits.Load() != 16<<42|4096 {
			t.Errorf("the bounds of session %d are %+v", n, s)
		}
	}
	if n := len(x.t.all); n != x.t.most || x.t.Sessions() != 0 {
		t.Errorf("%d sessions, of %d a client is known; want %d and none", n, x.t.Sessions(), x.t.most)
	}
}

// TestSessionTighten: a client finds the bounds of its session, also when they change or when the table has
// forgotten the session meanwhile.
func TestSessionTighten(t *testing.T) {
	x := newTableCase(t)
	var q Record
	id, a := sessionOf(1), netip.MustParseAddr("10.0.0.1")
	m := append(append(make([]byte, 40), id[:]...), make([]byte, 16)...)
	bound := func() uint32 {
		a := ulb.Analysis{Reduce: true, Session: 40, MaxReply: 1 << 20, MaxReduced: 1 << 20}
		q.Tighten(x.t, id, m, &a)
		return a.MaxReply
	}
	want := func(what string, want uint32) {
		t.Helper()
		if n := bound(); n != want {
			t.Errorf("%s: bound of %d, want %d", what, n, want)
		}
	}
	want("not known", 1<<20)
	r := x.client(1)
	x.t.bind(id, r, 0, false)
	want("known without bounds", 1<<20)
	x.t.learn(id, nfs.SessionLimits{Response: 64 << 10}, a)
	want("known", 64<<10)
	x.t.learn(id, nfs.SessionLimits{Response: 32 << 10}, a)
	want("changed", 32<<10)
	x.t.forget(id, r)
	want("forgotten", 1<<20)
	x.t.learn(id, nfs.SessionLimits{Response: 128 << 10}, a)
	want("known again", 128<<10)
	if n := testing.AllocsPerRun(100, func() { bound() }); n != 0 {
		t.Errorf("finding the bounds allocates %v times", n)
	}
}

// TestSessionTableNewest: a Call that names no session goes to the client that was the last to name the
// program on the connection, however many sessions others have.
func TestSessionTableNewest(t *testing.T) {
	x := newTableCase(t)
	old, last := x.client(1), x.client(2)
	x.t.bind(sessionOf(1), old, 7, false)
	x.t.bind(sessionOf(2), last, 7, false)
	conn := x.conn
	other, here := x.client(3), x.client(4)
	other.bound.Store(&Conn{})
	for n := range 1000 {
		x.t.bind(sessionOf(100+n), other, 7, false)
		x.t.bind(sessionOf(2000+n), here, uint32(100+n), false)
	}
	if r := x.t.newestOf(7, conn); r != last {
		t.Errorf("to %p, want %p", r, last)
	}
	x.gone(last)
	if r := x.t.newestOf(7, conn); r != old {
		t.Errorf("after its end to %p, want %p", r, old)
	}
	x.gone(old)
	if r := x.t.newestOf(7, conn); r != nil {
		t.Errorf("to %p, want none", r)
	}
	late := x.client(5)
	x.t.bind(sessionOf(3), late, 0, false)
	if r := x.t.newestOf(7, conn); r != late {
		t.Errorf("to %p, want the one whose program is not known", r)
	}
}
