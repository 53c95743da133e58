package admin

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/status"
)

// A fixture is a bridge that is made up. Its counters grow with the clock, so that a page has rates.
type fixture struct {
	began    time.Time // the counters of an hour are there at began
	upstream int       // connections of the first upstream
	clients  int
	trouble  bool // much is wrong
	empty    bool // it has just started, and nothing uses it
}

// seconds is how long the bridge has run.
func (f *fixture) seconds(now time.Time) float64 { return 3600 + now.Sub(f.began).Seconds() }

// phases returns the time of calls Calls of which each takes these microseconds.
func phases(calls, admission, credit, server, client float64) status.Phases {
	n := math.Floor(calls)
	return status.Phases{Calls: uint64(n), Admission: n * admission / 1e6, Credit: n * credit / 1e6, Server: n * server / 1e6, Client: n * client / 1e6}
}

var latencyBounds = []float64{50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 100e-3, 200e-3, 500e-3, 1, 2, 5, 10, 30}

// latency spreads calls around a mean, with a tail.
func latency(calls, mean float64) status.Latency {
	l := status.Latency{Bounds: latencyBounds, Counts: make([]uint64, len(latencyBounds)+1)}
	for i, b := range latencyBounds {
		d := math.Log2(b / mean)
		l.Counts[i] = uint64(calls * math.Exp(-d*d/2) / 2.6)
	}
	return l
}

