// Package configs reads the configuration file of rdmabridge. It has the types of
// all settings, their defaults (defaults.go) and the rules they must keep.
//
// [Load] reports all problems of a file at once, each with its line and the path of
// the setting. It never returns a configuration that breaks a rule.
//
// A setting that the file omits, or sets to null, has the default value. Zero never means
// "default" or "no limit" in a file: the word none switches a setting off where that is
// possible.
package configs

// A Config is a whole file. Load returns it complete: each field has the value of the
// file or its default.
type Config struct {
	Identity  Identity          `mapstructure:"identity"` // "": of the host name and the listeners' addresses
	Listeners []Listener        `mapstructure:"listeners"`
	Upstreams []Upstream        `mapstructure:"upstreams"`
	Tenants   []Tenant          `mapstructure:"tenants"` // groups of clients with limits of their own
	TLS       TLSBudget         `mapstructure:"tls"`
	Programs  []DeclaredProgram `mapstructure:"programs"` // that the bridge does not know
	Chunks    Chunks            `mapstructure:"chunks"`
	Memory    Memory            `mapstructure:"memory"`
	RPCBind   RPCBind           `mapstructure:"rpcbind"`
	NLM       NLM               `mapstructure:"nlm"`
	Admin     Admin             `mapstructure:"admin"`
	Control   Control           `mapstructure:"control"`
	Log       Log               `mapstructure:"log"`
	Tracing   Tracing           `mapstructure:"tracing"`
	Names     Names             `mapstructure:"names"`
	Drain     Drain             `mapstructure:"drain"`
	Reload    Reload            `mapstructure:"reload"`
	Handover  Handover          `mapstructure:"handover"`
	Hardening Switch            `mapstructure:"hardening"` // whether the process gives up what it does not need
	Loops     int               `mapstructure:"loops"`     // number of event loops
	BusyPoll  Duration          `mapstructure:"busy_poll"` // how long a loop polls before it sleeps

	warnings Problems
	source   *source  // where the settings stand; nil if there is no file
	files    []string // that the settings are from, and variables of the environment
}

// Chunks bounds what the bridge offers in chunks to every upstream on RDMA.
type Chunks struct {
	IO    Size `mapstructure:"io"`    // most data of one READ
	Reply Size `mapstructure:"reply"` // Reply chunk for Calls whose Reply has no known bound
}

// Memory is the memory of all messages.
type Memory struct {
	Budget Size `mapstructure:"budget"`
}

// Admin is the HTTP server for metrics, health checks and the status page.
type Admin struct {
	Address string `mapstructure:"address"` // host:port, or none
}

// Enabled reports whether the file asks for the HTTP server.
func (a *Admin) Enabled() bool { return a.Address != none }

// Drain configures what SIGTERM starts.
type Drain struct {
	Timeout Duration `mapstructure:"timeout"` // how long Calls may take before the bridge closes their connections
}
