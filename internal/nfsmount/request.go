package nfsmount

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Exit codes of mount(8).
const (
	Usage   = 1  // incorrect invocation or permissions
	System  = 2  // this host lacks something
	Failure = 32 // mount failure
)

// An Error is why there is no mount.
type Error struct {
	Code int // of the exit: Usage, System or Failure
	Text string
}

func (e *Error) Error() string { return e.Text }

func failf(code int, format string, args ...any) *Error {
	return &Error{Code: code, Text: fmt.Sprintf(format, args...)}
}

// A Request is one mount.
type Request struct {
	Source, Dir string // as the administrator wrote them
	Bridge      Bridge

	options   []string      // as the administrator wrote them
	path      string        // of the export
	remount   bool          // change the flags of a mount that is there
	flags     uintptr       // of mount(2)
	data      []string      // options for the kernel's client
	versions  []string      // of NFS, to be tried in this order
	mountPort uint16        // of the storage's MOUNT; 0 to ask its rpcbind
	retry     time.Duration // for how long to try
}

// retryTime is that of mount.nfs.
const retryTime = 2 * time.Minute

// A flag is an option that is a bit of mount(2).
type flag struct {
	bit uintptr
	off bool // the option clears the bit
}

var flags = map[string]flag{
	"ro": {unix.MS_RDONLY, false}, "rw": {unix.MS_RDONLY, true},
	"nosuid": {unix.MS_NOSUID, false}, "suid": {unix.MS_NOSUID, true},
	"nodev": {unix.MS_NODEV, false}, "dev": {unix.MS_NODEV, true},
	"noexec": {unix.MS_NOEXEC, false}, "exec": {unix.MS_NOEXEC, true},
	"sync": {unix.MS_SYNCHRONOUS, false}, "async": {unix.MS_SYNCHRONOUS, true},
	"dirsync": {unix.MS_DIRSYNC, false},
	"noatime": {unix.MS_NOATIME, false}, "atime": {unix.MS_NOATIME, true},
	"nodiratime": {unix.MS_NODIRATIME, false}, "diratime": {unix.MS_NODIRATIME, true},
	"relatime": {unix.MS_RELATIME, false}, "norelatime": {unix.MS_RELATIME, true},
	"strictatime": {unix.MS_STRICTATIME, false}, "nostrictatime": {unix.MS_STRICTATIME, true},
	"remount": {unix.MS_REMOUNT, false},
}

// ignored are options that mean something to mount(8) and systemd, and not to a helper.
var ignored = map[string]bool{
	"defaults": true, "auto": true, "noauto": true, "nofail": true, "_netdev": true, "fg": true,
	"user": true, "nouser": true, "users": true, "owner": true, "group": true,
	"comment": true, "helper": true, "uhelper": true, "rdma": true, // rdma is true of all these mounts
}

// ours are options of the way to the storage, which the bridge is.
var ours = map[string]string{
	"tcp": "", "udp": "", "tcp6": "", "udp6": "", "rdma6": "", "addr": "", "mountaddr": "", "mounthost": "", "mountproto": "", "mountvers": "",
	"bg": "; write x-systemd.automount or nofail in /etc/fstab, so that the boot goes on without the storage",
}

// allVersions are tried in this order if no option names one.
var allVersions = []string{"4.2", "4.1", "4.0", "3"}

// Parse reads a source such as 10.1.0.5:/export and options as mount(8) has them. The port of the storage is usualPort
// unless an option says it. The program has these RDMA providers.
func Parse(source, dir, options string, usualPort uint16, providers []string) (*Request, error) {
	host, path, err := splitSource(source)
	if err != nil {
		return nil, err
	}
	r := &Request{Source: source, Dir: dir, options: splitOptions(options), path: path, retry: retryTime}
	provider, port := "", usualPort
	for _, option := range r.options {
		name, value, _ := strings.Cut(option, "=")
		f, isFlag := flags[name]
		advice, isOurs := ours[name]
		switch {
		case name == "", ignored[name], strings.HasPrefix(name, "x-"), strings.HasPrefix(name, "X-"):
		case isFlag && f.off:
			r.flags &^= f.bit
		case isFlag:
			r.flags |= f.bit
		case isOurs, name == "proto" && value != "rdma":
			return nil, failf(Usage, "the option %s is not possible with rdmabridge, which reaches the storage over RDMA%s", option, advice)
		case name == "proto": // rdma
		case name == "port":
			port, err = parsePort(option, value)
		case name == "mountport":
			r.mountPort, err = parsePort(option, value)
		case name == "provider":
			if provider = value; !slices.Contains(providers, value) {
				err = failf(Usage, "the option %s is not possible: this program has %s", option, strings.Join(providers, " and "))
			}
		case name == "retry":
			n, e := strconv.ParseUint(value, 10, 16)
			if e != nil {
				err = failf(Usage, "the option %s is not possible; write a number of minutes, such as retry=2", option)
			}
			r.retry = time.Duration(n) * time.Minute
		case name == "vers", name == "nfsvers":
			r.versions, err = parseVersions(option, value)
		case len(name) > 1 && name[0] == 'v' && name[1] >= '0' && name[1] <= '9':
			r.versions, err = parseVersions(option, name[1:])
		default:
			r.data = append(r.data, option)
		}
		if err != nil {
			return nil, err
		}
	}
	r.remount = r.flags&unix.MS_REMOUNT != 0
	if r.versions == nil {
		r.versions = allVersions
	}
	r.Bridge = newBridge(host, port, usualPort, provider)
	return r, nil
}