// Document is a Source's.
func (f *fixture) Document(q status.Query) status.Document {
	now := time.Now()
	s := f.seconds(now)
	at := func(seconds float64) time.Time { return now.Add(-time.Duration(seconds * float64(time.Second))) }
	d := status.Document{
		Time: now, Started: f.began.Add(-time.Hour), Process: 4711, State: status.Ready,
		Build:     status.Build{Version: "1.4.0", Revision: "9f2c41d07be3a8", Go: "go1.26.8"},
		Config:    status.Config{File: "/etc/rdmabridge.yaml", Loaded: f.began.Add(-40 * time.Minute)},
		Hardening: status.Hardening{InForce: []string{"core dumps", "files"}, Missing: []string{"system calls: the kernel has no seccomp filters"}},
		Sockets:   status.Descriptors{Used: f.clients, Limit: 19000},
		Memory: status.Memory{Budget: 2 << 30, Used: 612 << 20, Resident: 800 << 20, Accounts: []status.Account{
			{Name: "calls", Limit: 640 << 20, Used: 96 << 20, Peak: 320 << 20, Leases: 311},
			{Name: "replies", Limit: 1 << 30, Used: 480 << 20, Peak: 700 << 20, Leases: 520},
			{Name: "receives", Limit: 384 << 20, Used: 36 << 20, Peak: 36 << 20, Leases: 8192},
			{Name: "arena", Limit: 640 << 20, Peak: 12 << 20},
		}},
	}
	if !f.empty {
		d.Names = &status.Names{
			Since: now.Add(-80 * time.Second), Time: now, Sample: 0.25, Known: 4000, Used: 1 << 20,
			Exports: []status.Hot{{Listener: "nfs", Export: "/export/home", Calls: 320000, Error: 800, Read: 8e9, Written: 4e8, Mean: 0.0004}, {Listener: "nfs", Export: "fsid 0x11", Calls: 800}},
			Files: []status.Hot{
				{Listener: "nfs", Export: "/export/home", Path: "/export/home/<img src=x onerror=alert(2)>/x.o", Calls: 80000, Error: 400, Read: 3e9, Mean: 0.0002},
				{Listener: "nfs", Export: "/export/home", Path: ".../old", Removed: true, Calls: 40},
			},
			Clients: []status.Hot{{Listener: "nfs", Export: "/export/home", Client: "10.20.0.7", Calls: 40000, Written: 4e8}},
		}
	}
	if f.empty {
		d.Started, d.Memory.Used, d.Memory.Resident = now.Add(-4*time.Second), 2<<20, 3<<20
		for i := range d.Memory.Accounts {
			a := &d.Memory.Accounts[i]
			a.Used, a.Peak, a.Leases = 0, 0, 0
		}
		d.Listeners = []status.Listener{{Name: "nfs", Transport: "tcp", Address: "192.0.2.1:2049", Limit: 4096}}
		d.Upstreams = []status.Upstream{{Name: "storage", Transport: "rdma", Mode: "sessions", State: status.Up, Usable: 1, Wanted: 1, Asleep: 3, Credits: status.Credits{Requested: 128, Granted: 128}, Endpoints: []status.Endpoint{{Address: "192.0.2.9:20049", State: status.EndpointUsed, Connections: 1}}}}
		d.Clients.Sort = cmp.Or(q.Sort, status.SortWaiting)
		return d
	}
	rate := 8000.0 + 1500*math.Sin(s/97)
	calls := 8000 * s
	d.Listeners = []status.Listener{
		{
			Name: "nfs", Transport: "tcp", Address: "192.0.2.1:2049", Clients: f.clients - f.clients/8, Limit: 4096, InFlight: 190, Accepted: 4200,
			Traffic: status.Traffic{BytesIn: uint64(60e6 * s), BytesOut: uint64(410e6 * s)}, Calls: map[string]uint64{"answered": uint64(calls * 7 / 8), "error": 311},
			Paused: map[string]int{"unread": 2, "calls": 5}, Refused: map[string]uint64{"connections": 3, "address": 41},
		},
		{
			Name: "nfs-rdma", Transport: "rdma", Address: "192.0.2.1:20049", Clients: f.clients / 8, Limit: 1024, InFlight: 44, Accepted: 300,
			Traffic: status.Traffic{BytesIn: uint64(9e6 * s), BytesOut: uint64(120e6 * s)}, Calls: map[string]uint64{"answered": uint64(calls / 8)},
			Paused: map[string]int{}, Refused: map[string]uint64{},
		},
	}
	latest := d.Time.Add(-15 * time.Second)
	d.Listeners[0].Rules = []status.Rule{
		{Name: "readers", Verdict: "deny", Effect: "deny: read-only file system", Calls: 740, Latest: &latest},
		{Name: "rest", Verdict: "dry_run", Effect: "only counted (dry run of: deny: AUTH_TOOWEAK)"},
	}
	d.Tenants = []status.Tenant{{
		Name: "analytics", Clients: 40, Addresses: 12, InFlight: 64, Memory: 48 << 20, Calls: uint64(calls / 4),
		Traffic: status.Traffic{BytesIn: uint64(15e6 * s), BytesOut: uint64(100e6 * s)},
		Waiting: map[string]int{"total": 9}, Waits: map[string]uint64{"total": uint64(20 * s)}, Refused: map[string]uint64{"connections": 17},
		Total: status.TenantLimits{Connections: 500, Calls: 64, Memory: 128 << 20}, Address: status.TenantLimits{Connections: 32},
	}}
	d.Locks = &status.Locks{Server: "192.0.2.10", Held: 61, Waiting: 3, Clients: 14, Most: []status.ClientLocks{{Address: "10.20.1.18", Held: 40}, {Address: "10.20.1.7", Held: 8, Waiting: 2}}}
	d.Upstreams = []status.Upstream{f.storage(q, s, now, at), f.archive(now, at)}
	f.operations(&d, s, rate)
	f.addClients(&d, q, s, at)
	d.Events = []status.Event{
		{Time: at(200), Level: "warn", Event: "upstream_down", Text: "upstream has no connection", Fields: map[string]string{"upstream": "archive", "error": "dial tcp 192.0.2.30:2049: connect: connection refused"}},
		{Time: at(202), Level: "warn", Event: "endpoint_ejected", Text: "endpoint ejected after failed attempts", Fields: map[string]string{"upstream": "archive", "endpoint": "192.0.2.31:2049", "for": "1m0s"}, Repeated: 42},
		{Time: at(410), Level: "warn", Event: "client_refused", Text: "client refused: its address is not allowed", Fields: map[string]string{"listener": "nfs", "peer": "198.51.100.7:55120", "reason": "acl"}},
		{Time: at(900), Level: "info", Event: "client_disconnected", Text: "client disconnected", Fields: map[string]string{"listener": "nfs", "peer": "10.20.1.18:801", "reason": "reset"}},
		{Time: at(2400), Level: "info", Event: "config_reloaded", Text: "configuration reloaded", Fields: map[string]string{"changes": "2", "file": "/etc/rdmabridge.yaml"}},
		{Time: at(2401), Level: "info", Event: "setting_changed", Text: "setting changed", Fields: map[string]string{"setting": "upstreams[0].pool.connections", "old": "32", "new": "64"}},
		{Time: at(3600), Level: "info", Event: "", Text: "starting", Fields: map[string]string{"version": "1.4.0", "memory": "2GiB"}},
	}
	if f.trouble {
		f.makeTrouble(&d, s)
	}
	return d
}

