package configs

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// ruleFile is a file with these rules, one a line, of a TCP or an RDMA listener.
func ruleFile(transport string, lines ...string) []byte {
	b := "listeners:\n  - name: l\n    address: ':1'\n    transport: " + transport + "\n    upstream: s\n    rules:\n"
	for _, l := range lines {
		b += "      - " + l + "\n"
	}
	return []byte(b + tail)
}

// TestBadRules: each problem of rules is reported, with its line. The first rule is on line 7.
func TestBadRules(t *testing.T) {
	for _, tt := range []struct{ name, transport, rules, want string }{
		{"nothing", "tcp", `{}`, `
			line 7: listeners[0].rules[0].action: this setting is required; write it, such as action: deny
			line 7: listeners[0].rules[0].name: this setting is required; write it, such as name: read-only`},
		{"words", "tcp", `{name: a b, action: drop, class: write, flavors: [krb], programs: [smb], uids: [x, 9-1], answer: no}`, `
			line 7: listeners[0].rules[0].action: "drop" is not possible here; write allow, deny, upstream or limit
			line 7: listeners[0].rules[0].answer: this setting needs action deny; write that, or remove this setting
			line 7: listeners[0].rules[0].class: "write" is not possible here; write reading or changing
			line 7: listeners[0].rules[0].flavors[0]: "krb" is not possible here; write none, sys, krb5, krb5i or krb5p
			line 7: listeners[0].rules[0].name: "a b" is not a name; write at most 63 of the letters a to z, A to Z, digits, and - _ .
			line 7: listeners[0].rules[0].programs: "smb" is not an RPC program; write a name such as nfs or mount, or a number
			line 7: listeners[0].rules[0].uids[0]: "x" is neither a number nor a range; write one such as 0 or 1000-1999
			line 7: listeners[0].rules[0].uids[1]: "9-1" ends before it begins; write the lower number first`},
		{"lists that would match everything", "tcp", `{name: a, action: deny, clients: [], uids: [], procedures: []}`, `
			line 7: listeners[0].rules[0].clients: the list is empty; write at least one, or remove this setting, and the rule has no such condition
			line 7: listeners[0].rules[0].procedures: the list is empty; write at least one, or remove this setting, and the rule has no such condition
			line 7: listeners[0].rules[0].uids: the list is empty; write at least one, or remove this setting, and the rule has no such condition`},
		{"order", "tcp", "{name: a, action: deny, dry_run: on}\n{name: b, action: allow}\n{name: a, action: deny}", `
			line 9: listeners[0].rules[2]: no Call reaches this rule, because rules[1] matches all Calls; remove one of the two
			line 9: listeners[0].rules[2].name: listeners[0].rules[0] in line 7 has the name a too; write another name`},
		{"upstream", "tcp", "{name: a, action: upstream}\n{name: b, action: upstream, upstream: x}\n{name: c, action: allow, upstream: s, clients: [10.0.0.1]}", `
			line 7: listeners[0].rules[0].upstream: this setting is required; write it, such as upstream: storage
			line 8: listeners[0].rules[1].upstream: no upstream is named "x"; write s, or add one
			line 9: listeners[0].rules[2].upstream: this setting needs action upstream; write that, or remove this setting`},
		{"exports", "tcp", "{name: a, action: deny, exports: [home, /a]}\n{name: b, action: upstream, upstream: s, exports: [/a]}\n{name: c, action: upstream, upstream: s, exports: [/a], versions: [3, 4]}\n{name: d, action: upstream, upstream: s, exports: [/a], versions: [3]}", `
			line 7: listeners[0].rules[0].exports[0]: "home" is not the path of an export; write one such as /export/home, as showmount -e shows it
			line 8: listeners[0].rules[1].exports: a client of NFSv4 has all its state at one server, and finds exports below the root of that one; write versions: [3] beside, or leave the exports out
			line 9: listeners[0].rules[2].exports: a client of NFSv4 has all its state at one server, and finds exports below the root of that one; write versions: [3] beside, or leave the exports out`},
		{"limit", "tcp", "{name: a, action: limit}\n{name: b, action: limit, rate: {bytes: 1KiB, calls: 100000000}, squash: off}\n{name: c, action: limit, rate: {calls: 1}}\n{name: d, action: allow, rate: {calls: 1}}\n{name: e, action: limit, rate: {connections: 1}}", `
			line 7: listeners[0].rules[0].rate: this setting is required; write it, such as rate: {calls: 1000}, or rate: {bytes: 100MiB}
			line 8: listeners[0].rules[1].rate.bytes: 1KiB is out of range; write a size from 64KiB to 1024GiB
			line 8: listeners[0].rules[1].rate.calls: 100000000 is too large; write at most 10000000
			line 8: listeners[0].rules[1].squash: this setting needs action allow or upstream; write that, or remove this setting
			line 10: listeners[0].rules[3].rate: this setting needs action limit; write that, or remove this setting
			line 11: listeners[0].rules[4].rate.connections: unknown setting; known here: bytes, calls`},
		{"squash", "tcp", "{name: a, action: deny, squash: root}\n{name: b, action: allow, squash: some}", `
			line 7: listeners[0].rules[0].squash: this setting needs action allow or upstream; write that, or remove this setting
			line 8: listeners[0].rules[1].squash: "some" is not possible here; write off, root or all`},
		{"read_only", "tcp", "{name: a, action: deny, answer: read_only}", `
			line 7: listeners[0].rules[0].answer: read_only needs class changing; write that, or another answer`},
		{"identities", "tcp", "{name: a, action: deny, identities: [x.example.com]}", `
			line 7: listeners[0].rules[0].identities: this setting needs tls.client.mode request or require; write that, or remove this setting`},
		{"identities over RDMA", "rdma", "{name: a, action: deny, identities: [x.example.com]}", `
			line 7: listeners[0].rules[0].identities: this setting needs transport tcp; write that, or remove this setting`},
		{"proxies", "rdma", "{name: a, action: deny, proxies: [10.0.0.1]}", `
			line 7: listeners[0].rules[0].proxies: this setting needs transport tcp; write that, or remove this setting`},
		{"procedures", "tcp", "{name: a, action: deny, programs: [mount], procedures: [WRITE]}\n{name: b, action: deny, procedures: [SETATTR4, 7]}", `
			line 7: listeners[0].rules[0].procedures: the rule's programs have no procedure "WRITE"; write a name such as MNT or WRITE, or a number. NFSv4 has the procedures NULL and COMPOUND; class is about its operations
			line 8: listeners[0].rules[1].procedures: the rule's programs have no procedure "SETATTR4"; write a name such as MNT or WRITE, or a number. NFSv4 has the procedures NULL and COMPOUND; class is about its operations`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Load(ruleFile(tt.transport, strings.Split(tt.rules, "\n")...), testKnown())
			var want []string
			for _, l := range strings.Split(strings.TrimSpace(tt.want), "\n") {
				want = append(want, strings.TrimSpace(l))
			}
			if err == nil || !sameLines(err.Error(), want) {
				t.Errorf("problems:\n%v\nwant:\n%s", err, strings.Join(want, "\n"))
			}
		})
	}
	many := make([]string, maxRules+1)
	for i := range many {
		many[i] = "{name: a" + string(rune('a'+i%26)) + string(rune('a'+i/26)) + ", action: deny, uids: [1]}"
	}
	if _, err := Load(ruleFile("tcp", many...), testKnown()); err == nil || !strings.Contains(err.Error(), "there are 129 rules; write at most 128") {
		t.Errorf("129 rules: %v", err)
	}
	for i := range many[1:] {
		many[i] = strings.Replace(many[i], "uids: [1]", "procedures: [WRITE, MNT]", 1)
	}
	if _, err := Load(ruleFile("tcp", many[:maxRules]...), testKnown()); err == nil || !strings.Contains(err.Error(), "name too many procedures") {
		t.Errorf("too many cases: %v", err)
	}
}

