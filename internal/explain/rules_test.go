package explain

import (
	"net/netip"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/capture"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rules"
)

// TestRules: the client of a Call in a capture is its sender, if the Call goes to the listener's port, and another one
// if the command line says so.
func TestRules(t *testing.T) {
	set, err := rules.Compile([]rules.Rule{
		{Name: "here", Clients: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")}, Privileged: rules.PrivilegedPort, Action: rules.Allow},
		{Name: "counted", DryRun: true, Action: rules.Deny},
	})
	if err != nil {
		t.Fatal(err)
	}
	message := func(from, to string) *capture.Message {
		return &capture.Message{Stream: &capture.Stream{From: netip.MustParseAddrPort(from), To: netip.MustParseAddrPort(to)}}
	}
	other := rules.Client{Address: netip.MustParseAddr("10.0.0.1")}
	for _, tt := range []struct {
		name    string
		m       *capture.Message
		client  rules.Client
		port    uint16
		sees    string // the client; "" if nothing is said
		matches []bool
	}{
		{"the sender", message("192.0.2.1:700", "192.0.2.2:2049"), rules.Client{}, 2049, "192.0.2.1:700", []bool{true}},
		{"from another port", message("[::ffff:192.0.2.1]:7000", "192.0.2.2:2049"), rules.Client{}, 2049, "192.0.2.1:7000", []bool{false, true}},
		{"to another port", message("192.0.2.1:700", "192.0.2.2:20049"), rules.Client{}, 2049, "", nil},
		{"the listener's port is not known", message("192.0.2.1:700", "192.0.2.2:1"), rules.Client{}, 0, "192.0.2.1:700", []bool{true}},
		{"another client", message("192.0.2.1:700", "192.0.2.2:1"), other, 2049, "10.0.0.1", []bool{false, true}},
		{"no addresses", new(capture.Message), rules.Client{}, 2049, "", nil},
	} {
		r := Rules{Listener: "nfs", Port: tt.port, Set: set, Client: tt.client}
		d := r.judge(tt.m, new(oncrpc.Call), false)
		if d == nil {
			if tt.sees != "" {
				t.Errorf("%s: nothing is said", tt.name)
			}
			continue
		}
		if d.Client != tt.sees || len(d.Rules) != len(tt.matches) {
			t.Errorf("%s: %+v", tt.name, d)
			continue
		}
		for i, want := range tt.matches {
			if d.Rules[i].Matches != want || want == (d.Rules[i].Why != "") {
				t.Errorf("%s: rule %d: %+v", tt.name, i, d.Rules[i])
			}
		}
		if want := map[bool]string{true: "allow", false: "allow, because no rule matches"}[tt.matches[0]]; d.Effect != want {
			t.Errorf("%s: effect %q", tt.name, d.Effect)
		}
	}
}