// storage is an upstream that is up, but for one of its connections.
func (f *fixture) storage(q status.Query, s float64, now time.Time, at func(float64) time.Time) status.Upstream {
	n := f.upstream
	u := status.Upstream{
		Name: "storage", Transport: "rdma", Mode: "sessions", State: status.Up, Usable: n - 1, Wanted: n - 1, Asleep: 1, Pinned: 2, Sessions: 96,
		Endpoints: []status.Endpoint{{Address: "192.0.2.9:20049", State: status.EndpointUsed, Connections: n / 2}, {Address: "192.0.2.10:20049", State: status.EndpointUsed, Connections: n - n/2}},
		Credits:   status.Credits{Requested: 64 * n, Granted: 64 * (n - 1), Used: 230 + int(40*math.Sin(s/7)), Waiting: 0, Starved: s / 900},
		Traffic:   status.Traffic{BytesIn: uint64(520e6 * s), BytesOut: uint64(70e6 * s)}, Phases: phases(8000*s, 12, 40, 1150, 95),
		Calls: map[string]uint64{"answered": uint64(8000 * s), "failed": 12}, InFlight: 234, OldestCall: 0.031,
		Disconnects: map[string]uint64{"reset": 2, "idle": 11}, DialErrors: 1, Replays: 6,
		TCP: &status.TCP{RTT: 210e-6, Segments: uint64(300e3 * s), Retransmits: uint64(2 * s)},
	}
	if n > 4 {
		u.Usable, u.State = n-2, status.Degraded
		u.LastError = "read tcp 192.0.2.1:40112->192.0.2.9:20049: connection reset by peer"
	}
	if !q.Connections {
		return u
	}
	for i := range n {
		c := status.Connection{
			Kind: "shared", Endpoint: u.Endpoints[i%2].Address, Local: fmt.Sprintf("192.0.2.1:%d", 40100+i), State: status.ConnectionUp, Since: at(3500),
			Credits: status.Credits{Requested: 64, Granted: 64, Used: (i*7 + int(s)) % 9}, TCP: &status.TCP{RTT: 180e-6 + float64(i)*1e-6, Retransmits: uint64(i % 3)},
		}
		switch {
		case i == n-1:
			c.State, c.Credits, c.Local, c.TCP = status.ConnectionAsleep, status.Credits{}, "", nil
		case i == 12:
			c.State, c.Credits, c.TCP, c.Since, c.LastError = status.ConnectionDown, status.Credits{}, nil, now.Add(-41*time.Second), u.LastError
		case i >= 4 && i%3 == 0:
			c.Kind, c.Clients = "lane", 5+i%4
		}
		u.Connections = append(u.Connections, c)
	}
	return u
}

// archive is an upstream that is down.
func (f *fixture) archive(now time.Time, at func(float64) time.Time) status.Upstream {
	since, until := at(200), now.Add(24*time.Second)
	return status.Upstream{
		Name: "archive", Transport: "tcp", Mode: "shared", State: status.Down, DownSince: &since, Wanted: 2, LastError: "dial tcp 192.0.2.30:2049: connect: connection refused",
		Endpoints: []status.Endpoint{
			{Address: "192.0.2.30:2049", State: status.EndpointUsed},
			{Address: "192.0.2.31:2049", State: status.EndpointEjected, Until: &until, Reason: "three attempts failed: i/o timeout", Ejections: 43},
		},
		Credits: status.Credits{Waiting: 14}, Phases: phases(91000, 5, 5, 8800, 40), Calls: map[string]uint64{"answered": 91000, "failed": 310}, InFlight: 14, DialErrors: 88,
		Connections: []status.Connection{
			{Kind: "shared", Endpoint: "192.0.2.30:2049", State: status.ConnectionDown, Since: since, LastError: "dial tcp 192.0.2.30:2049: connect: connection refused"},
			{Kind: "shared", Endpoint: "192.0.2.31:2049", State: status.ConnectionDown, Since: since, LastError: "dial tcp 192.0.2.31:2049: i/o timeout"},
		},
	}
}