// sameLines reports whether text has these lines, each perhaps behind the name of a file.
func sameLines(text string, want []string) bool {
	got := strings.Split(strings.TrimSpace(text), "\n")
	if len(got) != len(want) {
		return false
	}
	for i := range got {
		if !strings.HasSuffix(strings.TrimSpace(got[i]), want[i]) {
			return false
		}
	}
	return true
}

// TestTargets: procedures that are named get the numbers that they have in each version.
func TestTargets(t *testing.T) {
	for _, tt := range []struct {
		rule Rule
		want []Target
	}{
		{Rule{}, nil},
		{Rule{Programs: []Program{"nfs", "7"}}, []Target{{Programs: []uint32{100003, 7}}}},
		{Rule{Versions: []uint32{4}}, []Target{{Versions: []uint32{4}}}},
		{Rule{Procedures: []Procedure{"NULL", "5"}}, []Target{{Procedures: []uint32{0, 5}}}},
		{Rule{Procedures: []Procedure{"WRITE"}}, []Target{{[]uint32{100003}, []uint32{3}, []uint32{7}}, {[]uint32{100003}, []uint32{2}, []uint32{8}}}},
		{Rule{Procedures: []Procedure{"WRITE", "MNT"}, Versions: []uint32{3}}, []Target{{[]uint32{100003}, []uint32{3}, []uint32{7}}, {[]uint32{100005}, []uint32{3}, []uint32{1}}}},
		{Rule{Procedures: []Procedure{"MNT", "9"}, Programs: []Program{"mount"}}, []Target{{[]uint32{100005}, []uint32{1, 2, 3}, []uint32{1}}, {Programs: []uint32{100005}, Procedures: []uint32{9}}}},
	} {
		if got, err := testKnown().Targets(&tt.rule); err != nil || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%+v: %v, %v, want %v", tt.rule, got, err, tt.want)
		}
	}
}

// TestRuleDefaults: the answer follows the class.
func TestRuleDefaults(t *testing.T) {
	c, err := Load(ruleFile("tcp", "{name: a, class: changing, action: deny}", "{name: b, uids: [0], action: deny}", "{name: c, action: allow}"), testKnown())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range c.Listeners[0].Rules {
		got = append(got, r.Answer+" "+r.DryRun.String())
	}
	if want := []string{"read_only off", "auth off", " off"}; !reflect.DeepEqual(got, want) {
		t.Errorf("answers %q, want %q", got, want)
	}
}

