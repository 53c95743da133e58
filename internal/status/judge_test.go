package status

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
)

// A scene is two documents, half a minute apart, and what tests change in them.
type scene struct{ before, now *Document }

// healthy returns a bridge that serves 1,000 Calls a second: 0.1 ms for admission and credit, 1 ms at
// the server, little for the client.
func healthy() scene {
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	doc := func(seconds float64) *Document {
		n := 1000 * seconds
		p := Phases{Calls: uint64(n), Admission: n * 50e-6, Credit: n * 50e-6, Server: n * 1e-3, Client: n * 20e-6}
		tcp := func() *TCP { return &TCP{RTT: 200e-6, Segments: uint64(40 * n), Retransmits: uint64(n / 2000)} }
		d := &Document{
			Time: start.Add(time.Duration(seconds * float64(time.Second))), Started: start, Process: 7, State: Ready,
			Sockets:   Descriptors{Used: 12, Limit: 1000},
			Listeners: []Listener{{Name: "nfs", Transport: "tcp", Address: "192.0.2.1:2049", Clients: 12, Limit: 4096, Paused: map[string]int{}, Refused: map[string]uint64{"limit": 3}}},
			Upstreams: []Upstream{{
				Name: "storage", Transport: "rdma", State: Up, Usable: 4, Wanted: 4, Phases: p, InFlight: 2, OldestCall: 0.002, TCP: tcp(),
				Credits:   Credits{Requested: 512, Granted: 512, Used: 2, Starved: n * 1e-5},
				Endpoints: []Endpoint{{Address: "192.0.2.9:20049", State: EndpointUsed, Connections: 4}},
			}},
			Operations: []Operation{
				{Listener: "nfs", Upstream: "storage", Program: "nfs", Version: 3, Operation: "READ", Calls: p.Calls / 2, Phases: Phases{Calls: p.Calls / 2, Server: p.Server * 0.8}},
				{Listener: "nfs", Upstream: "storage", Program: "nfs", Version: 3, Operation: "GETATTR", Calls: p.Calls / 2, Phases: Phases{Calls: p.Calls / 2, Server: p.Server * 0.2}},
			},
			Memory:  Memory{Budget: 1 << 30, Used: 1 << 20, Refused: 5, Accounts: []Account{{Name: "calls", Limit: 1 << 28, Used: 1 << 19}}},
			History: History{Step: 5, Upstreams: map[string]UpstreamHistory{"storage": {Latency: slices.Repeat([]float64{1e-3}, 60)}}},
		}
		for i := range 12 {
			share := Phases{Calls: p.Calls / 12, Admission: p.Admission / 12, Credit: p.Credit / 12, Server: p.Server / 12, Client: p.Client / 12}
			d.Clients.List = append(d.Clients.List, Client{
				Address: fmt.Sprintf("192.0.2.%d:801", 20+i), Listener: "nfs", Transport: "tcp", Since: start, Active: d.Time, Phases: share,
				Traffic: Traffic{BytesIn: 200 * share.Calls, BytesOut: 4000 * share.Calls}, TCP: tcp(),
			})
		}
		d.Clients.Total, d.Clients.Shown = 12, 12
		return d
	}
	return scene{doc(300), doc(330)}
}

// upstream, client and listener return those of the later document, and, by a second result, of the earlier.
func (s scene) upstream() (now, old *Upstream) { return &s.now.Upstreams[0], &s.before.Upstreams[0] }

func (s scene) client() (now, old *Client) { return &s.now.Clients.List[3], &s.before.Clients.List[3] }

func (s scene) listener() (now, old *Listener) { return &s.now.Listeners[0], &s.before.Listeners[0] }

// spend makes each of the Calls between both documents take these seconds.
func spend(now, old *Phases, credit, server, client float64) {
	n := float64(now.Calls - old.Calls)
	now.Credit, now.Server, now.Client = old.Credit+n*credit, old.Server+n*server, old.Client+n*client
}

