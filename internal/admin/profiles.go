package admin

import (
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"strings"
)

// handleProfiles serves Go's profiles to those who are on this host.
func (h *Handler) handleProfiles() {
	for path, f := range map[string]http.HandlerFunc{
		"/debug/pprof/":        pprof.Index,
		"/debug/pprof/cmdline": pprof.Cmdline,
		"/debug/pprof/profile": pprof.Profile,
		"/debug/pprof/symbol":  pprof.Symbol,
		"/debug/pprof/trace":   pprof.Trace,
	} {
		h.mux.Handle(path, readOnly(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if why := refuseProfile(r); why != "" {
				fail(w, http.StatusForbidden, why)
				return
			}
			// The index has one inline style and links to itself.
			w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'")
			f(w, r)
		})))
	}
}

// refuseProfile says why r gets no profile, or "" if it does. A profile costs CPU and shows what is in
// memory, so it is for programs on this host: over the Unix socket, or from loopback to loopback.
//
// A web page elsewhere can make the browser of someone on this host send requests to loopback. The Host
// header tells them: a name that was made to resolve to 127.0.0.1 (DNS rebinding) is no loopback
// address, and browsers say in Sec-Fetch-Site that another site asked. What comes through a proxy on
// this host comes from elsewhere, too.
func refuseProfile(r *http.Request) string {
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && local.Network() == "unix" {
		return ""
	}
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !peer.Addr().Unmap().IsLoopback() {
		return "Profiles are only for programs on the bridge's host: ask from there, at a loopback address or over the control socket."
	}
	if !loopbackHost(r.Host) {
		return "Profiles are only served under a loopback name: ask for http://127.0.0.1, http://[::1] or http://localhost."
	}
	for _, forwarded := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-Ip", "Via"} {
		if r.Header.Get(forwarded) != "" {
			return "Profiles are not served through a proxy."
		}
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin":
		return ""
	}
	return "Profiles are not served to other sites."
}

// loopbackHost reports whether a Host header names this host's loopback.
func loopbackHost(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	}
	if strings.EqualFold(name, "localhost") {
		return true
	}
	a, err := netip.ParseAddr(name)
	return err == nil && a.Unmap().IsLoopback()
}
