package nfsmount

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/fnv"
)

// A Bridge is the bridge of one storage.
type Bridge struct {
	host     string // of the storage
	to       string // the storage, as serve --to has it
	provider string // "" for the default
	name     string
}

// longestName keeps the path of the socket below the 108 octets that Linux has for one.
const longestName = 60

// newBridge names the bridge of a storage. Mounts with the same host, port and provider share it.
func newBridge(host string, port, usualPort uint16, provider string) Bridge {
	b := Bridge{host: host, to: "rdma://" + hostPort(host, port), provider: provider}
	name := strings.ToLower(host)
	if port != usualPort {
		name += fmt.Sprintf("_%d", port)
	}
	if provider != "" {
		name += "-" + provider
	}
	// What is not possible in a name of a unit, or means something in RuntimeDirectory=.
	name = strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '-' || c == '_' {
			return c
		}
		return '_'
	}, name)
	if len(name) > longestName {
		name = fmt.Sprintf("%s-%08x", name[:longestName-9], hash(name))
	}
	b.name = "rdmabridge-mount-" + name
	return b
}

func hash(s string) uint32 { return fnv.Spread(fnv.Add(fnv.Basis, []byte(s))) }

// Who names the bridge for people.
func (b *Bridge) Who(h *Host) string {
	if h.Systemd {
		return b.Unit()
	}
	return "the bridge at " + b.Socket(runDir)
}

// Unit is the name of the bridge's service.
func (b *Bridge) Unit() string { return b.name + ".service" }

// Socket is where the bridge can be asked how it is. It is one of the places where commands such as rdmabridge stats
// look.
func (b *Bridge) Socket(run string) string { return filepath.Join(run, b.name, "control.sock") }

// Ports of bridges. Those that the kernel chooses for connections are higher.
const (
	firstPort = 20100
	ports     = 10000
	nearPorts = 16 // how many of them may belong to others before a bridge has its own
)

// candidate returns the port that a bridge has if others have the i before. It depends on the bridge's name.
func (b *Bridge) candidate(i uint32) uint16 { return uint16(firstPort + (hash(b.name)+i)%ports) }

// port chooses the port of a bridge that is to start: that of mounts from it, which wait for it, or the first candidate
// that is free. Of mounts the kernel knows the storage's host, and not its port, which is in the name of the bridge: so
// only candidates count.
func (b *Bridge) port(h *Host) (uint16, error) {
	table, err := h.MountTable()
	if err != nil {
		return 0, failf(System, "cannot read which file systems are mounted: %v", err)
	}
	mounted := make(map[uint16]bool)
	for _, m := range Mounts(table) {
		host, _, err := splitSource(m.Source)
		mounted[m.Port] = mounted[m.Port] || err == nil && host == b.host
	}
	for i := range uint32(nearPorts) {
		if port := b.candidate(i); mounted[port] {
			return port, nil
		}
	}
	for i := range uint32(nearPorts) {
		if port := b.candidate(i); h.PortIsFree(port) {
			return port, nil
		}
	}
	return 0, failf(System, "other programs have all ports from %d to %d of %s", b.candidate(0), b.candidate(nearPorts-1), loopback)
}

// command returns the command line of the bridge. It admits root of this host alone, and does not carry MOUNT.
func (b *Bridge) command(program string, port uint16) []string {
	c := []string{
		program, "serve", "--from", "tcp://" + hostPort(loopback, port), "--to", b.to,
		"--mount", "none", "--clients", loopback, "--admin-address", "none", "--until-unmounted",
	}
	if b.provider != "" {
		c = append(c, "--provider", b.provider)
	}
	return c
}

// service returns the command line that makes the bridge a service. It returns when the bridge listens. At shutdown the
// service ends after the mounts, because nothing but the end of all processes ends it (DefaultDependencies).
func (b *Bridge) service(command []string) []string {
	c := []string{"systemd-run", "--quiet", "--collect", "--unit=" + b.Unit(), "--description=rdmabridge, for mounts of " + b.host}
	for _, property := range []string{
		"Type=notify", "Restart=on-failure", "RestartSec=1s", "StartLimitIntervalSec=0", "WatchdogSec=30s", "DefaultDependencies=no",
		"DynamicUser=yes", "RuntimeDirectory=" + b.name, "LimitNOFILE=65536", "LimitCORE=0",
	} {
		c = append(c, "--property="+property)
	}
	if b.provider == "ibverbs" {
		c = append(c, "--property=LimitMEMLOCK=infinity")
	}
	return append(append(c, "--"), command...)
}

// start starts the bridge, which listens when start returns.
func (b *Bridge) start(ctx context.Context, h *Host) error {
	port, err := b.port(h)
	if err != nil {
		return err
	}
	command := b.command(h.Program, port)
	if !h.Systemd {
		return h.Spawn(ctx, b, command)
	}
	h.say(b.service(command)...)
	out, err := h.Run(ctx, b.service(command)...)
	switch {
	case err == nil, strings.Contains(out, "already loaded"), strings.Contains(out, "already exists"):
		return nil // another process was faster, or the one before is about to end or to start again
	case ctx.Err() != nil:
		return ctx.Err()
	}
	_, _ = h.Run(ctx, "systemctl", "stop", b.Unit()) // otherwise systemd tries for ever
	return failf(System, "the bridge does not start: %s; journalctl -u %s may say why", strings.TrimRight(fmt.Sprint(err, ": ", out), ": \n"), b.Unit())
}

// spawnTime bounds how long a process may take until it listens.
const spawnTime = 30 * time.Second

// spawn starts the bridge as a process that outlives this one.
func spawn(ctx context.Context, b *Bridge, command []string) error {
	socket := b.Socket(runDir)
	dir := filepath.Dir(socket)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return failf(System, "%v", err)
	}
	log := filepath.Join(dir, "log")
	ended, err := startProcess(command, log, append(os.Environ(), "RUNTIME_DIRECTORY="+dir))
	if err != nil {
		return failf(System, "the bridge does not start: %v", err)
	}
	listens, cancel := context.WithTimeout(ctx, spawnTime)
	defer cancel()
	for {
		var d net.Dialer
		if c, err := d.DialContext(listens, "unix", socket); err == nil {
			return c.Close()
		}
		select {
		case err := <-ended:
			text, _ := os.ReadFile(log)
			lines := strings.Split(strings.TrimSpace(string(text)), "\n")
			return failf(System, "the bridge does not start: %v: %s; %s has all that it said", err, lines[len(lines)-1], log)
		case <-listens.Done():
			if ctx.Err() != nil { // the mount has less time than the bridge
				return fmt.Errorf("the bridge does not listen yet; %s may say why", log)
			}
			return failf(System, "the bridge does not listen %v after its start; %s may say why", spawnTime, log)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
