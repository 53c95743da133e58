package configs

import (
	"path/filepath"
	"strings"
)

// Handover lets another process take over the listening sockets: serve --takeover.
type Handover struct {
	Path string `mapstructure:"path"` // absolute path of a Unix socket, or none
}

// Enabled reports whether the file asks for hand-over.
func (h *Handover) Enabled() bool { return h.Path != none }

// maxSocketPath is the longest path that fits in sockaddr_un. The bridge first makes
// the socket under a name with a suffix, its process id, which needs room too.
const maxSocketPath = 107 - len(".4194304")

func (h *Handover) validate(k Known, r *report) {
	if !h.Enabled() {
		return
	}
	r.socketPath("handover.path", h.Path, "/run/rdmabridge/handover.sock")
	if dir := filepath.Dir(h.Path); !r.has("handover.path") && !k.hasDirectory(dir) && !madeAtStart(dir) {
		r.addf("handover.path", "the directory %s does not exist; make it, or write a path such as /run/rdmabridge/handover.sock", dir)
	}
}

// warn adds a warning about a directory that is not there and may be by the time the bridge starts.
func (h *Handover) warn(k Known, w *report) {
	if dir := filepath.Dir(h.Path); h.Enabled() && !k.hasDirectory(dir) && madeAtStart(dir) {
		w.addf("handover.path", "the directory %s does not exist yet; unless the unit of systemd makes it (RuntimeDirectory=%s), make it", dir, filepath.Base(dir))
	}
}

// madeAtStart reports whether dir is such as systemd makes when it starts a service.
func madeAtStart(dir string) bool {
	return strings.HasPrefix(dir, "/run/") || strings.HasPrefix(dir, "/var/run/")
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
