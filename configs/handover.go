package configs

import "path/filepath"

// Handover lets another process take over the listening sockets: serve --takeover.
type Handover struct {
	Path string `mapstructure:"path"` // absolute path of a Unix socket, or none
}

// Enabled reports whether the file asks for hand-over.
func (h *Handover) Enabled() bool { return h.Path != none }

// maxSocketPath is the longest path that fits in sockaddr_un. The bridge first makes
// the socket under a name with a suffix, its process id, which needs room too.
const maxSocketPath = 107 - len(".4194304")

func (h *Handover) validate(r *report) {
	if h.Enabled() {
		r.socketPath("handover.path", h.Path, "/run/rdmabridge/handover.sock")
	}
}

// socketPath accepts an absolute path for a Unix socket.
func (r *report) socketPath(path, s, example string) {
	switch {
	case !filepath.IsAbs(s):
		r.addf(path, "%q is not an absolute path; write one such as %s", s, example)
	case len(s) > maxSocketPath:
		r.addf(path, "a path of %d octets is too long for a Unix socket; write at most %d", len(s), maxSocketPath)
	}
}
