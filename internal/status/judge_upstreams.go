package status

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	// downFor is how long an upstream is down before it is a problem. A connection that is made again
	// after an idle close or a server's restart takes less.
	downFor = 3 * time.Second
	// slowServer is the mean time at the server that is slow whatever the server is. A spinning disk
	// takes 10 ms, and a busy array several times that.
	slowServer = 0.1
	// slowerServer is a mean that is slow for a server which is usually slowerTimes faster.
	slowerServer = 0.02
	slowerTimes  = 5
	// starvedShare is the share of the time in which no credit was free though Calls waited. A burst
	// that a pool works off in a moment stays far below.
	starvedShare = 0.2
	// starvedWait is the least mean wait for a credit in seconds, and starvedPart the least part of a
	// Call's time. Below, the wait is no loss that anybody feels.
	starvedWait = 0.001
	starvedPart = 0.3
	// stuckOne is how long one Call alone is without an answer before it is a problem: Linux writes "server
	// not responding" after a minute. stuckSeveral is the same for several Calls or a whole connection.
	stuckOne     = 30.0
	stuckSeveral = 5.0
	// lossyShare is the share of segments that are lost at which a wire is bad, lateShare the share of received
	// ones that came after a gap, which also a network that only changes their order makes, and lossyLeast the
	// fewest such segments. Networks of data centres lose less than one in ten thousand. Segments that the
	// kernel sends again although they had arrived, as it does when a peer is slow, do not count.
	lossyShare = 0.002
	lateShare  = 0.005
	lossyLeast = 10
	// awaySlow is the mean time of a Call in seconds that a few lost segments explain, if they are awayShare of all: the
	// kernel sends them again after 200 ms, twice that, and so on, for as long as the network is away.
	awaySlow  = 1.0
	awayShare = 0.0001
)

// upstream judges one upstream.
func (j *judge) upstream(u *Upstream) {
	old := j.upstreamBefore(u.Name)
	if u.SlowStart != nil && u.SlowStart.Clients > 0 && u.State != Down {
		j.add(Notice, CodeSlowStart, u.Name, fmt.Sprintf("Upstream %s has just connected, so the bridge lets Calls through slowly: %d may be under way, and %s.", u.Name, u.SlowStart.Calls, waitsLower(u.SlowStart.Clients, "client")), "It ends by itself as the server answers.")
	}
	j.tlsFiles(u.TLS, tlsOwner{"upstream", u.Name, "its servers refuse it when the bridge connects", "its servers"})
	j.endpoints(u)
	if u.State == Down {
		j.isDown(u)
		return
	}
	// Both: a connection that is lost is made again within seconds.
	if u.Usable < u.Wanted && old != nil && old.Usable < old.Wanted {
		j.add(Warning, CodeDegraded, u.Name, fmt.Sprintf("Upstream %s has only %d of %d connections.%s Calls go over the others.", u.Name, u.Usable, u.Wanted, lastError(u)),
			"`rdmabridge upstreams --connections` shows which are missing; "+j.doctor()+" tries each endpoint.")
	}
	j.tooWeak(u)
	if !j.hostAway(u) {
		j.stuck(u)
	}
	if old == nil {
		return
	}
	if !j.has(CodeWireLossy, u.Name) {
		j.wire(u, old)
	}
	if j.interrupted(u, old) {
		return
	}
	if !j.has(CodeWireLossy, u.Name) {
		j.server(u, old)
	}
	if !j.has(CodeServerSlow, u.Name) && !j.has(CodeWireLossy, u.Name) && !j.has(CodeStuck, u.Name) {
		j.credits(u, old)
	}
}

// isDown judges an upstream without a connection.
func (j *judge) isDown(u *Upstream) {
	since := "for some time"
	if u.DownSince != nil {
		d := j.now.Time.Sub(*u.DownSince)
		if d < downFor {
			return
		}
		since = "for " + seconds(d.Seconds())
	}
	j.down = true
	code, what := CodeUpstreamDown, "no connection to it is there"
	advice := "Look at the server and at the network to " + addresses(u) + "; " + j.doctor() + " tries each endpoint and says what is wrong."
	switch u.Fault {
	case CodeTLS:
		code, what = u.Fault, "TLS with its server does not come about"
		advice = "Look at `tls` of the upstream and at the certificates of both sides: `openssl x509 -noout -subject -issuer -dates -in FILE`. " + j.doctor() + " tries it; docs/tls.md has the settings."
	case CodeProtocol:
		code, what = u.Fault, "what listens at "+addresses(u)+" does not answer as NFS over "+strings.ToUpper(u.Transport)+" does"
		advice = "Look at `endpoints` and `transport` of the upstream. " + usualPort(u) + " " + j.doctor() + " asks what listens there."
	}
	j.add(Critical, code, u.Name, fmt.Sprintf("Upstream %s has been down %s: %s, so its Calls wait or fail.%s", u.Name, since, what, lastError(u)), advice)
}

