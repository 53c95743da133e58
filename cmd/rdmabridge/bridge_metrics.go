package main

import (
	"time"

	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// registerMetrics registers the metrics of the process and of its memory.
func (b *bridge) registerMetrics() {
	i := buildInfo()
	b.metrics.Gauge("build_info", "Always 1; the labels name the version, revision and Go release of the binary.",
		"version", i.Version, "revision", i.Revision, "goversion", i.Go).Set(1)
	b.metrics.Gauge("start_time_seconds", "Unix time at which the bridge started.").Set(time.Now().Unix())
	b.metrics.GaugeFunc("client_sockets", "Sockets of clients of all listeners, connections that are being set up included.", func() float64 { return float64(b.engine.Sockets().Open()) })
	b.metrics.GaugeFunc("client_sockets_limit", "Most sockets of clients that RLIMIT_NOFILE allows.", func() float64 { return float64(b.engine.Sockets().Limit()) })
	stat := func(name, help string, f func(regmem.Stats) float64) {
		b.metrics.GaugeFunc(name, help, func() float64 { return f(b.arena.Stats()) })
	}
	stat("memory_budget_bytes", "Memory budget of messages: most bytes that they may use (memory.budget).", func(s regmem.Stats) float64 { return float64(s.Budget) })
	stat("memory_used_bytes", "Bytes of the memory budget in use by messages.", func(s regmem.Stats) float64 { return float64(s.Used) })
	stat("memory_resident_bytes", "Bytes of the memory budget that are resident in RAM.", func(s regmem.Stats) float64 { return float64(s.Resident) })
	stat("memory_waiting", "Connections that wait for memory, besides those that wait for memory for Calls.", func(s regmem.Stats) float64 { return float64(s.Waiting) })
	for n, a := range b.arena.Stats().Accounts {
		b.metrics.GaugeFunc("memory_account_used_bytes", "Bytes of the memory budget in use by one account, such as calls or replies.", func() float64 {
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

// countEvents registers the counters of what the RDMA devices of the listener or upstream name
// report, if the provider counts them.
func (b *bridge) countEvents(name string, p fabric.Provider) {
	c, ok := p.(fabric.DeviceEventCounter)
	if !ok {
		return
	}
	for event, count := range c.DeviceEvents() {
		b.metrics.CounterFunc("device_events_total", "What RDMA devices reported, by the listener or upstream that uses the device, and kind of event.",
			func() float64 { return float64(count()) }, "name", name, "event", event)
	}
}
