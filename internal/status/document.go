// Package status has the document in which a running bridge describes itself. The proxy fills it in.
// The status page, the JSON of the admin server, the commands top, stats, clients and upstreams, and the
// gauges of /metrics all show what is in it, so that they cannot disagree.
//
// The names of the JSON members are stable: members may be added, and none changes its meaning. Times
// are in RFC 3339, durations in seconds, sizes in bytes. Numbers whose comment says "so far" only grow
// while the process runs; a reader that wants a rate subtracts two documents.
package status

import "time"

// A Document describes a bridge at one moment.
type Document struct {
	Time      time.Time   `json:"time"`
	Started   time.Time   `json:"started"`
	Process   int         `json:"process"` // process ID
	Build     Build       `json:"build"`
	State     State       `json:"state"`
	NotReady  string      `json:"not_ready,omitempty"` // why State is not Ready; the text of /readyz
	Config    Config      `json:"config"`
	Hardening Hardening   `json:"hardening"`
	Sockets   Descriptors `json:"descriptors"`

	Problems   []Problem   `json:"problems"` // what is wrong, the worst first; empty when nothing is
	Listeners  []Listener  `json:"listeners"`
	Upstreams  []Upstream  `json:"upstreams"`
	Tenants    []Tenant    `json:"tenants"`
	Locks      *Locks      `json:"locks,omitempty"` // nil if the bridge has no lock manager
	Clients    Clients     `json:"clients"`
	Operations []Operation `json:"operations"`
	Names      *Names      `json:"names,omitempty"` // nil unless the page is to show names; top asks for more of them beside the document
	Memory     Memory      `json:"memory"`
	Events     []Event     `json:"events"`  // the newest first
	History    History     `json:"history"` // the last ten minutes
}

// A State says whether a bridge can serve clients.
type State string

const (
	Ready    State = "ready"
	NotReady State = "not_ready"
	Draining State = "draining"
)

// A Build names the binary.
type Build struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Go       string `json:"go"`
}

// A Config says which configuration is in force.
type Config struct {
	File          string    `json:"file,omitempty"`    // "" for none
	Loaded        time.Time `json:"loaded"`            // when it was last read successfully
	RestartNeeded bool      `json:"restart_needed"`    // the file has settings that take effect only after a restart
	Refused       string    `json:"refused,omitempty"` // why the file as it is now was refused; the one before it is in force
}

// A Hardening says what the bridge has taken from its own process, so that a fault in it leads nowhere.
type Hardening struct {
	InForce []string `json:"in_force,omitempty"` // "core dumps", "files" or "system calls"
	Missing []string `json:"missing,omitempty"`  // the others, each with the reason
}

// Descriptors are the sockets of clients that RLIMIT_NOFILE allows.
type Descriptors struct {
	Used  int `json:"used"`  // sockets of clients
	Limit int `json:"limit"` // most sockets of clients: what upstreams and the admin server leave
}

// A Problem is something an operator should know or act on.
type Problem struct {
	Severity Severity `json:"severity"`
	Code     string   `json:"code"`              // stable, such as "upstream_down"; docs/troubleshooting.md has a section of this name
	Subject  string   `json:"subject,omitempty"` // the upstream, listener, client or endpoint
	Text     string   `json:"text"`              // one or two sentences: what happens, and what it does to clients
	Advice   string   `json:"advice,omitempty"`  // what to do or to look at next
}

// A Severity orders problems.
type Severity string

const (
	Critical Severity = "critical" // clients are not served
	Warning  Severity = "warning"  // clients are served worse than they should be
	Notice   Severity = "notice"   // worth knowing
)

// Traffic counts octets and messages of one side, so far.
type Traffic struct {
	BytesIn  uint64 `json:"bytes_in"`  // of Calls for a client or listener, of Replies for an upstream
	BytesOut uint64 `json:"bytes_out"` // the other way
}

// Phases divide the time of answered Calls into four, in seconds, summed over the Calls, so far.
// A Call's time is the sum of its phases.
type Phases struct {
	Calls     uint64  `json:"calls"`     // Calls that are counted here
	Admission float64 `json:"admission"` // from reading the Call until it asked for a credit: rate limits, slow start, memory, and Calls that must go first
	Credit    float64 `json:"credit"`    // until a connection had a credit for it
	Server    float64 `json:"server"`    // from sending it until its Reply had come: the network and the storage
	Client    float64 `json:"client"`    // until the client's connection had taken the Reply
}

