package configs

import "runtime"

// This file has all defaults of settings. cmd/rdmabridge passes each value on, and the
// other packages have no defaults of their own. rdmabridge.yaml shows users the same
// values: TestAnnotatedDefaults compares them.
//
// Viper knows no default for the entries of a list, nor one that depends on another setting: setDefaults methods set
// those. A default that depends on another setting comes after it.

// defaults has the defaults that viper sets, by path, as a file has them.
func defaults() map[string]any {
	return map[string]any{
		"tls.handshakes":       512,
		"tls.waiting":          4096,
		"chunks.io":            DefaultIO.String(),
		"memory.budget":        defaultBudget.String(),
		"rpcbind.address":      none,
		"nlm.address":          none,
		"admin.address":        "127.0.0.1:9090",
		"log.level":            "info",
		"log.format":           FormatAuto,
		"log.access.mode":      AccessOff,
		"log.access.slower":    "100ms",
		"log.access.sample":    "1%",
		"log.access.path":      AccessStderr,
		"log.audit.output":     AuditFile,
		"log.audit.path":       none,
		"log.audit.syslog":     "/dev/log",
		"log.audit.on_failure": AuditDrop,
		"tracing.endpoint":     none,
		"tracing.sample":       "0.1%",
		"tracing.slower":       "1s",
		"names.mode":           "off",
		"names.memory":         "32MiB",
		"names.sample":         "auto",
		"names.redact":         none,
		"names.page":           "off",
		"drain.timeout":        "30s",
		"reload.watch":         "2s",
		"handover.path":        none,
		"hardening":            "on",
		"loops":                defaultLoops,
		"busy_poll":            none,
	}
}

func (c *Config) setDefaults() {
	for i := range c.Listeners {
		c.Listeners[i].setDefaults()
	}
	for i := range c.Upstreams {
		c.Upstreams[i].setDefaults()
	}
	fill(&c.Chunks.Reply, c.Chunks.IO+8*KiB)
}

func (l *Listener) setDefaults() {
	fill(&l.Transport, TransportTCP)
	fill(&l.Privileged, PrivilegedAny)
	for i := range l.Rules {
		l.Rules[i].setDefaults()
	}
	fill(&l.Squash.Mode, SquashOff)
	if l.squashes() {
		fill(&l.Squash.UID, nobody)
		fill(&l.Squash.GID, nobody)
	}
	fill(&l.Limits.Connections, 4096)
	fill(&l.Limits.PerAddress, l.Limits.Connections)
	fill(&l.Limits.MakeRoom, On)
	fill(&l.Limits.Calls, 256)
	fill(&l.Limits.Outbound, 32*MiB)
	fill(&l.Limits.Record, 4*MiB+64*KiB)
	fill(&l.Limits.Pace, 16*KiB)
	fill(&l.Timeouts.Stall, 30*second)
	fill(&l.Timeouts.Idle, noDuration)
	switch l.Transport {
	case TransportTCP:
		fill(&l.Timeouts.Request, noDuration)
		if len(l.ProxyProtocol.From) > 0 {
			fill(&l.ProxyProtocol.Timeout, 5*second)
		}
		l.TLS.setDefaults()
	case TransportRDMA:
		fill(&l.Limits.Starting, 128)
		fill(&l.Limits.StartingPerAddress, min(16, l.Limits.Starting))
		fill(&l.Timeouts.Start, 5*second)
		fill(&l.Provider, ProviderIWARP)
		fill(&l.Credits, 64)
		fill(&l.Inline.Call, 4*KiB)
		fill(&l.Inline.Reply, 4*KiB)
		l.IWARP.setDefaults()
	}
}

// nobody is the user, and the group, that servers map root to.
const nobody = 65534

func (x *Rule) setDefaults() {
	if x.Action == ActionDeny {
		if x.Class == ClassChanging {
			fill(&x.Answer, AnswerReadOnly)
		}
		fill(&x.Answer, AnswerAuth)
	}
	fill(&x.DryRun, Off)
}

func (u *Upstream) setDefaults() {
	fill(&u.Failover, Off)
	if u.Failover == On {
		fill(&u.Balance, balanceSpread)
	}
	switch u.Transport {
	case TransportTCP:
		fill(&u.Pool.Connections, 2)
		fill(&u.Source.Ports, AnyPort)
		fill(&u.ProxyProtocol, proxyOff)
		u.TLS.setDefaults()
	case TransportRDMA:
		fill(&u.Pool.Connections, 4)
		fill(&u.Provider, ProviderIWARP)
		fill(&u.Inline.Call, 64*KiB)
		fill(&u.Inline.Reply, 4*KiB)
		u.IWARP.setDefaults()
		if u.Provider == ProviderIBVerbs {
			fill(&u.IBVerbs.Exposure, exposureAuto)
			fill(&u.IBVerbs.BusyPoll, noDuration)
		}
	}
	fill(&u.Layouts, layoutsPass)
	fill(&u.Pool.Idle, 5*60*second)
	fill(&u.Pool.Credits, 128)
	fill(&u.Pool.Share, 50)
	fill(&u.Pool.Mode, PoolAuto)
	fill(&u.Pool.GSSWindow, 24)
	if u.Pool.Mode == PoolPinned {
		fill(&u.Pool.Pinned, 256)
	}
	fill(&u.Timeouts.Call, 60*second)
	fill(&u.Timeouts.Connect, 10*second)
	fill(&u.Timeouts.Unavailable, 30*second)
	fill(&u.Timeouts.Silent, 4*second)
	fill(&u.Timeouts.Probe, 5*second)
	fill(&u.Backoff.Min, 100*millisecond)
	fill(&u.Backoff.Max, max(5*second, u.Backoff.Min))
}

func (w *IWARP) setDefaults() {
	fill(&w.CRC, On)
	fill(&w.FPDU, fpduEMSS)
	fill(&w.Revision1, Off)
}

// defaultLoops is the default number of event loops. It is computed once, because
// tcpframe raises GOMAXPROCS when it starts its loops: a reload would find a different
// value.
var defaultLoops = loopsFor(runtime.GOMAXPROCS(0))

// loopsFor returns how many loops suit a number of CPUs. Where there are more than two,
// it leaves one to the other goroutines and to the kernel.
func loopsFor(cpus int) int {
	if cpus > 2 {
		return cpus - 1
	}
	return cpus
}

// fill sets *p to the default v if the file did not set it.
func fill[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}
