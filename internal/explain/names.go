package explain

import (
	"fmt"
	"strings"
	"unicode"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
)

// name returns the name of v in table. It returns what and the number if v has no name.
func name(table []string, v uint32, what string) string {
	if uint64(v) < uint64(len(table)) && table[v] != "" {
		return table[v]
	}
	return fmt.Sprintf("%s %d", what, v)
}

// The names of accept_stat, RFC 5531 Section 9.
var acceptStats = []string{"SUCCESS", "PROG_UNAVAIL", "PROG_MISMATCH", "PROC_UNAVAIL", "GARBAGE_ARGS", "SYSTEM_ERR"}

func flavorName(v uint32) string {
	switch v {
	case oncrpc.FlavorNone:
		return "AUTH_NONE"
	case oncrpc.FlavorSys:
		return "AUTH_SYS"
	case oncrpc.FlavorShort:
		return "AUTH_SHORT"
	case oncrpc.FlavorDH:
		return "AUTH_DH"
	case oncrpc.FlavorGSS:
		return "RPCSEC_GSS"
	case oncrpc.FlavorTLS:
		return "AUTH_TLS"
	}
	return fmt.Sprintf("flavor %d", v)
}

func gssProcedure(v uint32) string {
	return name([]string{"DATA", "INIT", "CONTINUE_INIT", "DESTROY", "BIND_CHANNEL", "CREATE", "LIST"}, v, "procedure")
}

func gssService(v uint32) string {
	return name([]string{"", "none", "integrity", "privacy", "channel protection"}, v, "service")
}

// printable returns b as text without control characters, which could do harm to a
// terminal.
func printable(b []byte) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, strings.ToValidUTF8(string(b), "?"))
}