// Total is the time of all Calls in seconds.
func (p *Phases) Total() float64 { return p.Admission + p.Credit + p.Server + p.Client }

// Sub returns p without what old has counted.
func (p *Phases) Sub(old *Phases) Phases {
	return Phases{
		Calls: p.Calls - old.Calls, Admission: p.Admission - old.Admission, Credit: p.Credit - old.Credit,
		Server: p.Server - old.Server, Client: p.Client - old.Client,
	}
}

// Add adds o.
func (p *Phases) Add(o *Phases) {
	p.Calls += o.Calls
	p.Admission += o.Admission
	p.Credit += o.Credit
	p.Server += o.Server
	p.Client += o.Client
}

// TCP is what the kernel knows of a TCP connection (TCP_INFO). It is nil where there is none.
type TCP struct {
	RTT         float64 `json:"rtt"`          // smoothed round-trip time in seconds
	Retransmits uint64  `json:"retransmits"`  // segments sent again so far
	Needless    uint64  `json:"needless"`     // of Retransmits, those whose original had arrived, so far: a peer or a wire that is slow, not lossy
	Segments    uint64  `json:"segments"`     // segments sent so far
	Received    uint64  `json:"received"`     // segments received so far
	OutOfOrder  uint64  `json:"out_of_order"` // of Received, those that came after a gap: one before them was lost or overtaken
	Unacked     uint64  `json:"unacked"`      // segments that are not acknowledged
	Unsent      uint64  `json:"unsent"`       // bytes in the send buffer that were never sent: the peer does not read, or the network is slow
	Unread      uint64  `json:"unread"`       // bytes in the receive buffer that the bridge has not read
	Away        int     `json:"away"`         // connections whose peer's host acknowledges nothing, though the kernel has sent the same three times or more
}

// Add adds o: of RTT the larger one counts.
func (t *TCP) Add(o *TCP) {
	t.RTT = max(t.RTT, o.RTT)
	t.Retransmits += o.Retransmits
	t.Needless += o.Needless
	t.Received += o.Received
	t.OutOfOrder += o.OutOfOrder
	t.Segments += o.Segments
	t.Unacked += o.Unacked
	t.Unsent += o.Unsent
	t.Unread += o.Unread
	t.Away += o.Away
}

// A Listener is an address where clients connect.
type Listener struct {
	Name        string            `json:"name"`
	Transport   string            `json:"transport"` // tcp or rdma
	Address     string            `json:"address"`
	Clients     int               `json:"clients"`   // connections
	Limit       int               `json:"limit"`     // most connections
	InFlight    int               `json:"in_flight"` // Calls read and not yet answered
	Paused      map[string]int    `json:"paused"`    // connections that the bridge does not read from at present, by reason
	Traffic                       // so far
	Calls       map[string]uint64 `json:"calls"`         // so far, by result, as in rdmabridge_listener_calls_total
	Refused     map[string]uint64 `json:"refused"`       // connections refused or closed by the bridge so far, by reason
	Accepted    uint64            `json:"accepted"`      // connections so far
	Unreachable string            `json:"unreachable"`   // why it does not accept connections; "" if it does
	TLS         *TLSFiles         `json:"tls,omitempty"` // nil without TLS
	Rules       []Rule            `json:"rules"`         // in their order
}

// A Rule says what becomes of some Calls of a listener.
type Rule struct {
	Name    string     `json:"name"`
	Verdict string     `json:"verdict"`              // allow, deny, upstream, limit or dry_run
	Effect  string     `json:"effect"`               // what it does, in words
	Calls   uint64     `json:"calls"`                // that it has matched so far, as in rdmabridge_listener_rule_calls_total
	Waiting int        `json:"waiting,omitempty"`    // clients that wait now because the rule limits their rate
	Latest  *time.Time `json:"last_match,omitempty"` // the latest of them; left out if there is none since the rules were loaded
}

