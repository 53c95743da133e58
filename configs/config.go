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

// Chunks bound what is offered in chunks to every upstream on RDMA.
type Chunks struct {
	IO    Size `mapstructure:"io"`    // most data of one READ; default 1 MiB
	Reply Size `mapstructure:"reply"` // Reply chunk where no binding knows better; default IO + 8 KiB
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
