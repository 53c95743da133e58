package settings

import (
	"fmt"
	"slices"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/proxy/admit"
	"github.com/rdmabridge/rdmabridge/proxy/reach"
)

// A Number is a limit that follows from settings.
type Number struct {
	Of      string // whose it is: memory, dials, "listener NAME" or "upstream NAME"
	Name    string // what it bounds
	Value   float64
	Unit    string // bytes, calls, connections, credits, seconds; or per_second
	Formula string // how it follows from which settings
}

// Numbers returns the numbers that follow from options, as New and Reconfigure compute them. The
// providers of the options may be nil.
func Numbers(budget int64, ls []ListenerOptions, us []UpstreamOptions) (all []Number) {
	rdma := slices.ContainsFunc(ls, func(l ListenerOptions) bool { return l.RDMA })
	d := Divide(budget, rdma)
	add := func(of, name string, value float64, unit, formula string, args ...any) {
		all = append(all, Number{Of: of, Name: name, Value: value, Unit: unit, Formula: fmt.Sprintf(formula, args...)})
	}
	bytes := func(of, name string, value int64, formula string, args ...any) {
		add(of, name, float64(value), "bytes", formula, args...)
	}
	bytes("memory", "memory for Replies, and for the Receives of upstreams", d.Replies, "memory.budget x %g", replyShare)
	if rdma {
		bytes("memory", "memory for the Receives of RDMA clients", d.Receives,
			"memory.budget x %g, because a listener has transport rdma", receiveShare)
	}
	bytes("memory", "memory for Calls", d.Calls, "the rest of memory.budget")
	bytes("memory", "incomplete Calls of unproven clients, up to 68 KiB each", d.Calls/4, "memory for Calls / 4")
	bytes("memory", "incomplete Calls of unproven clients, longer ones", d.Calls/3, "memory for Calls / 3")
	bytes("memory", "unread Replies at which a client is closed", d.Replies/4, "memory for Replies / 4")
	for i := range ls {
		l := &ls[i]
		of := "listener " + l.Name
		bytes(of, "unread Replies at which a client is not read from", l.OutboundOf(d.Replies),
			"the less of limits.outbound and memory for Replies / 8")
		add(of, "Calls under way at which a client is not read from", float64(l.MaxCalls), "calls", "limits.calls")
		path := ulb.Path{Call: uint32(l.MaxRecord)}
		bytes(of, "data of one WRITE, at most, of which servers may tell clients", int64(path.Write()),
			"limits.record - 8 KiB, in whole pages")
		if l.RDMA {
			bytes(of, "Receives of a client with all its credits", int64(l.Credits)*int64(l.CallInline), "credits x inline.call")
		}
	}
	pinned := 0
	for i := range us {
		if us[i].Mode == ModePinned && us[i].RDMA {
			pinned++
		}
	}
	var limits []reach.Demand
	for i := range us {
		limits = append(limits, us[i].Demand())
		all = append(all, us[i].numbers(budget, d.Replies, pinned)...)
	}
	most, perSecond := reach.DialLimits(limits)
	add("dials", "attempts to connect under way", float64(most), "connections",
		"2 x attempts a second x %s, at least %d", reach.DialTime, reach.LeastDials)
	add("dials", "attempts to connect", float64(perSecond), "per_second",
		"connections of all upstreams / (timeouts.unavailable / 2), at least %d", reach.LeastDialsPerSecond)
	return all
}

// numbers returns the numbers of one upstream. pinned is how many RDMA upstreams pin clients.
func (o *UpstreamOptions) numbers(budget, replies int64, pinned int) (all []Number) {
	add := func(name string, value float64, unit, formula string, args ...any) {
		all = append(all, Number{
			Of: "upstream " + o.Name, Name: name, Value: value, Unit: unit,
			Formula: fmt.Sprintf(formula, args...),
		})
	}
	pools, formula := 1, "pool.connections"
	if o.Partitioned() {
		pools, formula = len(o.Endpoints), "pool.connections x endpoints, because failover is off"
	}
	connections := o.Connections * pools
	add("shared connections", float64(connections), "connections", "%s", formula)
	credits := connections * o.Credits
	add("Calls outstanding on shared connections", float64(credits), "credits",
		"shared connections x pool.credits, if the server grants as many")
	add("Calls outstanding of one client that is not known to be answered fast",
		float64(o.Connections*o.Credits*o.Share/100), "credits", "pool.connections x pool.credits x pool.share%%")
	add("credits kept for clients without Calls under way", float64(o.Connections*o.Credits/8), "credits",
		"pool.connections x pool.credits / 8")
	if n := o.LaneCount(); n > 0 {
		add("connections that NFSv4.1 clients stay with, beside the shared ones", float64(n), "connections",
			"as many as pool.connections")
	}
	if o.SlowStart > 0 {
		add("slow start: Calls at its beginning", float64(o.SlowStart), "calls",
			"constant; one more for each Reply, and over after 1024")
		add("slow start: octets at its beginning", float64(admit.SlowStartOctetsOf(budget)), "bytes",
			"the less of 4 MiB and memory.budget / 16")
	}
	if o.RDMA {
		add("Calls sent inline, at most", float64(o.CallInline), "bytes",
			"inline.call, or less if the server says so (RFC 8797); longer ones are read by the server")
		add("Replies sent inline, at most", float64(o.ReplyInline), "bytes",
			"inline.reply, or less if the server sends less; longer ones get a Reply chunk")
		add("Receives of shared connections with all credits",
			float64(int64(connections)*int64(o.Credits)*int64(max(leastReceive, o.ReplyInline))), "bytes",
			"shared connections x pool.credits x the more of 16 KiB and inline.reply")
	}
	if o.Mode == ModePinned {
		most, formula := int64(o.Pinned), "pool.pinned"
		if o.RDMA {
			most, formula = o.MostPins(replies, pinned),
				"the less of pool.pinned and what fits memory for Replies / 4, shared with the other upstreams that pin clients"
		}
		add("pinned connections", float64(most), "connections", "%s", formula)
		calls, always := o.PinnedLimit()
		when := "pool.connections x pool.credits, while several clients have Calls"
		if always {
			when = "pool.pinned_calls"
		}
		add("Calls outstanding on pinned connections", float64(calls), "credits", "%s", when)
	}
	if o.ProbeInterval > 0 {
		add("silence after which a connection without Calls is probed", o.ProbeIdle.Seconds(), "seconds",
			"timeouts.probe x 12, at least %s", time.Minute)
	}
	return all
}
