package configs

import "path/filepath"

// Control is the Unix socket for commands such as rdmabridge top and rdmabridge drain.
type Control struct {
	Path string `mapstructure:"path"` // absolute path of a Unix socket, or none; "": where the commands look
}

// Enabled reports whether the bridge shall listen for commands.
func (c *Control) Enabled() bool { return c.Path != none }

func (c *Control) validate(h *Handover, r *report) {
	if c.Path == "" || !c.Enabled() {
		return
	}
	r.socketPath("control.path", c.Path, "/run/rdmabridge/control.sock")
	if filepath.Clean(c.Path) == filepath.Clean(h.Path) {
		r.addf("control.path", "%s is handover.path, too; write another path", c.Path)
	}
}