// An Upstream is a server, or several, that Calls go to.
type Upstream struct {
	Name        string            `json:"name"`
	Transport   string            `json:"transport"` // tcp or rdma
	Mode        string            `json:"mode"`      // pool.mode: sessions, shared or pinned
	State       UpstreamState     `json:"state"`
	DownSince   *time.Time        `json:"down_since,omitempty"`
	LastError   string            `json:"last_error,omitempty"` // why it has no connection, or the last connection failed
	Fault       string            `json:"fault,omitempty"`      // code of the problem that names LastError; "" for none of its own
	TooWeak     bool              `json:"too_weak,omitempty"`   // it refuses NULL Calls without TLS with AUTH_TOOWEAK
	Endpoints   []Endpoint        `json:"endpoints"`
	Credits     Credits           `json:"credits"`     // of all usable connections together
	Connections []Connection      `json:"connections"` // all of them; not in documents that were asked for without
	Usable      int               `json:"usable"`      // connections that are up
	Wanted      int               `json:"wanted"`      // connections that there should be, those that sleep not included
	Asleep      int               `json:"asleep"`      // connections that no Call needs
	Pinned      int               `json:"pinned"`
	Sessions    int               `json:"sessions"` // NFSv4.1 sessions that callbacks can be brought to
	Traffic                       // so far
	Phases      Phases            `json:"phases"` // so far
	Calls       map[string]uint64 `json:"calls"`  // so far, by outcome, as in rdmabridge_upstream_calls_total
	InFlight    int               `json:"in_flight"`
	Stuck       int               `json:"stuck"`       // Calls that the server has not answered for a second or two
	Stalled     int               `json:"stalled"`     // connections on which the server answers nothing
	OldestCall  float64           `json:"oldest_call"` // seconds since the oldest Call in flight was sent; 0 for none
	SlowStart   *SlowStart        `json:"slow_start,omitempty"`
	Disconnects map[string]uint64 `json:"disconnects"`   // so far, by reason
	DialErrors  uint64            `json:"dial_errors"`   // so far
	Replays     uint64            `json:"replays"`       // so far
	TLS         *TLSFiles         `json:"tls,omitempty"` // nil without TLS
	TCP         *TCP              `json:"tcp,omitempty"` // of its connections together: RTT is the largest; also for iWARP, which runs over TCP
}

// An UpstreamState says whether Calls can be sent to an upstream.
type UpstreamState string

const (
	Up       UpstreamState = "up"       // every connection that should be there is
	Degraded UpstreamState = "degraded" // some connections or endpoints are not there
	Down     UpstreamState = "down"     // no connection is there, and Calls wait or fail
	Asleep   UpstreamState = "asleep"   // no connection is there because no Call needs one
)

// Credits bound the Calls that an RDMA upstream lets a Requester have outstanding. For a TCP upstream
// the bridge bounds them by itself.
type Credits struct {
	Requested int     `json:"requested"`       // asked for
	Granted   int     `json:"granted"`         // by the server, on usable connections
	Used      int     `json:"used"`            // Calls outstanding
	Waiting   int     `json:"waiting"`         // Calls that wait for a credit
	Starved   float64 `json:"starved_seconds"` // so far: time in which Calls waited and no credit was free
}

// A SlowStart is in progress.
type SlowStart struct {
	Calls   int `json:"calls"`   // that may be under way now
	Clients int `json:"clients"` // that wait
}

// An Endpoint is one address of an upstream.
type Endpoint struct {
	Address     string        `json:"address"`
	State       EndpointState `json:"state"`
	Until       *time.Time    `json:"until,omitempty"` // when an ejected endpoint is tried again; nil: when an operator returns it
	Reason      string        `json:"reason,omitempty"`
	Ejections   uint64        `json:"ejections"` // so far
	Connections int           `json:"connections"`
}

// An EndpointState says whether an endpoint is used.
type EndpointState string

const (
	EndpointUsed    EndpointState = "used"
	EndpointStandby EndpointState = "standby" // failover: another endpoint is used
	EndpointEjected EndpointState = "ejected" // it failed, or an operator took it out
)