var fixtureOperations = []string{
	"READ", "WRITE", "GETATTR", "LOOKUP", "ACCESS", "READDIRPLUS", "COMMIT", "OPEN", "CLOSE", "SEQUENCE",
	"SETATTR", "CREATE", "REMOVE", "RENAME", "READLINK", "FSSTAT", "LOCK", "LOCKU", "GETACL", "NULL",
}

func (f *fixture) operations(d *status.Document, s, rate float64) {
	for i := range 40 {
		o := status.Operation{Listener: d.Listeners[i/20].Name, Upstream: "storage", Program: "nfs", Version: uint32(3 + i/20), Operation: fixtureOperations[i%20]}
		n := math.Floor(1500 * s / math.Pow(1.6, float64(i%20)))
		server := 300.0 * float64(1+i*7%13)
		o.Calls, o.Phases = uint64(n), phases(n, 10, 30, server, 60)
		o.Statuses = map[string]uint64{status.ClassOK: uint64(n * 0.98), status.ClassNoEnt: uint64(n * 0.01), status.ClassStale: uint64(n*0.01) / 2000}
		o.InFlight = int(n/s*server/1e6) + i%2
		o.Traffic = status.Traffic{BytesIn: uint64(180 * n), BytesOut: uint64(140 * n)}
		if o.Operation == "READ" {
			o.BytesOut = uint64(120e3 * n)
		}
		if o.Operation == "WRITE" {
			o.BytesIn = uint64(30e3 * n)
		}
		o.Latency = latency(n, server/1e6)
		d.Operations = append(d.Operations, o)
	}
}

func (f *fixture) addClients(d *status.Document, q status.Query, s float64, at func(float64) time.Time) {
	all := make([]status.Client, 0, f.clients)
	for i := range f.clients {
		n := math.Floor(8000 * s / float64(i+2) / 6)
		c := status.Client{
			Address: fmt.Sprintf("10.20.%d.%d:%d", i/200, 10+i%200, 700+i%300), Listener: "nfs", Transport: "tcp", Upstreams: []string{"storage"}, Since: f.began.Add(-time.Duration(600+i) * time.Second),
			Active: at(0.2), Traffic: status.Traffic{BytesIn: uint64(7000 * n), BytesOut: uint64(52000 * n)}, Phases: phases(n, 12, 40, 1150, 95), InFlight: i % 5,
			OldestXID: 0x7a3c0000 + uint32(i), OldestOp: fixtureOperations[i%7], TCP: &status.TCP{RTT: 300e-6 + float64(i%40)*20e-6, Retransmits: uint64(i % 4), Segments: 100000 + uint64(n)},
		}
		if i%8 == 7 {
			c.Listener, c.Transport, c.TCP, c.Credits = "nfs-rdma", "rdma", nil, &status.ClientCredits{Granted: 32, Used: i % 5}
		}
		if c.InFlight > 0 {
			c.OldestCall = 0.0004 * float64(1+i%60)
		}
		if i == 3 || i == 17 {
			c.Waiting, c.Unread, c.Paused, c.Failed = []string{"unread"}, 9<<20, s/9, 14
		}
		if i > 20 && i < 26 {
			c.Waiting, c.InFlight, c.Paused, c.OldestCall = []string{"calls"}, 128, s/40, 0.2
		}
		if i == 5 { // what a peer may call itself
			c.OldestOp, c.Repeats, c.Failed, c.InFlight, c.OldestCall = "<img src=x onerror=alert(1)>", 3, 2, 1, 0.01
		}
		all = append(all, c)
	}
	d.Clients = status.Clients{Total: len(all), Sort: cmp.Or(q.Sort, status.SortWaiting), Paused: 7}
	if q.Filter != "" {
		all = slices.DeleteFunc(all, func(c status.Client) bool {
			return !strings.Contains(c.Address+" "+c.Listener+" "+c.Transport, q.Filter)
		})
	}
	slices.SortStableFunc(all, func(a, b status.Client) int {
		switch q.Sort {
		case status.SortBytes:
			return cmp.Compare(b.BytesIn+b.BytesOut, a.BytesIn+a.BytesOut)
		case status.SortCalls:
			return cmp.Compare(b.Phases.Calls, a.Phases.Calls)
		case status.SortOldest:
			return cmp.Compare(b.OldestCall, a.OldestCall)
		case status.SortAddress:
			return strings.Compare(a.Address, b.Address)
		}
		return cmp.Or(cmp.Compare(len(b.Waiting), len(a.Waiting)), cmp.Compare(b.Unread, a.Unread), cmp.Compare(b.OldestCall, a.OldestCall))
	})
	d.Clients.List = all[:min(len(all), q.Most())]
	d.Clients.Shown = len(d.Clients.List)
}

