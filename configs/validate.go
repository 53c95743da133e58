package configs

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
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

func (l *Listener) validate(path string, k Known, c *Config, r *report) {
	required(l.Name, path+".name", r)
	if required(l.Address, path+".address", r) {
		checkAddress(l.Address, true, path+".address", r)
	}
	oneOf(string(l.Transport), path+".transport", r, string(TransportTCP), string(TransportRDMA))
	if l.Upstream == "" && len(l.Routes) == 0 && !r.spoiled(path+".upstream") && !r.spoiled(path+".routes") {
		r.addf(path+".upstream", "want an upstream, or at least one route")
	}
	if l.Upstream != "" {
		c.checkUpstream(l.Upstream, path+".upstream", r)
	}
	l.validateRoutes(path, k, c, r)
	atMost(l.Limits.Connections, maxConnections, path+".limits.connections", r)
	atMost(l.Limits.Calls, 1<<16, path+".limits.calls", r)
	between(l.Limits.Outbound, 64*KiB, GiB, path+".limits.outbound", r)
	between(l.Limits.Record, minRecord, MaxRecord, path+".limits.record", r)
	l.validateShares(path, r)
	if l.Limits.PerAddress > l.Limits.Connections {
		r.addf(path+".limits.per_address", "%d is more than limits.connections, %d", l.Limits.PerAddress, l.Limits.Connections)
	}
	finite(l.Timeouts.Stall, path+".timeouts.stall", r)
	if l.RDMA() {
		checkProvider(l.Provider, l.IWARP, path, k, r)
		atMost(l.Limits.Starting, 1<<16, path+".limits.starting", r)
		if l.Limits.StartingPerAddress > l.Limits.Starting {
			r.addf(path+".limits.starting_per_address", "%d is more than limits.starting, %d", l.Limits.StartingPerAddress, l.Limits.Starting)
		}
		finite(l.Timeouts.Start, path+".timeouts.start", r)
		atMost(l.Credits, maxCredits, path+".credits", r)
		l.Inline.validate(path+".inline", r)
		only(path, "tcp", r, "limits.fragments")
		if r.source.given(path + ".iwarp.revision1") {
			r.addf(path+".iwarp.revision1", "only for upstreams; a listener answers both revisions")
		}
		return
	}
	atMost(l.Limits.Fragments, 1<<20, path+".limits.fragments", r)
	only(path, "rdma", r, "provider", "credits", "inline", "iwarp", "limits.starting", "limits.starting_per_address", "timeouts.start")
}

// validateShares checks weights, of which an earlier one must not take all that a
// later one would, and rates.
func (l *Listener) validateShares(path string, r *report) {
	var taken []Prefix
	for i, w := range l.Weights {
		p := fmt.Sprintf("%s.weights[%d]", path, i)
		if len(w.Clients) == 0 && !r.spoiled(p+".clients") {
			r.addf(p+".clients", "want at least one address")
		}
		switch {
		case w.Weight == 0 && !r.has(p+".weight"):
			r.addf(p+".weight", "required")
		case w.Weight > maxWeight:
			r.addf(p+".weight", "%d: want at most %d", w.Weight, maxWeight)
		}
		for j, c := range w.Clients {
			if slices.ContainsFunc(taken, func(t Prefix) bool { return t.Bits() <= c.Bits() && t.Contains(c.Addr()) }) {
				r.addf(fmt.Sprintf("%s.clients[%d]", p, j), "never taken: an address before it takes %s", c)
			}
		}
		taken = append(taken, w.Clients...)
	}
	l.Rates.Listener.validate(path+".rates.listener", r)
	l.Rates.Client.validate(path+".rates.client", r)
}

func (t *Rate) validate(path string, r *report) {
	atMost(t.Calls, maxRate, path+".calls", r)
	between(t.Bytes, 64*KiB, maxRateBytes, path+".bytes", r)
}

