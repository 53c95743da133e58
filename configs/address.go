package configs

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
)

// The ports that messages propose.
const (
	portNFS     = 2049
	portNFSRDMA = 20049
	PortMountd  = 20048 // most often
	PortRPCBind = 111
	portNLM     = 4045
	portAdmin   = 9090
)

// UsualPort returns the port that NFS over a transport has most often.
func UsualPort(transport Transport) int {
	if transport == TransportRDMA {
		return portNFSRDMA
	}
	return portNFS
}

// portNames are names that people write for ports. The bridge takes numbers alone, because /etc/services differs
// between hosts and is missing in images.
var portNames = map[string]int{
	"nfs": portNFS, "nfsd": portNFS, "nfs-rdma": portNFSRDMA, "nfsrdma": portNFSRDMA,
	"rpcbind": PortRPCBind, "sunrpc": PortRPCBind, "portmapper": PortRPCBind, "mountd": PortMountd, "mount": PortMountd,
	"http": 80, "https": 443,
}

// address accepts host:port of a server. port is one that a message can propose.
func (r *report) address(path, s string, port int) {
	if _, err := strconv.ParseUint(s, 10, 16); err == nil {
		r.addf(path, "%q has no host; write the server's, such as %s", s, net.JoinHostPort("10.1.0.5", s))
		return
	}
	host, n, ok := r.hostPort(path, s, port)
	switch {
	case !ok:
	case n == 0:
		r.addf(path, "%q has port 0; write the port of the server, such as %s", s, net.JoinHostPort(orHost(host), strconv.Itoa(port)))
	case host == "":
		r.addf(path, "%q has no host; write the server's, such as %s", s, net.JoinHostPort("10.1.0.5", strconv.FormatUint(n, 10)))
	case wildcard(host):
		r.addf(path, "%q stands for every address of a host; write the one of the server, such as %s", s, net.JoinHostPort("10.1.0.5", strconv.FormatUint(n, 10)))
	}
}

// orHost returns host, or one for an example.
func orHost(host string) string {
	if host == "" {
		return "10.1.0.5"
	}
	return host
}

// listenAddress accepts host:port of this host. Without a host it stands for every
// address, and port 0 stands for a port that the kernel chooses.
func (r *report) listenAddress(path, s string, port int) { r.hostPort(path, s, port) }

// CheckAddress returns why s is not host:port of this host, with what to write, or nil. port is one to propose.
func CheckAddress(s string, port int) error {
	return firstProblem(func(r *report) { r.listenAddress("", s, port) })
}

// CheckServer returns why s is not host:port of a server, with what to write, or nil. port is one to propose.
func CheckServer(s string, port int) error {
	return firstProblem(func(r *report) { r.address("", s, port) })
}

func firstProblem(check func(*report)) error {
	r := &report{}
	check(r)
	if len(r.problems) == 0 {
		return nil
	}
	return errors.New(r.problems[0].Text)
}

func (r *report) hostPort(path, s string, port int) (host string, n uint64, ok bool) {
	if r.has(path) {
		return "", 0, false
	}
	host, text, err := net.SplitHostPort(s)
	if err != nil || strings.ContainsAny(s, "/ ,\t\r\n") {
		r.addf(path, "%s", noHostPort(s, port))
		return "", 0, false
	}
	if host == "*" {
		r.addf(path, "%q has * as its host; write :%s, which is every address of this host", s, text)
		return "", 0, false
	}
	if problem := badHost(host); problem != "" {
		r.addf(path, "%q: %s", s, problem)
		return "", 0, false
	}
	if n, err = strconv.ParseUint(text, 10, 16); err != nil {
		r.addf(path, "%s", noPort(s, host, text, port))
		return "", 0, false
	}
	return host, n, true
}