// interrupted reports whether Calls that were answered between both documents have waited for a connection that was
// lost. That time counts from when they were first sent, and is neither the server's nor that of credits.
func (j *judge) interrupted(u, old *Upstream) bool {
	lost := func(reason string) bool { return u.Disconnects[reason] > old.Disconnects[reason] }
	if old.State != Down || old.DownSince == nil || j.before.Time.Sub(*old.DownSince) < downFor {
		return u.Replays > old.Replays && (lost("silent") || lost("other"))
	}
	if total(old.Disconnects) == 0 {
		return true // it was never up, as when the bridge starts before the network
	}
	j.add(Notice, CodeUpstreamDown, u.Name, fmt.Sprintf("Upstream %s is back; it was down from %s on. Calls that waited for it were answered late.%s", u.Name, utc(*old.DownSince), lastError(old)),
		"Nothing is to be done if you know why; the log has the line `connected to upstream`.")
	return true
}

// tooWeak judges a server that wants TLS of a bridge without it.
func (j *judge) tooWeak(u *Upstream) {
	if !u.TooWeak {
		return
	}
	var before []Operation
	if j.before != nil {
		before = j.before.Operations
	}
	for o, old := range Beside(j.now.Operations, before, (*Operation).Key) {
		if o.Upstream == u.Name && o.Calls-o.Statuses[ClassAuthError] > old.Calls-old.Statuses[ClassAuthError] {
			return // it is the NULL Call without Kerberos that it refuses
		}
	}
	j.add(Critical, CodeTLS, u.Name, fmt.Sprintf("The server of upstream %s refuses Calls with AUTH_TOOWEAK, a NULL Call too: it requires TLS, and the bridge connects without.", u.Name),
		"Give the upstream `tls: {mode: required}` and the `ca` of the server; docs/tls.md. A bridge there may also have a rule that denies Calls without Kerberos: its log says which.")
}

// usualPort says where NFS is as a rule, and whether an endpoint of u looks mistaken.
func usualPort(u *Upstream) string {
	for i := range u.Endpoints {
		switch a := u.Endpoints[i].Address; {
		case u.Transport == "rdma" && strings.HasSuffix(a, ":2049"):
			return "Port 2049 is usually NFS over TCP; NFS/RDMA is usually at 20049."
		case u.Transport == "tcp" && strings.HasSuffix(a, ":20049"):
			return "Port 20049 is usually NFS/RDMA; NFS over TCP is usually at 2049."
		}
	}
	return "NFS over TCP is usually at port 2049, and NFS/RDMA at 20049. A load balancer without servers behind it looks the same."
}

// endpoints judges the endpoints of u.
func (j *judge) endpoints(u *Upstream) {
	for i := range u.Endpoints {
		e := &u.Endpoints[i]
		if e.State != EndpointEjected || u.State == Down && len(u.Endpoints) == 1 {
			continue
		}
		why := ""
		if e.Reason != "" {
			why = " The reason: " + stop(e.Reason) + "."
		}
		if e.Until == nil {
			j.add(Notice, CodeEjected, e.Address, fmt.Sprintf("Endpoint %s of upstream %s was taken out by an operator.%s", e.Address, u.Name, why), fmt.Sprintf("`rdmabridge return %s %s` puts it back.", u.Name, e.Address))
			continue
		}
		j.add(Warning, CodeEjected, e.Address, fmt.Sprintf("Endpoint %s of upstream %s failed and is not used; it is tried again in %s.%s", e.Address, u.Name, seconds(max(0, e.Until.Sub(j.now.Time).Seconds())), why),
			fmt.Sprintf("Look at that server; %s tries it at once, and `rdmabridge return %s %s` puts it back.", j.doctor(), u.Name, e.Address))
	}
}

// hostAway judges Calls that have no answer because nothing that is sent to the host of the server arrives, or comes back.
func (j *judge) hostAway(u *Upstream) bool {
	if u.TCP == nil || u.TCP.Away == 0 || u.OldestCall < stuckSeveral {
		return false
	}
	j.add(Warning, CodeWireLossy, u.Name, fmt.Sprintf("The network to upstream %s, or its host, is away: on %s the host acknowledges nothing, though the kernel sends the same again and again. So the server has not answered %s; the oldest waits for %s.",
		u.Name, count(uint64(u.TCP.Away), "connection"), count(uint64(max(1, u.Stuck)), "Call"), seconds(u.OldestCall)),
		"Look at the host and at the way to "+addresses(u)+": cables, the switch, `ping`, `ip -s link`. The kernel sends again later and later, so Calls may go on as late as two minutes after the network is back. With a shorter `timeouts.silent` of the upstream the bridge makes a new connection before that.")
	return true
}

