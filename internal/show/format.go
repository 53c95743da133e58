package show

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Duration formats seconds with three digits or so, in at most six columns: 350us, 1.25ms, 2m05s.
func Duration(seconds float64) string {
	switch {
	case math.IsNaN(seconds) || seconds < 0.0000005:
		return "0"
	case seconds < 0.0009995:
		return three(seconds*1e6) + "us"
	case seconds < 0.9995:
		return three(seconds*1e3) + "ms"
	case seconds < 99.95:
		return three(seconds) + "s"
	}
	s := int64(seconds + 0.5)
	switch {
	case seconds < 3599.5:
		return fmt.Sprintf("%dm%02ds", s/60, s%60)
	case seconds < 99*3600:
		return fmt.Sprintf("%dh%02dm", s/3600, s/60%60)
	case seconds < 1000*86400:
		return fmt.Sprintf("%dd%02dh", s/86400, s/3600%24)
	}
	return fmt.Sprintf("%dd", s/86400)
}

// Since formats the time from t to now; "" if t is not known.
func Since(t, now time.Time) string {
	if t.IsZero() {
		return ""
	}
	seconds := math.Round(max(0, now.Sub(t).Seconds()))
	if seconds < 100 {
		return strconv.Itoa(int(seconds)) + "s"
	}
	return Duration(seconds)
}

// Count formats a number of things, or of things a second, in at most five columns: 950, 12.3k, 4.5M.
func Count(n float64) string {
	switch {
	case math.IsNaN(n) || n <= 0:
		return "0"
	case n < 9.995:
		return strings.TrimSuffix(strconv.FormatFloat(n, 'f', 1, 64), ".0")
	}
	return scaled(n, 1000, 9999.5, "", "k", "M", "G", "T")
}

// Bytes formats a number of bytes, or of bytes a second, in at most five columns. K, M and G are powers
// of 1024.
func Bytes(n float64) string {
	if math.IsNaN(n) || n <= 0 {
		return "0"
	}
	return scaled(n, 1024, 1023.5, "", "K", "M", "G", "T")
}

// Size formats a number of bytes for text: 1.5 MiB.
func Size(n float64) string {
	s := Bytes(n)
	number := strings.TrimRight(s, "KMGT")
	if unit := s[len(number):]; unit != "" {
		return number + " " + unit + "iB"
	}
	return number + " B"
}

// scaled divides n by base until it is below most, and adds the unit.
func scaled(n, base, most float64, units ...string) string {
	i := 0
	for n >= most && i < len(units)-1 {
		n /= base
		i++
		most = 999.5
	}
	if i == 0 {
		return strconv.FormatFloat(n, 'f', 0, 64)
	}
	return three(n) + units[i]
}

// three formats n with three digits: 1.25, 12.5, 125.
func three(n float64) string {
	switch {
	case n < 9.995:
		return strconv.FormatFloat(n, 'f', 2, 64)
	case n < 99.95:
		return strconv.FormatFloat(n, 'f', 1, 64)
	}
	return strconv.FormatFloat(n, 'f', 0, 64)
}

// Percent formats a share: 0%, 0.3%, 42%.
func Percent(share float64) string {
	p := share * 100
	switch {
	case math.IsNaN(p) || p <= 0:
		return "0%"
	case p < 0.05:
		return "<0.1%"
	case p < 9.95:
		return strings.TrimSuffix(strconv.FormatFloat(p, 'f', 1, 64), ".0") + "%"
	}
	return strconv.FormatFloat(p, 'f', 0, 64) + "%"
}

// Clean returns s without characters that a terminal would obey. Names and errors come from files and
// from peers.
func Clean(s string) string {
	s = strings.ReplaceAll(s, "\n", "; ") // joined errors
	return strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// Plural returns "1 thing", "2 things" or "2 addresses".
func Plural[T int | uint64](n T, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	if strings.HasSuffix(thing, "s") {
		thing += "e"
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
