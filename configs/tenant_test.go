package configs

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// Tenants and what Load says of them.
func TestTenants(t *testing.T) {
	k := testKnown()
	k.TLSName = func(name string) error {
		if strings.Contains(name, "!") {
			return errors.New(name + " is no name")
		}
		return nil
	}
	many := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "{name: t%d, clients: [10.%d.%d.0/24]}, ", i, i/256, i%256)
		}
		return b.String()
	}
	for _, tt := range []struct{ name, tenants, want string }{
		{"none", "", ""},
		{"by address", "{name: a, clients: [10.0.0.0/8, 192.0.2.7, '2001:db8::/32']}", ""},
		{"by name", "{name: a, tls_names: ['*.example.com']}", ""},
		{"by neither", "{name: a, weight: 2}", "tenants[0]: no client matches this tenant; write clients, tls_names or both"},
		{"empty lists", "{name: a, clients: [], tls_names: []}", "tenants[0]: no client matches this tenant; write clients, tls_names or both"},
		{"a network that is none", "{name: a, clients: [10.0.0.0/33]}", `tenants[0].clients[0]: "10.0.0.0/33" is neither a network nor an address; write one such as 10.0.0.0/8 or 192.0.2.7`},
		{"a name that is none", "{name: a, tls_names: [ok, '!']}", "tenants[0].tls_names[1]: ! is no name"},
		{"no name", "{clients: [10.0.0.0/8]}", "tenants[0].name: this setting is required; write it, such as name: customer-a"},
		{"a name that is no label", "{name: 'a b', clients: [10.0.0.0/8]}", `tenants[0].name: "a b" is not a name; write at most 63 of the letters a to z, A to Z, digits, and - _ .`},
		{"one name twice", "{name: a, clients: [10.0.0.0/8]}, {name: a, clients: [11.0.0.0/8]}", "tenants[1].name: tenants[0] in line 3 has the name a too; write another name"},
		{"the narrow before the wide", "{name: a, clients: [10.1.0.0/16]}, {name: b, clients: [10.0.0.0/8]}", ""},
		{"the wide before the narrow", "{name: a, clients: [10.0.0.0/8]}, {name: b, clients: [192.0.2.1, 10.1.0.0/16]}", "tenants[1].clients[1]: an earlier tenant matches all of 10.1.0.0/16; remove one of the two"},
		{"the same network twice", "{name: a, clients: [10.0.0.0/8]}, {name: b, clients: [10.0.0.0/8]}", "tenants[1].clients[0]: an earlier tenant matches all of 10.0.0.0/8; remove one of the two"},
		{"one tenant's networks overlap", "{name: a, clients: [10.0.0.0/8, 10.1.0.0/16]}", ""},
		{"every address, of two families", "{name: a, clients: [0.0.0.0/0]}, {name: b, clients: ['::/0']}", ""},
		{"as many as there may be", many(maxTenants), ""},
		{"one more", many(maxTenants + 1), "tenants: there are 257 tenants; write at most 256"},
		{"an unknown setting", "{name: a, clients: [10.0.0.0/8], total: {call: 1}}", "tenants[0].total.call: unknown setting; did you mean calls?"},

		{"the least", "{name: a, clients: [10.0.0.0/8], weight: 1, total: {connections: 1, calls: 1, memory: 1MiB, rate: {calls: 1, bytes: 64KiB, connections: 1}}}", ""},
		{"the most", "{name: a, clients: [10.0.0.0/8], weight: 100, total: {connections: 1048576, calls: 1048576, memory: 1024GiB, rate: {calls: 10000000, bytes: 1024GiB, connections: 1000000}}}", ""},
		{"less", "{name: a, clients: [10.0.0.0/8], weight: 0}", "tenants[0].weight: 0 is not greater than 0; write a whole number from 1"},
		{"no Calls", "{name: a, clients: [10.0.0.0/8], address: {calls: 0}}", "tenants[0].address.calls: 0 is not greater than 0; write a whole number from 1"},
		{"little memory", "{name: a, clients: [10.0.0.0/8], total: {memory: 1048575}}", "tenants[0].total.memory: 1048575B is out of range; write a size from 1MiB to 1024GiB"},
		{"a slow rate", "{name: a, clients: [10.0.0.0/8], address: {rate: {bytes: 65535}}}", "tenants[0].address.rate.bytes: 65535B is out of range; write a size from 64KiB to 1024GiB"},
		{"more", "{name: a, clients: [10.0.0.0/8], weight: 101, total: {connections: 1048577, calls: 1048577, memory: 1025GiB, rate: {calls: 10000001, connections: 1000001}}}", `
			tenants[0].total.calls: 1048577 is too large; write at most 1048576
			tenants[0].total.connections: 1048577 is too large; write at most 1048576
			tenants[0].total.memory: 1025GiB is out of range; write a size from 1MiB to 1024GiB
			tenants[0].total.rate.calls: 10000001 is too large; write at most 10000000
			tenants[0].total.rate.connections: 1000001 is too large; write at most 1000000
			tenants[0].weight: 101 is too large; write at most 100`},

		{"an address has what the tenant has", "{name: a, clients: [10.0.0.0/8], total: {connections: 9, calls: 9, memory: 9MiB, rate: {connections: 9}}, address: {connections: 9, calls: 9, memory: 9MiB, rate: {connections: 9}}}", ""},
		{"an address has more", "{name: a, clients: [10.0.0.0/8], total: {connections: 9, calls: 9, memory: 9MiB, rate: {connections: 9}}, address: {connections: 10, calls: 10, memory: 10MiB, rate: {connections: 10}}}", `
			tenants[0].address.calls: 10 is more than total.calls, which is 9; write at most 9
			tenants[0].address.connections: 10 is more than total.connections, which is 9; write at most 9
			tenants[0].address.memory: 10MiB is more than total.memory, which is 9MiB; write at most 9MiB
			tenants[0].address.rate.connections: 10 is more than total.rate.connections, which is 9; write at most 9`},
		{"an address has limits, and the tenant has none", "{name: a, clients: [10.0.0.0/8], address: {connections: 10, calls: 10, memory: 10MiB, rate: {connections: 10}}}", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			loadSays(t, k, "tenants: ["+strings.TrimSuffix(tt.tenants, ", ")+"]", tt.want)
		})
	}
}

// loadSays checks what Load says of a file with a further setting, which is a single line. want has a line for each problem.
func loadSays(t *testing.T, k Known, setting, want string) {
	t.Helper()
	_, err := Load([]byte(head+tail+setting+"\n"), k)
	var lines, got []string
	for line := range strings.Lines(want) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, "line 3: "+line)
		}
	}
	if err != nil {
		got = strings.Split(err.Error(), "\n")
	}
	if !slices.Equal(got, lines) {
		t.Errorf("Load says\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(lines, "\n"))
	}
}
