// Package statustest has documents for tests of what shows documents: the same bridge twice, ten
// seconds apart. It serves an RDMA upstream that has few credits, a TCP upstream of which an endpoint is
// ejected, and one that sleeps.
package statustest

import (
	"time"

	"github.com/rdmabridge/rdmabridge/internal/status"
)

// Now is the time of After's document. Before's is Interval earlier.
var Now = time.Date(2026, 3, 4, 15, 16, 17, 0, time.UTC)

// Interval is the time between the two documents.
const Interval = 10 * time.Second

// Before returns the earlier document.
func Before() *status.Document { return document(Now.Add(-Interval), 1) }

// After returns the later document. Each counter has grown by a tenth of what it was.
func After() *status.Document { return document(Now, 1.1) }

// document returns the document of a moment. All counters are multiplied by grown.
func document(now time.Time, grown float64) *status.Document {
	n := func(v float64) uint64 { return uint64(v*grown + 0.5) }
	phases := func(calls, admission, credit, server, client float64) status.Phases {
		return status.Phases{Calls: n(calls), Admission: admission * grown, Credit: credit * grown, Server: server * grown, Client: client * grown}
	}
	traffic := func(in, out float64) status.Traffic { return status.Traffic{BytesIn: n(in), BytesOut: n(out)} }
	ago := func(d time.Duration) time.Time { return Now.Add(-d) }
	until, down, expires, denied := Now.Add(8*time.Minute), ago(42*time.Second), Now.Add(60*24*time.Hour), ago(15*time.Second)
	return &status.Document{
		Time: now, Started: ago(27*time.Hour + 5*time.Minute), Process: 4711,
		Build:     status.Build{Version: "v0.9.0", Revision: "0123456789abcdef", Go: "go1.26.8"},
		State:     status.Ready,
		Config:    status.Config{File: "/etc/rdmabridge/rdmabridge.yaml", Loaded: ago(3 * time.Hour), RestartNeeded: true},
		Hardening: status.Hardening{InForce: []string{"core dumps", "system calls"}, Missing: []string{"files: the kernel has no Landlock, or it is off"}},
		Names: &status.Names{
			Since: now.Add(-90 * time.Second), Time: now, Sample: 1, Known: 900, Used: 400_000,
			Exports: []status.Hot{
				{Listener: "nfs", Export: "/export/home", Calls: 9e5, Read: 4e9, Written: 5e8, Mean: 0.0012},
				{Listener: "nfs", Export: "fsid 0x1f", Calls: 900, Error: 90, Mean: 0.0004},
			},
			Files: []status.Hot{
				{Listener: "nfs", Export: "/export/home", Path: "/export/home/build/obj/x.o", Calls: 4e5, Error: 1200, Read: 3e9, Mean: 0.002},
				{Listener: "nfs", Export: "/export/home", Path: ".../log\x1b[31m", Removed: true, Calls: 3e4, Error: 1200, Written: 5e8, Mean: 0.0005},
				{Listener: "nfs", Export: "unknown", Path: "handle ...0102030405060708090a0b0c", Calls: 90},
			},
		},
		Problems: []status.Problem{
			{Severity: status.Critical, Code: "upstream_down", Subject: "scratch", Text: "Upstream scratch has no connection since 42s: 10.1.0.9:2049: connection refused. Its clients wait.", Advice: "Look whether the server runs, and at rdmabridge doctor --upstream scratch."},
			{Severity: status.Warning, Code: "credits_starved", Subject: "storage", Text: "Calls to upstream storage wait 60% of their time for a credit: the server grants 32 of 512.", Advice: "Raise the server's credits, or pool.connections."},
			{Severity: status.Notice, Code: "restart_needed", Text: "The file has settings that take effect only after a restart."},
		},
		Listeners: []status.Listener{
			{
				Name: "nfs", Transport: "tcp", Address: "0.0.0.0:2049", Clients: 6, Limit: 4096, InFlight: 71, Paused: map[string]int{"calls": 1, "outbound": 1},
				Traffic: traffic(9.1e9, 8.4e10), Calls: map[string]uint64{"forwarded": n(5.2e6), "answered": n(120)}, Refused: map[string]uint64{"allow": n(20)}, Accepted: n(90),
				Rules: []status.Rule{
					{Name: "readers", Verdict: "deny", Effect: "deny: read-only file system", Calls: n(740), Latest: &denied},
					{Name: "rest", Verdict: "dry_run", Effect: "only counted (dry run of: deny: AUTH_TOOWEAK)"},
				},
			},
			{Name: "rdma", Transport: "rdma", Address: "[::]:20049", Clients: 1, Limit: 4096, InFlight: 3, Traffic: traffic(2e8, 3e9), Calls: map[string]uint64{"forwarded": n(4e5)}, Accepted: n(3)},
		},
		Locks: &status.Locks{Server: "10.1.0.5", Held: 61, Waiting: 3, Clients: 14, Most: []status.ClientLocks{{Address: "10.0.0.7", Held: 40}, {Address: "10.0.0.9", Held: 8, Waiting: 2}}},
		Upstreams: []status.Upstream{
			{
				Name: "storage", Transport: "rdma", Mode: "sessions", State: status.Up,
				Endpoints: []status.Endpoint{{Address: "10.1.0.5:20049", State: status.EndpointUsed, Connections: 2}},
				Credits:   status.Credits{Requested: 512, Granted: 32, Used: 32, Waiting: 39, Starved: 6000 * grown},
				Connections: []status.Connection{
					{Kind: "shared", Endpoint: "10.1.0.5:20049", Local: "10.1.0.1:41000", State: status.ConnectionUp, Since: ago(26 * time.Hour), Credits: status.Credits{Requested: 128, Granted: 16, Used: 16, Waiting: 20, Starved: 3000 * grown}, TCP: &status.TCP{RTT: 0.00021, Segments: n(9e6), Retransmits: n(12), Unacked: 3}},
					{Kind: "lane", Endpoint: "10.1.0.5:20049", Local: "10.1.0.1:41001", State: status.ConnectionUp, Since: ago(20 * time.Minute), Clients: 5, Credits: status.Credits{Requested: 128, Granted: 16, Used: 16, Waiting: 19, Starved: 3000 * grown}, TCP: &status.TCP{RTT: 0.00034, Segments: n(4e6), Retransmits: n(31000), Unacked: 40, Unsent: 81920}},
					{Kind: "shared", State: status.ConnectionAsleep, Since: ago(5 * time.Hour)},
				},
				Usable: 2, Wanted: 2, Asleep: 2, Sessions: 5, Traffic: traffic(7e10, 8e9), Phases: phases(5e6, 900, 15000, 8000, 1100),
				Calls: map[string]uint64{"answered": n(5e6), "expired": n(3)}, InFlight: 71, OldestCall: 0.41, Disconnects: map[string]uint64{"silent": n(10)}, Replays: n(10),
				TCP: &status.TCP{RTT: 0.00034, Segments: n(1.3e7), Retransmits: n(31012), Unacked: 43, Unsent: 81920},
			},
			{
				Name: "home", Transport: "tcp", Mode: "shared", State: status.Degraded, LastError: "10.1.0.7:2049: i/o timeout",
				Endpoints: []status.Endpoint{
					{Address: "10.1.0.6:2049", State: status.EndpointUsed, Connections: 2},
					{Address: "10.1.0.7:2049", State: status.EndpointEjected, Until: &until, Reason: "connect: i/o timeout", Ejections: n(10)},
				},
				Credits: status.Credits{Requested: 256, Granted: 256, Used: 3},
				Connections: []status.Connection{
					{Kind: "shared", Endpoint: "10.1.0.6:2049", Local: "10.1.0.1:700", State: status.ConnectionUp, Since: ago(2 * time.Hour), Credits: status.Credits{Requested: 128, Granted: 128, Used: 2}, TCP: &status.TCP{RTT: 0.0011, Segments: n(1e5)}},
					{Kind: "shared", Endpoint: "10.1.0.6:2049", Local: "10.1.0.1:701", State: status.ConnectionStalled, Since: ago(9 * time.Second), Credits: status.Credits{Requested: 128, Granted: 128, Used: 1}, TCP: &status.TCP{RTT: 0.0012, Segments: n(1e5), Unacked: 1}},
				},
				Usable: 2, Wanted: 2, Traffic: traffic(3e9, 2e8), Phases: phases(4e5, 10, 20, 1200, 30),
				Calls: map[string]uint64{"answered": n(4e5)}, InFlight: 3, Stuck: 1, Stalled: 1, OldestCall: 8.2, DialErrors: n(30),
			},
			{
				Name: "scratch", Transport: "tcp", Mode: "sessions", State: status.Down, DownSince: &down, LastError: "10.1.0.9:2049: connection refused",
				Endpoints:   []status.Endpoint{{Address: "10.1.0.9:2049", State: status.EndpointUsed}},
				Connections: []status.Connection{{Kind: "shared", Endpoint: "10.1.0.9:2049", State: status.ConnectionDown, Since: down, LastError: "connection refused"}},
				Wanted:      1, DialErrors: n(20),
			},
		},
		Clients: status.Clients{Total: 7, Shown: 7, Sort: status.SortWaiting, Paused: 2, List: []status.Client{
			{Address: "10.0.0.21:873", Listener: "nfs", Transport: "tcp", Upstreams: []string{"storage"}, Since: ago(26 * time.Hour), Active: now, Traffic: traffic(8e9, 1e8), Phases: phases(1e6, 800, 9000, 3000, 10), InFlight: 64, OldestCall: 0.41, OldestXID: 0x1234abcd, OldestOp: "WRITE", Waiting: []string{"calls"}, Paused: 500 * grown, TLS: &status.TLS{Identity: "node21.example.com", Subject: "CN=node21", Issuer: "CN=clients", Serial: "1a2b", Names: []string{"node21.example.com"}, Expires: &expires}, TCP: &status.TCP{RTT: 0.0002, Segments: n(1e5)}},
			{Address: "10.0.0.21:874", Listener: "nfs", Transport: "tcp", Upstreams: []string{"storage"}, Since: ago(26 * time.Hour), Active: now, Traffic: traffic(1e9, 1e7), Phases: phases(1e5, 80, 900, 300, 1), InFlight: 2, OldestCall: 0.02, OldestOp: "COMMIT", TCP: &status.TCP{RTT: 0.0002, Segments: n(1e4)}},
			{Address: "10.0.0.35:702", Listener: "nfs", Transport: "tcp", Upstreams: []string{"storage", "home"}, Since: ago(3 * time.Hour), Active: now, Traffic: traffic(5e7, 7e10), Phases: phases(3e6, 10, 4000, 4000, 40000), Failed: n(50), InFlight: 4, OldestCall: 3.4, OldestOp: "READ", Unread: 33 << 20, Waiting: []string{"outbound"}, Paused: 9000 * grown, TCP: &status.TCP{RTT: 0.09, Segments: n(5e6), Retransmits: n(250000), Unsent: 4 << 20}},
			{Address: "[2001:db8:1234:5678:9abc:def0:1234:5678]:1001", Listener: "nfs", Transport: "tcp", Upstreams: []string{"home"}, Since: ago(time.Hour), Active: ago(time.Minute), Traffic: traffic(1e7, 1e9), Phases: phases(2e5, 1, 5, 700, 20), InFlight: 1, OldestCall: 8.2, OldestOp: "GETATTR", TCP: &status.TCP{RTT: 0.002, Segments: n(1e5)}},
			{Address: "[2001:db8:1234:5678:9abc:def0:1234:9999]:1001", Listener: "nfs", Transport: "tcp", Upstreams: []string{"home"}, Since: ago(time.Hour), Active: ago(2 * time.Hour), Traffic: traffic(1e5, 1e6), Phases: phases(2e3, 0, 0, 7, 0)},
			{Address: "10.0.0.99:1021", Listener: "nfs", Transport: "tcp", Since: ago(42 * time.Second), Active: ago(42 * time.Second)},
			{Address: "10.0.7.1:49152", Listener: "rdma", Transport: "rdma", Upstreams: []string{"home"}, Since: ago(5 * time.Hour), Active: now, Traffic: traffic(2e8, 3e9), Phases: phases(4e5, 2, 15, 500, 9), InFlight: 3, OldestCall: 0.001, OldestOp: "READ", Credits: &status.ClientCredits{Granted: 64, Used: 3}},
		}},
		Operations: []status.Operation{
			operation("nfs", "storage", "nfs", 4, "READ", 3, n(3e6), traffic(5e8, 7e10), phases(3e6, 10, 4000, 4000, 900)),
			operation("nfs", "storage", "nfs", 4, "WRITE", 66, n(1e6), traffic(8e9, 1e8), phases(1e6, 880, 9900, 3300, 11)),
			operation("nfs", "home", "nfs", 3, "GETATTR", 1, n(2e5), traffic(3e7, 3e7), phases(2e5, 1, 5, 700, 20)),
			operation("rdma", "home", "nfs", 3, "READ", 3, n(4e5), traffic(2e8, 3e9), phases(4e5, 2, 15, 500, 9)),
			operation("nfs", "", "rpcbind", 2, "GETPORT", 0, n(120), traffic(1e4, 1e4), phases(120, 0, 0, 0, 0)),
		},
		Memory: status.Memory{Budget: 1 << 30, Used: 311 << 20, Resident: 400 << 20, Waiting: 0, Accounts: []status.Account{
			{Name: "replies", Limit: 512 << 20, Used: 96 << 20, Peak: 300 << 20, Leases: 120},
			{Name: "receives", Limit: 192 << 20, Used: 1 << 20, Peak: 2 << 20, Leases: 64},
			{Name: "calls", Limit: 320 << 20, Used: 214 << 20, Peak: 319 << 20, Leases: 70, Waiting: 2, Refused: n(10)},
		}},
		Events: []status.Event{
			{Time: ago(42 * time.Second), Level: "error", Event: "upstream_down", Text: "no connection to upstream", Fields: map[string]string{"upstream": "scratch", "error": "connection refused"}, Repeated: 12},
			{Time: ago(2 * time.Minute), Level: "warn", Event: "endpoint_ejected", Text: "endpoint ejected", Fields: map[string]string{"upstream": "home", "endpoint": "10.1.0.7:2049", "error": "i/o timeout"}},
			{Time: ago(3 * time.Hour), Level: "info", Event: "config_reloaded", Text: "configuration reloaded", Fields: map[string]string{"changes": "2"}},
		},
	}
}

func operation(listener, upstream, program string, version uint32, name string, flight int, calls uint64, t status.Traffic, p status.Phases) status.Operation {
	failed := calls / 50
	return status.Operation{
		Listener: listener, Upstream: upstream, Program: program, Version: version, Operation: name, InFlight: flight, Calls: calls,
		Statuses: map[string]uint64{"ok": calls - failed, "noent": failed / 2, "stale": failed - failed/2}, Traffic: t, Phases: p,
	}
}