// splitSource splits HOST:/PATH, in which an IPv6 address is in brackets.
func splitSource(source string) (host, path string, err error) {
	host, path, found := strings.Cut(source, ":/")
	if inner, bracketed := strings.CutPrefix(host, "["); bracketed {
		if host, bracketed = strings.CutSuffix(inner, "]"); bracketed {
			_, err := netip.ParseAddr(host)
			bracketed = err == nil
		}
		found = found && bracketed
	} else if found && strings.ContainsAny(host, ":/[]") {
		return "", "", failf(Usage, "%q has an IPv6 address without brackets; write one such as [fd00::5]:/export", source)
	}
	if !found || host == "" || strings.ContainsAny(host, " \t\n,\"'\\") {
		return "", "", failf(Usage, "%q is not an export of a storage; write one such as 10.1.0.5:/export", source)
	}
	return host, "/" + path, nil
}

// splitOptions splits at commas that are not in quotes, as in context="a:b:c0,c1".
func splitOptions(s string) []string {
	quoted := false
	return strings.FieldsFunc(s, func(c rune) bool {
		quoted = quoted != (c == '"')
		return c == ',' && !quoted
	})
}

func parsePort(option, value string) (uint16, error) {
	n, err := strconv.ParseUint(value, 10, 16)
	if err != nil || n == 0 {
		return 0, failf(Usage, "the option %s is not possible; write a number from 1 to 65535", option)
	}
	return uint16(n), nil
}

// parseVersions returns the versions that an option allows.
func parseVersions(option, value string) ([]string, error) {
	switch value {
	case "3", "4.0", "4.1", "4.2":
		return []string{value}, nil
	case "4":
		return allVersions[:3], nil
	}
	return nil, failf(Usage, "the option %s is not possible; write vers=4.2, 4.1, 4.0 or 3", option)
}

// kernelOptions returns the options of mount(2) for a version of NFS. The bridge listens at a port. NFSv3 has MOUNT at
// mountd.
func (r *Request) kernelOptions(version string, port uint16, mountd netip.AddrPort) string {
	options := []string{"vers=" + version}
	switch version {
	case "3":
		options = append(options, "nolock")
	case "4.0":
		options = append(options, "clientaddr=0.0.0.0") // callbacks would go past the bridge
	}
	options = append(options, r.data...)
	if version == "3" {
		options = append(options, fmt.Sprintf("mountvers=3,mountproto=tcp,mountaddr=%s,mountport=%d", mountd.Addr(), mountd.Port()))
		if mountd.Addr().Is6() {
			options[len(options)-1] = strings.Replace(options[len(options)-1], "mountproto=tcp", "mountproto=tcp6", 1)
		}
	}
	return strings.Join(append(options, "proto=tcp,addr="+loopback, fmt.Sprintf("port=%d", port)), ",")
}

// loopback is where bridges of mounts listen.
const loopback = "127.0.0.1"

// Fstab is the line of /etc/fstab that has the same mount made at each boot.
func (r *Request) Fstab() string {
	all := []string{"_netdev"}
	for _, option := range r.options {
		if option != "_netdev" {
			all = append(all, option)
		}
	}
	escape := strings.NewReplacer(" ", `\040`, "\t", `\011`, "\n", `\012`, `\`, `\134`)
	return fmt.Sprintf("%s %s rdmabridge %s 0 0", escape.Replace(r.Source), escape.Replace(r.Dir), strings.Join(all, ","))
}

// hostPort joins a host and a port.
func hostPort(host string, port uint16) string {
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}