func TestJudge(t *testing.T) {
	ago := func(s scene, d time.Duration) *time.Time {
		t := s.now.Time.Add(-d)
		return &t
	}
	// term is of a CA or a list: since when its renewal is due, and for how long it and all of the file have expired.
	term := func(s scene, due, expired, ended time.Duration) *TLSTerm {
		x := &TLSTerm{Name: "CN=x", RenewBy: *ago(s, due), Expires: *ago(s, expired)}
		if ended != 0 {
			x.End = *ago(s, ended)
		}
		return x
	}
	for _, tt := range []struct {
		name   string
		change func(s scene)
		want   string   // "severity code subject", more than one separated by "; "; "" for nothing
		says   []string // of the first
	}{
		{"healthy", func(scene) {}, "", nil},

		{"what listens is no NFS", func(s scene) {
			u, _ := s.upstream()
			u.State, u.DownSince, u.Transport, u.Fault, u.LastError = Down, ago(s, 4*time.Second), "rdma", CodeProtocol, "it speaks HTTP"
			u.Endpoints = []Endpoint{{Address: "10.1.0.9:2049"}}
		}, "critical upstream_protocol storage", []string{"down for 4 s", "what listens at 10.1.0.9:2049 does not answer as NFS over RDMA does", "it speaks HTTP"}},
		{"TLS fails", func(s scene) {
			u, _ := s.upstream()
			u.State, u.DownSince, u.Fault, u.LastError = Down, ago(s, 4*time.Second), CodeTLS, "the peer requires a certificate"
		}, "critical upstream_tls storage", []string{"TLS with its server", "the peer requires a certificate"}},
		{"TLS is required", func(s scene) {
			u, _ := s.upstream()
			u.TooWeak = true
			for i := range s.now.Operations {
				o, old := &s.now.Operations[i], &s.before.Operations[i]
				o.Statuses = map[string]uint64{ClassAuthError: o.Calls - old.Calls + old.Statuses[ClassAuthError]}
			}
		}, "critical upstream_tls storage", []string{"requires TLS"}},
		{"NULL Calls without Kerberos are refused", func(s scene) {
			u, _ := s.upstream()
			u.TooWeak = true
		}, "", nil},

		{"MOUNT without a route", func(s scene) {
			s.now.Upstreams = append(s.now.Upstreams, Upstream{Name: "mountd", State: Asleep})
			s.now.Operations = append(s.now.Operations,
				Operation{Listener: "nfs", Program: "mount", Version: 3, Operation: "NULL", Statuses: map[string]uint64{ClassProgUnavail: 2}},
				Operation{Listener: "nfs", Program: "mount", Version: 1, Operation: "NULL", Statuses: map[string]uint64{ClassProgUnavail: 2}})
		}, "warning program_without_route nfs", []string{"MOUNT", "PROG_UNAVAIL", "cannot mount"}},
		{"NLM without a route, a while ago", func(s scene) {
			o := Operation{Listener: "nfs", Program: "nlm", Version: 4, Operation: "NULL", Statuses: map[string]uint64{ClassProgUnavail: 2}}
			s.now.Operations, s.before.Operations = append(s.now.Operations, o), append(s.before.Operations, o)
		}, "notice program_without_route nfs", []string{"no locks", "`nlm: {"}},
		{"NFSACL without a route", func(s scene) {
			s.now.Operations = append(s.now.Operations, Operation{Listener: "nfs", Program: "nfsacl", Version: 3, Operation: "NULL", Statuses: map[string]uint64{ClassProgUnavail: 1}})
		}, "notice program_without_route nfs", nil},
		{"a server without NFSACL", func(s scene) {
			s.now.Operations = append(s.now.Operations, Operation{Listener: "nfs", Upstream: "storage", Program: "nfsacl", Version: 3, Operation: "NULL", Statuses: map[string]uint64{ClassProgUnavail: 1}})
		}, "", nil},
		{"MOUNT at a server that has it at another port", func(s scene) {
			s.now.Operations = append(s.now.Operations, Operation{Listener: "nfs", Upstream: "storage", Program: "mount", Version: 3, Operation: "NULL", Statuses: map[string]uint64{ClassProgUnavail: 2}})
		}, "warning program_without_route nfs", []string{"go to upstream storage, whose server has no MOUNT at its port", "cannot mount"}},
		{"a rule hides NLM", func(s scene) {
			l, _ := s.listener()
			l.Rules = []Rule{{Verdict: "deny", Effect: "deny: PROG_UNAVAIL"}}
			s.now.Operations = append(s.now.Operations, Operation{Listener: "nfs", Program: "nlm", Version: 4, Operation: "NULL", Statuses: map[string]uint64{ClassProgUnavail: 1}})
		}, "", nil},

		{"after an outage", func(s scene) {
			u, old := s.upstream()
			since := s.before.Time.Add(-40 * time.Second)
			old.State, old.DownSince, old.Usable, old.LastError = Down, &since, 0, "connection timed out"
			old.Disconnects = map[string]uint64{"silent": 4}
			u.Phases.Calls = old.Phases.Calls + 50
			spend(&u.Phases, &old.Phases, 0.1, 33, 20e-6)
			spend(&s.now.Operations[0].Phases, &s.before.Operations[0].Phases, 0, 33, 0)
		}, "notice upstream_down storage", []string{"is back", "connection timed out"}},
		{"up for the first time, after the host of the bridge has started", func(s scene) {
			u, old := s.upstream()
			since := s.before.Time.Add(-40 * time.Second)
			old.State, old.DownSince, old.Usable, old.LastError = Down, &since, 0, "network is unreachable"
			u.Phases.Calls = old.Phases.Calls + 50
			spend(&u.Phases, &old.Phases, 0.1, 33, 20e-6)
		}, "", nil},
		{"after a connection that nothing came on", func(s scene) {
			u, old := s.upstream()
			u.Replays, u.Disconnects = old.Replays+2, map[string]uint64{"silent": 1}
			u.Phases.Calls = old.Phases.Calls + 50
			spend(&u.Phases, &old.Phases, 0.1, 20, 20e-6)
		}, "", nil},
		{"a network that was away for less than a connection lasts", func(s scene) {
			u, old := s.upstream()
			u.Phases.Calls = old.Phases.Calls + 50
			u.TCP.Segments, u.TCP.Retransmits = old.TCP.Segments+9000, old.TCP.Retransmits+5
			spend(&u.Phases, &old.Phases, 0, 8, 20e-6)
		}, "warning wire_lossy storage", []string{"may have been away, for 5 segments had to be sent again in the last 30 s", "Calls take 8 s"}},
		{"a network that was away soon after the bridge had started", func(s scene) {
			u, old := s.upstream()
			old.TCP, old.Usable, old.Wanted = nil, 0, 0
			u.TCP = &TCP{RTT: 200e-6, Retransmits: 5, Segments: 90, Received: 80}
			spend(&u.Phases, &old.Phases, 0, 8, 20e-6)
		}, "warning wire_lossy storage", []string{"it may have been away"}},
		{"a server that hangs behind a network that loses what all networks lose", func(s scene) {
			u, old := s.upstream()
			u.TCP.Retransmits = old.TCP.Retransmits + 5
			spend(&u.Phases, &old.Phases, 0, 8, 20e-6)
		}, "warning server_slow storage", nil},
		{"a server that is slow on other connections than before, on which more was needless than is", func(s scene) {
			u, old := s.upstream()
			u.Phases.Calls = old.Phases.Calls + 50
			old.TCP.Retransmits, old.TCP.Needless = 9, 5
			u.TCP.Retransmits, u.TCP.Needless = 0, 1
			spend(&u.Phases, &old.Phases, 0, 8, 20e-6)
		}, "warning server_slow storage", []string{"network is fine"}},

		// The four troubles.
		{"slow disk", func(s scene) {
			u, old := s.upstream()
			spend(&u.Phases, &old.Phases, 5e-6, 0.34, 20e-6)
			spend(&s.now.Operations[0].Phases, &s.before.Operations[0].Phases, 0, 0.66, 0)
		}, "warning server_slow storage", []string{"takes 340 ms", "1 ms usually", "READ, which takes 660 ms", "network is fine (200 µs"}},
		{"slow disk whose Calls hold all credits", func(s scene) {
			u, old := s.upstream()
			spend(&u.Phases, &old.Phases, 0.5, 0.34, 20e-6)
			u.Credits.Starved, u.Credits.Waiting, u.Credits.Used = old.Credits.Starved+29, 300, 512
		}, "warning server_slow storage", []string{"also wait 500 ms for a credit"}},
		{"starved pool", func(s scene) {
			u, old := s.upstream()
			spend(&u.Phases, &old.Phases, 0.012, 0.001, 20e-6)
			u.Credits = Credits{Requested: 128, Granted: 8, Used: 8, Waiting: 40, Starved: old.Credits.Starved + 28}
		}, "warning credits_starved storage", []string{"12 ms on average, and 1 ms at the server", "It has 8 credits on 4 connections", "grants only 8 of the 128", "28 s of the last 30 s"}},
		{"slow client", func(s scene) {
			c, old := s.client()
			spend(&c.Phases, &old.Phases, 0, 1e-3, 0.8)
			c.Unread, old.Unread, c.Paused, c.Waiting = 9<<20, 8<<20, 25, []string{"unread"}
		}, "warning client_slow 192.0.2.23:801", []string{"reads its Replies slowly", "9 MiB lie unread", "waits 800 ms", "look at that host"}},
		{"slow client whose Replies fit into the send buffer", func(s scene) {
			c, old := s.client()
			c.TCP.Unsent, old.TCP.Unsent = 900<<10, 800<<10
		}, "warning client_slow 192.0.2.23:801", []string{"900 KiB lie unread", "look at that host"}},
		{"fast client that has some in the send buffer", func(s scene) {
			c, old := s.client()
			c.TCP.Unsent, old.TCP.Unsent, c.BytesOut = 900<<10, 800<<10, old.BytesOut+30*50e6
		}, "", nil},
		{"slow client that has stopped", func(s scene) {
			c, old := s.client()
			c.Phases = old.Phases
			c.BytesOut, c.Unread, old.Unread, c.Paused, old.Paused = old.BytesOut, 9<<20, 9<<20, 70, 40
		}, "warning client_slow 192.0.2.23:801", []string{"0 B a second"}},
		{"slow client that has few Calls, so that the bridge reads from it", func(s scene) {
			c, old := s.client()
			c.Phases = old.Phases
			c.BytesOut, c.Unread, old.Unread = old.BytesOut+2<<20, 6<<20, 7<<20
		}, "warning client_slow 192.0.2.23:801", []string{"6 MiB lie unread"}},
		{"slow client that is new", func(s scene) {
			c, old := s.client()
			*old = Client{}
			c.Since, c.Phases, c.OldestCall = *ago(s, 8*time.Second), Phases{}, 7
			c.BytesOut, c.Unread = 1<<20, 6<<20
		}, "warning client_slow 192.0.2.23:801", []string{"6 MiB lie unread"}},
		{"new client that has much unread at this moment", func(s scene) {
			c, old := s.client()
			*old = Client{}
			c.Since, c.Phases, c.OldestCall = *ago(s, 8*time.Second), Phases{}, 0.1
			c.BytesOut, c.Unread = 1<<20, 6<<20
		}, "", nil},
		{"lossy wire of a bridge that has just started", func(s scene) {
			u, old := s.upstream()
			u.TCP, old.TCP, old.Usable, old.Wanted = &TCP{RTT: 0.001, Retransmits: 200, Needless: 40, Segments: 14000, Received: 30000}, nil, 0, 0
		}, "warning wire_lossy storage", nil},
		{"client with much unread that reads it", func(s scene) {
			c, old := s.client()
			c.Phases = old.Phases
			c.BytesOut, c.Unread, old.Unread = old.BytesOut+900<<20, 6<<20, 7<<20
		}, "", nil},
		{"lossy wire to the server", func(s scene) {
			u, old := s.upstream()
			spend(&u.Phases, &old.Phases, 0.02, 0.25, 20e-6)
			u.TCP.Retransmits = old.TCP.Retransmits + 30000
			u.Credits.Starved = old.Credits.Starved + 25
		}, "warning wire_lossy storage", []string{"30000 of 1200000 that were sent had to be sent again (2.5 %)", "take 250 ms"}},
		{"lossy wire from the server", func(s scene) {
			u, old := s.upstream()
			spend(&u.Phases, &old.Phases, 0, 0.25, 20e-6)
			u.TCP.Received, u.TCP.OutOfOrder = 100000, 4000
		}, "warning wire_lossy storage", []string{"4000 of 100000 that came from there came after a gap (4 %)"}},
		{"a peer that is slow to acknowledge", func(s scene) {
			u, old := s.upstream()
			u.TCP.Retransmits, u.TCP.Needless = old.TCP.Retransmits+30000, 29000
		}, "", nil},
		{"lossy wire to a client", func(s scene) {
			c, old := s.client()
			spend(&c.Phases, &old.Phases, 0, 1e-3, 0.3)
			c.TCP.Retransmits = old.TCP.Retransmits + 30000
			other := &s.now.Clients.List[5]
			other.TCP.Retransmits += 50000
		}, "warning wire_lossy 192.0.2.23", []string{"to client 192.0.2.23 loses", "same with 192.0.2.25"}},
		{"long way", func(s scene) {
			u, old := s.upstream()
			spend(&u.Phases, &old.Phases, 0, 0.15, 20e-6)
			u.TCP.RTT = 0.14
		}, "warning server_slow storage", []string{"network alone takes 140 ms"}},
		{"slow server behind a provider without TCP", func(s scene) {
			u, old := s.upstream()
			spend(&u.Phases, &old.Phases, 0, 0.15, 20e-6)
			u.TCP, old.TCP = nil, nil
		}, "warning server_slow storage", []string{"may be the network, too"}},
		{"client at the limit of its link", func(s scene) {
			c, old := s.client()
			spend(&c.Phases, &old.Phases, 0, 1e-3, 0.3)
			c.BytesOut = old.BytesOut + 30*110e6
		}, "notice client_slow 192.0.2.23:801", []string{"105 MiB a second", "its link"}},
		{"many slow clients", func(s scene) {
			for i := range s.now.Clients.List {
				c, old := &s.now.Clients.List[i], &s.before.Clients.List[i]
				spend(&c.Phases, &old.Phases, 0, 1e-3, 0.1+0.01*float64(i))
			}
		}, "warning client_slow 192.0.2.31:801; warning client_slow 192.0.2.30:801; warning client_slow 192.0.2.29:801; warning client_slow ", nil},

		// States.
		{"upstream down", func(s scene) {
			u, _ := s.upstream()
			u.State, u.Usable, u.DownSince, u.LastError = Down, 0, ago(s, 200*time.Second), "dial tcp 192.0.2.9:20049: connection refused"
			s.now.State, s.now.NotReady = NotReady, "upstream storage has no connection"
		}, "critical upstream_down storage", []string{"for 3 min 20 s", "connection refused."}},
		{"upstream down for a moment", func(s scene) {
			u, _ := s.upstream()
			u.State, u.Usable, u.DownSince = Down, 0, ago(s, time.Second)
		}, "", nil},
		{"upstream asleep", func(s scene) {
			u, _ := s.upstream()
			u.State, u.Usable, u.Wanted, u.Asleep = Asleep, 0, 0, 4
		}, "", nil},
		{"one connection lost", func(s scene) {
			u, old := s.upstream()
			u.State, u.Usable, old.Usable = Degraded, 3, 3
		}, "warning upstream_degraded storage", []string{"3 of 4 connections"}},
		{"one connection lost just now", func(s scene) {
			u, _ := s.upstream()
			u.State, u.Usable = Degraded, 3
		}, "", nil},
		{"endpoint ejected", func(s scene) {
			u, _ := s.upstream()
			until := s.now.Time.Add(20 * time.Second)
			u.Endpoints = append(u.Endpoints, Endpoint{Address: "192.0.2.10:20049", State: EndpointEjected, Until: &until, Reason: "three attempts failed"})
		}, "warning endpoint_ejected 192.0.2.10:20049", []string{"tried again in 20 s", "three attempts failed."}},
		{"endpoint taken out by an operator", func(s scene) {
			u, _ := s.upstream()
			u.Endpoints = append(u.Endpoints, Endpoint{Address: "192.0.2.10:20049", State: EndpointEjected})
		}, "notice endpoint_ejected 192.0.2.10:20049", []string{"by an operator"}},
		{"slow start", func(s scene) {
			u, _ := s.upstream()
			u.SlowStart = &SlowStart{Calls: 16, Clients: 40}
		}, "notice slow_start storage", []string{"16 may be under way, and 40 clients wait"}},
		{"slow start that no client waits for", func(s scene) {
			u, _ := s.upstream()
			u.SlowStart = &SlowStart{Calls: 16}
		}, "", nil},
		{"down, and no slow start before it is up", func(s scene) {
			u, _ := s.upstream()
			since := s.now.Time.Add(-time.Minute)
			u.State, u.DownSince, u.SlowStart = Down, &since, &SlowStart{Calls: 16}
		}, "critical upstream_down storage", nil},
		{"listener does not accept", func(s scene) {
			l, _ := s.listener()
			l.Unreachable = "too many open files"
		}, "critical listener_down nfs", []string{"too many open files. New"}},
		{"not ready", func(s scene) { s.now.State, s.now.NotReady = NotReady, "rpcbind does not answer" }, "critical not_ready ", []string{"rpcbind does not answer."}},
		{"not ready in the first second", func(s scene) {
			s.now.State, s.now.NotReady, s.now.Started = NotReady, "upstream storage has no connection", s.now.Time.Add(-time.Second)
		}, "", nil},
		{"draining", func(s scene) { s.now.State = Draining }, "notice draining ", nil},
		{"refused file", func(s scene) {
			s.now.Config.File, s.now.Config.Refused = "/etc/rdmabridge.yaml", "/etc/rdmabridge.yaml:\nline 3: x: unknown setting\nline 4: y"
		}, "warning config_refused /etc/rdmabridge.yaml", []string{"line 3: x: unknown setting."}},
		{"certificate that is good", func(s scene) {
			l, _ := s.listener()
			l.TLS = &TLSFiles{Expires: ago(s, -400*time.Hour), RenewBy: ago(s, -time.Hour)}
			u, _ := s.upstream()
			u.TLS = &TLSFiles{}
		}, "", nil},
		{"certificate that is due", func(s scene) {
			l, _ := s.listener()
			l.TLS = &TLSFiles{Expires: ago(s, -72*time.Hour), RenewBy: ago(s, time.Hour)}
		}, "warning certificate_expires nfs", []string{"listener nfs expires in 3 days, at 2026-03-04T12:05:30Z", "clients refuse it"}},
		{"certificate that has expired", func(s scene) {
			u, _ := s.upstream()
			u.TLS = &TLSFiles{Expires: ago(s, time.Second), RenewBy: ago(s, time.Hour)}
		}, "critical certificate_expires storage", []string{"upstream storage expired at 2026-03-01T12:05:29Z", "its servers refuse it"}},
		{"certificate of an upstream that is down", func(s scene) {
			u, _ := s.upstream()
			u.State, u.DownSince, u.TLS = Down, ago(s, time.Minute), &TLSFiles{Expires: ago(s, time.Second)}
		}, "critical certificate_expires storage; critical upstream_down storage", nil},
		{"CA and list that are good", func(s scene) {
			u, _ := s.upstream()
			u.TLS = &TLSFiles{CA: term(s, -time.Second, -time.Hour, -time.Hour), CRL: term(s, -time.Second, -time.Second, 0)}
		}, "", nil},
		{"CA that is due", func(s scene) {
			l, _ := s.listener()
			l.TLS = &TLSFiles{CA: term(s, time.Second, -72*time.Hour, -400*time.Hour)}
		}, "warning ca_expires nfs", []string{`The CA "CN=x" of listener nfs expires in 3 days, at 2026-03-04T12:05:30Z. From then on clients are refused if it has signed`}},
		{"CA that has expired", func(s scene) {
			u, _ := s.upstream()
			u.TLS = &TLSFiles{CA: term(s, time.Hour, time.Second, -400*time.Hour)}
		}, "warning ca_expires storage", []string{`The CA "CN=x" of upstream storage expired at 2026-03-01T12:05:29Z: its servers are refused if`}},
		{"CAs that have all expired", func(s scene) {
			l, _ := s.listener()
			l.TLS = &TLSFiles{CA: term(s, 2*time.Hour, time.Hour, time.Second), Refused: "/ca.pem: no"}
		}, "critical ca_expires nfs; warning tls_files_refused nfs", []string{"All CAs of listener nfs have expired, the last at 2026-03-01T12:05:29Z: clients are refused"}},
		{"list of revoked certificates that is overdue", func(s scene) {
			l, _ := s.listener()
			l.TLS = &TLSFiles{CRL: term(s, time.Second, time.Second, 0)}
		}, "warning crl_overdue nfs", []string{`of "CN=x", for listener nfs, should have been replaced at 2026-03-01T12:05:29Z`}},
		{"files of TLS that were refused", func(s scene) {
			l, _ := s.listener()
			l.TLS = &TLSFiles{Expires: ago(s, time.Second), Refused: "/k.pem: the key does not belong to the certificate"}
		}, "critical certificate_expires nfs; warning tls_files_refused nfs", []string{"Connections that there are stay."}},
		{"restart needed", func(s scene) { s.now.Config.RestartNeeded = true }, "notice config_restart_needed ", nil},
		{"few descriptors", func(s scene) { s.now.Sockets.Used = 900 }, "warning descriptors_short ", []string{"900 of the 1000"}},
		{"no descriptors", func(s scene) { s.now.Sockets.Used = 1000 }, "critical descriptors_short ", nil},
		{"memory refused", func(s scene) {
			s.now.Memory.Refused, s.now.Memory.Accounts[0].Used = 7, 1<<28
		}, "warning memory_short ", []string{"2 times in the last 30 s", "calls (256 MiB of 256 MiB)"}},
		{"connections wait for memory", func(s scene) { s.now.Memory.Waiting, s.before.Memory.Waiting = 4, 2 }, "warning memory_short ", []string{"4 connections wait"}},
		{"connections wait for memory for a moment", func(s scene) { s.now.Memory.Waiting = 4 }, "", nil},
		{"clients refused", func(s scene) {
			l, _ := s.listener()
			l.Refused["limit"], l.Refused["bad_record"] = 5, 1
		}, "warning clients_refused nfs", []string{"3 connections in the last 30 s: 2 for limit, 1 for bad record"}},
		{"clients that are not allowed", func(s scene) {
			l, _ := s.listener()
			l.Refused["address"], l.Refused["idle"] = 5, 7
		}, "notice clients_refused nfs", []string{"5 connections in the last 30 s: 5 for address"}},
		{"idle connections closed", func(s scene) {
			l, _ := s.listener()
			l.Refused["idle"] = 7
		}, "", nil},
		{"rate limit", func(s scene) {
			l, old := s.listener()
			l.Paused["client_rate"], l.Paused["listener_rate"], old.Paused["client_rate"] = 1, 1, 1
		}, "notice rate_limited nfs", []string{"2 clients"}},

		// Stuck Calls.
		{"one Call waits", func(s scene) {
			u, _ := s.upstream()
			u.Stuck, u.OldestCall = 1, 12
		}, "", nil},
		{"one Call waits for long", func(s scene) {
			u, _ := s.upstream()
			u.Stuck, u.OldestCall = 1, 45
		}, "warning calls_stuck storage", []string{"has not answered 1 Call; the oldest waits for 45 s"}},
		{"several Calls wait", func(s scene) {
			u, _ := s.upstream()
			u.Stuck, u.OldestCall = 7, 6
		}, "warning calls_stuck storage", []string{"7 Calls"}},
		{"Calls wait for a host that is away", func(s scene) {
			u, _ := s.upstream()
			u.Stalled, u.Stuck, u.OldestCall, u.TCP.Away = 1, 7, 6, 1
		}, "warning wire_lossy storage", []string{"or its host, is away: on 1 connection the host", "not answered 7 Calls; the oldest waits for 6 s"}},
		{"a host is away for a moment", func(s scene) {
			u, _ := s.upstream()
			u.Stuck, u.OldestCall, u.TCP.Away = 7, 3, 1
		}, "", nil},
		{"a connection is silent", func(s scene) {
			u, _ := s.upstream()
			u.Stalled, u.Stuck, u.OldestCall = 1, 1, 6
		}, "warning calls_stuck storage", []string{"On 1 connection"}},

		// No false alarms.
		{"one slow Call on an idle bridge", func(s scene) {
			u, old := s.upstream()
			u.Phases = old.Phases
			u.Phases.Calls++
			u.Phases.Server += 4
			c, oldClient := s.client()
			c.Phases = oldClient.Phases
			c.Phases.Calls++
			c.Phases.Client += 4
		}, "", nil},
		{"idle", func(s scene) { s.now.Upstreams, s.now.Clients = s.before.Upstreams, s.before.Clients }, "", nil},
		{"a burst that waits a moment for credits", func(s scene) {
			u, old := s.upstream()
			spend(&u.Phases, &old.Phases, 0.012, 0.001, 20e-6)
			u.Credits.Starved = old.Credits.Starved + 2
		}, "", nil},
		{"a disk that always takes 15 ms", func(s scene) {
			u, old := s.upstream()
			spend(&u.Phases, &old.Phases, 0, 0.015, 20e-6)
		}, "", nil},
		{"some segments sent again on a quiet wire", func(s scene) {
			u, old := s.upstream()
			u.TCP.Segments, u.TCP.Retransmits = old.TCP.Segments+50, old.TCP.Retransmits+4
		}, "", nil},
		{"a wire that loses one segment in a thousand", func(s scene) {
			u, old := s.upstream()
			u.TCP.Retransmits = old.TCP.Retransmits + 1200
		}, "", nil},
		{"connections to the server are new", func(s scene) {
			u, _ := s.upstream()
			u.TCP = &TCP{RTT: 1e-4, Segments: 100, Retransmits: 20}
		}, "", nil},
		{"another client at the same address", func(s scene) {
			c, old := s.client()
			spend(&c.Phases, &old.Phases, 0, 1e-3, 0.8)
			c.Since = s.now.Time
		}, "", nil},
		{"another process", func(s scene) {
			u, old := s.upstream()
			spend(&u.Phases, &old.Phases, 5e-6, 0.34, 20e-6)
			s.now.Process = 8
		}, "", nil},
	} {
		s := healthy()
		tt.change(s)
		got := Judge(s.now, s.before)
		var all []string
		for _, p := range got {
			all = append(all, string(p.Severity)+" "+p.Code+" "+p.Subject)
			wellWritten(t, tt.name, p)
		}
		if g := strings.Join(all, "; "); g != tt.want {
			t.Errorf("%s: found %q, want %q\n%+v", tt.name, g, tt.want, got)
			continue
		}
		for _, w := range tt.says {
			if !strings.Contains(got[0].Text+" "+got[0].Advice, w) {
				t.Errorf("%s: the text lacks %q:\n%s", tt.name, w, got[0].Text)
			}
		}
	}
}

