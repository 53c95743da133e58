package configs

import "fmt"

// RPCBind is the server of program 100000, RFC 1833. It tells clients that mount
// without port options where the listeners are.
type RPCBind struct {
	Address string   `mapstructure:"address"` // host:port for TCP and UDP, or none
	Allow   []Prefix `mapstructure:"allow"`   // clients that may ask; empty: all
}

// Enabled reports whether the file asks for the server.
func (b *RPCBind) Enabled() bool { return b.Address != none }

func (b *RPCBind) validate(c *Config, r *report) {
	if !b.Enabled() {
		if r.source.given("rpcbind.allow") && !r.has("rpcbind.allow") {
			r.addf("rpcbind.allow", "this setting needs rpcbind.address; write an address, or remove this setting")
		}
		return
	}
	r.listenAddress("rpcbind.address", b.Address, PortRPCBind)
	for i, l := range c.Listeners {
		if l.Name == "rpcbind" { // the listener's metrics would have the same labels
			r.addf(fmt.Sprintf("listeners[%d].name", i), "rpcbind names the metrics of rpcbind.address; write another name")
		}
	}
}
