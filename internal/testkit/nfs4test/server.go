package nfs4test

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// ServerOptions configure a Server. Zero values are what nfsd has.
type ServerOptions struct {
	Connections     int           // the most; beyond it the oldest is closed; 0: 220
	Slots           uint32        // of each session at most; 0: 160
	CallbackTimeout time.Duration // how long a callback may stay unanswered; 0: 9 s
	CallbackDelay   time.Duration // after which a callback answered NFS4ERR_DELAY is sent again; 0: 2 s
	Delay           time.Duration // before each Reply to a COMPOUND that begins with SEQUENCE; its slot is busy so long
}

// A Server is an NFSv4.1 and NFSv4.2 server of sessions. Its methods are safe for concurrent use.
type Server struct {
	o ServerOptions

	// Counters.
	Calls      atomic.Int64 // COMPOUNDs
	Executed   atomic.Int64 // COMPOUNDs executed in a slot
	Replays    atomic.Int64 // COMPOUNDs answered from a slot's cache
	Misordered atomic.Int64 // SEQUENCEs answered NFS4ERR_SEQ_MISORDERED
	Busy       atomic.Int64 // SEQUENCEs answered NFS4ERR_DELAY, because their slot was busy
	Unbound    atomic.Int64 // SEQUENCEs answered NFS4ERR_CONN_NOT_BOUND_TO_SESSION
	Unknown    atomic.Int64 // SEQUENCEs answered NFS4ERR_BADSESSION
	Created    atomic.Int64 // sessions
	Bound      atomic.Int64 // BIND_CONN_TO_SESSIONs that succeeded
	Evicted    atomic.Int64 // connections closed because there were too many
	Faults     atomic.Int64 // callbacks that failed

	mu       sync.Mutex // guards the rest, and all of conn, host, session and slot
	conns    []*conn    // the oldest first
	past     []string   // what became of connections; at most pastLines
	most     int        // the most connections there ever were
	hosts    map[uint64]*host
	owners   map[string]*host // by co_ownerid; those that are confirmed
	news     map[string]*host // by co_ownerid; those that are not
	sessions map[SessionID]*session
	nextHost uint64
	closed   bool

	listeners []func() // end a listener and its connections; guarded by mu
}

// NewServer returns a Server that does not listen yet.
func NewServer(o ServerOptions) *Server {
	o.Connections = cmp.Or(o.Connections, 220)
	o.Slots = cmp.Or(o.Slots, 160)
	o.CallbackTimeout = cmp.Or(o.CallbackTimeout, 9*time.Second)
	o.CallbackDelay = cmp.Or(o.CallbackDelay, 2*time.Second)
	return &Server{
		o: o, nextHost: uint64(time.Now().Unix()) << 32,
		hosts: make(map[uint64]*host), owners: make(map[string]*host), news: make(map[string]*host), sessions: make(map[SessionID]*session),
	}
}

// A transport carries the messages of one connection. Its methods may be called on any goroutine.
type transport interface {
	// reverseCall sends the Call m to the client. The answer goes to conn.reverseReply, or the
	// failure to conn.reverseFailed, but never before reverseCall has returned.
	reverseCall(m []byte)
	// close ends the connection. conn.ended follows.
	close(err error)
}

// A conn is a connection of a Server.
type conn struct {
	s    *Server
	t    transport
	peer netip.Addr // the client's host; the bridge's, where there is one
	name string     // for a failure

	bound   map[*session]bool // whether for the back channel, too
	window  int               // the most reverse Calls outstanding
	calls   map[uint32]*Recall
	waiting []*Recall // for the window
	xid     uint32    // of the latest reverse Call
	over    bool
}

var errTooMany = errors.New("nfs4test: more connections than the server may have; the oldest is closed")

// pastLines bounds what a Server remembers for Past.
const pastLines = 200

// tell remembers what became of c, for a failure. mu is held.
func (s *Server) tell(c *conn, what string) {
	if len(s.past) < pastLines {
		s.past = append(s.past, fmt.Sprintf("%s %s %s, %d there", time.Now().Format("05.000"), c.name, what, len(s.conns)))
	}
}

// Past returns a line for each connection that came and each that went, the first ones.
func (s *Server) Past() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.past, "\n")
}

