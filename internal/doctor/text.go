package doctor

import (
	"fmt"
	"strconv"
	"strings"
)

// maxText is the longest text that a report takes from a file.
const maxText = 200

// printable returns the first line of s, cut to maxText octets, without white space around it and
// with a question mark in the place of each octet that is not a printable ASCII character.
func printable(s string) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	s = s[:min(len(s), maxText)]
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s))
}

// number parses an unsigned number, in hexadecimal after 0x; ok is false if s is none.
func number(s string) (n uint64, ok bool) {
	n, err := strconv.ParseUint(strings.TrimSpace(s), 0, 64)
	return n, err == nil
}

// size formats a number of octets.
func size(n uint64) string {
	for _, u := range []struct {
		octets uint64
		name   string
	}{{1 << 40, "TiB"}, {1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n >= u.octets && n%u.octets == 0 {
			return fmt.Sprintf("%d%s", n/u.octets, u.name)
		}
	}
	return fmt.Sprintf("%dB", n)
}

// shellWord quotes s for a shell, unless that is not necessary.
func shellWord(s string) string {
	safe := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_-./:@%+", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !safe(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
