// Package configs is the YAML of rdmabridge: its types, its defaults and its
// rules. [Load] reports every problem of a file at once, each with the path of
// the setting and its line, and never a configuration that breaks a rule.
//
// A setting that is left out, or is null, has its default. Zero is never a
// way to say "default" or "no limit" in the file: what may be switched off takes
// the word none.
package configs

// A Config is a whole file. The one that Load returns is complete: every field
// has its value, given or default, and keeps every rule.
type Config struct {
	Listeners []Listener `mapstructure:"listeners"`
	Upstreams []Upstream `mapstructure:"upstreams"`
	Chunks    Chunks     `mapstructure:"chunks"`
	Memory    Memory     `mapstructure:"memory"`
	RPCBind   RPCBind    `mapstructure:"rpcbind"`
	Admin     Admin      `mapstructure:"admin"`
	Log       Log        `mapstructure:"log"`
	Drain     Drain      `mapstructure:"drain"`
	Reload    Reload     `mapstructure:"reload"`
	Handover  Handover   `mapstructure:"handover"`
	Loops     int        `mapstructure:"loops"` // event loops; default by CPUs
}

// A Listener is an address where clients arrive.
type Listener struct {
	Name      string    `mapstructure:"name"`
	Address   string    `mapstructure:"address"`   // host:port
	Transport Transport `mapstructure:"transport"` // default tcp
	Upstream  string    `mapstructure:"upstream"`  // where Calls without a route go; "" refuses them
	Routes    []Route   `mapstructure:"routes"`
	Allow     []Prefix  `mapstructure:"allow"` // empty: everybody

	Limits   ListenerLimits   `mapstructure:"limits"`
	Weights  []Weight         `mapstructure:"weights"` // the first that fits counts; others have 1
	Rates    Rates            `mapstructure:"rates"`
	Timeouts ListenerTimeouts `mapstructure:"timeouts"`

	// For transport rdma.
	Provider string `mapstructure:"provider"` // default iwarp
	Credits  int    `mapstructure:"credits"`  // most granted to each connection; default 64
	Inline   Inline `mapstructure:"inline"`
	IWARP    IWARP  `mapstructure:"iwarp"`
}

// A Route sends the Calls of one RPC program to an upstream of its own.
type Route struct {
	Program  Program  `mapstructure:"program"`
	Versions []uint32 `mapstructure:"versions"` // empty: all
	Upstream string   `mapstructure:"upstream"`
}

// ListenerLimits bound what clients of one listener can take.
type ListenerLimits struct {
	Connections int  `mapstructure:"connections"` // default 4096
	Calls       int  `mapstructure:"calls"`       // Calls of one client in the bridge; default 256
	Outbound    Size `mapstructure:"outbound"`    // Replies owed to one client; default 32 MiB
	Record      Size `mapstructure:"record"`      // longest Call; default 4 MiB + 64 KiB
	PerAddress  int  `mapstructure:"per_address"` // connections of one client address; default Connections

	// For transport tcp.
	Fragments int `mapstructure:"fragments"` // of one record, RFC 5531 Section 11; default 1024

	// For transport rdma: connections being set up at once, and of one address.
	Starting           int `mapstructure:"starting"`             // default 128
	StartingPerAddress int `mapstructure:"starting_per_address"` // default 16, at most Starting
}

// A Weight is the share of some clients, by address, while others wait as well.
type Weight struct {
	Clients []Prefix `mapstructure:"clients"`
	Weight  int      `mapstructure:"weight"` // 1 to 100
}

// Rates are how much clients may send and get.
type Rates struct {
	Listener Rate `mapstructure:"listener"` // all of them together
	Client   Rate `mapstructure:"client"`   // those of one address
}

// A Rate bounds a second; default no limit.
type Rate struct {
	Calls int  `mapstructure:"calls"`
	Bytes Size `mapstructure:"bytes"` // of Calls and Replies together
}

// ListenerTimeouts end connections that do not move.
type ListenerTimeouts struct {
	Stall Duration `mapstructure:"stall"` // what was begun must go on: a record, or an FPDU; default 30s
	Idle  Duration `mapstructure:"idle"`  // no traffic and no Call under way; default none
	Start Duration `mapstructure:"start"` // for transport rdma: to set a connection up; default 5s
}