// open adds a connection. name is for a failure, and window bounds its outstanding reverse Calls.
func (s *Server) open(t transport, name string, peer netip.Addr, window int) *conn {
	c := &conn{s: s, t: t, name: name, peer: peer, window: window, bound: make(map[*session]bool), calls: make(map[uint32]*Recall)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		c.t.close(errTooMany)
	}
	if len(s.conns) >= s.o.Connections {
		s.Evicted.Add(1)
		s.tell(s.conns[0], "is evicted")
		s.conns[0].t.close(errTooMany)
		s.conns = s.conns[1:]
	}
	s.conns = append(s.conns, c)
	s.most = max(s.most, len(s.conns))
	s.tell(c, "came")
	return c
}

// ended forgets a connection that ended with err, whose sessions may now have no back channel.
func (c *conn) ended(err error) {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.over {
		return
	}
	c.over = true
	s.conns = slices.DeleteFunc(s.conns, func(x *conn) bool { return x == c })
	s.tell(c, fmt.Sprintf("went: %v", err))
	for x, back := range c.bound {
		x.conns = slices.DeleteFunc(x.conns, func(y *conn) bool { return y == c })
		if back {
			x.host.probe()
		}
	}
	c.bound = nil
	c.dropCalls()
}

// Connections returns how many connections there are, and the most that there ever were.
func (s *Server) Connections() (now, most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns), s.most
}

// Sessions returns how many sessions there are.
func (s *Server) Sessions() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.sessions)
}

// Down returns how many hosts have no back channel, or one that has failed.
func (s *Server) Down() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.owners {
		if h.channel != channelUp {
			n++
		}
	}
	return n
}

// BackConnections returns how many connections carry the back channel of a session.
func (s *Server) BackConnections() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		for _, back := range c.bound {
			if back {
				n++
				break
			}
		}
	}
	return n
}

// DropConnection ends the i-th connection, the oldest being the first.
func (s *Server) DropConnection(i int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i < len(s.conns) {
		s.conns[i].t.close(errors.New("nfs4test: dropped by the test"))
	}
}

// Forget removes all hosts and sessions, as a server does that starts again. Connections stay.
func (s *Server) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.hosts {
		h.remove()
	}
}

// Close ends the listeners and all connections.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	listeners := s.listeners
	s.mu.Unlock()
	for _, end := range listeners {
		end()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.hosts {
		h.remove()
	}
}

// A host is a client of NFSv4.1, as the server knows it.
type host struct {
	s         *Server
	id        uint64 // clientid4
	owner     string
	verifier  [8]byte
	addr      netip.Addr
	machine   bool // SP4_MACH_CRED
	confirmed bool
	reclaimed bool

	created      uint32 // the sequence number of the latest CREATE_SESSION
	createResult []byte // and its result

	sessions []*session
	number   uint32 // of the latest session

	channel channelState
	recall  *Recall // under way
	queue   []*Recall
}

// remove forgets h and its sessions.
func (h *host) remove() {
	for _, x := range slices.Clone(h.sessions) {
		x.remove()
	}
	delete(h.s.hosts, h.id)
	if h.s.owners[h.owner] == h {
		delete(h.s.owners, h.owner)
	}
	if h.s.news[h.owner] == h {
		delete(h.s.news, h.owner)
	}
	h.fail(errNoBackChannel)
}

// A session is a session.
type session struct {
	host  *host
	id    SessionID
	slots []*slot // as many as were used
	most  uint32  // slots granted
	conns []*conn // bound to it, in the order in which they were

	callback uint32 // the sequence number of the next callback
	program  uint32
}

func (x *session) remove() {
	h := x.host
	delete(h.s.sessions, x.id)
	h.sessions = slices.DeleteFunc(h.sessions, func(y *session) bool { return y == x })
	for _, c := range x.conns {
		delete(c.bound, x)
	}
	x.conns = nil
	h.probe()
}

// bind binds c to x. A connection that is bound to the back channel stays so.
func (x *session) bind(c *conn, back bool) {
	was, known := c.bound[x]
	if !known {
		x.conns = append(x.conns, c)
	}
	c.bound[x] = was || back
	if back {
		x.host.probe()
	}
}

// slot returns the slot with that number, which is less than x.most.
func (x *session) slot(n uint32) *slot {
	for uint32(len(x.slots)) <= n {
		x.slots = append(x.slots, &slot{})
	}
	return x.slots[n]
}

// A slot remembers the latest COMPOUND.
type slot struct {
	sequence uint32
	busy     bool   // its Reply has not been sent
	cached   bool   // the client asked for that, or the COMPOUND had one operation
	result   []byte // COMPOUND4res
}

// sessionID makes the ID of the n-th session of a client, as nfsd does.
func sessionID(host uint64, n uint32) (id SessionID) {
	binary.BigEndian.PutUint64(id[:], host)
	binary.BigEndian.PutUint32(id[8:], n)
	return id
}
