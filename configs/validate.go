package configs

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"
)

// The limits of values. Those of thresholds and credits keep what a connection
// posts, credits x receive size, within what the wire and the peer can take.
const (
	maxInline      = 64 * KiB // RFC 8797 can say 256 KiB; that would be a lot of memory for each credit
	minInline      = 1 * KiB  // RFC 8166 Section 3.3.2: every peer takes 1024
	maxCredits     = 1024
	maxConnections = 1 << 20
	maxPool        = 64
	maxPinned      = 4096
	minRecord      = 4 * KiB
	maxWeight      = 100
	maxRate        = 10_000_000 // Calls a second
	maxRateBytes   = 1024 * GiB // a second
	minSilent      = 4 * Duration(time.Second)
	minProbe       = 100 * Duration(time.Millisecond)
)

// The longest messages: one lease of package regmem holds each of them.
const (
	MaxRecord = 8 * MiB       // limits.record
	maxIO     = 8 * MiB       // chunks.io
	MaxReply  = maxIO + 8*KiB // chunks.reply
)

// receiveSize is the memory of one posted Receive of an upstream connection.
// It exceeds the inline threshold because peers overrun it.
const receiveSize = 16 * KiB

func (c *Config) validate(k Known, r *report) {
	if len(c.Listeners) == 0 && !r.has("listeners") {
		r.addf("listeners", "want at least one")
	}
	if len(c.Upstreams) == 0 && !r.has("upstreams") {
		r.addf("upstreams", "want at least one")
	}
	for i := range c.Upstreams {
		c.Upstreams[i].validate(fmt.Sprintf("upstreams[%d]", i), k, r)
	}
	for i := range c.Listeners {
		c.Listeners[i].validate(fmt.Sprintf("listeners[%d]", i), k, c, r)
	}
	c.checkNames(r)
	c.checkAddresses(r)
	between(c.Chunks.IO, 4*KiB, maxIO, "chunks.io", r)
	if between(c.Chunks.Reply, 4*KiB, MaxReply, "chunks.reply", r) && c.Chunks.Reply < c.Chunks.IO+8*KiB && !r.has("chunks") {
		r.addf("chunks.reply", "%s: want 8KiB more than chunks.io, %s, at least", c.Chunks.Reply, c.Chunks.IO)
	}
	c.checkMemory(r)
	c.RPCBind.validate(c, r)
	if c.Admin.Enabled() {
		checkAddress(c.Admin.Address, true, "admin.address", r)
	}
	oneOf(c.Log.Level, "log.level", r, "debug", "info", "warn", "error")
	oneOf(c.Log.Format, "log.format", r, formatJSON, FormatConsole)
	finite(c.Drain.Timeout, "drain.timeout", r)
	c.Reload.validate(r)
	c.Handover.validate(r)
	atMost(c.Loops, 256, "loops", r)
}

// checkNames wants names that suit a metric label, each once.
func (c *Config) checkNames(r *report) {
	listeners, upstreams := make(map[string]int), make(map[string]int)
	for i, l := range c.Listeners {
		checkName(l.Name, listeners, i, "listeners", r)
	}
	for i, u := range c.Upstreams {
		checkName(u.Name, upstreams, i, "upstreams", r)
	}
}

func checkName(name string, seen map[string]int, i int, list string, r *report) {
	path := fmt.Sprintf("%s[%d].name", list, i)
	if name == "" {
		return
	}
	if first, ok := seen[name]; ok {
		r.addf(path, "%s is the name of %s[%d] already", name, list, first)
		return
	}
	seen[name] = i
	odd := func(c rune) bool {
		return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("-_.", c))
	}
	if len(name) > 63 || strings.ContainsFunc(name, odd) {
		r.addf(path, "%q: want at most 63 letters, digits and -_.", name)
	}
}

// checkAddresses finds two servers on one port. 0.0.0.0 and a port takes every
// address; what the kernel makes of names is left to it.
func (c *Config) checkAddresses(r *report) {
	type place struct{ path, address string }
	var places []place
	for i, l := range c.Listeners {
		places = append(places, place{fmt.Sprintf("listeners[%d].address", i), l.Address})
	}
	places = append(places, place{"rpcbind.address", c.RPCBind.Address}, place{"admin.address", c.Admin.Address})
	for i, p := range places {
		for _, q := range places[:i] {
			if overlap(p.address, q.address) {
				r.addf(p.path, "%s is taken by %s, %s", p.address, q.path, q.address)
				break
			}
		}
	}
}

func overlap(a, b string) bool {
	hostA, portA, errA := net.SplitHostPort(a)
	hostB, portB, errB := net.SplitHostPort(b)
	if errA != nil || errB != nil || portA != portB || portA == "0" {
		return false
	}
	return hostA == hostB || wildcard(hostA) || wildcard(hostB)
}

func wildcard(host string) bool {
	a, err := netip.ParseAddr(host)
	return host == "" || err == nil && a.IsUnspecified()
}

// checkMemory wants room for what connections hold when nothing moves, and for
// one longest message each way on top.
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
	// A quarter is the most that may stand still; the rest carries messages.
	if need := max(4*standing, standing+8*longest); need > c.Memory.Budget && !r.has("memory.budget") {
		r.addf("memory.budget", "%s is too little: posted Receives take %s (for upstreams connections x credits x %s) "+
			"and the longest message is %s; want at least %s",
			c.Memory.Budget, standing, receiveSize, longest, (need+MiB-1)/MiB*MiB)
	}
}
