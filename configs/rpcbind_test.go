package configs

import (
	"strings"
	"testing"
)

func TestRPCBind(t *testing.T) {
	c, err := Load([]byte(minimal+"rpcbind: {address: 0.0.0.0:111, allow: [10.0.0.0/8]}\n"), testKnown())
	if err != nil {
		t.Fatal(err)
	}
	if b := c.RPCBind; !b.Enabled() || b.Address != "0.0.0.0:111" || len(b.Allow) != 1 || b.Allow[0].String() != "10.0.0.0/8" {
		t.Errorf("rpcbind = %+v", b)
	}
	for _, text := range []string{"", "rpcbind:\n", "rpcbind: {}\n", "rpcbind: {address: none}\n"} {
		if c, err := Load([]byte(minimal+text), testKnown()); err != nil || c.RPCBind.Enabled() {
			t.Errorf("%q: enabled, %v", text, err)
		}
	}
	for _, tc := range []struct{ text, want string }{
		{"rpcbind: {address: nowhere}", `line 10: rpcbind.address: "nowhere" has no port; write nowhere:111`},
		{"rpcbind: {address: ':70000'}", `line 10: rpcbind.address: ":70000" has the port 70000, which is too large; write a number up to 65535`},
		{"rpcbind: {address: ':2049'}", `line 10: rpcbind.address: :2049 overlaps with listeners[0].address, 127.0.0.1:2049; write another port`},
		{"rpcbind: {address: ':9090'}", `admin.address: 127.0.0.1:9090 overlaps with rpcbind.address, :9090; write another port`},
		{"rpcbind: {allow: [10.0.0.0/8]}", `line 10: rpcbind.allow: this setting needs rpcbind.address; write an address, or remove this setting`},
		{"rpcbind: {allow: [here]}", `line 10: rpcbind.allow[0]: "here" is neither a network nor an address; write one such as 10.0.0.0/8 or 192.0.2.7`},
		{"rpcbind: 111", `line 10: rpcbind: write settings (name: value), not 111; known here: address, allow`},
		{"rpcbind: {port: 111}", `line 10: rpcbind.port: unknown setting; known here: address, allow`},
	} {
		if _, err := Load([]byte(minimal+tc.text+"\n"), testKnown()); err == nil || err.Error() != tc.want {
			t.Errorf("%s: %v, want %s", tc.text, err, tc.want)
		}
	}
	// The metrics of rpcbind have that name.
	named := strings.Replace(minimal, "name: nfs", "name: rpcbind", 1)
	if _, err := Load([]byte(named), testKnown()); err != nil {
		t.Error(err)
	}
	if _, err := Load([]byte(named+"rpcbind: {address: ':111'}\n"), testKnown()); err == nil ||
		err.Error() != "line 3: listeners[0].name: rpcbind names the metrics of rpcbind.address; write another name" {
		t.Errorf("a listener of the same name: %v", err)
	}
}
