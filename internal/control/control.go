// Package control is the way to a running bridge for its owner: HTTP over a Unix socket, which only
// the user of the bridge and root can use. A [Server] belongs to a bridge, a [Client] to a command such
// as rdmabridge top, and [Find] looks for the sockets of the bridges on this host.
//
// The socket serves what the admin server does, and the actions besides, which change the bridge. Its
// handlers know who asks ([PeerOf]).
package control

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// socketName is the name of a socket in a directory of a bridge.
const socketName = "control.sock"

// systemDir is the directory of a bridge that runs as root.
const systemDir = "/run/rdmabridge"

// pidHeader is in every answer of a bridge. It has the bridge's process ID.
const pidHeader = "Rdmabridge-Process"

// DefaultPath is where a bridge listens whose file does not say where: in its runtime directory if
// systemd has made one, else in /run for root and in the user's runtime directory for others. It is ""
// if there is no such directory.
func DefaultPath() string {
	if dir, _, _ := strings.Cut(os.Getenv("RUNTIME_DIRECTORY"), ":"); filepath.IsAbs(dir) {
		return filepath.Join(dir, socketName)
	}
	if os.Geteuid() == 0 {
		return filepath.Join(systemDir, socketName)
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "rdmabridge", socketName)
	}
	return ""
}

// DemoPath is where a demo listens, beside a bridge of the same user. It is "" if DefaultPath is.
func DemoPath() string {
	path := DefaultPath()
	if path == "" {
		return ""
	}
	return filepath.Join(filepath.Dir(path), "demo.sock")
}

// places returns where bridges of this host may listen whose files do not say where. The bridge of a
// unit such as rdmabridge-2.service has a directory beside systemDir.
func places() []string {
	all := []string{DefaultPath(), filepath.Join(systemDir, socketName)}
	units, _ := filepath.Glob(systemDir + "*/" + socketName) // the pattern is good
	all = append(all, units...)
	for _, dir := range []string{os.Getenv("XDG_RUNTIME_DIR"), "/run/user/" + strconv.Itoa(os.Geteuid())} {
		if filepath.IsAbs(dir) {
			all = append(all, filepath.Join(dir, "rdmabridge", socketName))
		}
	}
	var once []string
	for _, p := range all {
		if p != "" && !slices.Contains(once, p) {
			once = append(once, p)
		}
	}
	return once
}
