package configs

import (
	"fmt"
	"strings"
	"testing"
)

// Programs that the bridge does not know, and what Load says of them.
func TestDeclaredPrograms(t *testing.T) {
	k := testKnown()
	k.Bound = func(program, version uint32) bool { return program == 100003 && version == 3 }
	const rest = ", reply: 1KiB, effect: read_only}"
	many := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "{program: %d, versions: [1]%s, ", 1000+i, rest)
		}
		return strings.TrimSuffix(b.String(), ", ")
	}
	for _, tt := range []struct{ name, programs, want string }{
		{"none", "", ""},
		{"one", "{program: 9, versions: [1, 2], procedures: [0, 4294967295]" + rest, ""},
		{"the longest Reply", "{program: 9, versions: [1], reply: 1032KiB, effect: idempotent}", ""},
		{"a longer one", "{program: 9, versions: [1], reply: 4105KiB, effect: non_idempotent}", "programs[0].reply: 4105KiB is more than chunks.reply, which is 4104KiB; write less here, or more there"},
		{"nothing", "{}", `
			programs[0].effect: this setting is required; write it, such as effect: non_idempotent
			programs[0].program: this setting is required; write it, such as program: 536870913
			programs[0].reply: this setting is required; write it, such as reply: 64KiB
			programs[0].versions: this setting is required; write it, such as versions: [1]`},
		{"no version", "{program: 9, versions: []" + rest, "programs[0].versions: this setting is required; write it, such as versions: [1]"},
		{"no Reply", "{program: 9, versions: [1], reply: 0, effect: read_only}", "programs[0].reply: \"0\" is not greater than 0; write a size such as 4096, 64KiB, 1MiB or 1GiB"},
		{"no effect", "{program: 9, versions: [1], reply: 1KiB, effect: none}", `programs[0].effect: "none" is not possible here; write read_only, idempotent or non_idempotent`},
		{"no program", "{program: echo, versions: [1]" + rest, `programs[0].program: "echo" is not an RPC program; write a name such as nfs or mount, or a number`},
		{"no number", "{program: 4294967296, versions: [1]" + rest, `programs[0].program: "4294967296" is not an RPC program; write a name such as nfs or mount, or a number`},
		{"one that the bridge knows", "{program: 100003, versions: [3, 9]" + rest, "programs[0].versions[0]: the bridge knows version 3 of program 100003, and more of it than can be said here; remove it"},
		{"a version twice", "{program: 9, versions: [1, 1]" + rest, "programs[0].versions[1]: version 1 is there twice; remove one of the two"},
		{"procedures, then all", "{program: 9, versions: [1], procedures: [1]" + rest + ", {program: 9, versions: [1]" + rest, ""},
		{"all, then procedures", "{program: 9, versions: [1]" + rest + ", {program: 9, versions: [1, 2], procedures: [1]" + rest, "programs[1]: no Call is of this entry, because programs[0] declares its procedures first; remove one of the two"},
		{"the same procedures", "{program: 9, versions: [1], procedures: [1, 2]" + rest + ", {program: 9, versions: [1], procedures: [2]" + rest, "programs[1]: no Call is of this entry, because programs[0] declares its procedures first; remove one of the two"},
		{"as many as there may be", many(maxDeclared), ""},
		{"one more", many(maxDeclared + 1), "programs: there are 257 programs; write at most 256"},
		{"versions", "{program: 9, versions: [" + strings.Repeat("1,", 17) + "]" + rest, "programs[0].versions: there are 17 versions; write at most 16"},
		{"procedures", "{program: 9, versions: [1], procedures: [" + strings.Repeat("1,", 257) + "]" + rest, "programs[0].procedures: there are 257 procedures; write at most 256"},
	} {
		t.Run(tt.name, func(t *testing.T) { loadSays(t, k, "programs: ["+tt.programs+"]", tt.want) })
	}
}