// validateRoutes checks that every route leads somewhere and can be taken: an
// earlier one must not take all it would.
func (l *Listener) validateRoutes(path string, k Known, c *Config, r *report) {
	type taken struct {
		index int
		all   bool
		some  []uint32
	}
	programs := make(map[uint32]*taken)
	for i, route := range l.Routes {
		p := fmt.Sprintf("%s.routes[%d]", path, i)
		if required(route.Upstream, p+".upstream", r) {
			c.checkUpstream(route.Upstream, p+".upstream", r)
		}
		if !required(string(route.Program), p+".program", r) {
			continue
		}
		n, err := k.ResolveProgram(route.Program)
		if err != nil {
			r.addf(p+".program", "%v", err)
			continue
		}
		t := programs[n]
		if t == nil {
			t = &taken{index: i}
			programs[n] = t
		}
		free := func(v uint32) bool { return !t.all && !slices.Contains(t.some, v) }
		if t.all || len(route.Versions) > 0 && !slices.ContainsFunc(route.Versions, free) {
			r.addf(p, "never taken: routes[%d] takes program %s first", t.index, route.Program)
		}
		t.all = t.all || len(route.Versions) == 0
		t.some = append(t.some, route.Versions...)
	}
}

func (u *Upstream) validate(path string, k Known, r *report) {
	required(u.Name, path+".name", r)
	if required(string(u.Transport), path+".transport", r) {
		oneOf(string(u.Transport), path+".transport", r, string(TransportRDMA), string(TransportTCP))
	}
	if len(u.Endpoints) == 0 && !r.spoiled(path+".endpoints") {
		r.addf(path+".endpoints", "want at least one address")
	}
	for i, e := range u.Endpoints {
		p := fmt.Sprintf("%s.endpoints[%d]", path, i)
		checkAddress(e, false, p, r)
		if first := slices.Index(u.Endpoints, e); first < i {
			r.addf(p, "%s is endpoints[%d] already", e, first)
		}
	}
	oneOf(u.Balance, path+".balance", r, balanceSpread, BalancePriority)
	if u.Failover != On && r.source.given(path+".balance") {
		r.addf(path+".balance", "only with failover on; otherwise a client's address says which endpoint is its own")
	}
	atMost(u.Pool.Connections, maxPool, path+".pool.connections", r)
	atMost(u.Pool.Credits, maxCredits, path+".pool.credits", r)
	atMost(u.Pool.Pinned, maxPinned, path+".pool.pinned", r)
	oneOf(u.Pool.Mode, path+".pool.mode", r, PoolAuto, PoolShared, PoolPinned)
	if u.Pool.Mode == PoolShared && r.source.given(path+".pool.pinned") {
		r.addf(path+".pool.pinned", "nobody has a connection of its own with mode shared")
	}
	finite(u.Timeouts.Call, path+".timeouts.call", r)
	finite(u.Timeouts.Connect, path+".timeouts.connect", r)
	finite(u.Timeouts.Unavailable, path+".timeouts.unavailable", r)
	if d := u.Timeouts.Silent; d > 0 && d < minSilent {
		r.addf(path+".timeouts.silent", "%s: want at least %s; TCP may be quiet for two seconds though nothing is wrong", d, minSilent)
	}
	if d := u.Timeouts.Probe; d > 0 && d < minProbe {
		r.addf(path+".timeouts.probe", "%s: want at least %s", d, minProbe)
	}
	finite(u.Backoff.Min, path+".backoff.min", r)
	finite(u.Backoff.Max, path+".backoff.max", r)
	if u.Backoff.Max > 0 && u.Backoff.Min > u.Backoff.Max {
		r.addf(path+".backoff.min", "%s is more than backoff.max, %s", u.Backoff.Min, u.Backoff.Max)
	}
	if u.RDMA() {
		checkProvider(u.Provider, u.IWARP, path, k, r)
		u.Inline.validate(path+".inline", r)
		only(path, "tcp", r, "source")
		return
	}
	if u.Transport == TransportTCP {
		u.Source.validate(u, path+".source", r)
		only(path, "rdma", r, "provider", "inline", "iwarp")
	}
}

