package tap

import (
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/proxy/observe"
)

func parse(t *testing.T, query string) Options {
	t.Helper()
	v, err := url.ParseQuery(query)
	if err != nil {
		t.Fatal(err)
	}
	o, err := ParseOptions(v)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestParseOptions(t *testing.T) {
	o := parse(t, "client=192.0.2.0/24,2001:db8::1&client=198.51.100.7&program=nfs,100021&operation=read,Write&leg=both&slower=100ms&snaplen=300&trigger=status=stale&trigger=slower=1s&before=3s&after=forever")
	switch {
	case len(o.Clients) != 3 || o.Clients[2].Bits() != 32:
		t.Errorf("clients %v", o.Clients)
	case len(o.Programs) != 2 || o.Programs[0] != oncrpc.ProgramNFS || o.Programs[1] != oncrpc.ProgramNLM:
		t.Errorf("programs %v", o.Programs)
	case len(o.Operations) != 2 || o.Operations[1] != "WRITE", len(o.Legs) != 0, o.Slower != 100*time.Millisecond, o.Snap != 300:
		t.Errorf("%+v", o)
	case !o.Trigger.Set() || o.Trigger.Statuses[0] != "stale" || o.Trigger.Slower != time.Second || o.Trigger.Before != 3*time.Second || o.Trigger.After >= 0:
		t.Errorf("%+v", o.Trigger)
	}
	for query, want := range map[string]string{
		"client=foo":              `client: "foo" is not possible here; write an address or a network`,
		"program=foo":             `program: "foo" is not possible here; write a number, or`,
		"leg=left":                `leg: "left" is not possible here; write clients, upstreams or both`,
		"slower=fast":             `slower: "fast" is not possible here; write a duration`,
		"slower=-1s":              `slower: "-1s" is not possible here; write a duration`,
		"snaplen=-1":              `snaplen: "-1" is not possible here; write a number`,
		"payload=perhaps":         `payload: "perhaps" is not possible here; write true or false`,
		"trigger=status":          `trigger: "status" is not possible here; write status=NAME`,
		"trigger=slower=0s":       `trigger: "slower=0s" is not possible here; write a time, such as slower=1s`,
		"before=1s":               "before and after need a trigger; write one",
		"buffer=12":               "buffer: 12 octets are not possible; write 1MiB to 1GiB",
		"filter=x":                "filter: no such parameter",
		"status=" + many("x", 99): "status: 99 values are too many; write 64 or fewer",
	} {
		v, _ := url.ParseQuery(query)
		if _, err := ParseOptions(v); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", query, err, want)
		}
	}
}

func many(v string, n int) string { return strings.TrimSuffix(strings.Repeat(v+",", n), ",") }

// FuzzParseOptions checks that no query panics, and that options that are accepted are within bounds.
func FuzzParseOptions(f *testing.F) {
	f.Add("client=192.0.2.0/24&trigger=slower=1s&after=forever&status=1,2")
	f.Add("buffer=99999999999&leg=&program=0x1")
	f.Fuzz(func(t *testing.T, query string) {
		v, err := url.ParseQuery(query)
		if err != nil {
			return
		}
		o, err := ParseOptions(v)
		if err == nil && (o.Snap < 0 || o.Count < 0 || o.withDefaults().Buffer > MostBuffer || o.Slower < 0) {
			t.Errorf("%+v", o)
		}
	})
}

func TestWants(t *testing.T) {
	call := observe.TapCall{
		Client: netip.MustParseAddrPort("[::ffff:192.0.2.7]:700"), Listener: "nfs", Upstream: "storage",
		Program: oncrpc.ProgramNFS, Version: 3, Procedure: 6, Operation: "READ",
	}
	back := observe.TapCall{Reverse: true, Leg: observe.TapUpstreams, Upstream: "storage", Program: oncrpc.ProgramCallbacks}
	for _, tc := range []struct {
		query               string
		wantCall, wantsBack bool
	}{
		{"", true, true},
		{"client=192.0.2.0/24", true, false},
		{"client=192.0.3.0/24", false, false},
		{"upstream=storage", true, true},
		{"upstream=other", false, false},
		{"listener=nfs", true, false},
		{"program=nfs", true, true},
		{"program=mount", false, false},
		{"operation=write", false, false},
		{"operation=write,read", true, false},
		{"status=error", true, false},
	} {
		o := parse(t, tc.query)
		if got := o.wants(&call); got != tc.wantCall {
			t.Errorf("%s: wants the Call: %v", tc.query, got)
		}
		if got := o.wants(&back); got != tc.wantsBack {
			t.Errorf("%s: wants the reverse Call: %v", tc.query, got)
		}
	}
}