// wellWritten checks that p is for people: sentences, and no number that only a program likes.
func wellWritten(t *testing.T, name string, p Problem) {
	t.Helper()
	if !slices.Contains(Codes, p.Code) {
		t.Errorf("%s: code %s is not in Codes", name, p.Code)
	}
	for _, text := range []string{p.Text, p.Advice} {
		if text == "" && p.Code == CodeDraining {
			continue
		}
		first := []rune(strings.TrimLeft(text, "`"))
		if text == "" || !unicode.IsUpper(first[0]) && !unicode.IsDigit(first[0]) && !strings.HasPrefix(text, "`") || !strings.HasSuffix(text, ".") || strings.Contains(text, "..") || strings.Contains(text, "NaN") || strings.Contains(text, "%!") {
			t.Errorf("%s: %q is no sentence", name, text)
		}
		if strings.Count(text, "`")%2 != 0 {
			t.Errorf("%s: a backquote of %q is not closed", name, text)
		}
	}
}

// TestJudgeOdd: no document makes Judge panic or say that nothing is a problem.
func TestJudgeOdd(t *testing.T) {
	s := healthy()
	empty := &Document{}
	for name, docs := range map[string][2]*Document{
		"nothing before": {s.now, nil}, "empty": {empty, nil}, "empty before": {s.now, empty}, "empty now": {empty, s.before},
		"the same": {s.now, s.now}, "backwards": {s.before, s.now},
	} {
		if got := Judge(docs[0], docs[1]); len(got) != 0 {
			t.Errorf("%s: %+v", name, got)
		}
	}
	for i := range 1000 {
		l := s.now.Listeners[0]
		l.Name, l.Unreachable = fmt.Sprint("l", i), "it is closed"
		s.now.Listeners = append(s.now.Listeners, l)
	}
	if got := Judge(s.now, s.before); len(got) != mostProblems {
		t.Errorf("%d problems are returned", len(got))
	}
}

