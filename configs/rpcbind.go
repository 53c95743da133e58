package configs

import "fmt"

// RPCBind is the answer to program 100000, RFC 1833: where the listeners are, for
// clients that mount without port options.
type RPCBind struct {
	Address string   `mapstructure:"address"` // host:port for TCP and UDP, or none; default none
	Allow   []Prefix `mapstructure:"allow"`   // who may ask; empty: everybody
}

// Enabled reports whether it is wanted.
func (b *RPCBind) Enabled() bool { return b.Address != none }

func (b *RPCBind) validate(c *Config, r *report) {
	if !b.Enabled() {
		if r.source.given("rpcbind.allow") && !r.has("rpcbind.allow") {
			r.addf("rpcbind.allow", "only with rpcbind.address")
		}
		return
	}
	checkAddress(b.Address, true, "rpcbind.address", r)
	for i, l := range c.Listeners {
		if l.Name == "rpcbind" { // the name of its series
			r.addf(fmt.Sprintf("listeners[%d].name", i), "rpcbind is taken by rpcbind.address")
		}
	}
}
