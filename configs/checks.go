package configs

import (
	"net"
	"slices"
	"strconv"
	"strings"
)

func (c *Config) checkUpstream(name, path string, r *report) {
	if r.spoiled("upstreams") || slices.ContainsFunc(c.Upstreams, func(u Upstream) bool { return u.Name == name }) {
		return
	}
	var names []string
	for _, u := range c.Upstreams {
		if u.Name != "" {
			names = append(names, u.Name)
		}
	}
	if len(names) == 0 {
		r.addf(path, "no upstream is named %q", name)
		return
	}
	r.addf(path, "no upstream is named %q; there is %s", name, strings.Join(names, ", "))
}

// checkAddress wants host:port. A listener may leave the host out, and may ask
// for any port with 0.
func checkAddress(s string, listen bool, path string, r *report) {
	if r.has(path) {
		return
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		r.addf(path, "%q: want host:port, [host]:port for IPv6", s)
		return
	}
	n, err := strconv.ParseUint(port, 10, 16)
	switch {
	case err != nil:
		r.addf(path, "%q: the port is no number up to 65535", s)
	case n == 0 && !listen:
		r.addf(path, "%q: the port must be greater than 0", s)
	case host == "" && !listen:
		r.addf(path, "%q: want a host before the port", s)
	case strings.ContainsAny(host, " \t\r\n/"):
		r.addf(path, "%q: the host has characters that no host has", s)
	}
}

// required reports whether s is given, and notes a problem if nobody else did.
func required(s, path string, r *report) bool {
	if s == "" && !r.has(path) && !r.spoiled(path) {
		r.addf(path, "required")
	}
	return s != ""
}

func oneOf(s, path string, r *report, words ...string) bool {
	ok := slices.Contains(words, s)
	if !ok && s != "" && !r.has(path) {
		r.addf(path, "%q: want %s", s, strings.Join(words, " or "))
	}
	return ok
}

func atMost(n, most int, path string, r *report) {
	if n > most {
		r.addf(path, "%d: want at most %d", n, most)
	}
}

func between(s, least, most Size, path string, r *report) bool {
	ok := s >= least && s <= most
	if !ok && s != 0 && !r.has(path) {
		r.addf(path, "%s: want %s to %s", s, least, most)
	}
	return ok
}

// finite refuses none where waiting for ever would leave Calls unanswered.
func finite(d Duration, path string, r *report) {
	if d == noDuration {
		r.addf(path, "none is not possible here")
	}
}

// only refuses settings that have no effect with the transport chosen.
func only(path, transport string, r *report, settings ...string) {
	for _, s := range settings {
		if p := path + "." + s; r.source.given(p) && !r.has(p) {
			r.addf(p, "only for transport %s", transport)
		}
	}
}
