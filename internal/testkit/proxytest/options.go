package proxytest

import (
	"cmp"
	"time"

	"github.com/rdmabridge/rdmabridge/proxy/settings"
)

// Listeners completes options: tests name the settings that they are about.
func Listeners(all ...settings.ListenerOptions) []settings.ListenerOptions {
	out := make([]settings.ListenerOptions, len(all))
	for i, o := range all {
		o.MaxConnections = cmp.Or(o.MaxConnections, 4096)
		o.MaxRecord = cmp.Or(o.MaxRecord, 4<<20+64<<10)
		o.MaxCalls = cmp.Or(o.MaxCalls, 256)
		o.MaxOutbound = cmp.Or(o.MaxOutbound, 32<<20)
		o.StallTimeout = cmp.Or(o.StallTimeout, 30*time.Second)
		o.ProxyTimeout = cmp.Or(o.ProxyTimeout, 5*time.Second)
		o.MaxStarting = cmp.Or(o.MaxStarting, 128)
		o.MaxStartingPerAddress = cmp.Or(o.MaxStartingPerAddress, 16)
		o.Credits = cmp.Or(o.Credits, 64)
		o.CallInline = cmp.Or(o.CallInline, 4096)
		o.ReplyInline = cmp.Or(o.ReplyInline, 4096)
		out[i] = o
	}
	return out
}

// Upstreams completes options, as Listeners does.
func Upstreams(all ...settings.UpstreamOptions) []settings.UpstreamOptions {
	out := make([]settings.UpstreamOptions, len(all))
	for i, o := range all {
		connections := 1
		if o.RDMA {
			connections = 4
		}
		o.Connections = cmp.Or(o.Connections, connections)
		o.Pinned = cmp.Or(o.Pinned, 256)
		o.Credits = cmp.Or(o.Credits, 128)
		o.Share = cmp.Or(o.Share, 50)
		o.SlowStart = cmp.Or(o.SlowStart, 16)
		o.GSSWindow = cmp.Or(o.GSSWindow, 24)
		o.CallInline = cmp.Or(o.CallInline, 64<<10)
		o.ReplyInline = cmp.Or(o.ReplyInline, 4096)
		o.SilentTimeout = cmp.Or(o.SilentTimeout, 4*time.Second)
		o.ProbeInterval = cmp.Or(o.ProbeInterval, 5*time.Second)
		o.CallTimeout = cmp.Or(o.CallTimeout, 60*time.Second)
		o.ConnectTimeout = cmp.Or(o.ConnectTimeout, 10*time.Second)
		o.UnavailableAfter = cmp.Or(o.UnavailableAfter, 30*time.Second)
		o.BackoffMin = cmp.Or(o.BackoffMin, 100*time.Millisecond)
		o.BackoffMax = cmp.Or(o.BackoffMax, 5*time.Second)
		out[i] = o
	}
	return out
}
