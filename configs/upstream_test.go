package configs

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
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
		if p, want := c.Upstreams[0].Pool, (Pool{Connections: 2, Idle: Duration(5 * time.Minute), Credits: 128, Share: 50, Mode: "auto", GSSWindow: 24}); p != want {
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

// TestIBVerbs checks the settings of provider ibverbs, and that the host is asked about settings that
// make sense.
func TestIBVerbs(t *testing.T) {
	const head, listener = `
upstreams: [{name: storage, transport: rdma, endpoints: ["10.1.0.5:20049"], `, `
listeners: [{name: nfs, upstream: storage, `
	upstream := func(with string) string { return listener + `address: "127.0.0.1:2049"}]` + head + with + "}]" }
	listens := func(with string) string {
		return listener + `address: "10.1.0.1:20049", transport: rdma, ` + with + "}]" + head + "provider: iwarp}]"
	}
	for _, tc := range []struct{ file, want, asked string }{
		{upstream("provider: ibverbs"), "", ""},
		{upstream("provider: ibverbs, ibverbs: {traffic_class: 104}"), "", ` 0  104 ""`},
		{upstream("provider: ibverbs, ibverbs: {device: mlx5_1, port: 2, gid: 'fe80::1'}"), "", `mlx5_1 2 fe80::1 0 ""`},
		{upstream("provider: ibverbs, ibverbs: {gid: 10.1.0.1}"), "", ` 0 10.1.0.1 0 ""`},
		{upstream("provider: ibverbs, ibverbs: {device: mlx5_9}"), "upstreams[0].ibverbs: no mlx5_9 here", `mlx5_9 0  0 ""`},
		{listens("provider: ibverbs, ibverbs: {device: mlx5_1}"), "", `mlx5_1 0  0 "10.1.0.1:20049"`},
		{listens("provider: ibverbs, ibverbs: {device: mlx5_9}"), "listeners[0].ibverbs: no mlx5_9 here", `mlx5_9 0  0 "10.1.0.1:20049"`},
		{listens("provider: ibverbs, ibverbs: {exposure: auto}"), "listeners[0].ibverbs.exposure: only upstreams have this setting", ""},
		{listens("ibverbs: {device: mlx5_1}"), "listeners[0].ibverbs: this setting needs provider ibverbs", ""},
		{upstream("ibverbs: {traffic_class: 104}"), "provider ibverbs", ""},
		{upstream("provider: ibverbs, ibverbs: {traffic_class: 0}"), "0 is not greater than 0", ""},
		{upstream("provider: ibverbs, ibverbs: {traffic_class: 256}"), "256 is too large; write at most 255", ""},
		{upstream("provider: ibverbs, ibverbs: {traffic_class: -1}"), "-1", ""},
		{upstream("provider: ibverbs, ibverbs: {port: 255}"), "255 is too large; write at most 254", ""},
		{upstream("provider: ibverbs, ibverbs: {busy_poll: 10ms}"), "", ""},
		{listens("provider: ibverbs, ibverbs: {busy_poll: 50us}"), "", ""},
		{upstream("provider: ibverbs, ibverbs: {busy_poll: none}"), "", ""},
		{upstream("provider: ibverbs, ibverbs: {busy_poll: 11ms}"), "upstreams[0].ibverbs.busy_poll: 11ms is too long; write at most 10ms, or none", ""},
		{upstream("provider: ibverbs, ibverbs: {busy_poll: 0s}"), "not greater than 0", ""},
		{upstream("provider: ibverbs, ibverbs: {port: 0}"), "0 is not greater than 0", ""},
		{upstream("provider: ibverbs, ibverbs: {device: ../x}"), `"../x" is not the name of an RDMA device`, ""},
		{upstream("provider: ibverbs, ibverbs: {device: '..'}"), `".." is not the name of an RDMA device`, ""},
		{upstream("provider: ibverbs, ibverbs: {gid: '3'}"), `"3" is not a GID`, ""},
		{upstream("provider: ibverbs, ibverbs: {gid: '::'}"), `"::" is not a GID`, ""},
		{upstream("provider: ibverbs, ibverbs: {gid: 'fe80::1%eth0'}"), "is not a GID", ""},
		{upstream("provider: unbuilt, ibverbs: {device: mlx5_1}"), "unbuilt", ""},
	} {
		asked := ""
		k := examplesKnown()
		k.IBVerbs = func(v IBVerbs, listen string) error {
			asked += fmt.Sprintf("%s %d %s %d %q", v.Device, v.Port, v.GID, v.TrafficClass, listen)
			if v.Device == "mlx5_9" {
				return errors.New("no mlx5_9 here")
			}
			return nil
		}
		if _, err := Load([]byte(tc.file), k); (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s\n%v, want %q", tc.file, err, tc.want)
		}
		if asked != tc.asked {
			t.Errorf("%s\nthe host was asked about %s, want %s", tc.file, asked, tc.asked)
		}
	}
}
