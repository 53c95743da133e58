package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/cmd/rdmabridge/internal/translate"
	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/control"
	"github.com/rdmabridge/rdmabridge/internal/handover"
	"github.com/rdmabridge/rdmabridge/internal/harden"
	"github.com/rdmabridge/rdmabridge/internal/status"
)

// ownsProcess says that this process does nothing but run one command line. A process that does more, such as
// a test, must not be restricted: that cannot be undone.
var ownsProcess bool

// A hardening is what the bridge has taken from its own process.
type hardening struct {
	status status.Hardening
	files  *harden.Needs // what the process can still open; nil if that is everything
}

// restrictProcess takes from the process what a bridge with this configuration, from files, does not
// need. It logs what is in force.
func restrictProcess(c *configs.Config, files []string, log zerolog.Logger) hardening {
	var h hardening
	switch {
	case !ownsProcess:
		return h
	case c.Hardening == configs.Off:
		h.status.Missing = append(h.status.Missing, "everything: the configuration has hardening: off")
	default:
		n := filesOf(c, files)
		n.AddSystem()
		n.Write = append(n.Write, logDirectories()...)
		if c.Handover.Enabled() {
			n.Program = handover.Program
		}
		for _, r := range harden.Apply(n) {
			if r.Err != nil {
				h.status.Missing = append(h.status.Missing, fmt.Sprintf("%s: %v", r.Name, r.Err))
				continue
			}
			h.status.InForce = append(h.status.InForce, r.Name)
			if r.Name == harden.Files {
				h.files = n
			}
		}
	}
	log.Info().Str("event", "hardening").Strs("in_force", h.status.InForce).Strs("missing", h.status.Missing).Msg("restricted this process to what the bridge needs")
	return h
}

// logDirectories are where an access log is put that a reload switches on: the directory of a systemd unit
// with LogsDirectory, and the usual one, if it is there.
func logDirectories() []string {
	dirs := filepath.SplitList(os.Getenv("LOGS_DIRECTORY"))
	if info, err := os.Stat(usualLogs); err == nil && info.IsDir() {
		dirs = append(dirs, usualLogs)
	}
	return dirs
}

const usualLogs = "/var/log/rdmabridge"

// filesOf returns which files a bridge with this configuration opens while it runs.
func filesOf(c *configs.Config, files []string) *harden.Needs {
	n := &harden.Needs{}
	for _, path := range files {
		if known.Directory(path) {
			path = filepath.Join(path, "any.yaml") // what is there, and what will be
		}
		n.AddFile(path)
	}
	all, _ := configs.Files(files)
	for _, path := range all {
		n.AddFile(path) // which may be a link to elsewhere
	}
	read, written := c.Paths()
	for _, path := range read {
		n.AddFile(path)
	}
	for _, path := range written {
		n.AddWritten(path)
	}
	if dir := translate.LockDirectory(&c.NLM); dir != "" {
		n.AddWritten(filepath.Join(dir, "locks"))
	}
	if path := control.DefaultPath(); c.Control.Path == "" && path != "" {
		n.AddWritten(path)
	}
	// Whatever this configuration has: a reload may bring the first upstream with a device.
	n.Verbs = slices.Contains(known.Providers, configs.ProviderIBVerbs)
	return n
}

// permits returns an error if the process can no longer open the files of a configuration.
func (h *hardening) permits(c *configs.Config, files []string) error {
	if h.files == nil {
		return nil
	}
	if path := h.files.Missing(filesOf(c, files)); path != "" {
		return fmt.Errorf("%s is outside of the directories that this process has been restricted to since it started (hardening): stop the bridge and start it again, or use a directory that the configuration had", path)
	}
	return nil
}
