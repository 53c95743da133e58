package configs

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// goodFile is a file in which each mistake changes something.
const goodFile = `listeners:
  - name: nfs
    address: 0.0.0.0:2049
    upstream: storage
    routes:
      - program: mount
        upstream: mountd
    allow: [10.0.0.0/8]
upstreams:
  - name: storage
    transport: rdma
    endpoints: [10.1.0.5:20049]
    pool: {connections: 4}
  - name: mountd
    transport: tcp
    endpoints:
      - 10.1.0.5:20048
memory: {budget: 1GiB}
admin:
  address: 127.0.0.1:9090
log:
  level: info
drain: {timeout: 30s}
`

// mistakes are mistakes that people make: old is replaced by next in goodFile, and Load says one thing about it.
var mistakes = []struct{ name, old, next, want string }{
	// Syntax.
	{"a tab before a setting", "    upstream: storage", "\tupstream: storage", `line 4: a tab indents this line; write spaces`},
	{"a tab after spaces", "  level: info", "  \tlevel: info", `line 22: a tab indents this line; write spaces`},
	{"a tab before an entry", "      - 10.1.0.5:20048", "\t- 10.1.0.5:20048", `line 17: a tab indents this line; write spaces`},
	{"IPv6 without quotes", "127.0.0.1:9090", "[::1]:9090", `line 20: an address in brackets would be a list here; write it in quotes: "[::1]:9090"`},
	{"IPv6 without quotes at the end of a list", "      - 10.1.0.5:20048", "      - [2001:db8::5]:20048", `line 17: an address in brackets would be a list here; write it in quotes: "[2001:db8::5]:20048"`},
	{"IPv6 without quotes in brackets", "[10.1.0.5:20049]", "[[fd00::5]:20049, 10.1.0.6:20049]", `line 12: upstreams[0].endpoints[0]: a list cannot be the name of a setting; write an IPv6 address in quotes, such as "[::1]:2049"`},
	{"IPv6 without quotes in braces", "admin:\n  address: 127.0.0.1:9090", "admin: {address: [::1]:9090}", `line 19: an address in brackets would be a list here; write it in quotes: "[::1]:9090"`},
	{"an asterisk as the host", "0.0.0.0:2049", "*:20049", `line 3: * refers to an anchor; write :20049, which is every address of this host`},
	{"an asterisk as a value", "level: info", "level: *", `line 22: a value cannot begin with *, which refers to an anchor; write it in quotes`},
	{"an anchor that is not there", "upstream: storage\n", "upstream: *storage\n", `line 4: no line above has the anchor &storage; write that, or the value in quotes if it begins with *`},
	{"no space after a colon", "level: info", "level:info", `line 21: log: write settings (name: value), not "level:info"; known here: access, audit, format, level`},
	{"no space after the first colon", "listeners:\n", "loops:2\nlisteners:\n", `line 1: a space after the colon is missing; write loops: 2`},
	{"too deep", "    upstream: storage\n    routes", "     upstream: storage\n    routes", `line 4: this line is deeper than the one above, which has a value already; indent both with as many spaces`},
	{"not deep enough", "    upstream: storage\n    routes", "   upstream: storage\n    routes", `line 4: the indentation of this line is 3; the lines above, which it may belong to, have 4, 2 or 0; indent it with as many spaces as one of those`},
	{"one space in a section", "log:\n  level: info\n", "log:\n  level: info\n format: json\n", `line 23: the indentation of this line is 1; the lines above, which it may belong to, have 2 or 0; indent it with as many spaces as one of those`},
	{"a list that is not aligned", "  - name: mountd", " - name: mountd", `line 14: the indentation of this line is 1; the lines above, which it may belong to, have 4, 2 or 0; indent it with as many spaces as one of those`},
	{"a bracket without end", "[10.0.0.0/8]", "[10.0.0.0/8", `line 8: the [ that begins here has no end; write ]`},
	{"a brace without end", "{budget: 1GiB}", "{budget: 1GiB", `line 18: the { that begins here has no end; write }`},
	{"a brace without end in the last line", "drain: {timeout: 30s}", "drain: {timeout: 30s", `line 23: the { that begins here has no end; write }`},
	{"a brace too many", "{budget: 1GiB}", "{budget: 1GiB}}", `line 18: text follows the end of the value; remove it, or write all of the value in quotes, and a quote in it twice`},
	{"a quote without end", "level: info", `level: "info`, `line 22: the quote that begins here has no end; write the same sign behind the value`},
	{"a quote in quotes", "level: info", "level: 'it's'", `line 22: text follows the end of the value; remove it, or write all of the value in quotes, and a quote in it twice`},
	{"a backslash in double quotes", "level: info", `level: "\info"`, `line 22: in double quotes, \ begins an escape; write \\, or single quotes`},
	{"a colon in a value", "level: info", "level: info: really", `line 22: a value with a colon and a space would be another setting; write it in quotes, or in a line of its own`},
	{"a comma between entries of a list", "[10.0.0.0/8]", "[10.0.0.0/8 192.0.2.7]", `line 8: listeners[0].allow[0]: "10.0.0.0/8 192.0.2.7" has several networks; write a comma between the entries of a list`},
	{"a sign that YAML reserves", "level: info", "level: @info", `line 22: a value cannot begin with @; write it in quotes`},
	{"an octet that is not UTF-8", "level: info", "level: \xffinfo", `line 22: the file is not in UTF-8; save it as such`},
	{"a control character", "level: info", "level: in\x01fo", `line 22: the control character 0x01 is not possible here; remove it`},
	{"a heading", "log:\n", "[log]\nlog:\n", `line 21: this line is neither a setting nor the entry of a list; write name: value, or - value`},
	{"a setting twice", "log:\n", "admin: {address: none}\nlog:\n", `line 21: admin: line 19 has this setting already; remove one of the two`},
	{"two documents", "log:\n", "---\nlog:\n", `line 21: a second YAML document begins here; write only one`},
	// Addresses.
	{"a port by name", "127.0.0.1:9090", "127.0.0.1:nfs", `line 20: admin.address: "127.0.0.1:nfs" has the port by its name; write its number: 127.0.0.1:2049`},
	{"an unknown port by name", "127.0.0.1:9090", "127.0.0.1:admin", `line 20: admin.address: "127.0.0.1:admin" has the port "admin"; write a number up to 65535, such as 127.0.0.1:9090`},
	{"a port alone", "127.0.0.1:9090", "9090", `line 20: admin.address: 9090 is not an address; write 127.0.0.1:9090, or ":9090" for every address of this host`},
	{"a port alone, of a listener", "0.0.0.0:2049", "2049", `line 3: listeners[0].address: 2049 is not an address; write 127.0.0.1:2049, or ":2049" for every address of this host`},
	{"a port alone, of a server", "      - 10.1.0.5:20048", "      - 20048", `line 17: upstreams[1].endpoints[0]: 20048 is not an address; write the host of the server, too, such as 10.1.0.5:20048`},
	{"a port alone, in quotes", "127.0.0.1:9090", `"9090"`, `line 20: admin.address: "9090" has no host; write 127.0.0.1:9090, or :9090 for every address of this host`},
	{"a port alone, of a server, in quotes", "      - 10.1.0.5:20048", "      - '20048'", `line 17: upstreams[1].endpoints[0]: "20048" has no host; write the server's, such as 10.1.0.5:20048`},
	{"a duration with a fraction", "30s", "1.5", `line 23: drain.timeout: "1.5" is not a duration; write one such as 500ms, 5s or 1m30s`},
	{"a huge size", "1GiB", "100000000000000000000", `line 18: memory.budget: "100000000000000000000" is too large for a size; write one such as 64KiB, 1MiB or 1GiB`},
	{"a number above 255", "10.1.0.5:20049", "10.1.0.500:20049", `line 12: upstreams[0].endpoints[0]: "10.1.0.500:20049": 10.1.0.500 is not an IPv4 address; write four numbers from 0 to 255`},
	{"three numbers", "10.1.0.5:20049", "10.1.5:20049", `line 12: upstreams[0].endpoints[0]: "10.1.5:20049": 10.1.5 is not an IPv4 address; write four numbers from 0 to 255`},
	{"an asterisk in quotes", "0.0.0.0:2049", `"*:20049"`, `line 3: listeners[0].address: "*:20049" has * as its host; write :20049, which is every address of this host`},
	{"no port", "10.1.0.5:20049", "10.1.0.5", `line 12: upstreams[0].endpoints[0]: "10.1.0.5" has no port; write 10.1.0.5:20049`},
	{"no port behind the colon", "10.1.0.5:20049", "'10.1.0.5:'", `line 12: upstreams[0].endpoints[0]: "10.1.0.5:" has no port behind the colon; write 10.1.0.5:20049`},
	{"a Unix socket", "10.1.0.5:20049", "unix:/run/x.sock", `line 12: upstreams[0].endpoints[0]: "unix:/run/x.sock" is a Unix socket; write host:port, such as 127.0.0.1:20049`},
	{"a Unix socket as a URL", "10.1.0.5:20049", "'unix:///run/x.sock'", `line 12: upstreams[0].endpoints[0]: "unix:///run/x.sock" is a Unix socket; write host:port, such as 127.0.0.1:20049`},
	{"a Unix socket of a listener", "0.0.0.0:2049", "unix:run/x.sock", `line 3: listeners[0].address: "unix:run/x.sock" is a Unix socket; write host:port, such as 127.0.0.1:2049`},
	{"an export", "10.1.0.5:20049", "'10.1.0.5:/export'", `line 12: upstreams[0].endpoints[0]: "10.1.0.5:/export" has the path of an export; write 10.1.0.5:20049, and mount /export on the clients`},
	{"a URL", "10.1.0.5:20049", "'nfs://10.1.0.5/export'", `line 12: upstreams[0].endpoints[0]: "nfs://10.1.0.5/export" is a URL; write 10.1.0.5:20049, without nfs://`},
	{"IPv6 without brackets", "10.1.0.5:20049", "'2001:db8::5'", `line 12: upstreams[0].endpoints[0]: "2001:db8::5" is an IPv6 address without brackets and port; write "[2001:db8::5]:20049", in quotes`},
	{"every address of a server", "10.1.0.5:20049", "0.0.0.0:20049", `line 12: upstreams[0].endpoints[0]: "0.0.0.0:20049" stands for every address of a host; write the one of the server, such as 10.1.0.5:20049`},
	{"a port that is too large", "10.1.0.5:20049", "10.1.0.5:200490", `line 12: upstreams[0].endpoints[0]: "10.1.0.5:200490" has the port 200490, which is too large; write a number up to 65535`},
	{"two servers in one entry", "10.1.0.5:20049", "'10.1.0.5:20049 10.1.0.6:20049'", `line 12: upstreams[0].endpoints[0]: "10.1.0.5:20049 10.1.0.6:20049" has several addresses; write one here, or one in each entry of a list`},
	{"a listener as its own endpoint", "      - 10.1.0.5:20048", "      - 127.0.0.1:2049", `line 17: upstreams[1].endpoints[0]: 127.0.0.1:2049 is the address of listener nfs, whose Calls of program mount come to this upstream: they would go round for ever; write the address of the storage`},
	{"a listener as its own endpoint, by an address of this host", "      - 10.1.0.5:20048", "      - 10.1.0.7:2049", `line 17: upstreams[1].endpoints[0]: 10.1.0.7:2049 is the address of listener nfs, whose Calls of program mount come to this upstream: they would go round for ever; write the address of the storage`},
	{"a network with bits of a host", "10.0.0.0/8", "10.1.0.0/8", `line 8: listeners[0].allow[0]: "10.1.0.0/8" has bits set beyond its length; write 10.0.0.0/8`},
	{"a range of addresses", "10.0.0.0/8", "10.0.0.1-10.0.0.9", `line 8: listeners[0].allow[0]: "10.0.0.1-10.0.0.9" is neither a network nor an address; write one such as 10.0.0.0/8 or 192.0.2.7`},
	// Values.
	{"a duration without unit", "30s", "30", `line 23: drain.timeout: "30" has no unit; write one such as 30ms or 30s`},
	{"a size in a wrong unit", "1GiB", "1G", `line 18: memory.budget: "1G" has no unit of a size; write 1GiB`},
	{"a unit with a space", "1GiB", "1 gigabyte", `line 18: memory.budget: "1 gigabyte" is not a size; write one such as 4096, 64KiB, 1MiB or 1GiB`},
	{"an unknown setting", "level: info", "lvel: info", `line 22: log.lvel: unknown setting; did you mean level?`},
	{"a setting in the wrong place", "log:\n", "credits: 64\nlog:\n", `line 21: credits: unknown setting; it belongs in listeners[] or upstreams[].pool`},
	{"exports of weights", "    upstream: storage\n", "    upstream: storage\n    weights: [{clients: [10.0.0.1], weight: 2, exports: [/a]}]\n", `line 5: listeners[0].weights[0].exports: unknown setting; write a rule of the listener with exports, action limit and a rate: a weight and a tenant are about clients`},
	{"exports elsewhere", "    upstream: storage\n", "    upstream: storage\n    exports: [/a]\n", `line 5: listeners[0].exports: unknown setting; it belongs in listeners[].rules[] or log.audit`},
	{"a pool at the top", "log:\n", "pool: {connections: 4}\nlog:\n", `line 21: pool: unknown setting; it belongs in upstreams[]`},
	{"a pool of a listener", "    upstream: storage\n", "    upstream: storage\n    pool: {connections: 4}\n", `line 5: listeners[0].pool: unknown setting; it belongs in upstreams[]`},
	{"a huge number", "{connections: 4}", "{connections: 100000000000000000000}", `line 13: upstreams[0].pool.connections: 100000000000000000000 is too large; write a smaller whole number`},
	{"a protocol as provider", "    transport: rdma\n", "    transport: rdma\n    provider: roce\n", `line 12: upstreams[0].provider: "roce" is no provider; write ibverbs, which uses adapters for RoCE, in a build that has it (rdmabridge version): docs/ibverbs.md`},
	{"an unknown word", "level: info", "level: verbose", `line 22: log.level: "verbose" is not possible here; write debug, info, warn or error`},
	{"an upstream that is not there", "upstream: storage", "upstream: storag", `line 4: listeners[0].upstream: no upstream is named "storag"; write storage or mountd, or add one`},
	{"a text in place of a list", "[10.0.0.0/8]", "10.0.0.0/8", `line 8: listeners[0].allow: write a list, such as ["10.0.0.0/8"], not "10.0.0.0/8"`},
	{
		"settings in place of a list", "upstreams:\n  - name: storage\n    transport: rdma\n    endpoints: [10.1.0.5:20049]\n    pool: {connections: 4}\n  - name: mountd\n    transport: tcp\n    endpoints:\n      - 10.1.0.5:20048\n", "upstreams:\n  storage: {transport: rdma}\n", `line 9: upstreams: write a list, with - before each entry, not settings`,
	},
	{"a value in place of settings", "memory: {budget: 1GiB}", "memory: 1GiB", `line 18: memory: write settings (name: value), not "1GiB"; known here: budget`},
	{"an entry that is empty", "      - 10.1.0.5:20048", "      -", `line 17: upstreams[1].endpoints[0]: the entry is empty; write a value, or remove it`},
	{"a fraction", "{connections: 4}", "{connections: 4.5}", `line 13: upstreams[0].pool.connections: write a whole number, not 4.5`},
	{"zero", "{connections: 4}", "{connections: 0}", `line 13: upstreams[0].pool.connections: 0 is not greater than 0; write a whole number from 1`},
	{"a hand-over in a directory that is not there", "log:\n", "handover: {path: /srv/none/handover.sock}\nlog:\n", `line 21: handover.path: the directory /srv/none does not exist; make it, or write a path such as /run/rdmabridge/handover.sock`},
	{"a relative path", "log:\n", "handover: {path: handover.sock}\nlog:\n", `line 21: handover.path: "handover.sock" is not an absolute path; write one such as /run/rdmabridge/handover.sock`},
	{"a path that is too long", "log:\n", "handover: {path: /run/" + strings.Repeat("x", 100) + "}\nlog:\n", `line 21: handover.path: a path of 105 octets is too long for a Unix socket; write at most 99`},
	{"an address in brackets without end", "10.1.0.5:20049", "'[fd00::5'", `line 12: upstreams[0].endpoints[0]: "[fd00::5" has no port; write [fd00::5]:20049`},
	{"letters in IPv6", "10.1.0.5:20049", "'[fd00::xyz]:20049'", `line 12: upstreams[0].endpoints[0]: "[fd00::xyz]:20049": fd00::xyz is not an IPv6 address; write one such as [2001:db8::5]`},
	{"signs in a host", "10.1.0.5:20049", "nfs!server:20049", `line 12: upstreams[0].endpoints[0]: "nfs!server:20049": the host has characters that a name cannot have; write a name or an address, then a colon and the port`},
	{"a number that is no port", "127.0.0.1:9090", "909090", `line 20: admin.address: 909090 is not an address; write 127.0.0.1:9090, or ":9090" for every address of this host`},
	{"a duration in words", "30s", "30 seconds", `line 23: drain.timeout: "30 seconds" is not a duration; write one such as 500ms, 5s or 1m30s`},
	{"a size with a fraction", "1GiB", "1.5", `line 18: memory.budget: "1.5" is not a size; write one such as 4096, 64KiB, 1MiB or 1GiB`},
	{"a size that is settings", "1GiB", "{octets: 1}", `line 18: memory.budget: write a single value, not settings`},
	{"a duration that is a list", "30s", "[30s]", `line 23: drain.timeout: write a single value, not a list`},
	{"a switch that is neither", "log:\n", "hardening: maybe\nlog:\n", `line 21: hardening: "maybe" is not a switch; write on or off`},
	{"a part above all", "log:\n", "tracing: {endpoint: 'http://h:1', sample: 1.5}\nlog:\n", `line 21: tracing.sample: "1.5" is not a share; write one above 0 and up to 1, such as 1% or 0.01`},
	{"a number in quotes", "{connections: 4}", "{connections: '4'}", `line 13: upstreams[0].pool.connections: write a whole number, not "4"`},
	{"a negative number", "{connections: 4}", "{connections: -4}", `line 13: upstreams[0].pool.connections: -4 is not greater than 0; write a whole number from 1`},
	{"a number that is a list", "{connections: 4}", "{connections: [4]}", `line 13: upstreams[0].pool.connections: write a whole number, not a list`},
	{"a long text in place of a number", "{connections: 4}", "{connections: as many as there are clients of this server}", `line 13: upstreams[0].pool.connections: write a whole number, not "as many as there are clients of this ser..."`},
	{"a version that is too large", "program: mount", "program: mount\n        versions: [4294967296]", `line 7: listeners[0].routes[0].versions[0]: write a whole number up to 4294967295, not 4294967296`},
	{"a version in quotes", "program: mount", "program: mount\n        versions: ['3']", `line 7: listeners[0].routes[0].versions[0]: write a whole number up to 4294967295, not "3"`},
	{"a number in place of a list", "program: mount", "program: mount\n        versions: 3", `line 7: listeners[0].routes[0].versions: write a list, such as [3], not 3`},
	{"a word of YAML in place of text", "level: info", "level: true", `line 22: log.level: write text, in quotes, not true`},
	{"settings in place of text", "level: info", "level: {info: on}", `line 22: log.level: write text, not settings`},
	{"a list in place of text", "level: info", "level: [info]", `line 22: log.level: write text, not a list`},
	{"a list in place of settings", "log:\n  level: info", "log: [level]", `line 21: log: write settings (name: value), not a list; known here: access, audit, format, level`},
	{"a text as an entry of settings", "upstreams:\n", "upstreams:\n  - third\n", `line 10: upstreams[0]: write settings (name: value), not "third"; known here: backoff, balance, endpoints, failover, ibverbs, inline, iwarp, layouts, mount, name, pool, provider, proxy_protocol, source, timeouts, tls, transport`},
	{"a list in a list", "[10.0.0.0/8]", "[[10.0.0.0/8]]", `line 8: listeners[0].allow[0]: write a single value, not a list`},
	{"a path with dots", "log:\n  level: info", "log.level: info", `line 21: log.level: a dot does not lead into a section; write log: {level: ...}`},
	{"a setting twice, in capitals", "  level: info", "  level: info\n  LEVEL: warn", `line 23: log.level: line 22 has this setting already; remove one of the two`},
	{"a setting without a value", "address: 0.0.0.0:2049", "address:", `line 3: listeners[0].address: this setting is required; write it, such as address: 0.0.0.0:2049`},
	{"a merged setting that is unknown", "log:\n", "x-log: &log {lvel: warn}\nlog:\n  <<: *log\n", `line 21: log.lvel: unknown setting; did you mean level?`},
	{"an identity that is short", "log:\n", "identity: rdma\nlog:\n", `line 21: identity: 4 octets are too few; write a text of 8 to 256 that no other bridge has`},
	{"one line without a space", goodFile, "loops:2\n", `line 1: this is no setting; write name: value, with a space after the colon: loops: 2`},
}