// noHostPort says what is wrong with s, which is not host:port.
func noHostPort(s string, port int) string {
	example := strconv.Itoa(port)
	if strings.HasPrefix(s, "unix:") {
		return fmt.Sprintf("%q is a Unix socket; write host:port, such as 127.0.0.1:%s", s, example)
	}
	if scheme, rest, ok := strings.Cut(s, "://"); ok {
		rest, _, _ = strings.Cut(rest, "/")
		if _, _, err := net.SplitHostPort(rest); err != nil {
			rest = net.JoinHostPort(strings.Trim(rest, "[]"), example)
		}
		return fmt.Sprintf("%q is a URL; write %s, without %s://", s, rest, scheme)
	}
	if a, err := netip.ParseAddr(strings.Trim(s, "[]")); err == nil {
		if a.Is6() && s[0] != '[' {
			return fmt.Sprintf("%q is an IPv6 address without brackets and port; write %q, in quotes", s, net.JoinHostPort(s, example))
		}
		return fmt.Sprintf("%q has no port; write %s", s, net.JoinHostPort(strings.Trim(s, "[]"), example))
	}
	if host, export, ok := strings.Cut(s, ":/"); ok {
		return fmt.Sprintf("%q has the path of an export; write %s, and mount /%s on the clients", s, net.JoinHostPort(strings.Trim(host, "[]"), example), export)
	}
	if all := strings.FieldsFunc(s, func(c rune) bool { return c == ',' || c == ' ' }); len(all) > 1 {
		return fmt.Sprintf("%q has several addresses; write one here, or one in each entry of a list", s)
	}
	if !strings.ContainsAny(s, ":/[] \t") && s != "" {
		if _, err := strconv.ParseUint(s, 10, 16); err == nil {
			return fmt.Sprintf("%q has no host; write 127.0.0.1:%s, or :%s for every address of this host", s, s, s)
		}
		return fmt.Sprintf("%q has no port; write %s:%s", s, s, example)
	}
	return fmt.Sprintf("%q is not an address; write host:port, or [host]:port for IPv6", s)
}

// noPort says what is wrong with text, which is no port.
func noPort(s, host, text string, port int) string {
	known, ok := portNames[strings.ToLower(text)]
	switch {
	case ok:
		return fmt.Sprintf("%q has the port by its name; write its number: %s", s, net.JoinHostPort(host, strconv.Itoa(known)))
	case text == "":
		return fmt.Sprintf("%q has no port behind the colon; write %s", s, net.JoinHostPort(host, strconv.Itoa(port)))
	case strings.Trim(text, "0123456789") == "":
		return fmt.Sprintf("%q has the port %s, which is too large; write a number up to 65535", s, text)
	}
	return fmt.Sprintf("%q has the port %q; write a number up to 65535, such as %s", s, text, net.JoinHostPort(host, strconv.Itoa(port)))
}

var (
	hostName = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?$`)
	likeIPv4 = regexp.MustCompile(`^[0-9.]+$`)
)

// badHost returns why nothing can have the host as its name or address, or "".
func badHost(host string) string {
	if host == "" {
		return ""
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return ""
	}
	switch {
	case likeIPv4.MatchString(host):
		return host + " is not an IPv4 address; write four numbers from 0 to 255"
	case strings.Contains(host, ":"):
		return host + " is not an IPv6 address; write one such as [2001:db8::5]"
	case !hostName.MatchString(host) || strings.Contains(host, ".."):
		return "the host has characters that a name cannot have; write a name or an address, then a colon and the port"
	}
	return ""
}

// addressSettings are the settings that have host:port, with the port that a message can propose.
var addressSettings = []struct {
	path *regexp.Regexp
	port int
}{
	{regexp.MustCompile(`^listeners\[\d+\]\.address$`), portNFS},
	{regexp.MustCompile(`^upstreams\[\d+\]\.endpoints\[\d+\]$`), portNFSRDMA},
	{regexp.MustCompile(`^rpcbind\.address$`), PortRPCBind},
	{regexp.MustCompile(`^nlm\.address$`), portNLM},
	{regexp.MustCompile(`^admin\.address$`), portAdmin},
}

// adviceFor says what to write in place of the number n where an address belongs, or returns "".
func adviceFor(path string, n int) string {
	for _, a := range addressSettings {
		if !a.path.MatchString(path) {
			continue
		}
		port := n
		if n <= 0 || n > 65535 {
			port = a.port
		}
		if strings.HasPrefix(path, "upstreams") {
			return fmt.Sprintf("%d is not an address; write the host of the server, too, such as 10.1.0.5:%d", n, port)
		}
		return fmt.Sprintf("%d is not an address; write 127.0.0.1:%d, or \":%d\" for every address of this host", n, port, port)
	}
	return ""
}