// TestDocs: docs/status-page.md says when each problem is one.
func TestDocs(t *testing.T) {
	text, err := os.ReadFile("../../docs/status-page.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, code := range Codes {
		if !strings.Contains(string(text), "`"+code+"`") {
			t.Errorf("docs/status-page.md does not have %s", code)
		}
	}
}

// TestOrder: the worst is first.
func TestOrder(t *testing.T) {
	s := healthy()
	s.now.State, s.now.Config.RestartNeeded, s.now.Sockets.Used = Draining, true, 950
	s.now.Listeners[0].Unreachable = "it is closed"
	var got []string
	for _, p := range Judge(s.now, s.before) {
		got = append(got, string(p.Severity))
	}
	if want := "critical warning notice notice"; strings.Join(got, " ") != want {
		t.Errorf("the order is %v, want %s", got, want)
	}
}

func TestWords(t *testing.T) {
	for _, tt := range []struct{ got, want string }{
		{duration(0), "0 µs"},
		{duration(3.4e-4), "340 µs"},
		{duration(1.254e-3), "1.25 ms"},
		{duration(0.3404), "340 ms"},
		{duration(2.5), "2.5 s"},
		{duration(75), "1 min 15 s"},
		{seconds(0.4), "400 ms"},
		{seconds(59.4), "59 s"},
		{seconds(200), "3 min 20 s"},
		{seconds(5*3600 + 720), "5 h 12 min"},
		{seconds(3 * 86400), "3 days"},
		{size(0), "0 B"},
		{size(1536), "1.5 KiB"},
		{size(1 << 30), "1 GiB"},
		{percent(0.025), "2.5 %"},
		{percent(0.5), "50 %"},
		{count(1, "Call"), "1 Call"},
		{count(2, "Call"), "2 Calls"},
		{hostOf("[2001:db8::1]:801"), "2001:db8::1"},
		{hostOf("[::ffff:192.0.2.1]:801"), "192.0.2.1"},
		{hostOf("odd"), "odd"},
	} {
		if tt.got != tt.want {
			t.Errorf("%q, want %q", tt.got, tt.want)
		}
	}
}
