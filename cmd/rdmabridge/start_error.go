package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/cmd/rdmabridge/internal/translate"
	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/handover"
	"github.com/rdmabridge/rdmabridge/internal/logsink"
	"github.com/rdmabridge/rdmabridge/internal/status"
)

// A startError is the error of a bridge that could not start, with the way out.
type startError struct {
	err    error
	advice string // "" if there is none
}

func (e *startError) Error() string {
	text := status.Plain(e.err.Error())
	if e.advice == "" {
		return text
	}
	return text + "\n" + e.advice
}
func (e *startError) Unwrap() error { return e.err }

// cannotStart wraps err, which kept a bridge from starting with c. owners are those of its ports.
func cannotStart(err error, c *configs.Config, owners map[uint16]string) error {
	return &startError{err, wayOut(err, c, owners)}
}

// portOwners returns which processes listen at the ports of c. A process that has been restricted cannot look at others any
// more.
func portOwners(c *configs.Config) map[uint16]string {
	owners := make(map[uint16]string)
	addresses := []string{c.RPCBind.Address, c.NLM.Address, c.Admin.Address}
	for i := range c.Listeners {
		addresses = append(addresses, c.Listeners[i].Address)
	}
	for _, a := range addresses {
		_, text, _ := net.SplitHostPort(a)
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil || port == 0 {
			continue
		}
		if pid, name := listenerAt("/proc", uint16(port)); pid == os.Getpid() {
			owners[uint16(port)] = "this process itself"
		} else if pid != 0 {
			owners[uint16(port)] = fmt.Sprintf("process %d (%s)", pid, name)
		}
	}
	return owners
}

// logStartError logs err in the format of the log, if it is that of a start. It reports whether it did:
// nothing else is to be printed then. A log for people has the error as plain text instead.
func logStartError(sink *logsink.Sink, err error) bool {
	var start *startError
	if !errors.As(err, &start) || sink.ForPeople() {
		return false
	}
	log := sink.Logger()
	e := log.WithLevel(zerolog.FatalLevel).Str("event", "start_failed").Err(start.err)
	if start.advice != "" {
		e = e.Str("advice", start.advice)
	}
	e.Msg("the bridge cannot start")
	return true
}

// logFileError writes a line for each problem of a configuration file, for programs that read the log of
// serve. It reports whether it did. A log for people has the problems as plain text instead.
func logFileError(w io.Writer, files []string, known configs.Known, err error) bool {
	sink := logsink.New(w, translate.Log(configs.Log{Level: "info", Format: configs.LogFormat(files, known)}))
	if sink.ForPeople() {
		return false
	}
	log := sink.Logger()
	line := func() *zerolog.Event {
		return log.WithLevel(zerolog.FatalLevel).Str("event", "config_invalid").Str("file", strings.Join(files, ", "))
	}
	var problems configs.Problems
	if !errors.As(err, &problems) {
		line().Err(err).Msg("the configuration file cannot be read; nothing was started")
		return true
	}
	for _, p := range problems {
		e := log.WithLevel(zerolog.FatalLevel).Str("event", "config_invalid").Str("file", p.File)
		if p.Line > 0 {
			e = e.Int("line", p.Line)
		}
		e.Str("setting", p.Path).Str("error", p.Text).Msg("the configuration has a problem; nothing was started")
	}
	return true
}

// wayOut says what to do about an error of a bridge that could not start with c, or "".
func wayOut(err error, c *configs.Config, owners map[uint16]string) string {
	var op *net.OpError
	var addr netip.AddrPort
	if errors.As(err, &op) && op.Addr != nil {
		addr, _ = netip.ParseAddrPort(op.Addr.String())
	}
	setting := settingOf(c, addr)
	switch {
	case errors.Is(err, syscall.EACCES) && addr.Port() > 0 && int(addr.Port()) < unprivilegedPort():
		return fmt.Sprintf("port %d is privileged: the process needs CAP_NET_BIND_SERVICE. Under systemd write AmbientCapabilities=CAP_NET_BIND_SERVICE in the unit; "+
			"elsewhere run \"setcap cap_net_bind_service=+ep %s\", or write a port from %d in %s", addr.Port(), handover.Program, unprivilegedPort(), setting)
	case errors.Is(err, syscall.EADDRINUSE) && addr.Port() > 0:
		return fmt.Sprintf("%s listens at port %d already; end it, or write another port in %s", cmp.Or(owners[addr.Port()], "another process"), addr.Port(), setting)
	case errors.Is(err, syscall.EADDRNOTAVAIL) && addr.IsValid():
		return fmt.Sprintf("no interface of this host has the address %s: compare \"ip address\" with %s", addr.Addr(), setting)
	case errors.Is(err, syscall.EMFILE):
		return "the process has no file descriptor left; raise LimitNOFILE in the systemd unit, or ulimit -n"
	}
	var path *os.PathError
	if errors.As(err, &path) && path.Path == c.Log.Access.Path {
		return fmt.Sprintf("make the directory %s and let the user of this process write to it, or write another path in log.access.path", filepath.Dir(path.Path))
	}
	if errors.As(err, &path) && path.Path == c.Log.Audit.Path {
		return fmt.Sprintf("make the directory %s and let the user of this process write to it, or write another path in log.audit.path", filepath.Dir(path.Path))
	}
	return ""
}

// settingOf names the setting that has an address with the port of addr.
func settingOf(c *configs.Config, addr netip.AddrPort) string {
	suffix := ":" + strconv.Itoa(int(addr.Port()))
	for _, l := range c.Listeners {
		if strings.HasSuffix(l.Address, suffix) {
			return fmt.Sprintf("listeners[%s].address", l.Name)
		}
	}
	switch {
	case strings.HasSuffix(c.RPCBind.Address, suffix):
		return "rpcbind.address"
	case strings.HasSuffix(c.NLM.Address, suffix):
		return "nlm.address"
	case strings.HasSuffix(c.Admin.Address, suffix):
		return "admin.address (--admin-address; of demo: --admin)"
	}
	return "the address"
}

// unprivilegedPort is the first port that every process may listen at.
func unprivilegedPort() int {
	b, err := os.ReadFile("/proc/sys/net/ipv4/ip_unprivileged_port_start")
	n, convErr := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || convErr != nil {
		return 1024
	}
	return n
}

// listenerAt returns the process that has a TCP socket listening at port, and its name, as far as proc,
// which is /proc, tells this user. It returns 0 for none.
func listenerAt(proc string, port uint16) (pid int, name string) {
	inode := ""
	for _, table := range []string{"tcp", "tcp6"} {
		b, err := os.ReadFile(filepath.Join(proc, "self/net", table))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			f := strings.Fields(line)
			// Columns: sl, local_address, rem_address, st, ..., inode. State 0A is LISTEN.
			if len(f) > 9 && f[3] == "0A" && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) {
				inode = f[9]
			}
		}
	}
	if inode == "" {
		return 0, ""
	}
	links, _ := filepath.Glob(filepath.Join(proc, "[0-9]*/fd/*"))
	for _, link := range links {
		if to, err := os.Readlink(link); err != nil || to != "socket:["+inode+"]" {
			continue
		}
		dir := filepath.Dir(filepath.Dir(link))
		pid, _ = strconv.Atoi(filepath.Base(dir))
		comm, _ := os.ReadFile(filepath.Join(dir, "comm"))
		return pid, strings.TrimSpace(string(comm))
	}
	return 0, ""
}