// mistakesKnown is a host at 10.1.0.7 without the directory /srv/none.
func mistakesKnown() Known {
	k := testKnown()
	k.HasAddress = func(a netip.Addr) bool { return a == netip.MustParseAddr("10.1.0.7") }
	k.Directory = func(path string) bool { return path != "/srv/none" && path != "/run/none" }
	return k
}

// helps is the form of all messages: the line, what is there, and what to write or to do instead, which begins behind a
// semicolon. Where a value is all that is wrong, it is the last: write ..., not ...
var helps = regexp.MustCompile(`^line [1-9]\d*: .+(; (write|remove|make|indent|save|did you mean|it belongs in) .+|: write .+, not .+)$`)

// TestMistakes: each mistake has one message, with its line, the setting, and what to write. One of the syntax shows
// the line.
func TestMistakes(t *testing.T) {
	if _, err := Load([]byte(goodFile), mistakesKnown()); err != nil {
		t.Fatal(err)
	}
	if len(mistakes) < 86 {
		t.Errorf("%d mistakes", len(mistakes))
	}
	for _, tc := range mistakes {
		t.Run(tc.name, func(t *testing.T) {
			if !strings.Contains(goodFile, tc.old) {
				t.Fatal("the mistake changes nothing")
			}
			file := strings.Replace(goodFile, tc.old, tc.next, 1)
			_, err := Load([]byte(file), mistakesKnown())
			ps, _ := err.(Problems)
			if len(ps) != 1 || ps[0].Summary() != tc.want {
				t.Fatalf("got  %v\nwant %s", err, tc.want)
			}
			if !helps.MatchString(tc.want) {
				t.Errorf("the message does not say where it is, what was found, or what to write: %s", tc.want)
			}
			if ps[0].excerpt == "" {
				return
			}
			shown, mark, _ := strings.Cut(ps[0].excerpt, "\n")
			line := strings.Split(file, "\n")[ps[0].Line-1]
			if !strings.HasSuffix(shown, "| "+line) && utf8.ValidString(line) && !strings.Contains(line, "\x01") {
				t.Errorf("the excerpt is %q, and the line is %q", shown, line)
			}
			if !strings.HasSuffix(mark, "^") || len(mark) > len(shown)+1 {
				t.Errorf("the mark is not below the line:\n%s", ps[0].excerpt)
			}
		})
	}
}

