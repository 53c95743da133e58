package configs

import (
	"strings"
	"testing"
)

const (
	head = "listeners: [{name: l, address: ':1', upstream: s}]\n"
	tail = "upstreams: [{name: s, transport: tcp, endpoints: ['h:1']}]\n"
)

// badFiles are files with everything that Load says about them.
var badFiles = []struct{ name, file, want string }{
	{"empty", "", `
		listeners: the file has no listener; write at least one
		upstreams: the file has no upstream; write at least one`},
	{"a list", "- a\n", `
		line 1: this is no setting; write name: value`},
	{"syntax", "listeners: [\n", `
		line 1: a list [ ] or settings { } have no end; write ] or }
		     1 | listeners: [
		       |             ^`},
	{"tab", "listeners:\n\t- name: x\n", `
		line 2: a tab indents this line; write spaces
		     2 | TAB- name: x
		       | ^`},
	{"twice", head + tail + "log: {}\nlog: {}\n", `
		line 4: log: line 3 has this setting already; remove one of the two`},
	{"twice in two cases", head + tail + "log: {level: info}\nLog: {level: warn}\n", `
		line 4: log: line 3 has this setting already; remove one of the two`},
	{"merges without anchors", head + tail + "log:\n  <<: base\ndrain: {<<: [base]}\n", `
		line 4: map merge requires map or sequence of maps as the value
		line 4: log: << merges settings from an anchor; write one such as *base
		line 5: drain: << merges settings from an anchor; write one such as *base`},
	{"two documents", head + tail + "---\nlog: {}\n", `
		line 3: a second YAML document begins here; write only one`},
	{"unknown", head + tail + "lgo: {level: info}\nmemory: {bugdet: 1GiB, x: null}\nlog.level: debug\n", `
		line 3: lgo: unknown setting; did you mean log?
		line 4: memory.bugdet: unknown setting; did you mean budget?
		line 4: memory.x: unknown setting; known here: budget
		line 5: log.level: a dot does not lead into a section; write log: {level: ...}`},
	{"unknown deep", `
listeners:
  - name: l
    adress: :1
    upstream: s
    routes:
      - {program: nfs, version: [3], upstream: s}
` + tail, `
		line 3: listeners[0].address: this setting is required; write it, such as address: 0.0.0.0:2049
		line 4: listeners[0].adress: unknown setting; did you mean address?
		line 7: listeners[0].routes[0].version: unknown setting; did you mean versions?`},
	{"wrong kinds", `
listeners: {name: l}
upstreams:
  - name: 7
    transport: [tcp]
    endpoints: h:1
    pool: 4
    timeouts: {call: {}}
loops: many
log: json
`, `
		line 2: listeners: write a list, with - before each entry, not settings
		line 4: upstreams[0].name: write text, in quotes, not 7
		line 5: upstreams[0].transport: write text, not a list
		line 6: upstreams[0].endpoints: write a list, such as ["h:1"], not "h:1"
		line 7: upstreams[0].pool: write settings (name: value), not 4; known here: connections, credits, gss_window, idle, mode, pinned, pinned_calls, share
		line 8: upstreams[0].timeouts.call: write a single value, not settings
		line 9: loops: write a whole number, not "many"
		line 10: log: write settings (name: value), not "json"; known here: access, audit, format, level`},
	{"sizes", head + tail + "memory: {budget: 1GB3}\n", `
		line 3: memory.budget: "1GB3" is not a size; write one such as 4096, 64KiB, 1MiB or 1GiB`},
	{"size too large", head + tail + "memory: {budget: 9999999999GiB}\n", `
		line 3: memory.budget: "9999999999GiB" is too large for a size; write one such as 64KiB, 1MiB or 1GiB`},
	{"size zero", head + tail + "memory: {budget: 0}\n", `
		line 3: memory.budget: "0" is not greater than 0; write a size such as 4096, 64KiB, 1MiB or 1GiB`},
	{"size fraction", head + tail + "memory: {budget: 1.5GiB}\n", `
		line 3: memory.budget: "1.5GiB" is not a size; write one such as 4096, 64KiB, 1MiB or 1GiB`},
	{"durations", head + tail + "drain: {timeout: 30}\n", `
		line 3: drain.timeout: "30" has no unit; write one such as 30ms or 30s`},
	{"duration negative", head + tail + "drain: {timeout: -1s}\n", `
		line 3: drain.timeout: "-1s" is not greater than 0; write a duration such as 500ms, 5s or 1m30s`},
	{"duration none", head + tail + "drain: {timeout: none}\n", `
		line 3: drain.timeout: none is not possible here; write a duration such as 30s`},
	{"control", head + tail + "control: {path: run/c.sock}\n", `
		line 3: control.path: "run/c.sock" is not an absolute path; write one such as /run/rdmabridge/control.sock`},
	{"control and hand-over", head + tail + "control: {path: /run/a}\nhandover: {path: /run/./a}\n", `
		line 3: control.path: /run/a is handover.path, too; write another path`},
	{"counts", head + tail + "loops: 0\n", `
		line 3: loops: 0 is not greater than 0; write a whole number from 1`},
	{"polling", head + tail + "busy_poll: 11ms\n", `
		line 3: busy_poll: 11ms is too long; write at most 10ms, or none`},
	{"words", head + tail + "log: {level: loud, format: xml}\n", `
		line 3: log.format: "xml" is not possible here; write auto, json or console
		line 3: log.level: "loud" is not possible here; write debug, info, warn or error`},
	{"names", head + tail + "names: {mode: on, memory: 1KiB, redact: some, hide: ['*.key', '[', a/b, ''], metrics: [/a, home, /a/]}\n", `
		line 3: names.hide[1]: "[" has a bracket or a backslash without what belongs to it; write a pattern such as secret-*
		line 3: names.hide[2]: "a/b" has a slash, and a pattern is for one part of a path; write one such as secret-*
		line 3: names.hide[3]: a pattern is missing; write one such as secret-*
		line 3: names.memory: 1KiB is out of range; write a size from 1MiB to 4GiB
		line 3: names.metrics[1]: "home" is not the path of an export; write one such as /home
		line 3: names.metrics[2]: "/a/" is not the path of an export; write one such as /home
		line 3: names.redact: "some" is not possible here; write none or hash`},
	{"audit log", head + tail + "log: {audit: {operations: [writes], path: audit.log, on_failure: deny}}\n", `
		line 3: log.audit.operations[0]: "writes" is not possible here; write changes, opens or denials
		line 3: log.audit.path: "audit.log" is not an absolute path; write one such as /var/log/rdmabridge/audit.log`},
	{"audit log to syslog", head + tail + "log: {audit: {operations: [changes], output: syslog, path: /a, syslog: 'udp://loghost'}}\n", `
		line 3: log.audit.path: this setting needs log.audit.output: file; remove one of them
		line 3: log.audit.syslog: "udp://loghost" is not a server of syslog; write /dev/log, or one such as udp://loghost:514 or tcp://loghost:601`},
	{
		"too many exports with metrics", head + tail + "names: {metrics: [/a" + strings.Repeat(", /a", 64) + "]}\n",
		"\n		line 3: names.metrics: 65 exports are too many; write at most 64",
	},
	{"audit log of exports", head + tail + "log: {audit: {operations: [changes], path: /a, exports: [home, /a/]}}\n", `
		line 3: log.audit.exports[0]: "home" is not the path of an export; write one such as /home
		line 3: log.audit.exports[1]: "/a/" is not the path of an export; write one such as /home`},
	{"audit log and access log", head + tail + "log: {access: {path: /a}, audit: {operations: [changes], path: /./a}}\n", `
		line 3: log.audit.path: /./a is log.access.path, too; write another path`},
	{"audit log off", head + tail + "log: {audit: {path: /a, on_failure: some}}\n", `
		line 3: log.audit.on_failure: "some" is not possible here; write drop or deny
		line 3: log.audit.path: this setting needs log.audit.operations; write some, such as [changes], or remove this setting`},
	{"access log", head + tail + "log: {access: {mode: some, slower: none, sample: 2, path: access.log}}\ntracing: {endpoint: 'collector:4318', sample: 0%}\n", `
		line 3: log.access.mode: "some" is not possible here; write off, failed, slow, sampled or all
		line 3: log.access.path: "access.log" is not an absolute path; write stderr, or a path such as /var/log/rdmabridge/access.log
		line 3: log.access.sample: "2" is not a share; write one above 0 and up to 1, such as 1% or 0.01
		line 3: log.access.slower: none is not possible here; write a duration such as 30s
		line 4: tracing.endpoint: "collector:4318" is not the URL of a collector; write one such as http://127.0.0.1:4318, or none
		line 4: tracing.sample: "0%" is not a share; write one above 0 and up to 1, such as 1% or 0.01`},
	{"addresses", `
listeners:
  - {name: a, address: nowhere, upstream: s}
  - {name: b, address: ':70000', upstream: s}
  - {name: c, address: ':2049', upstream: s}
  - {name: d, address: '127.0.0.1:2049', upstream: s}
  - {name: e, address: '0.0.0.0:2050', upstream: s}
  - {name: f, address: '[::1]:2050', upstream: s}
  - {name: g, address: '127.0.0.1:2050', upstream: s}
upstreams:
  - {name: s, transport: tcp, endpoints: [':1', 'h:0', 'h:1', 'h:1', '::1:9']}
admin: {address: 0.0.0.0:2049}
`, `
		line 3: listeners[0].address: "nowhere" has no port; write nowhere:2049
		line 4: listeners[1].address: ":70000" has the port 70000, which is too large; write a number up to 65535
		line 6: listeners[3].address: 127.0.0.1:2049 overlaps with listeners[2].address, :2049; write another port
		line 9: listeners[6].address: 127.0.0.1:2050 overlaps with listeners[4].address, 0.0.0.0:2050; write another port
		line 11: upstreams[0].endpoints[0]: ":1" has no host; write the server's, such as 10.1.0.5:1
		line 11: upstreams[0].endpoints[1]: "h:0" has port 0; write the port of the server, such as h:2049
		line 11: upstreams[0].endpoints[3]: endpoints[2] is h:1 too; write each endpoint once
		line 11: upstreams[0].endpoints[4]: "::1:9" is an IPv6 address without brackets and port; write "[::1:9]:2049", in quotes
		line 12: admin.address: 0.0.0.0:2049 overlaps with listeners[2].address, :2049; write another port`},
	{"TLS", `
listeners:
  - {name: a, address: ':1', upstream: s, tls: {mode: required}}
  - {name: b, address: ':2', upstream: s, tls: {certificate: /c}}
  - {name: c, address: ':3', upstream: s, tls: {mode: optional, certificate: c, client: {ca: ca}}}
  - {name: d, address: ':4', upstream: s, tls: {mode: optional, certificate: /c, client: {mode: request}}}
  - {name: e, address: ':5', upstream: s, tls: {mode: optional, certificate: /c, client: {names: [a]}}}
  - {name: f, address: ':6', upstream: s, tls: {mode: on, client: {mode: yes}}}
  - {name: g, address: ':7', upstream: r, transport: rdma, tls: {mode: off}}
upstreams:
  - {name: s, transport: tcp, endpoints: ['h:1'], tls: {mode: required, key: /k, crl: /l}}
  - {name: t, transport: tcp, endpoints: ['h:2'], tls: {ca: /c}}
  - {name: r, transport: rdma, endpoints: ['h:3'], tls: {mode: required}}
`, `
		line 3: listeners[0].tls.certificate: this setting is required; write it, such as certificate: /etc/rdmabridge/tls.pem
		line 4: listeners[1].tls.certificate: this setting needs mode optional or required; write that, or remove this setting
		line 5: listeners[2].tls.certificate: "c" is not an absolute path; write one such as /etc/rdmabridge/tls/server.pem
		line 5: listeners[2].tls.client.ca: "ca" is not an absolute path; write one such as /etc/rdmabridge/tls/server.pem
		line 6: listeners[3].tls.client.ca: this setting is required; write the path of a PEM file with the CAs that sign the certificates of clients
		line 7: listeners[4].tls.client.names: this setting needs mode request or require; write that, or remove this setting
		line 8: listeners[5].tls.mode: "on" is not possible here; write off, optional or required
		line 9: listeners[6].tls: RPC-with-TLS is for tcp; what protects RDMA is a private network, IPsec or MACsec below it, or krb5p in NFS: see docs/tls.md; remove this setting
		line 11: upstreams[0].tls.crl: this setting needs ca; write that, or remove this setting
		line 11: upstreams[0].tls.key: this setting needs certificate; write that, or remove this setting
		line 12: upstreams[1].tls.ca: this setting needs mode optional or required; write that, or remove this setting
		line 13: upstreams[2].tls: RPC-with-TLS is for tcp; what protects RDMA is a private network, IPsec or MACsec below it, or krb5p in NFS: see docs/tls.md; remove this setting`},
	{"TLS handshakes", head + tail + "tls: {handshakes: 65537, waiting: 1048577}\n", `
		line 3: tls.handshakes: 65537 is too large; write at most 65536
		line 3: tls.waiting: 1048577 is too large; write at most 1048576`},
	{"no TLS handshakes", head + tail + "tls: {handshakes: 0, waiting: none, mode: required}\n", `
		line 3: tls.handshakes: 0 is not greater than 0; write a whole number from 1
		line 3: tls.mode: unknown setting; known here: handshakes, waiting
		line 3: tls.waiting: write a whole number, not "none"`},
	{"the most TLS handshakes", head + tail + "tls: {handshakes: 65536, waiting: 1048576}\nloops: 0\n", `
		line 4: loops: 0 is not greater than 0; write a whole number from 1`},
	{"whole Calls", `
listeners:
  - {name: a, address: ':1', upstream: s, timeouts: {request: 999ms}}
  - {name: b, address: ':2', upstream: s, timeouts: {request: 1s}}
  - {name: c, address: ':3', upstream: s, timeouts: {request: none}}
  - {name: d, address: ':4', upstream: s, timeouts: {request: 0s}}
  - {name: e, address: ':5', upstream: s, transport: rdma, timeouts: {request: 10s}}
upstreams:
  - {name: s, transport: tcp, endpoints: ['h:1']}
`, `
		line 3: listeners[0].timeouts.request: 999ms is too short; write at least 1s, or none
		line 6: listeners[3].timeouts.request: "0s" is not greater than 0; write a duration such as 500ms, 5s or 1m30s
		line 7: listeners[4].timeouts.request: this setting needs transport tcp; write that, or remove this setting`},
	{"names", `
listeners:
  - {name: a, address: ':1', upstream: s}
  - {name: a, address: ':2', upstream: t}
  - {name: 'a b', address: ':3'}
upstreams:
  - {name: s, transport: tcp, endpoints: ['h:1']}
  - {name: s, transport: tcp, endpoints: ['h:2']}
  - {transport: quic}
`, `
		line 4: listeners[1].name: listeners[0] in line 3 has the name a too; write another name
		line 4: listeners[1].upstream: no upstream is named "t"; write s, or add one
		line 5: listeners[2].name: "a b" is not a name; write at most 63 of the letters a to z, A to Z, digits, and - _ .
		line 5: listeners[2].upstream: the listener has no destination for its Calls; write an upstream, or at least one route
		line 8: upstreams[1].name: upstreams[0] in line 7 has the name s too; write another name
		line 9: upstreams[2].endpoints: the list is empty; write at least one address
		line 9: upstreams[2].name: this setting is required; write it, such as name: storage
		line 9: upstreams[2].transport: "quic" is not possible here; write rdma or tcp`},
	{"routes", `
listeners:
  - name: l
    address: :1
    routes:
      - {program: mount, versions: [1, 2], upstream: s}
      - {program: 100005, versions: [2], upstream: s}
      - {program: mount, upstream: s}
      - {program: mount, versions: [3], upstream: s}
      - {program: fnord, upstream: s}
      - {program: nfs, versions: [-3], upstream: gone}
      - {}
` + tail, `
		line 7: listeners[0].routes[1]: no Call reaches this route, because routes[0] matches program 100005 first; remove one of the two
		line 9: listeners[0].routes[3]: no Call reaches this route, because routes[0] matches program mount first; remove one of the two
		line 10: listeners[0].routes[4].program: "fnord" is not an RPC program; write a name such as nfs or mount, or a number
		line 11: listeners[0].routes[5].upstream: no upstream is named "gone"; write s, or add one
		line 11: listeners[0].routes[5].versions[0]: write a whole number up to 4294967295, not -3
		line 12: listeners[0].routes[6].program: this setting is required; write it, such as program: mount
		line 12: listeners[0].routes[6].upstream: this setting is required; write it, such as upstream: storage`},
	{"allow", `
listeners: [{name: l, address: ':1', upstream: s, allow: [10.1.2.3/8, 10.0.0.0/33, here, 192.0.2.7, '2001:db8::/32']}]
` + tail, `
		line 2: listeners[0].allow[0]: "10.1.2.3/8" has bits set beyond its length; write 10.0.0.0/8
		line 2: listeners[0].allow[1]: "10.0.0.0/33" is neither a network nor an address; write one such as 10.0.0.0/8 or 192.0.2.7
		line 2: listeners[0].allow[2]: "here" is neither a network nor an address; write one such as 10.0.0.0/8 or 192.0.2.7`},
	{"limits", `
listeners:
  - name: l
    address: :1
    upstream: s
    limits: {connections: 10, per_address: 11, calls: 100000, outbound: 1KiB, record: 1GiB, pace: 2MiB}
    timeouts: {stall: none}
upstreams:
  - name: s
    transport: rdma
    endpoints: [h:1]
    pool: {connections: 65, credits: 1025, mode: all, pinned: 4097}
    inline: {call: 512, reply: 1MiB}
    timeouts: {call: none}
    backoff: {min: 5s, max: 1s}
    iwarp: {crc: maybe, fpdu: big}
chunks: {io: 1KiB, reply: 1GiB}
`, `
		line 6: listeners[0].limits.calls: 100000 is too large; write at most 65536
		line 6: listeners[0].limits.outbound: 1KiB is out of range; write a size from 64KiB to 1GiB
		line 6: listeners[0].limits.pace: 2MiB is out of range; write a size from 1KiB to 1MiB
		line 6: listeners[0].limits.per_address: 11 is more than limits.connections, which is 10; write at most 10
		line 6: listeners[0].limits.record: 1GiB is out of range; write a size from 4KiB to 8MiB
		line 7: listeners[0].timeouts.stall: none is not possible here; write a duration such as 30s
		line 12: upstreams[0].pool.connections: 65 is too large; write at most 64
		line 12: upstreams[0].pool.credits: 1025 is too large; write at most 1024
		line 12: upstreams[0].pool.mode: "all" is not possible here; write auto, shared, sessions or pinned
		line 12: upstreams[0].pool.pinned: 4097 is too large; write at most 4096
		line 13: upstreams[0].inline.call: 512B is out of range; write a size from 1KiB to 64KiB
		line 13: upstreams[0].inline.reply: 1MiB is out of range; write a size from 1KiB to 64KiB
		line 14: upstreams[0].timeouts.call: none is not possible here; write a duration such as 30s
		line 15: upstreams[0].backoff.min: 5s is more than backoff.max, which is 1s; write at most 1s
		line 16: upstreams[0].iwarp.crc: "maybe" is not a switch; write on or off
		line 16: upstreams[0].iwarp.fpdu: "big" is not possible here; write emss or max
		line 17: chunks.io: 1KiB is out of range; write a size from 4KiB to 8MiB
		line 17: chunks.reply: 1GiB is out of range; write a size from 4KiB to 8200KiB`},
	{"inline", head + "upstreams: [{name: s, transport: rdma, endpoints: ['h:1'], inline: {call: 5000, reply: 4096}}]\n", `
		line 2: upstreams[0].inline.call: 5000B is not a multiple of 1KiB; write 4KiB`},
	{"chunks", head + tail + "chunks: {io: 2MiB, reply: 2MiB}\n", `
		line 3: chunks.reply: 2MiB is too small for chunks.io, which is 2MiB; write at least 2056KiB`},
	{"a limit that is no more", `
listeners: [{name: l, address: ':1', upstream: s, limits: {fragments: 1024}}]
` + tail, `
		line 2: listeners[0].limits.fragments: there is no such limit any more, because limits.record bounds fragments too; remove this setting`},
	{"combinations", `
listeners:
  - {name: a, address: ':1', upstream: s, provider: iwarp, credits: 8}
  - {name: b, address: ':2', upstream: s, transport: rdma, provider: other, limits: {starting: 7}, iwarp: {crc: off}}
  - {name: c, address: ':3', upstream: s, transport: rdma, provider: magic}
  - {name: d, address: ':4', upstream: s, transport: rdma, timeouts: {idle: 1s, start: none}, iwarp: {revision1: on}}
  - {name: e, address: ':5', upstream: s, limits: {starting: 5}, timeouts: {start: 1s}}
  - {name: f, address: ':6', upstream: s, transport: rdma, limits: {connections: 5, per_address: 6, starting: 7, starting_per_address: 8}, timeouts: {stall: none}}
  - {name: g, address: ':7', upstream: s, transport: rdma, limits: {starting: 100000}}
upstreams:
  - {name: s, transport: tcp, endpoints: ['h:1'], inline: {call: 1KiB}, pool: {mode: pinned, pinned: 5}}
  - {name: t, transport: rdma, endpoints: ['h:2'], pool: {mode: shared, pinned: 5}}
`, `
		line 3: listeners[0].credits: this setting needs transport rdma; write that, or remove this setting
		line 3: listeners[0].provider: this setting needs transport rdma; write that, or remove this setting
		line 4: listeners[1].iwarp: this setting needs provider iwarp; write that, or remove this setting
		line 5: listeners[2].provider: this build has no provider "magic"; write iwarp or other
		line 6: listeners[3].iwarp.revision1: only upstreams have this setting, because a listener answers both revisions; remove it
		line 6: listeners[3].timeouts.start: none is not possible here; write a duration such as 30s
		line 7: listeners[4].limits.starting: this setting needs transport rdma; write that, or remove this setting
		line 7: listeners[4].timeouts.start: this setting needs transport rdma; write that, or remove this setting
		line 8: listeners[5].limits.per_address: 6 is more than limits.connections, which is 5; write at most 5
		line 8: listeners[5].limits.starting_per_address: 8 is more than limits.starting, which is 7; write at most 7
		line 8: listeners[5].timeouts.stall: none is not possible here; write a duration such as 30s
		line 9: listeners[6].limits.starting: 100000 is too large; write at most 65536
		line 11: upstreams[0].inline: this setting needs transport rdma; write that, or remove this setting
		line 12: upstreams[1].pool.pinned: this setting needs mode pinned; write that, or remove this setting`},
	{"proxies", `
listeners:
  - {name: a, address: ':1', upstream: s, proxy_protocol: {from: [10.0.0.7, '::/0'], timeout: none}}
  - {name: b, address: ':2', upstream: s, proxy_protocol: {timeout: 5s}}
  - {name: c, address: ':3', upstream: s, transport: rdma, proxy_protocol: {from: [10.0.0.7]}}
` + tail, `
		line 3: listeners[0].proxy_protocol.from[1]: every host could name any client; write the addresses of the proxies
		line 3: listeners[0].proxy_protocol.timeout: none is not possible here; write a duration such as 30s
		line 4: listeners[1].proxy_protocol.timeout: this setting needs from; write that, or remove this setting
		line 5: listeners[2].proxy_protocol: this setting needs transport tcp; write that, or remove this setting`},
	{"shares", `
listeners:
  - name: a
    address: ':1'
    upstream: s
    weights: [{clients: [10.0.0.0/8], weight: 4}, {clients: [10.1.2.3, 11.0.0.0/8], weight: 101}, {weight: 1}, {clients: ['::1']}]
    rates: {listener: {calls: 10000001, bytes: 1KiB}, client: {bytes: 2048GiB}}
` + tail, `
		line 6: listeners[0].weights[1].clients[0]: an earlier address matches all of 10.1.2.3/32; remove one of the two
		line 6: listeners[0].weights[1].weight: 101 is too large; write at most 100
		line 6: listeners[0].weights[2].clients: the list is empty; write at least one address
		line 6: listeners[0].weights[3].weight: this setting is required; write it, such as weight: 2
		line 7: listeners[0].rates.client.bytes: 2048GiB is out of range; write a size from 64KiB to 1024GiB
		line 7: listeners[0].rates.listener.bytes: 1KiB is out of range; write a size from 64KiB to 1024GiB
		line 7: listeners[0].rates.listener.calls: 10000001 is too large; write at most 10000000`},
	{"sources", head + `
upstreams:
  - {name: s, transport: rdma, endpoints: ['h:1'], source: {address: 224.0.0.1, ports: reserved}, proxy_protocol: v2}
  - {name: t, transport: tcp, endpoints: ['h:2'], source: {address: 'h', ports: 7-9}, pool: {connections: 4}}
  - {name: u, transport: tcp, endpoints: ['h:3'], source: {address: 0.0.0.0, ports: 0-9}}
  - {name: v, transport: tcp, endpoints: ['h:4'], source: {ports: 9-7}}
  - {name: w, transport: tcp, endpoints: ['h:5'], source: {ports: 80}}
  - {name: x, transport: tcp, endpoints: ['h:6'], proxy_protocol: v2}
  - {name: y, transport: tcp, endpoints: ['h:7'], proxy_protocol: v1, pool: {mode: pinned}}
`, `
		line 4: upstreams[0].proxy_protocol: this setting needs transport tcp; write that, or remove this setting
		line 4: upstreams[0].source.address: "224.0.0.1" is not an address of this host; write an IP address without a port
		line 4: upstreams[0].source.ports: this setting needs transport tcp; write that, or remove this setting
		line 5: upstreams[1].source.address: "h" is not an address of this host; write an IP address without a port
		line 5: upstreams[1].source.ports: 7-9 has 3 ports, but pool.connections is 4; write a range of at least 4 ports
		line 6: upstreams[2].source.address: "0.0.0.0" is not an address of this host; write an IP address without a port
		line 6: upstreams[2].source.ports: "0-9" is not a range of ports; write any, reserved, or a range such as 700-999
		line 7: upstreams[3].source.ports: "9-7" ends before it begins; write the lower port first
		line 8: upstreams[4].source.ports: "80" is not a range of ports; write any, reserved, or a range such as 700-999
		line 9: upstreams[5].proxy_protocol: v2 names one client for each connection; write pool: {mode: pinned}, or off
		line 10: upstreams[6].proxy_protocol: "v1" is not possible here; write off or v2`},
	{"watches and endpoints", head + `
upstreams:
  - {name: s, transport: rdma, endpoints: ['h:1', 'h:2'], timeouts: {silent: 3s, probe: 50ms}, balance: priority}
  - {name: t, transport: tcp, endpoints: ['h:1', 'h:2'], timeouts: {silent: none, probe: none}, failover: on, balance: random, layouts: off}
`, `
		line 4: upstreams[0].balance: this setting needs failover on; write that, or remove this setting
		line 4: upstreams[0].timeouts.probe: 50ms is too short; write at least 100ms, or none
		line 4: upstreams[0].timeouts.silent: 3s is too short; write at least 4s, or none
		line 5: upstreams[1].balance: "random" is not possible here; write spread or priority
		line 5: upstreams[1].layouts: "off" is not possible here; write pass or hide`},
	{"memory", head + `
upstreams:
  - {name: s, transport: rdma, endpoints: ['h:1'], pool: {connections: 64, credits: 1024}}
memory: {budget: 1GiB}
`, `
		line 5: memory.budget: 1GiB is too little: posted Receives take 1GiB (for upstreams connections x credits x 16KiB) and the longest message is 4160KiB; write at least 4GiB`},
}

func TestProblems(t *testing.T) {
	for _, tc := range badFiles {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Load([]byte(tc.file), testKnown())
			want := strings.ReplaceAll(strings.ReplaceAll(strings.TrimSpace(tc.want), "\t", ""), "TAB", "\t")
			if err == nil {
				t.Fatalf("no error, want\n%s", want)
			}
			if err.Error() != want {
				t.Errorf("got\n%s\nwant\n%s", err, want)
			}
		})
	}
}