// stuck judges Calls that have no answer.
func (j *judge) stuck(u *Upstream) {
	switch {
	case u.Stalled > 0 && u.OldestCall >= stuckSeveral:
		j.add(Warning, CodeStuck, u.Name, fmt.Sprintf("On %s the server of upstream %s answers nothing; the oldest Call waits for %s.", count(uint64(u.Stalled), "connection"), u.Name, seconds(u.OldestCall)),
			"The server or the way to it hangs: look at the server's own log and load. `rdmabridge upstreams --connections` shows which connections.")
	case u.Stuck >= 2 && u.OldestCall >= stuckSeveral, u.OldestCall >= stuckOne:
		j.add(Warning, CodeStuck, u.Name, fmt.Sprintf("The server of upstream %s has not answered %s; the oldest waits for %s.", u.Name, count(uint64(max(1, u.Stuck)), "Call"), seconds(u.OldestCall)),
			"`rdmabridge clients --sort oldest` shows whose and which; the server's own log may say why, such as a file system that hangs.")
	}
}

// wire judges the TCP connections to u.
func (j *judge) wire(u, old *Upstream) {
	if text, bad := lossy(u.TCP, countedBefore(old)); bad {
		j.lossyWire(u, old, text, "")
	}
}

// countedBefore returns what the connections to old had counted. Connections that are new since then counted from 0.
func countedBefore(old *Upstream) *TCP {
	if old.TCP == nil && old.Usable == 0 {
		return &TCP{}
	}
	return old.TCP
}

// lossyWire adds the problem that the network to u loses segments.
func (j *judge) lossyWire(u, old *Upstream, text, more string) {
	slow := ""
	if u.Phases.Calls > old.Phases.Calls {
		p := u.Phases.Sub(&old.Phases)
		slow = fmt.Sprintf(" Calls take %s at the server and on the way.", duration(p.Server/float64(p.Calls)))
	}
	j.add(Warning, CodeWireLossy, u.Name, fmt.Sprintf("The network to upstream %s loses segments: %s in the last %s.%s", u.Name, text, seconds(j.span), slow),
		"Look for errors and drops on the way: `ethtool -S`, `ip -s link`, the counters of the switch, and the MTU. `ss -ti` shows each connection."+more)
}

// lossy judges what was sent between two states of TCP.
func lossy(now, old *TCP) (text string, lossy bool) {
	if otherConnections(now, old) {
		return "", false
	}
	bad := func(lost, all uint64, share float64) bool {
		return lost >= lossyLeast && float64(lost) >= share*float64(all)
	}
	lost, sent := resent(now, old), now.Segments-old.Segments
	if bad(lost, sent, lossyShare) {
		return fmt.Sprintf("%d of %d that were sent had to be sent again (%s)", lost, sent, percent(float64(lost)/float64(sent))), true
	}
	late, received := now.OutOfOrder-old.OutOfOrder, now.Received-old.Received
	if bad(late, received, lateShare) {
		return fmt.Sprintf("%d of %d that came from there came after a gap (%s)", late, received, percent(float64(late)/float64(received))), true
	}
	return "", false
}

// resent returns how many segments were lost, and so sent again, between two states of TCP.
func resent(now, old *TCP) uint64 {
	again, needless := now.Retransmits-old.Retransmits, now.Needless-old.Needless
	return again - min(again, needless)
}

// away returns how many segments were lost between two states of TCP, if these are too many for a network that is always
// there.
func away(now, old *TCP) uint64 {
	if otherConnections(now, old) {
		return 0
	}
	lost := resent(now, old)
	if float64(lost) < awayShare*float64(now.Segments-old.Segments) {
		return 0
	}
	return lost
}

// otherConnections reports whether two states of TCP cannot be compared: one is missing, or counts less than before.
func otherConnections(now, old *TCP) bool {
	return now == nil || old == nil || now.Retransmits < old.Retransmits || now.Needless < old.Needless ||
		now.Segments < old.Segments || now.Received < old.Received || now.OutOfOrder < old.OutOfOrder
}

