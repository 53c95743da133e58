package main

import (
	"time"

	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// describe makes the series that belong to no package.
func (b *bridge) describe() {
	i := buildInfo()
	b.metrics.Gauge("build_info", "1, labelled with what the binary was made from.",
		"version", i.Version, "revision", i.Revision, "goversion", i.Go).Set(1)
	b.metrics.Gauge("start_time_seconds", "Unix time at which the bridge was started.").Set(time.Now().Unix())
	stat := func(name, help string, f func(regmem.Stats) float64) {
		b.metrics.GaugeFunc(name, help, func() float64 { return f(b.arena.Stats()) })
	}
	stat("memory_budget_bytes", "Most octets that messages may take.", func(s regmem.Stats) float64 { return float64(s.Budget) })
	stat("memory_used_bytes", "Octets that messages take now.", func(s regmem.Stats) float64 { return float64(s.Used) })
	stat("memory_resident_bytes", "Octets of the budget that the kernel has given.", func(s regmem.Stats) float64 { return float64(s.Resident) })
	stat("memory_waiting", "Connections that wait for memory.", func(s regmem.Stats) float64 { return float64(s.Waiting) })
	for n, a := range b.arena.Stats().Accounts {
		b.metrics.GaugeFunc("memory_account_used_bytes", "Octets that one kind of message takes now.", func() float64 {
			if s := b.arena.Stats().Accounts; n < len(s) {
				return float64(s[n].Used)
			}
			return 0
		}, "account", a.Name)
	}
}

// countCopies registers the counter of octets that the provider of the listener or
// upstream name copies, if the provider counts them.
func (b *bridge) countCopies(name string, p fabric.Provider) {
	if c, ok := p.(fabric.CopyCounter); ok {
		metrics.CopiedFunc(b.metrics, p.Name(), name, func() float64 { return float64(c.Copied()) })
	}
}
