package configs

import (
	"slices"
	"strings"
	"testing"
)

func TestNLM(t *testing.T) {
	c, err := Load([]byte(minimal+"nlm: {address: 0.0.0.0:4045, server: storage.example, server_port: 32803, name: bridge.example, state: /var/lib/rdmabridge, mount: udp, allow: [10.0.0.0/8]}\n"), testKnown())
	if err != nil {
		t.Fatal(err)
	}
	n := c.NLM
	if !n.Enabled() || n.InMemory() || n.Address != "0.0.0.0:4045" || n.Server != "storage.example" || n.ServerPort != 32803 ||
		n.Name != "bridge.example" || n.State != "/var/lib/rdmabridge" || !n.OffersMount() || len(n.Allow) != 1 {
		t.Errorf("nlm = %+v", n)
	}
	for _, text := range []string{"", "nlm:\n", "nlm: {}\n", "nlm: {address: none}\n"} {
		if c, err := Load([]byte(minimal+text), testKnown()); err != nil || c.NLM.Enabled() {
			t.Errorf("%q: enabled, %v", text, err)
		}
	}
	if c, err := Load([]byte(minimal+"nlm: {address: ':4045', server: s}\n"), testKnown()); err != nil || c.NLM.OffersMount() {
		t.Errorf("MOUNT is offered by default, or %v", err)
	}
	for _, good := range []string{"server: '2001:db8::5'", "server: 10.1.0.5, state: none"} {
		if _, err := Load([]byte(minimal+"nlm: {address: ':4045', "+good+"}\n"), testKnown()); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, tc := range []struct{ text, want string }{
		{"nlm: {address: ':4045'}", `line 10: nlm.server: this setting is required; write it, such as server: 10.1.0.5`},
		{"nlm: {server: 10.1.0.5}", `line 10: nlm.server: this setting needs nlm.address; write that, or remove this setting`},
		{"nlm: {address: ':9090', server: s}", `admin.address: 127.0.0.1:9090 overlaps with nlm.address, :9090; write another port`},
		{"nlm: {address: nowhere, server: s}", `line 10: nlm.address: "nowhere" has no port; write nowhere:4045`},
		{"nlm: {address: 4045, server: s}", `line 10: nlm.address: 4045 is not an address; write 127.0.0.1:4045, or ":4045" for every address of this host`},
		{"nlm: {address: ':4045', server: 's:32803'}", `line 10: nlm.server: s:32803 is not the name or the address of a host; write s, and server_port: 32803 if the storage's rpcbind does not know the port of its lock manager`},
		{"nlm: {address: ':4045', server: 0.0.0.0}", `line 10: nlm.server: 0.0.0.0 stands for every address of a host; write the one of the storage`},
		{"nlm: {address: ':4045', server: 10.1.0}", `line 10: nlm.server: 10.1.0 is not an IPv4 address; write four numbers from 0 to 255`},
		{"nlm: {address: ':4045', server: s, server_port: 70000}", `line 10: nlm.server_port: 70000 is too large; write at most 65535`},
		{"nlm: {address: ':4045', server: s, name: 'a b'}", `line 10: nlm.name: "a b" is not the name of a host; write one such as bridge.example`},
		{"nlm: {address: ':4045', server: s, mount: tcp}", `line 10: nlm.mount: "tcp" is not possible here; write none or udp`},
		{"nlm: {mount: udp}", `line 10: nlm.mount: this setting needs nlm.address; write that, or remove this setting`},
		{"nlm: {address: ':4045', server: s, state: locks}", `line 10: nlm.state: "locks" is not an absolute path; write that of a directory, such as /var/lib/rdmabridge, or none`},
	} {
		if _, err := Load([]byte(minimal+tc.text+"\n"), testKnown()); err == nil || err.Error() != tc.want {
			t.Errorf("%s: %v\nwant %s", tc.text, err, tc.want)
		}
	}
	routed := strings.Replace(minimal, "upstream: storage", "upstream: storage\n    routes: [{program: mount, upstream: storage}, {program: nlm, upstream: storage}, {program: 100024, upstream: storage}]", 1)
	if _, err := Load([]byte(routed+"nlm: {address: ':4045', server: s}\n"), testKnown()); err == nil ||
		err.Error() != "line 6: listeners[0].routes[1].program: nlm.address answers this program; remove the route\nline 6: listeners[0].routes[2].program: nlm.address answers this program; remove the route" {
		t.Errorf("with routes: %v", err)
	}
	const lost = `line 10: nlm.address: clients, and the storage's lock manager, ask the bridge's port 111 where its lock manager is, and rpcbind.address is none; write rpcbind: {address: "0.0.0.0:111"}`
	for text, want := range map[string]bool{"": true, "rpcbind: {address: ':111'}\n": false} {
		c, err := Load([]byte(minimal+"nlm: {address: ':4045', server: s}\n"+text), testKnown())
		if err != nil {
			t.Fatal(err)
		}
		if slices.Contains(c.Warnings(), lost) != want {
			t.Errorf("%q: warnings %q", text, c.Warnings())
		}
	}
}
