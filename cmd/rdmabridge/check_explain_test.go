package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/rdmabridge/rdmabridge/configs"
)

// TestCheckExplain: check --explain says which rule matches which Calls of a client, and why.
func TestCheckExplain(t *testing.T) {
	c, err := configs.Load([]byte(`
listeners:
  - name: nfs
    address: :2049
    upstream: s
    squash: {mode: root}
    rules:
      - {name: admins, clients: [10.9.0.0/24], privileged: on, action: allow, squash: off}
      - {name: roots, uids: [0-9, 65534], gids: [5], flavors: [sys], action: deny, dry_run: on}
      - {name: readers, clients: [10.2.0.0/16], class: changing, action: deny}
      - {name: mounts, programs: [mount], procedures: [MNT], versions: [3], action: upstream, upstream: s}
      - {name: balanced, proxies: [192.0.2.1], action: deny, answer: close}
      - {name: inside, clients: [10.0.0.0/8], action: allow}
      - {name: rest, action: deny}
  - {name: tight, address: ":2050", upstream: s, allow: [10.9.0.0/24], privileged: required}
upstreams: [{name: s, transport: tcp, endpoints: ["h:1"]}]
`), known)
	if err != nil {
		t.Fatal(err)
	}
	const roots = "  rules[1] roots: matches Calls with credentials sys, of users 0-9, 65534, of groups 5: only counted (dry run of: deny: AUTH_TOOWEAK)\n"
	const mounts = "  rules[3] mounts: matches Calls for mount version 3 procedure 1: upstream s\n"
	const squash = "  squash: root, to user 65534 and group 65534, unless a rule says otherwise\n"
	for _, tt := range []struct {
		of   explainedClient
		want string
	}{
		{explainedClient{client: "10.9.0.7:800"}, `listener nfs, tcp, :2049: client 10.9.0.7:800
  rules[0] admins: matches all Calls: allow, no user is mapped
` + squash + `listener tight, tcp, :2050: client 10.9.0.7:800
  no rule matches the other Calls: allow
`},
		{explainedClient{client: "10.9.0.7"}, `listener nfs, tcp, :2049: client 10.9.0.7
  rules[0] admins: never matches: privileged: the client's port is not known
` + roots + `  rules[2] readers: never matches: clients 10.2.0.0/16 do not have 10.9.0.7
` + mounts + `  rules[4] balanced: never matches: proxies: the client has connected itself
  rules[5] inside: matches all Calls: allow
` + squash + `listener tight, tcp, :2050: client 10.9.0.7
  refused when it connects: privileged is required, and the port is not known; give it, as in 10.9.0.7:800
`},
		{explainedClient{client: "10.2.1.1:3000", proxy: "192.0.2.1"}, `listener nfs, tcp, :2049: client 10.2.1.1:3000
  rules[0] admins: never matches: clients 10.9.0.0/24 do not have 10.2.1.1
` + roots + `  rules[2] readers: matches Calls that may change files: deny: read-only file system
` + mounts + `  rules[4] balanced: matches all Calls: deny: the connection is closed
` + squash + `listener tight, tcp, :2050: client 10.2.1.1:3000
  refused when it connects: its address is not in allow
`},
	} {
		var b bytes.Buffer
		if err := explainClient(&b, c, &tt.of); err != nil || b.String() != tt.want {
			t.Errorf("%+v: %v\n%s\nwant\n%s", tt.of, err, b.String(), tt.want)
		}
	}
	for _, bad := range []explainedClient{{client: "host"}, {client: "10.0.0.1:x"}, {client: "10.0.0.1", proxy: "y"}} {
		if err := explainClient(&bytes.Buffer{}, c, &bad); err == nil || !strings.Contains(err.Error(), "--") {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}
