package main

import (
	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/proxy/observe"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// registerMetrics registers the metrics of the process and of its memory.
func (b *bridge) registerMetrics() {
	i := buildInfo()
	b.metrics.Gauge(metrics.BuildInfo, i.Version, i.Revision, i.Go).Set(1)
	b.metrics.GaugeFunc(metrics.ClientSockets, func() float64 { return float64(b.engine.Sockets().Open()) })
	b.metrics.GaugeFunc(metrics.ClientSocketsLimit, func() float64 { return float64(b.engine.Sockets().Limit()) })
	stat := func(d metrics.GaugeDef, f func(regmem.Stats) float64) {
		b.metrics.GaugeFunc(d, func() float64 { return f(b.arena.Stats()) })
	}
	stat(metrics.MemoryBudgetBytes, func(s regmem.Stats) float64 { return float64(s.Budget) })
	stat(metrics.MemoryUsedBytes, func(s regmem.Stats) float64 { return float64(s.Used) })
	stat(metrics.MemoryResidentBytes, func(s regmem.Stats) float64 { return float64(s.Resident) })
	stat(metrics.MemoryWaitingConnections, func(s regmem.Stats) float64 { return float64(s.Waiting) })
	b.metrics.GaugeFunc(metrics.ConfigRefused, func() float64 {
		c := b.loaded.Load()
		return float64(metrics.Truth(c != nil && c.Refused != ""))
	})
	m := observe.NewDocumentMetrics(b.metrics)
	b.metrics.BeforeGather(func() {
		d := b.proxy.Status(status.Query{Clients: 1})
		m.Set(&d)
	})
}

// countProvider registers what a provider counts by itself.
func (b *bridge) countProvider(p usedProvider) {
	copied, events := metrics.ListenerCopiedBytes, metrics.ListenerDeviceEvents
	if p.kind == "upstream" {
		copied, events = metrics.UpstreamCopiedBytes, metrics.UpstreamDeviceEvents
	}
	if c, ok := p.Provider.(fabric.CopyCounter); ok {
		b.metrics.CounterFunc(copied, func() float64 { return float64(c.Copied()) }, p.owner, p.Name())
	}
	if c, ok := p.Provider.(fabric.DeviceEventCounter); ok {
		for event, count := range c.DeviceEvents() {
			b.metrics.CounterFunc(events, func() float64 { return float64(count()) }, p.owner, event)
		}
	}
}
