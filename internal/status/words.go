package status

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// packages are the names of packages that begin parts of errors. None is that of a setting at the top of a file.
var packages = regexp.MustCompile(`(^|\n|[:;] )(?:(?:tcpframe|rdmaside|iwarp|ibverbs|proxy|regmem|fabric|session|ulb|xdr)(?:/[a-z]+)?: )+`)

// Plain returns the text of an error without the names of packages, which tell a user nothing.
func Plain(text string) string { return packages.ReplaceAllString(text, "$1") }

// PlainErrors makes the errors in d Plain.
func (d *Document) PlainErrors() {
	d.NotReady = Plain(d.NotReady)
	for i := range d.Listeners {
		d.Listeners[i].Unreachable = Plain(d.Listeners[i].Unreachable)
	}
	for i := range d.Upstreams {
		u := &d.Upstreams[i]
		u.LastError = Plain(u.LastError)
		for j := range u.Endpoints {
			u.Endpoints[j].Reason = Plain(u.Endpoints[j].Reason)
		}
		for j := range u.Connections {
			u.Connections[j].LastError = Plain(u.Connections[j].LastError)
		}
	}
}

// count returns n with its noun: "1 Call", "2 Calls".
func count(n uint64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.FormatUint(n, 10) + " " + noun + "s"
}

// times returns "once" or how many times.
func times(n uint64) string {
	if n == 1 {
		return "once"
	}
	return strconv.FormatUint(n, 10) + " times"
}

// waits returns "1 client waits" or "2 clients wait".
func waits(n int, noun string) string {
	if n == 1 {
		return "1 " + noun + " waits"
	}
	return strconv.Itoa(n) + " " + noun + "s wait"
}

func waitsLower(n int, noun string) string {
	if n == 0 {
		return "no " + noun + " waits"
	}
	return waits(n, noun)
}

// duration returns s seconds with three digits and a unit: "340 µs", "1.25 ms", "2.5 s".
func duration(s float64) string {
	switch {
	case s < 0.9995e-3:
		return trim(s*1e6) + " µs"
	case s < 0.9995:
		return trim(s*1e3) + " ms"
	case s < 60:
		return trim(s) + " s"
	}
	return seconds(s)
}

// seconds returns s seconds as an operator says it: "30 s", "3 min 20 s", "5 h 12 min".
func seconds(s float64) string {
	if s < 1 {
		return duration(s)
	}
	n := int64(math.Round(s))
	switch {
	case n < 60:
		return fmt.Sprintf("%d s", n)
	case n < 3600:
		return fmt.Sprintf("%d min %d s", n/60, n%60)
	case n < 48*3600:
		return fmt.Sprintf("%d h %d min", n/3600, n%3600/60)
	}
	return fmt.Sprintf("%d days", n/86400)
}

// trim returns v with three digits.
func trim(v float64) string {
	switch {
	case v < 9.995:
		return strconv.FormatFloat(math.Round(v*100)/100, 'f', -1, 64)
	case v < 99.95:
		return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64)
	}
	return strconv.FormatFloat(math.Round(v), 'f', 0, 64)
}

// size returns n bytes: "512 B", "1.5 MiB".
func size(n int64) string {
	v, unit := float64(n), 0
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	for v >= 1023.5 && unit < len(units)-1 {
		v /= 1024
		unit++
	}
	return trim(v) + " " + units[unit]
}

// percent returns a share: "3 %", "0.6 %".
func percent(share float64) string {
	if share < 0.0995 {
		return strconv.FormatFloat(math.Round(share*1000)/10, 'f', -1, 64) + " %"
	}
	return strconv.FormatFloat(math.Round(share*100), 'f', 0, 64) + " %"
}

// grownBy returns the counters that have grown, by how much.
func grownBy(now, old map[string]uint64) map[string]uint64 {
	grown := make(map[string]uint64)
	for k, n := range now {
		if n > old[k] {
			grown[k] = n - old[k]
		}
	}
	return grown
}

func total(counts map[string]uint64) (n uint64) {
	for _, c := range counts {
		n += c
	}
	return n
}

// reasons lists counters by reason, the most first.
func reasons(counts map[string]uint64) string {
	keys := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), strings.Compare(a, b))
	})
	var all []string
	for _, k := range keys {
		all = append(all, fmt.Sprintf("%d for %s", counts[k], strings.ReplaceAll(k, "_", " ")))
	}
	return strings.Join(all, ", ")
}

// stop removes a full stop and space from the end of an error, so that a sentence can go on.
func stop(s string) string { return strings.TrimRight(strings.TrimSpace(s), ". \n") }

func firstLine(s string) string {
	line, rest, _ := strings.Cut(strings.TrimSpace(s), "\n")
	if rest != "" && strings.HasSuffix(line, ":") {
		next, _, _ := strings.Cut(strings.TrimSpace(rest), "\n")
		return line + " " + next
	}
	return line
}

// orFile returns a file's name, or a word for it.
func orFile(name string) string {
	if name == "" {
		return "FILE"
	}
	return name
}
