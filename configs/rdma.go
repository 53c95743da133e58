package configs

import (
	"slices"
	"strings"
)

// Inline are the inline thresholds of RFC 8166 Section 3.3.2, one for each
// direction, before RFC 8797 lowers them to what the peer can take.
type Inline struct {
	Call  Size `mapstructure:"call"`  // default 4 KiB, for upstreams 64 KiB: what the peer takes
	Reply Size `mapstructure:"reply"` // default 4 KiB
}

// IWARP are the choices of the iwarp provider.
type IWARP struct {
	CRC  Switch `mapstructure:"crc"`  // CRC32c of RFC 5044; default on
	FPDU string `mapstructure:"fpdu"` // emss: fit TCP segments; max: up to 64 KiB; default emss

	// For upstreams: fall back to MPA revision 1 (RFC 5044) when the peer hangs up
	// on revision 2 (RFC 6581). Listeners answer both. Default off.
	Revision1 Switch `mapstructure:"revision1"`
}

func (i *Inline) validate(path string, r *report) {
	checkInline(i.Call, path+".call", r)
	checkInline(i.Reply, path+".reply", r)
}

// checkInline wants whole KiB: RFC 8797 Section 4 cannot say anything else.
func checkInline(s Size, path string, r *report) {
	if between(s, minInline, maxInline, path, r) && s%KiB != 0 {
		r.addf(path, "%s: want a multiple of 1KiB", s)
	}
}

func checkProvider(provider string, w IWARP, path string, k Known, r *report) {
	if provider != "" && !slices.Contains(k.Providers, provider) && !r.has(path+".provider") {
		r.addf(path+".provider", "%q: this build has no such provider; it has %s", provider, strings.Join(k.Providers, ", "))
	}
	if provider != ProviderIWARP {
		if r.source.given(path + ".iwarp") {
			r.addf(path+".iwarp", "only for provider iwarp")
		}
		return
	}
	oneOf(w.FPDU, path+".iwarp.fpdu", r, fpduEMSS, FPDUMax)
}
