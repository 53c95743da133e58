package session

import (
	"container/list"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/crowd"
	"github.com/rdmabridge/rdmabridge/internal/loglimit"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/pool"
	"github.com/rdmabridge/rdmabridge/pool/quota"
)

// What the package knows
//
// This file has the types whose methods are in the other files, and says who may touch which field. A client and a
// server's connection meet in a lane, and the session table knows both. So the types need each other, and the files
// that act on them do not.

// Lanes are the lanes of an upstream. They are safe for concurrent use.
type Lanes struct {
	Table       *Table // what is known of the sessions; constant, as the next
	o           Options
	disconnects disconnects
	callbacks   callbackMetrics

	refused  *metrics.Counter // clients that could not have a lane
	refusals loglimit.Seldom  // of lines about them

	mu       sync.Mutex // guards the rest, and the fields of Lane and Conn that say so; before the mutexes of pools
	settings *Settings  // never changed in place
	all      []*Lane    // those that clients share and may be assigned to, by their numbers
	extra    int        // how many of them are there for signedLanes
	old      []*Lane    // those that a reload has taken away, and that may still have clients
	pinned   pinnedLanes
	closed   bool
	ending   sync.WaitGroup // counts the goroutines that close lanes; none begins when closed is set
}

// pinnedLanes are the pinned lanes of an upstream.
type pinnedLanes struct {
	most atomic.Int64 // how many there may be; 0: the upstream pins no client

	quota     *quota.Quota // divides the Calls on all of them among hosts; constant
	makesRoom *metrics.Counter
	crowded   loglimit.Seldom

	// Guarded by Lanes.mu.
	staying crowd.Crowd[*Lane]
	evicted map[*Lane]struct{} // those whose clients are being closed for others
	hosts   map[crowd.Host]*pinnedHost
	next    int // the number of the endpoint that the next one dials first
}

// A pinnedHost is a host that has pinned lanes.
type pinnedHost struct {
	n     int // lanes
	quota *quota.Host
}

// A Lane is a place for one connection, and has the clients whose Calls it carries.
type Lane struct {
	lanes *Lanes // constant, as the next two
	opts  laneOptions
	pool  *pool.Pool // of one seat

	// Guarded by Lanes.mu.
	conn    *Conn                // the latest connection
	seat    *pool.Seat           // that dialled last
	clients map[*Client]struct{} // that share the lane
	hosts   map[crowd.Host]int   // how many of them each host has
	started bool
	failing bool  // a connection has failed or could not be made, and the server has answered on none since
	leaving bool  // a reload has taken the lane away, or its only client has gone
	lateAt  int64 // when another connection replaced one because of late Calls; 0 for never

	place crowd.Member[*Lane] // in pinnedLanes.staying
}

// laneOptions say what tells lanes apart. They are constant.
type laneOptions struct {
	// only is the client that has the lane for itself, if it is pinned. The lane ends with that client, which stays
	// when a connection of the lane is lost. It is nil for a lane that clients share.
	only  *Client
	quota *quota.Host // of the host of only

	endpoint    int    // of the endpoint that it prefers, or the only one that it may use
	loop, loops int    // the loop of its connections, and on how many loops its clients are
	ports       uint64 // from which the first source port follows
	preamble    []byte // the PROXY header of its connections

	// Of its connections over RDMA: how many Receives are posted while it is idle, and how many reverse Calls may be
	// outstanding.
	receives, reverse int
	calls             int // the most reverse Calls of a connection that its clients have not answered
}

// A Conn is one connection of a lane. Its exported methods run on the loop of the connection, unless they say
// otherwise.
type Conn struct {
	lane     *Lane        // constant, as the next two
	loop     Loop         // on which the connection lives
	affinity int          // its number
	calls    reverseCalls // the loop's

	member      Member      // what sends the Calls; nil before Dial has returned; guarded by Lanes.mu, as the rest
	since       int64       // when Dial returned, on the clock of the loops
	hasAnswered bool        // the server has granted a credit
	mute        *time.Timer // calls isMute; nil before Dial has returned, and if the server answered earlier
	replaced    bool        // another connection carries the lane's next Calls
	over        bool        // the connection has ended
}

// ClientOptions describe a client connection.
type ClientOptions struct {
	Peer     Peer
	Addr     netip.Addr // IPv4 addresses are not mapped
	Loop     int        // the number of its loop
	Endpoint int        // that it belongs to if each client belongs to one
}

// A Client is a client connection whose Calls stay on one lane.
type Client struct {
	o    ClientOptions // constant, as the next four
	host crowd.Host
	loop Loop
	lane *Lane
	// table is the table of its sessions. It is nil if nobody needs to know these, because the lane is pinned.
	table *Table
	since int64 // when the client got its lane, on the clock of the loops

	bound    atomic.Pointer[Conn] // the connection of a lane that clients share which carries the Calls; set once
	sessions *session             // that the client is called on; guarded by Table.mu
	seen     nfs.SessionID        // a session of which the table need not learn anything; the client's loop's
	settled  atomic.Bool          // the table has nothing to learn from Calls that it cannot read
	reverse  reverseQueue         // the client's loop's
}

// reverseCalls are the reverse Calls that are outstanding on a Conn, in the order they came.
type reverseCalls struct {
	out      []*reverseCall // at most sharedCalls
	call     oncrpc.Call    // scratch
	timer    *time.Timer    // calls expire
	patience time.Duration  // callbackPatience, or less until patienceHeals after silentAt
	silentAt time.Time      // when a Call last was not answered
	over     bool           // the connection has ended
}

// A reverseCall is a reverse Call on its way to the client, and its Reply on the way back. It belongs to
// the loop that it was posted to last.
type reverseCall struct {
	conn  *Conn // constant, as the next six
	from  Reverser
	to    *Client // nil if the client is away
	xid   uint32
	id    nfs.SessionID // zero for a CB_NULL
	later []byte        // a Reply that asks the server to try later, or nil
	came  time.Time

	state reverseState
	m     []byte   // the Call, or the Reply; nil if there is none
	done  Releaser // of m
}

// A reverseState says what is done with a reverseCall next.
type reverseState uint8

const (
	reverseGoes    reverseState = iota // the client's loop sends it
	reverseReplied                     // the server's loop sends the Reply
	reverseRefused                     // the server's loop refuses it: the client cannot take it
	reverseAway                        // the server's loop asks the server to try later: the client's connection has ended
)

// A reverseQueue is the reverse Calls of one client connection on a lane. It belongs to the client's
// loop.
type reverseQueue struct {
	calls []*reverseCall // that the client has not answered, at most maxClientCalls
	owed  owed
	from  Reverser // on a pinned lane, the connection that the latest reverse Call came on
}

// A Table holds the sessions of one upstream. It is safe for concurrent use.
type Table struct {
	now     func() int64  // the clock of the loops; constant, as the next three
	evict   func(*Client) // closes a client for whose session there is no room
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
	conn    *Conn
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
	client  *Client       // that is called; nil while there is none
	heir    *Client       // that has used the session since, and may be the same client
	conn    *Conn         // on which the server calls; nil if it is not known
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
	before, following *session               // of client, linked from Client.sessions
}

const (
	noLimits    = 0
	sessionGone = 1 // the table does not have the session any more
)