// TestRuleWarning: a rule that denies procedures of NFS by name says nothing of NFSv4.
func TestRuleWarning(t *testing.T) {
	for rule, want := range map[string]int{
		"{name: a, action: deny, procedures: [WRITE]}":                     1,
		"{name: a, action: deny, procedures: [WRITE], versions: [2, 3]}":   0,
		"{name: a, action: deny, procedures: [WRITE, COMPOUND]}":           0,
		"{name: a, action: deny, procedures: [MNT]}":                       0,
		"{name: a, action: allow, procedures: [WRITE]}":                    0,
		"{name: a, action: deny, class: changing, programs: [nfs]}":        0,
		"{name: a, action: deny, programs: [nfs], procedures: [WRITE, 3]}": 1,
	} {
		c, err := Load(ruleFile("tcp", rule), testKnown())
		if err != nil {
			t.Fatal(err)
		}
		if w := c.Warnings(); len(w) != want {
			t.Errorf("%s: warnings %q, want %d", rule, w, want)
		}
	}
}

// TestDiffRules: rules that change places are a change, because the first that matches counts.
func TestDiffRules(t *testing.T) {
	a, b, x := "{name: a, uids: [0], action: deny}", "{name: b, uids: [1], action: deny}", "{name: x, uids: [2], action: deny}"
	load := func(rules ...string) *Config {
		c, err := Load(ruleFile("tcp", rules...), testKnown())
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	for _, tt := range []struct {
		old, next []string
		want      []Change
	}{
		{[]string{a, b}, []string{a, b}, nil},
		{[]string{a, b}, []string{b, a}, []Change{{"listeners[l].rules", "a, b", "b, a"}}},
		{[]string{a, b}, []string{a, strings.Replace(b, "1", "9", 1)}, []Change{{"listeners[l].rules[b].uids", "[1]", "[9]"}}},
		{[]string{a, x, b}, []string{a, b}, []Change{{"listeners[l].rules[x]", "{name: x, uids: [2], action: deny, answer: auth, dry_run: off}", ""}}},
	} {
		if got := Diff(load(tt.old...), load(tt.next...)); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%v to %v: %q, want %q", tt.old, tt.next, got, tt.want)
		}
	}
}

// TestSquashSettings: who users are mapped to needs users that are mapped.
func TestSquashSettings(t *testing.T) {
	file := func(squash, rule string) []byte {
		f := "listeners: [{name: l, address: ':1', upstream: s, squash: " + squash
		if rule != "" {
			f += ", rules: [{name: a, action: allow, squash: " + rule + "}]"
		}
		return []byte(f + "}]\n" + tail)
	}
	for _, tt := range []struct{ squash, rule, want string }{
		{"{mode: root}", "", "root 65534 65534"},
		{"{mode: all, uid: 99, gid: 4294967295}", "", "all 99 4294967295"},
		{"{uid: 99}", "root", "off 99 65534"},
		{"{mode: off}", "off", "off 0 0"},
		{"{mode: off, uid: 99}", "off", "line 1: listeners[0].squash.uid: this setting needs mode root or all, or a rule with such a squash; write that, or remove this setting"},
		{"{mode: root, uid: 0}", "", "line 1: listeners[0].squash.uid: 0 is not greater than 0; write a whole number from 1"},
		{"{mode: root, gid: 4294967296}", "", "line 1: listeners[0].squash.gid: 4294967296 is too large; write at most 4294967295"},
		{"{mode: nobody}", "", `line 1: listeners[0].squash.mode: "nobody" is not possible here; write off, root or all`},
	} {
		c, err := Load(file(tt.squash, tt.rule), testKnown())
		got := ""
		if err != nil {
			got = strings.TrimSpace(err.Error())
		} else {
			s := c.Listeners[0].Squash
			got = fmt.Sprint(s.Mode, " ", s.UID, " ", s.GID)
		}
		if got != tt.want {
			t.Errorf("%s, %q: %s, want %s", tt.squash, tt.rule, got, tt.want)
		}
	}
}

// TestManyExports: a listener's rules tell 63 exports apart, each of which may be in several rules.
func TestManyExports(t *testing.T) {
	for n, want := range map[int]string{63: "", 64: "line 6: listeners[0].rules: the rules name 64 exports; write at most 63"} {
		var paths []string
		for i := range n {
			paths = append(paths, fmt.Sprintf("/e%d", i))
		}
		list := strings.Join(paths, ", ")
		_, err := Load([]byte(fmt.Sprintf(`
listeners:
  - name: l
    address: ":1"
    upstream: s
    rules:
      - {name: a, action: deny, exports: [%s]}
      - {name: b, action: allow, exports: [%s, /e1/]}
upstreams: [{name: s, transport: tcp, endpoints: ["h:1"]}]
`, list, list)), testKnown())
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%d exports: %v, want %q", n, err, want)
		}
	}
}