// server judges how long the server takes.
func (j *judge) server(u, old *Upstream) {
	if u.Phases.Calls < old.Phases.Calls+enoughCalls {
		return
	}
	p := u.Phases.Sub(&old.Phases)
	mean := p.Server / float64(p.Calls)
	usual := usualLatency(j.now.History.Upstreams[u.Name].Latency, int(j.span/max(1, j.now.History.Step))+1)
	slower := usual > 0 && mean >= slowerServer && mean >= slowerTimes*usual
	if mean < slowServer && !slower {
		return
	}
	if n := away(u.TCP, countedBefore(old)); n > 0 && mean >= awaySlow {
		j.lossyWire(u, old, fmt.Sprintf("it may have been away, for %s had to be sent again", count(n, "segment")),
			" If the network is well, look at the load of the server and its disks.")
		return
	}
	text := fmt.Sprintf("The server of upstream %s answers slowly: a Call takes %s there on average", u.Name, duration(mean))
	if slower {
		text += fmt.Sprintf(", and %s usually", duration(usual))
	}
	text += "."
	if name, opMean := j.slowest(u.Name); name != "" && name != "other" {
		text += fmt.Sprintf(" Most of that time goes to %s, which takes %s.", name, duration(opMean))
	}
	advice := "Look at the load of the server and of its disks (`iostat -x`, `nfsstat -s`); `rdmabridge top` shows which clients and operations make it."
	switch {
	case u.TCP == nil:
		text += " The bridge does not see the wire of this provider, so it may be the network, too."
	case u.TCP.RTT >= mean/2:
		text += fmt.Sprintf(" The network alone takes %s for a round trip, so look there first.", duration(u.TCP.RTT))
		advice = "Look at the way to the server: `ping`, `ss -ti` and the load of the links. `rdmabridge upstreams` shows the round-trip time."
	default:
		text += fmt.Sprintf(" The network is fine (%s for a round trip, no loss), so it is the server or its storage.", duration(u.TCP.RTT))
	}
	if waited := p.Credit / float64(p.Calls); waited >= mean/10 {
		text += fmt.Sprintf(" Calls also wait %s for a credit, because those under way hold them.", duration(waited))
	}
	j.add(Warning, CodeServerSlow, u.Name, text, advice)
}

// usualLatency returns the median of the points that are not 0, without the last few.
func usualLatency(points []float64, last int) float64 {
	var some []float64
	for _, v := range points[:max(0, len(points)-last)] {
		if v > 0 {
			some = append(some, v)
		}
	}
	if len(some) < 6 { // half a minute
		return 0
	}
	slices.Sort(some)
	return some[len(some)/2]
}

// slowest returns the operation that has most of the servers' time, and its mean. It returns "" unless
// that is more than half.
func (j *judge) slowest(upstream string) (name string, mean float64) {
	var most, all float64
	for o, b := range Beside(j.now.Operations, j.before.Operations, (*Operation).Key) {
		if o.Upstream != upstream {
			continue
		}
		p := o.Phases
		if b.Phases.Calls <= p.Calls {
			p = p.Sub(&b.Phases)
		}
		all += p.Server
		if p.Calls > 0 && p.Server > most {
			most, name, mean = p.Server, o.Operation, p.Server/float64(p.Calls)
		}
	}
	if most <= all/2 {
		return "", 0
	}
	return name, mean
}

// credits judges whether Calls wait for credits though the server is fast.
func (j *judge) credits(u, old *Upstream) {
	starved := u.Credits.Starved - old.Credits.Starved
	if starved < starvedShare*j.span || u.Phases.Calls < old.Phases.Calls+enoughCalls {
		return
	}
	p := u.Phases.Sub(&old.Phases)
	wait, server := p.Credit/float64(p.Calls), p.Server/float64(p.Calls)
	if wait < starvedWait || p.Credit < starvedPart*p.Total() {
		return
	}
	text := fmt.Sprintf("Calls for upstream %s wait for credits: %s on average, and %s at the server. It has %s on %s; in %s of the last %s none was free.",
		u.Name, duration(wait), duration(server), count(uint64(u.Credits.Granted), "credit"), count(uint64(u.Usable), "connection"), seconds(min(starved, j.span)), seconds(j.span))
	advice := "Give the pool more: `pool.connections` of the upstream. `rdmabridge top` shows which clients use the credits."
	// A server that grants less than half of what it is asked for is the narrow place.
	if u.Credits.Granted < u.Credits.Requested/2 {
		text += fmt.Sprintf(" The server grants only %d of the %d that the bridge asks for.", u.Credits.Granted, u.Credits.Requested)
		advice = "Let the server grant more credits (knfsd: more threads; the bridge's own listener: `credits`), or give the pool more connections: `pool.connections`."
	}
	j.add(Warning, CodeStarved, u.Name, text, advice)
}

// doctor is the command that tries endpoints.
func (j *judge) doctor() string { return "`rdmabridge doctor -c " + orFile(j.now.Config.File) + "`" }

func lastError(u *Upstream) string {
	if u.LastError == "" {
		return ""
	}
	return " The last error: " + stop(u.LastError) + "."
}

// addresses names the endpoints of u, the first three.
func addresses(u *Upstream) string {
	var all []string
	for i := range u.Endpoints {
		if i == 3 {
			all = append(all, fmt.Sprintf("%d more", len(u.Endpoints)-i))
			break
		}
		all = append(all, u.Endpoints[i].Address)
	}
	if len(all) == 0 {
		return "its endpoints"
	}
	return strings.Join(all, ", ")
}