// An Upstream is storage: one server, or several that hold the same data.
type Upstream struct {
	Name      string    `mapstructure:"name"`
	Transport Transport `mapstructure:"transport"` // required
	Endpoints []string  `mapstructure:"endpoints"` // host:port
	Failover  Switch    `mapstructure:"failover"`  // a client need not stay with one of them; default off
	Balance   string    `mapstructure:"balance"`   // spread or priority, with failover; default spread
	Pool      Pool      `mapstructure:"pool"`
	Timeouts  Timeouts  `mapstructure:"timeouts"`
	Backoff   Backoff   `mapstructure:"backoff"`

	// For transport tcp.
	Source Source `mapstructure:"source"`

	// For transport rdma.
	Provider string `mapstructure:"provider"` // default iwarp
	Inline   Inline `mapstructure:"inline"`
	IWARP    IWARP  `mapstructure:"iwarp"`
}

// A Source is where connections to an upstream come from.
type Source struct {
	Address string `mapstructure:"address"` // of this host; "" is the kernel's choice
	Ports   Ports  `mapstructure:"ports"`   // the same after a restart; default any
}

// A Pool is the connections of one upstream.
type Pool struct {
	Connections int    `mapstructure:"connections"` // default 4, for transport tcp 2
	Credits     int    `mapstructure:"credits"`     // asked for on each; on TCP the most Calls outstanding; default 128
	Mode        string `mapstructure:"mode"`        // auto, shared or pinned; default auto
	Pinned      int    `mapstructure:"pinned"`      // most clients with a connection of their own; default 256
}

// Inline are the inline thresholds of RFC 8166 Section 3.3.2, one for each
// direction, before RFC 8797 lowers them to what the peer can take.
type Inline struct {
	Call  Size `mapstructure:"call"`  // default 4 KiB, for upstreams 64 KiB: what the peer takes
	Reply Size `mapstructure:"reply"` // default 4 KiB
}

// Chunks bound what is offered in chunks to every upstream on RDMA.
type Chunks struct {
	IO    Size `mapstructure:"io"`    // most data of one READ; default 1 MiB
	Reply Size `mapstructure:"reply"` // Reply chunk where no binding knows better; default IO + 8 KiB
}

// Timeouts are the patience with an upstream.
type Timeouts struct {
	Call        Duration `mapstructure:"call"`        // then the connection is replaced; default 60s
	Connect     Duration `mapstructure:"connect"`     // one attempt; default 10s
	Unavailable Duration `mapstructure:"unavailable"` // a Call waits no longer for a connection; default 30s
	Silent      Duration `mapstructure:"silent"`      // the server's host answers nothing, or none; default 4s
	Probe       Duration `mapstructure:"probe"`       // a connection is asked after such a silence, or none; default 5s
}

// Backoff is the pause between attempts to connect, with jitter.
type Backoff struct {
	Min Duration `mapstructure:"min"` // default 100ms
	Max Duration `mapstructure:"max"` // default 5s
}

// IWARP are the choices of the iwarp provider.
type IWARP struct {
	CRC  Switch `mapstructure:"crc"`  // CRC32c of RFC 5044; default on
	FPDU string `mapstructure:"fpdu"` // emss: fit TCP segments; max: up to 64 KiB; default emss

	// For upstreams: fall back to MPA revision 1 (RFC 5044) when the peer hangs up
	// on revision 2 (RFC 6581). Listeners answer both. Default off.
	Revision1 Switch `mapstructure:"revision1"`
}

// Memory is for messages, all of them.
type Memory struct {
	Budget Size `mapstructure:"budget"` // default 1 GiB
}

// Admin is the HTTP server for metrics, health and status.
type Admin struct {
	Address string `mapstructure:"address"` // host:port, or none; default 127.0.0.1:9090
}

// Enabled reports whether it is wanted.
func (a *Admin) Enabled() bool { return a.Address != none }

// Log says what is logged, to standard error.
type Log struct {
	Level  string `mapstructure:"level"`  // debug, info, warn or error; default info
	Format string `mapstructure:"format"` // json or console; default json
}

// Drain is what SIGTERM starts.
type Drain struct {
	Timeout Duration `mapstructure:"timeout"` // then connections are cut; default 30s
}

// The words of settings that are compared in code.
const (
	ProviderIWARP   = "iwarp"
	fpduEMSS        = "emss"
	FPDUMax         = "max"
	formatJSON      = "json"
	FormatConsole   = "console"
	none            = "none"
	balanceSpread   = "spread"
	BalancePriority = "priority"
	PoolAuto        = "auto"
	PoolShared      = "shared"
	PoolPinned      = "pinned"
)

// RDMA reports whether the listener's clients speak RPC-over-RDMA.
func (l *Listener) RDMA() bool { return l.Transport == TransportRDMA }

// RDMA reports whether the upstream is reached by RPC-over-RDMA.
func (u *Upstream) RDMA() bool { return u.Transport == TransportRDMA }
