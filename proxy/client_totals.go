package proxy

import (
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/status"
)

// clientTotals count what one client connection has had. They belong to its loop.
type clientTotals struct {
	since   time.Time
	active  int64 // when its last Call was read, on the clock of the loops
	calls   uint64
	failed  uint64
	repeats uint64
	in, out uint64
	phases  [phases]int64
}

// inFlight is what collect finds of a client's Calls.
type inFlight struct {
	round  uint64 // the collection that found it
	calls  int
	oldest int64 // when the oldest of them was read
	xid    uint32
	op     *operationSeries
}

// classify notes the class of the Reply, which is in the cache now: its XID has just been written.
func (c *call) classify(l *eventLoop) {
	if c.times.replied == 0 { // the bridge made the Reply because the upstream gave none
		c.times.replied = l.Now()
	}
	if c.op != nil {
		c.class, c.status, c.hasStatus = replyClass(c.reply.parts[0], c.h.Protection, c.op.status)
	}
	c.octets = int32(octets(c.reply.parts))
}

// count counts c, which is over.
func (f *front) count(c *call) {
	now := f.loop.Now()
	if c.op != nil {
		c.op.inFlight--
	}
	r := c.result
	switch {
	case c.absorbed || r == resultAbsorbed:
		f.totals.repeats++
	case c.op != nil && (r == resultReplied || r == resultLocal):
		f.loop.tally.add(f, c, now)
	}
	if p := f.listener.p.observer.Load(); p != nil {
		f.observe(c, *p, now)
	}
}

// observe shows c to o.
func (f *front) observe(c *call, o Observer, now int64) {
	r := &f.loop.record
	*r = CallRecord{
		Read: c.times.began, Asked: c.times.asked, Sent: c.times.sent, Replied: c.times.replied, Settled: now,
		At: time.Now(), XID: c.clientXID, Client: f.peer, Listener: f.listener.name, Transport: transport(f.listener.isRDMA),
		Program: c.h.Program, Version: c.h.Version, Procedure: c.h.Procedure,
		Operations: int(c.operations),
		BytesIn:    int(c.size), Result: resultNames[c.result], Replays: int(c.replays),
		Failed: true, TLS: f.secured, Identity: f.identity.Name(),
	}
	if c.rule != nil {
		r.Rule = c.rule.Name
	}
	if c.up != nil {
		r.Upstream = c.up.name
	}
	if c.times.sent != 0 {
		r.UpstreamXID = c.rdma.XID
		if c.up.isRDMA {
			r.Shape = shapeName(c.rdma.Shape)
		}
	}
	if c.op != nil {
		r.ProgramName, r.Operation = c.op.program, c.op.name
	}
	if c.absorbed {
		r.Result = resultNames[resultAbsorbed]
	}
	if c.times.replied != 0 && c.octets > 0 {
		r.Status, r.NFSStatus, r.HasNFS, r.BytesOut = classNames[c.class], c.status, c.hasStatus, int(c.octets)
		r.Failed = classFails[c.class] || c.result == resultGone || c.result == resultAbandoned
	}
	if c.result == resultAbsorbed {
		r.Failed = false
	}
	if o.Wants(r) {
		o.Observe(r)
	}
}

// shapeName is a word for how a Call and its Reply travelled over RDMA.
func shapeName(s ulb.Shape) string {
	switch {
	case s.Call == ulb.CallLong || s.Reply == ulb.ReplyChunk:
		return "long"
	case s.Call == ulb.CallReadChunk || s.Reply == ulb.ReplyWriteChunk:
		return "chunks"
	}
	return "inline"
}

// phasesOf makes a status.Phases of sums in nanoseconds.
func phasesOf(calls uint64, d *[phases]int64) status.Phases {
	s := func(p phase) float64 { return float64(d[p]) / 1e9 }
	return status.Phases{Calls: calls, Admission: s(phaseAdmission), Credit: s(phaseCredit), Server: s(phaseServer), Client: s(phaseClient)}
}
