package configs

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// The longest messages. Package regmem holds each in one lease.
const (
	MaxRecord = 8 * MiB       // limits.record
	MaxReply  = maxIO + 8*KiB // chunks.reply
	maxIO     = 8 * MiB       // chunks.io
)

// DefaultIO is the default of chunks.io. Servers that return 4 MiB at once exist, and a Call of the default
// limits.record holds a WRITE of as much.
const DefaultIO = 4 * MiB

const (
	minChunk = 4 * KiB
	maxLoops = 256
)

// validate reports every rule that c breaks. Listeners and upstreams check themselves; this
// file has the rules that concern several listeners or upstreams.
func (c *Config) validate(k Known, r *report) {
	c.Identity.validate(r)
	if len(c.Listeners) == 0 && !r.has("listeners") {
		r.addf("listeners", "the file has no listener; write at least one")
	}
	if len(c.Upstreams) == 0 && !r.has("upstreams") {
		r.addf("upstreams", "the file has no upstream; write at least one")
	}
	for i := range c.Upstreams {
		c.Upstreams[i].validate(fmt.Sprintf("upstreams[%d]", i), k, r)
	}
	for i := range c.Listeners {
		c.Listeners[i].validate(fmt.Sprintf("listeners[%d]", i), k, c, r)
	}
	c.validateTenants(k, r)
	c.checkNames(r)
	c.checkAddresses(r)
	c.checkCircles(k, r)
	c.TLS.validate(r)
	c.Chunks.validate(r)
	c.validatePrograms(k, r)
	c.checkMemory(r)
	c.RPCBind.validate(c, r)
	c.NLM.validate(c, k, r)
	if c.Admin.Enabled() {
		r.listenAddress("admin.address", c.Admin.Address, portAdmin)
	}
	c.Log.validate(r)
	c.Tracing.validate(k, r)
	c.Names.validate(r)
	r.finite("drain.timeout", c.Drain.Timeout)
	c.Reload.validate(r)
	c.Handover.validate(k, r)
	c.Control.validate(&c.Handover, r)
	r.atMost("loops", c.Loops, maxLoops)
	r.busyPoll("busy_poll", c.BusyPoll)
}

func (c *Chunks) validate(r *report) {
	r.between("chunks.io", c.IO, minChunk, maxIO)
	inRange := r.between("chunks.reply", c.Reply, minChunk, MaxReply)
	if least := c.IO + 8*KiB; inRange && c.Reply < least && !r.has("chunks") {
		r.addf("chunks.reply", "%s is too small for chunks.io, which is %s; write at least %s", c.Reply, c.IO, least)
	}
}

// checkNames requires unique names that suit the label of a metric.
func (c *Config) checkNames(r *report) {
	listeners, upstreams := make(map[string]int), make(map[string]int)
	for i, l := range c.Listeners {
		checkName("listeners", i, l.Name, listeners, r)
	}
	for i, u := range c.Upstreams {
		checkName("upstreams", i, u.Name, upstreams, r)
	}
}

const maxName = 63

// checkName checks the name of list[i]. earlier has the names before it, with their
// indices.
func checkName(list string, i int, name string, earlier map[string]int, r *report) {
	path := fmt.Sprintf("%s[%d].name", list, i)
	if name == "" {
		return
	}
	if first, ok := earlier[name]; ok {
		other := fmt.Sprintf("%s[%d]", list, first)
		if at := r.where(other + ".name"); at != "" {
			other += " in " + at
		}
		r.addf(path, "%s has the name %s too; write another name", other, name)
		return
	}
	earlier[name] = i
	odd := func(c rune) bool {
		return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("-_.", c))
	}
	if len(name) > maxName || strings.ContainsFunc(name, odd) {
		r.addf(path, "%q is not a name; write at most %d of the letters a to z, A to Z, digits, and - _ .", name, maxName)
	}
}

// checkUpstream requires that an upstream has the name.
func (c *Config) checkUpstream(path, name string, r *report) {
	if r.spoiled("upstreams") || slices.ContainsFunc(c.Upstreams, func(u Upstream) bool { return u.Name == name }) {
		return
	}
	var names []string
	for _, u := range c.Upstreams {
		if u.Name != "" && !slices.Contains(names, u.Name) {
			names = append(names, u.Name)
		}
	}
	if len(names) == 0 {
		r.addf(path, "no upstream is named %q; add one", name)
		return
	}
	r.addf(path, "no upstream is named %q; write %s, or add one", name, alternatives(names))
}

// checkAddresses finds two servers on one port. It does not resolve names: the kernel
// decides about those when the bridge listens.
func (c *Config) checkAddresses(r *report) {
	type server struct{ path, address string }
	var servers []server
	for i, l := range c.Listeners {
		servers = append(servers, server{fmt.Sprintf("listeners[%d].address", i), l.Address})
	}
	servers = append(servers, server{"rpcbind.address", c.RPCBind.Address}, server{"nlm.address", c.NLM.Address}, server{"admin.address", c.Admin.Address})
	for i, s := range servers {
		for _, e := range servers[:i] {
			if overlap(s.address, e.address) {
				r.addf(s.path, "%s overlaps with %s, %s; write another port", s.address, e.path, e.address)
				break
			}
		}
	}
}

// overlap reports whether two servers cannot listen at both addresses.
func overlap(a, b string) bool {
	hostA, portA, errA := net.SplitHostPort(a)
	hostB, portB, errB := net.SplitHostPort(b)
	if errA != nil || errB != nil || portA != portB || portA == "0" {
		return false
	}
	return hostA == hostB || covers(hostA, hostB) || covers(hostB, hostA)
}

// covers reports whether who listens at wide listens at host, too, because wide is every address, or every one of IPv4.
func covers(wide, host string) bool {
	w, _ := netip.ParseAddr(wide)
	h, _ := netip.ParseAddr(host)
	return wildcard(wide) && !(w.Is4() && h.Is6())
}

// wildcard reports whether a host stands for every address of this one.
func wildcard(host string) bool {
	a, err := netip.ParseAddr(host)
	return host == "" || err == nil && a.IsUnspecified()
}

// receiveSize is the memory of one Receive of an upstream connection. It is larger than
// the inline threshold because some peers send more than that.
const receiveSize = 16 * KiB

// checkMemory requires room for what idle connections hold, and for messages besides.
func (c *Config) checkMemory(r *report) {
	var standing, longest Size
	for i, u := range c.Upstreams {
		if u.RDMA() && !r.has(fmt.Sprintf("upstreams[%d]", i)) {
			standing += Size(u.Pool.Connections) * Size(u.Pool.Credits) * max(receiveSize, u.Inline.Reply)
		}
	}
	if standing > 0 && !r.has("chunks") {
		longest = c.Chunks.Reply
	}
	for i, l := range c.Listeners {
		if !r.has(fmt.Sprintf("listeners[%d]", i)) {
			longest = max(longest, l.Limits.Record)
			if l.RDMA() { // room for one client
				standing += Size(l.Credits) * max(4*KiB, l.Inline.Call)
			}
		}
	}
	// Idle connections may hold a quarter of the budget. Eight of the longest messages
	// must fit beside them.
	if need := max(4*standing, standing+8*longest); need > c.Memory.Budget && !r.has("memory.budget") {
		r.addf("memory.budget", "%s is too little: posted Receives take %s (for upstreams connections x credits x %s) "+
			"and the longest message is %s; write at least %s",
			c.Memory.Budget, standing, receiveSize, longest, (need+MiB-1)/MiB*MiB)
	}
}