// validate wants one host's address and a port for each connection that is kept.
func (s *Source) validate(u *Upstream, path string, r *report) {
	if s.Address != "" {
		if a, err := netip.ParseAddr(s.Address); err != nil || a.IsUnspecified() || a.IsMulticast() {
			r.addf(path+".address", "%q: want an address of this host, without a port", s.Address)
		}
	}
	if n := s.Ports.count(); n < u.Pool.Connections && !r.has(path+".ports") && !r.has(strings.TrimSuffix(path, ".source")+".pool.connections") {
		r.addf(path+".ports", "%s are %d ports, fewer than pool.connections, %d", s.Ports, n, u.Pool.Connections)
	}
}

func (i *Inline) validate(path string, r *report) {
	checkInline(i.Call, path+".call", r)
	checkInline(i.Reply, path+".reply", r)
}

// checkInline wants whole KiB: RFC 8797 Section 4 cannot say anything else.
func checkInline(s Size, path string, r *report) {
	if between(s, minInline, maxInline, path, r) && s%KiB != 0 {
		r.addf(path, "%s: want a multiple of 1KiB", s)
	}
}

func checkProvider(provider string, w IWARP, path string, k Known, r *report) {
	oneOf(provider, path+".provider", r, k.Providers...)
	if provider != ProviderIWARP {
		if r.source.given(path + ".iwarp") {
			r.addf(path+".iwarp", "only for provider iwarp")
		}
		return
	}
	oneOf(w.FPDU, path+".iwarp.fpdu", r, fpduEMSS, FPDUMax)
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

func (c *Config) checkUpstream(name, path string, r *report) {
	if r.spoiled("upstreams") || slices.ContainsFunc(c.Upstreams, func(u Upstream) bool { return u.Name == name }) {
		return
	}
	var names []string
	for _, u := range c.Upstreams {
		if u.Name != "" {
			names = append(names, u.Name)
		}
	}
	if len(names) == 0 {
		r.addf(path, "no upstream is named %q", name)
		return
	}
	r.addf(path, "no upstream is named %q; there is %s", name, strings.Join(names, ", "))
}

// checkAddress wants host:port. A listener may leave the host out, and may ask
// for any port with 0.
func checkAddress(s string, listen bool, path string, r *report) {
	if r.has(path) {
		return
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		r.addf(path, "%q: want host:port, [host]:port for IPv6", s)
		return
	}
	n, err := strconv.ParseUint(port, 10, 16)
	switch {
	case err != nil:
		r.addf(path, "%q: the port is no number up to 65535", s)
	case n == 0 && !listen:
		r.addf(path, "%q: the port must be greater than 0", s)
	case host == "" && !listen:
		r.addf(path, "%q: want a host before the port", s)
	case strings.ContainsAny(host, " \t\r\n/"):
		r.addf(path, "%q: the host has characters that no host has", s)
	}
}

// required reports whether s is given, and notes a problem if nobody else did.
func required(s, path string, r *report) bool {
	if s == "" && !r.has(path) && !r.spoiled(path) {
		r.addf(path, "required")
	}
	return s != ""
}

func oneOf(s, path string, r *report, words ...string) bool {
	ok := slices.Contains(words, s)
	if !ok && s != "" && !r.has(path) {
		r.addf(path, "%q: want %s", s, strings.Join(words, " or "))
	}
	return ok
}

func atMost(n, most int, path string, r *report) {
	if n > most {
		r.addf(path, "%d: want at most %d", n, most)
	}
}

func between(s, least, most Size, path string, r *report) bool {
	ok := s >= least && s <= most
	if !ok && s != 0 && !r.has(path) {
		r.addf(path, "%s: want %s to %s", s, least, most)
	}
	return ok
}

// finite refuses none where waiting for ever would leave Calls unanswered.
func finite(d Duration, path string, r *report) {
	if d == noDuration {
		r.addf(path, "none is not possible here")
	}
}

// only refuses settings that have no effect with the transport chosen.
func only(path, transport string, r *report, settings ...string) {
	for _, s := range settings {
		if p := path + "." + s; r.source.given(p) && !r.has(p) {
			r.addf(p, "only for transport %s", transport)
		}
	}
}