// A Connection is one connection to an upstream, or the place of one that is not there.
type Connection struct {
	Kind      string          `json:"kind"` // shared, lane or pinned
	Endpoint  string          `json:"endpoint"`
	Local     string          `json:"local,omitempty"` // the bridge's address and port
	State     ConnectionState `json:"state"`
	Since     time.Time       `json:"since"`   // of State
	Clients   int             `json:"clients"` // assigned to it, if it is a lane or pinned
	Credits   Credits         `json:"credits"` // all 0 unless State is up
	LastError string          `json:"last_error,omitempty"`
	TLS       *TLS            `json:"tls,omitempty"` // nil without TLS
	TCP       *TCP            `json:"tcp,omitempty"`
}

// A TLS is RPC-with-TLS on a connection: what the certificate of the peer says. All is empty if the peer is a
// client that has shown none.
type TLS struct {
	Identity string     `json:"identity,omitempty"` // the first name, or else the subject
	Subject  string     `json:"subject,omitempty"`  // distinguished name
	Issuer   string     `json:"issuer,omitempty"`   // distinguished name
	Serial   string     `json:"serial,omitempty"`   // in hexadecimal digits
	Names    []string   `json:"names,omitempty"`    // DNS names, IP addresses and URIs
	Expires  *time.Time `json:"expires,omitempty"`
}

// TLSFiles are the files of a listener's or an upstream's TLS.
type TLSFiles struct {
	Expires *time.Time `json:"expires,omitempty"`  // when the first certificate of the bridge's own chain expires; nil for no certificate
	RenewBy *time.Time `json:"renew_by,omitempty"` // when it must be renewed at the latest, before it expires; nil for no certificate
	CA      *TLSTerm   `json:"ca,omitempty"`       // the CA that must be renewed first; nil for those of the system
	CRL     *TLSTerm   `json:"crl,omitempty"`      // the list of revoked certificates that must be replaced first; nil for none
	Refused string     `json:"refused,omitempty"`  // why the files as they are now were refused; what they had before is in force
}

// A TLSTerm says until when a CA, or a list of revoked certificates, can be used.
type TLSTerm struct {
	Name    string    `json:"name"` // subject of the CA; issuer of the list
	Expires time.Time `json:"expires"`
	RenewBy time.Time `json:"renew_by"`     // when it must be renewed at the latest
	End     time.Time `json:"end,omitzero"` // when the last CA of the file expires; zero for lists
}

// A ConnectionState says whether a connection can carry Calls.
type ConnectionState string

const (
	ConnectionUp      ConnectionState = "up"
	ConnectionDown    ConnectionState = "down"
	ConnectionAsleep  ConnectionState = "asleep"
	ConnectionStalled ConnectionState = "stalled" // up, but the server answers nothing
	ConnectionRetired ConnectionState = "retired" // replaced; it ends after its last Call
)

// Clients are the connections of clients.
type Clients struct {
	Total  int      `json:"total"`
	Shown  int      `json:"shown"` // length of List
	Sort   string   `json:"sort"`  // the order of List
	List   []Client `json:"list"`
	Paused int      `json:"paused"` // connections that the bridge does not read from at present
}

// A Client is one connection of a client.
type Client struct {
	Address    string         `json:"address"`         // address and port
	Proxy      string         `json:"proxy,omitempty"` // address and port of the proxy that has made the connection for it
	Listener   string         `json:"listener"`
	Tenant     string         `json:"tenant,omitempty"`
	Transport  string         `json:"transport"`
	Upstreams  []string       `json:"upstreams"`
	Since      time.Time      `json:"since"`
	Active     time.Time      `json:"active"` // when its last Call came
	Traffic                   // so far
	Phases     Phases         `json:"phases"`  // so far
	Failed     uint64         `json:"failed"`  // Replies that are no success, so far
	Repeats    uint64         `json:"repeats"` // Calls that repeated one in flight, so far
	InFlight   int            `json:"in_flight"`
	OldestCall float64        `json:"oldest_call"` // seconds since the oldest Call in flight was read; 0 for none
	OldestXID  uint32         `json:"oldest_xid"`
	OldestOp   string         `json:"oldest_operation,omitempty"`
	Unread     int64          `json:"unread_bytes"`      // memory of Replies that the client has not read
	Waiting    []string       `json:"waiting"`           // why the bridge does not read from it; empty if it does
	Paused     float64        `json:"paused_seconds"`    // so far
	Credits    *ClientCredits `json:"credits,omitempty"` // nil for TCP
	TLS        *TLS           `json:"tls,omitempty"`     // nil without TLS
	TCP        *TCP           `json:"tcp,omitempty"`
}

