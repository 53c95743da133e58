package configs

import (
	"strings"
	"testing"
)

// TestTCPUpstream checks the settings whose defaults only TCP upstreams have.
func TestTCPUpstream(t *testing.T) {
	for source, want := range map[string]Source{
		"{}":                       {Ports: AnyPort},
		"{ports: any}":             {Ports: AnyPort},
		"{ports: reserved}":        {Ports: Ports{665, 1023}},
		"{ports: 1-65535}":         {Ports: Ports{1, 65535}},
		"{ports: 40000 - 40009}":   {Ports: Ports{40000, 40009}},
		"{address: '2001:db8::7'}": {Address: "2001:db8::7", Ports: AnyPort},
	} {
		c, err := Load([]byte(`
listeners: [{name: nfs, address: ':2049', upstream: s}]
upstreams: [{name: s, transport: tcp, endpoints: ['h:1'], source: `+source+`}]
`), testKnown())
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Upstreams[0].Source; got != want {
			t.Errorf("%s: %+v, want %+v", source, got, want)
		}
		if p, want := c.Upstreams[0].Pool, (Pool{Connections: 2, Credits: 128, Share: 50, Mode: "auto", Pinned: 256, GSSWindow: 24}); p != want {
			t.Errorf("pool %+v, want %+v", p, want)
		}
		if p, err := parsePorts(want.Ports.String()); err != nil || p != want.Ports {
			t.Errorf("%s is read as %v, %v", want.Ports, p, err)
		}
	}
}

func TestExposure(t *testing.T) {
	const text = `
listeners: [{name: nfs, address: "127.0.0.1:2049", upstream: storage}]
upstreams: [{name: storage, transport: rdma, endpoints: ["10.1.0.5:20049"], `
	for _, tc := range []struct{ with, value, want string }{
		{"provider: ibverbs}]", "auto", ""},
		{"provider: ibverbs, ibverbs: {exposure: auto}}]", "auto", ""},
		{"provider: ibverbs, ibverbs: {exposure: windows}}]", "windows", ""},
		{"provider: ibverbs, ibverbs: {exposure: registration}}]", "registration", ""},
		{"provider: ibverbs, ibverbs: {exposure: keys}}]", "", `write auto, windows or registration`},
		{"ibverbs: {exposure: auto}}]", "", "provider ibverbs"},
		{"provider: iwarp}]", "", ""},
	} {
		c, err := Load([]byte(text+tc.with), examplesKnown())
		switch {
		case tc.want == "" && err != nil:
			t.Errorf("%s: %v", tc.with, err)
		case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
			t.Errorf("%s: %v, want %q", tc.with, err, tc.want)
		case tc.want == "" && c.Upstreams[0].IBVerbs.Exposure != tc.value:
			t.Errorf("%s: %+v", tc.with, c.Upstreams[0].IBVerbs)
		}
	}
}

func TestTrafficClass(t *testing.T) {
	const text = `
listeners: [{name: nfs, address: "127.0.0.1:2049", upstream: storage}]
upstreams: [{name: storage, transport: rdma, endpoints: ["10.1.0.5:20049"], `
	for _, tc := range []struct{ with, want string }{
		{"provider: ibverbs, ibverbs: {traffic_class: 104}}]", ""},
		{"provider: ibverbs}]", ""},
		{"provider: ibverbs, ibverbs: {traffic_class: 0}}]", "0 is not greater than 0"},
		{"provider: ibverbs, ibverbs: {traffic_class: 256}}]", "256 is too large; write at most 255"},
		{"provider: ibverbs, ibverbs: {traffic_class: -1}}]", "-1"},
		{"ibverbs: {traffic_class: 104}}]", "provider ibverbs"},
	} {
		c, err := Load([]byte(text+tc.with), examplesKnown())
		switch {
		case tc.want == "" && err != nil:
			t.Errorf("%s: %v", tc.with, err)
		case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
			t.Errorf("%s: %v, want %q", tc.with, err, tc.want)
		case tc.want == "" && strings.Contains(tc.with, "104") && c.Upstreams[0].IBVerbs.TrafficClass != 104:
			t.Errorf("%s: %+v", tc.with, c.Upstreams[0].IBVerbs)
		}
	}
}
