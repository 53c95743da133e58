package configs

import (
	"reflect"
	"runtime"
	"testing"
	"time"
)

func TestDefaults(t *testing.T) {
	onLargeMachine(t)
	c, err := Load([]byte(minimal), testKnown())
	if err != nil {
		t.Fatal(err)
	}
	want := &Config{
		Listeners: []Listener{{
			Name: "nfs", Address: "127.0.0.1:2049", Transport: TransportTCP, Upstream: "storage", Privileged: PrivilegedAny, Squash: Squash{Mode: "off"}, TLS: ListenerTLS{Mode: TLSOff},
			Limits: ListenerLimits{
				Connections: 4096, PerAddress: 4096, MakeRoom: On, Calls: 256, Outbound: 32 << 20,
				Record: 4<<20 + 64<<10, Pace: 16 << 10,
			},
			Timeouts: ListenerTimeouts{Stall: Duration(30 * time.Second), Idle: noDuration, Request: noDuration},
		}},
		Upstreams: []Upstream{{
			Name: "storage", Transport: TransportRDMA, Endpoints: []string{"10.1.0.5:20049"}, Failover: Off, Layouts: "pass",
			Pool: Pool{Connections: 4, Idle: Duration(5 * time.Minute), Credits: 128, Share: 50, Mode: "auto", GSSWindow: 24},
			Timeouts: Timeouts{
				Call: Duration(60 * time.Second), Connect: Duration(10 * time.Second), Unavailable: Duration(30 * time.Second),
				Silent: Duration(4 * time.Second), Probe: Duration(5 * time.Second),
			},
			Backoff:  Backoff{Min: Duration(100 * time.Millisecond), Max: Duration(5 * time.Second)},
			Provider: "iwarp",
			Inline:   Inline{Call: 64 * KiB, Reply: 4 * KiB},
			IWARP:    IWARP{CRC: On, FPDU: "emss", Revision1: Off},
		}},
		TLS:    TLSBudget{Handshakes: 512, Waiting: 4096},
		Chunks: Chunks{IO: 4 << 20, Reply: 4<<20 + 8<<10},
		Memory: Memory{Budget: 1 << 30},
		NLM:    NLM{Address: none}, RPCBind: RPCBind{Address: "none"},
		Admin:     Admin{Address: "127.0.0.1:9090"},
		Log:       Log{Level: "info", Format: "auto", Access: AccessLog{Mode: "off", Slower: Duration(100 * time.Millisecond), Sample: 0.01, Path: "stderr"}, Audit: AuditLog{Output: "file", Path: none, Syslog: "/dev/log", OnFailure: "drop"}},
		Tracing:   Tracing{Endpoint: none, Sample: 0.001, Slower: Duration(time.Second)},
		Names:     Names{Mode: Off, Memory: 32 * MiB, Redact: none, Page: Off},
		Drain:     Drain{Timeout: Duration(30 * time.Second)},
		Reload:    Reload{Watch: Duration(2 * time.Second)},
		Handover:  Handover{Path: none},
		Hardening: On,
		Loops:     defaultLoops,
		BusyPoll:  noDuration,
	}
	c.source, c.files = nil, nil
	if !reflect.DeepEqual(c, want) {
		t.Errorf("defaults:\n got %+v\nwant %+v", c, want)
	}
}

func TestDefaultLoops(t *testing.T) {
	for cpus, want := range map[int]int{1: 1, 2: 2, 3: 2, 4: 3, 64: 63} {
		if got := loopsFor(cpus); got != want {
			t.Errorf("%d loops for %d CPUs, want %d", got, cpus, want)
		}
	}
	if defaultLoops < 1 || defaultLoops > runtime.GOMAXPROCS(0) {
		t.Errorf("%d loops with GOMAXPROCS %d", defaultLoops, runtime.GOMAXPROCS(0))
	}
}