// ClientCredits are those that the bridge has granted to an RDMA client.
type ClientCredits struct {
	Granted int `json:"granted"`
	Used    int `json:"used"`
}

// An Operation is one kind of Call, as it came through one listener to one upstream. Of an NFSv4 COMPOUND
// it is the operation that the client wants most, such as READ.
type Operation struct {
	Listener  string            `json:"listener"`
	Upstream  string            `json:"upstream"` // "" for Calls that the bridge answers itself
	Program   string            `json:"program"`  // such as nfs, or a number
	Version   uint32            `json:"version"`
	Operation string            `json:"operation"` // such as READ; "other" for procedures the bridge does not know
	InFlight  int               `json:"in_flight"`
	Calls     uint64            `json:"calls"`    // so far: answered Calls
	Statuses  map[string]uint64 `json:"statuses"` // so far: the same by class of status
	Traffic                     // so far
	Phases    Phases            `json:"phases"` // so far
	Latency   Latency           `json:"latency"`
}

// StatusOK is the class of a Reply that is a success, in Operation.Statuses.
const StatusOK = "ok"

// A Latency is a histogram of the time of Calls, so far.
type Latency struct {
	Bounds []float64 `json:"bounds"` // upper bounds in seconds, ascending
	Counts []uint64  `json:"counts"` // of each bound, not cumulative, and one more for what is longer
}

// Memory is the memory of messages.
type Memory struct {
	Budget   int64     `json:"budget"`
	Used     int64     `json:"used"`
	Resident int64     `json:"resident"`
	Waiting  int       `json:"waiting"` // connections that wait for memory
	Refused  uint64    `json:"refused"` // leases that failed, so far
	Accounts []Account `json:"accounts"`
}

// An Account is a part of the memory.
type Account struct {
	Name    string `json:"name"`
	Limit   int64  `json:"limit"`
	Used    int64  `json:"used"`
	Peak    int64  `json:"peak"`
	Leases  int    `json:"leases"`
	Waiting int    `json:"waiting"`
	Refused uint64 `json:"refused"` // so far
}

// An Event is something that happened: a refusal, an ejection, a disconnection, a reload.
type Event struct {
	Time     time.Time         `json:"time"`
	Level    string            `json:"level"` // of the log line: info, warn or error
	Event    string            `json:"event"` // stable, such as "endpoint_ejected"; "" if it has no key
	Text     string            `json:"text"`
	Fields   map[string]string `json:"fields,omitempty"`   // the keys of the log line
	Repeated uint64            `json:"repeated,omitempty"` // lines like this one that were left out
}

// A History has one point for each Step. All lists have the same length, the oldest point first.
type History struct {
	Step      float64                    `json:"step"`      // seconds between points
	End       time.Time                  `json:"end"`       // of the last point
	Calls     []float64                  `json:"calls"`     // answered, a second
	BytesIn   []float64                  `json:"bytes_in"`  // from clients, a second
	BytesOut  []float64                  `json:"bytes_out"` // to clients, a second
	Latency   []float64                  `json:"latency"`   // mean time of a Call in seconds
	Clients   []float64                  `json:"clients"`
	Memory    []float64                  `json:"memory"` // bytes used
	Failed    []float64                  `json:"failed"` // Replies that are no success, a second
	Upstreams map[string]UpstreamHistory `json:"upstreams"`
}

// An UpstreamHistory has the points of one upstream.
type UpstreamHistory struct {
	Calls   []float64 `json:"calls"`   // answered, a second
	Latency []float64 `json:"latency"` // mean time at the server in seconds
	Credits []float64 `json:"credits"` // share of the granted credits that is used, 0 to 1
	Waiting []float64 `json:"waiting"` // Calls that wait for a credit
}
