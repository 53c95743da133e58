package harden

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Needs are the files that the process opens after it is restricted. Whatever is in a directory, and below
// it, can be opened, also when it is made later. A directory that is itself replaced is another one, unless a
// symbolic link leads to it: see versions.
type Needs struct {
	Read    []string // directories, or single files
	Write   []string // directories in which the process makes files and sockets
	Devices []string // devices, or directories of devices
	Program string   // that this process may start, or what is installed there by then; empty if it starts none
	Verbs   bool     // the process uses RDMA devices, with which its files cannot be restricted
}

// system are the directories that libraries read: the resolver's files, certificates and time zones, what the
// kernel says of the process and the host, and shared objects. Missing ones are left out.
var system = []string{
	"/etc", "/usr", "/lib", "/lib64", "/nix/store", "/proc", "/sys",
	"/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager", // where /etc/resolv.conf may lead
	"/dev/zero", "/dev/random", "/dev/urandom",
}

// environment are the variables that name directories with shared objects and certificates.
var environment = []string{"LD_LIBRARY_PATH", "SSL_CERT_DIR", "SSL_CERT_FILE"}

// AddSystem adds what libraries read.
func (n *Needs) AddSystem() {
	n.Read = append(n.Read, system...)
	n.Devices = append(n.Devices, os.DevNull) // which programs that this process starts have as their standard input
	for _, name := range environment {
		for _, dir := range filepath.SplitList(os.Getenv(name)) {
			if filepath.IsAbs(dir) {
				n.Read = append(n.Read, dir)
			}
		}
	}
}

// AddFile adds a file that is read again after it has changed. It may be replaced, and it may be a
// symbolic link, as files from ConfigMaps of Kubernetes are, or be in a directory that is one.
func (n *Needs) AddFile(path string) {
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	n.Read = append(n.Read, around(path))
	if real, err := filepath.EvalSymlinks(path); err == nil && real != path {
		n.Read = append(n.Read, around(real))
	}
	n.Read = append(n.Read, versions(path)...)
}

// mostLinks is how many symbolic links Linux follows on the way to a file.
const mostLinks = 40

// versions returns the directories in which the next versions of other directories will be, which symbolic links on
// the way to path lead to: of releases/2 for the link current to releases/1. They are where the link is, or
// below. A link to elsewhere, such as /var/run, has no versions.
func versions(path string) (dirs []string) {
	at, rest := "/", strings.TrimPrefix(filepath.Clean(path), "/")
	for links := 0; rest != "" && links < mostLinks; {
		name, below, isDir := strings.Cut(rest, "/")
		to, err := os.Readlink(filepath.Join(at, name))
		if err != nil {
			at, rest = filepath.Join(at, name), below // it is no link, or there is nothing
			continue
		}
		links++
		if !filepath.IsAbs(to) {
			to = filepath.Join(at, to)
		}
		if dir := resolved(filepath.Dir(to)); isDir && at != "/" && within(dir, []string{at}) {
			dirs = append(dirs, dir)
		}
		at, rest = "/", strings.TrimPrefix(filepath.Join(to, below), "/")
	}
	return dirs
}

// AddWritten adds a file or a socket that the process makes, and makes anew.
func (n *Needs) AddWritten(path string) { n.Write = append(n.Write, filepath.Dir(path)) }

// around returns the directory of a file, and the file itself where that would be everything.
func around(path string) string {
	if dir := filepath.Dir(path); dir != "/" {
		return dir
	}
	return path
}

// Missing returns the first path that other needs and n does not allow, or "". It compares names: it
// is there to explain, and the kernel decides.
func (n *Needs) Missing(other *Needs) string {
	for _, path := range other.Read {
		if !within(path, n.Read) && !within(path, n.Write) {
			return path
		}
	}
	for _, path := range other.Write {
		if !within(path, n.Write) {
			return path
		}
	}
	return ""
}

// within reports whether path is one of dirs, or below one.
func within(path string, dirs []string) bool {
	path = resolved(path)
	return slices.ContainsFunc(dirs, func(dir string) bool {
		dir = resolved(dir)
		return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
	})
}

// resolved follows the symbolic links of a path, as far as it exists.
func resolved(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	if dir := filepath.Dir(path); dir != path {
		return filepath.Join(resolved(dir), filepath.Base(path))
	}
	return path
}

// existing returns path, or the directory above it in which it will be made. It returns "" if that is the
// root, which has everything.
func existing(path string) string {
	for path != "/" && path != "." {
		if _, err := os.Stat(path); err == nil {
			return path
		}
		path = filepath.Dir(path)
	}
	return ""
}