// TestExcerptOfSecret: the identity is a secret, and no message shows it.
func TestExcerptOfSecret(t *testing.T) {
	_, err := Load([]byte("identity: \"very-secret\nlog: {}\n"), mistakesKnown())
	if err == nil || strings.Contains(err.Error(), "secret") || !strings.HasPrefix(err.Error(), "line 1: ") {
		t.Errorf("%v", err)
	}
}

// TestMissingDirectory: a directory below /run is made at the start, so check warns only.
func TestMissingDirectory(t *testing.T) {
	c, err := Load([]byte(goodFile+"handover: {path: /run/none/handover.sock}\n"), mistakesKnown())
	if err != nil {
		t.Fatal(err)
	}
	want := "line 24: handover.path: the directory /run/none does not exist yet; unless the unit of systemd makes it (RuntimeDirectory=none), make it"
	if w := c.Warnings(); len(w) != 1 || w[0] != want {
		t.Errorf("%q", w)
	}
}

// TestCircles: a listener may be an endpoint, unless its own Calls come to it.
func TestCircles(t *testing.T) {
	const chain = `
listeners:
  - {name: front, address: '127.0.0.1:1', upstream: %s}
  - {name: back, address: ':2', transport: rdma, upstream: %s}
upstreams:
  - {name: back, transport: rdma, endpoints: ['localhost:2']}
  - {name: front, transport: tcp, endpoints: ['127.0.0.1:1']}
  - {name: server, transport: tcp, endpoints: ['127.0.0.1:2']}
`
	for _, tc := range []struct {
		front, back string
		circles     int
	}{
		{"back", "server", 0}, // as the demo has it: another transport is another port
		{"back", "front", 2},
		{"server", "server", 0},
		{"front", "server", 1},
	} {
		_, err := Load(fmt.Appendf(nil, chain, tc.front, tc.back), testKnown())
		ps, _ := err.(Problems)
		if len(ps) != tc.circles || err != nil && !strings.Contains(ps[0].Text, "go round for ever") {
			t.Errorf("front to %s and back to %s: %v, want %d circles", tc.front, tc.back, err, tc.circles)
		}
	}
}

