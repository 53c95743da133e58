package configs

import (
	"fmt"
	"slices"
)

// A Tenant is a named group of clients that share limits, whatever listeners they connect to. A client
// belongs to the first tenant that matches it.
type Tenant struct {
	Name    string       `mapstructure:"name"`
	Clients []Prefix     `mapstructure:"clients"`   // networks and addresses
	Names   []string     `mapstructure:"tls_names"` // patterns of names in the certificates of clients
	Weight  int          `mapstructure:"weight"`    // of each address; 0: what the listener's weights say
	Total   TenantLimits `mapstructure:"total"`     // of all clients of the tenant together
	Address TenantLimits `mapstructure:"address"`   // of each address: all its connections together
}

// TenantLimits bound what a tenant, or one address of it, may use. Zero means no limit.
type TenantLimits struct {
	Connections int  `mapstructure:"connections"`
	Calls       int  `mapstructure:"calls"`  // read and not yet answered
	Memory      Size `mapstructure:"memory"` // of Calls and Replies
	Rate        Rate `mapstructure:"rate"`
}

const (
	maxTenants      = 256
	maxTenantCalls  = 1 << 20
	minTenantMemory = 1 * MiB
	maxTenantMemory = 1024 * GiB
)

// validateTenants checks the list of tenants.
func (c *Config) validateTenants(k Known, r *report) {
	if len(c.Tenants) > maxTenants {
		r.addf("tenants", "there are %d tenants; write at most %d", len(c.Tenants), maxTenants)
	}
	names := make(map[string]int)
	var earlier []Prefix
	for i := range c.Tenants {
		t := &c.Tenants[i]
		p := fmt.Sprintf("tenants[%d]", i)
		r.required(p+".name", t.Name, "customer-a")
		checkName("tenants", i, t.Name, names, r)
		t.validate(p, earlier, k, r)
		earlier = append(earlier, t.Clients...)
	}
}

// validate checks one tenant. earlier are the networks of the tenants before it.
func (t *Tenant) validate(path string, earlier []Prefix, k Known, r *report) {
	if len(t.Clients) == 0 && len(t.Names) == 0 && !r.spoiled(path+".clients") && !r.spoiled(path+".tls_names") {
		r.addf(path, "no client matches this tenant; write clients, tls_names or both")
	}
	for i, n := range t.Names {
		if k.TLSName == nil {
			continue
		}
		if err := k.TLSName(n); err != nil {
			r.addf(fmt.Sprintf("%s.tls_names[%d]", path, i), "%v", err)
		}
	}
	for i, c := range t.Clients {
		if slices.ContainsFunc(earlier, func(e Prefix) bool { return e.Bits() <= c.Bits() && e.Contains(c.Addr()) }) {
			r.addf(fmt.Sprintf("%s.clients[%d]", path, i), "an earlier tenant matches all of %s; remove one of the two", c)
		}
	}
	r.atMost(path+".weight", t.Weight, maxWeight)
	t.Total.validate(path+".total", r)
	t.Address.validate(path+".address", r)
	notAbove := func(name string, n, most int) {
		if most > 0 {
			r.notAbove(path+".address."+name, n, "total."+name, most)
		}
	}
	notAbove("connections", t.Address.Connections, t.Total.Connections)
	notAbove("calls", t.Address.Calls, t.Total.Calls)
	notAbove("rate.connections", t.Address.Rate.Connections, t.Total.Rate.Connections)
	if most := t.Total.Memory; most > 0 && t.Address.Memory > most {
		r.addf(path+".address.memory", "%s is more than total.memory, which is %s; write at most %s", t.Address.Memory, most, most)
	}
}

func (l *TenantLimits) validate(path string, r *report) {
	r.atMost(path+".connections", l.Connections, maxConnections)
	r.atMost(path+".calls", l.Calls, maxTenantCalls)
	r.between(path+".memory", l.Memory, minTenantMemory, maxTenantMemory)
	l.Rate.validate(path+".rate", r)
}