// makeTrouble breaks much at once.
func (f *fixture) makeTrouble(d *status.Document, s float64) {
	d.State, d.NotReady = status.NotReady, "upstream archive has no connection"
	u := &d.Upstreams[0]
	u.State, u.Stuck, u.Stalled, u.OldestCall = status.Degraded, 61, 2, 18
	u.Phases = phases(8000*s, 12, 90000, 380000, 95)
	u.Credits.Used, u.Credits.Waiting, u.Credits.Starved = u.Credits.Granted, 412, s*0.9
	u.SlowStart = &status.SlowStart{Calls: 16, Clients: 40}
	d.Memory.Used, d.Memory.Waiting, d.Memory.Refused = 2040<<20, 31, uint64(s)
	d.Memory.Accounts[1].Used, d.Memory.Accounts[1].Waiting, d.Memory.Accounts[1].Refused = 1020<<20, 31, uint64(s)
	d.Config.Refused, d.Config.RestartNeeded = "/etc/rdmabridge.yaml: line 41: upstreams[1].pool.connections: 4o0 is no number; write one from 1 to 1024", true
	d.Listeners[0].Refused["connections"] = uint64(s)
	d.Listeners[1].Unreachable = "accept4: too many open files"
	d.Sockets.Used = d.Sockets.Limit
	for i := range d.Clients.List {
		c := &d.Clients.List[i]
		if c.Unread > 0 {
			c.Phases, c.Paused, c.BytesOut = phases(20*s, 10, 40, 1150, 900000), s, uint64(2e6*s)
		}
	}
}

// history makes up the ten minutes before now.
func (f *fixture) history() status.History {
	h := emptyHistory()
	if f.empty {
		return h
	}
	wave := func(base, by, noise float64) []float64 {
		l := make([]float64, historyPoints)
		for i := range l {
			l[i] = math.Max(0, base+by*math.Sin(float64(i)/9)+noise*math.Sin(float64(i*i)*0.7))
		}
		return l
	}
	h.End = f.began
	h.Calls, h.BytesIn, h.BytesOut = wave(8000, 1500, 400), wave(69e6, 11e6, 4e6), wave(530e6, 60e6, 40e6)
	h.Latency, h.Clients, h.Memory, h.Failed = wave(1.3e-3, 2e-4, 1e-4), wave(float64(f.clients), 6, 1), wave(600e6, 40e6, 9e6), wave(60, 30, 20)
	down := wave(25, 4, 3)
	for i := historyPoints - 40; i < historyPoints; i++ {
		down[i] = 0
	}
	h.Upstreams = map[string]status.UpstreamHistory{
		"storage": {Calls: wave(8000, 1500, 400), Latency: wave(1.15e-3, 2e-4, 1e-4), Credits: wave(0.35, 0.1, 0.05), Waiting: wave(0, 3, 3)},
		"archive": {Calls: down, Latency: wave(0.0088, 0.001, 0.001), Credits: wave(0.1, 0.05, 0.02), Waiting: wave(0, 0, 0)},
	}
	return h
}