// TestCirclesOfPrograms: listeners that hand each other different programs are no circle, and those that hand each
// other the same one are.
func TestCirclesOfPrograms(t *testing.T) {
	const pair = `
listeners:
  - {name: front, address: '127.0.0.1:1', upstream: %s, routes: [%s], rules: [%s]}
  - {name: back, address: '127.0.0.1:2', upstream: %s, routes: [%s]}
upstreams:
  - {name: back, transport: tcp, endpoints: ['127.0.0.1:2']}
  - {name: front, transport: tcp, endpoints: ['127.0.0.1:1']}
  - {name: server, transport: tcp, endpoints: ['10.1.0.5:2']}
`
	for _, tc := range []struct {
		front, routes, rules, back, backRoutes string
		want                                   string // of each circle; "": there is none
	}{
		{"server", "{program: mount, upstream: back}", "", "server", "{program: nlm, upstream: front}", ""},
		{"server", "{program: mount, upstream: back}", "", "front", "{program: mount, upstream: server}", ""},
		{"back", "", "", "server", "{program: mount, upstream: front}", "listener front, whose Calls of program mount come"},
		{"server", "{program: mount, upstream: back}", "", "front", "", "Calls of program mount come"},
		{"server", "{program: 100005, upstream: back}", "", "server", "{program: mount, upstream: front}", "Calls of program 100005 come"},
		{"server", "{program: nfs, versions: [3], upstream: back}", "", "server", "{program: nfs, versions: [4], upstream: front}", ""},
		{"server", "{program: nfs, versions: [3, 4], upstream: back}", "", "server", "{program: nfs, versions: [4], upstream: front}", "Calls of program nfs come"},
		{"server", "", "{name: r, programs: [mount], action: upstream, upstream: back}", "front", "{program: mount, upstream: server}", ""},
		{"server", "", "{name: r, programs: [mount], action: upstream, upstream: back}", "server", "{program: mount, upstream: front}", "Calls of program mount come"},
		{"server", "", "{name: r, clients: [10.0.0.0/8], action: upstream, upstream: back}", "front", "{program: mount, upstream: server}", "whose Calls come"},
	} {
		_, err := Load(fmt.Appendf(nil, pair, tc.front, tc.routes, tc.rules, tc.back, tc.backRoutes), testKnown())
		ps, _ := err.(Problems)
		switch {
		case tc.want == "" && err != nil:
			t.Errorf("%+v: %v, want no circle", tc, err)
		case tc.want != "" && (len(ps) != 2 || !strings.Contains(err.Error(), tc.want)):
			t.Errorf("%+v: %v, want two circles with %q", tc, err, tc.want)
		}
	}
}
