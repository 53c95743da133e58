package configs

import "path/filepath"

// Handover lets another process take the listening sockets over: serve --takeover.
type Handover struct {
	Path string `mapstructure:"path"` // of a Unix socket, absolute, or none; default none
}

// Enabled reports whether it is wanted.
func (h *Handover) Enabled() bool { return h.Path != none }

// maxSocketPath is what fits in sockaddr_un, with the suffix under which it is made.
const maxSocketPath = 107 - len(".4194304")

func (h *Handover) validate(r *report) {
	switch {
	case !h.Enabled():
	case !filepath.IsAbs(h.Path):
		r.addf("handover.path", "%q: want an absolute path", h.Path)
	case len(h.Path) > maxSocketPath:
		r.addf("handover.path", "%d octets are too long for a Unix socket; want at most %d", len(h.Path), maxSocketPath)
	}
}
