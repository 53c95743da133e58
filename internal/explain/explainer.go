package explain

import (
	"errors"
	"strings"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/capture"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
)

// An explainer explains one input.
type explainer struct {
	registry    *ulb.Registry
	sessions    *nfs.Sessions // of all servers together
	callInline  int
	replyInline int
	source      string
	max         int
	print       printer

	count, callCount, replyCount, malformed, cut int
	unanswered                                   int // of Calls that calls has no more

	connections map[*capture.Conn]*connection
	calls       map[callKey]*knownCall
}

func newExplainer(o Options) *explainer {
	e := &explainer{
		registry: ulb.NewRegistry(o.Limits), sessions: nfs.NewSessions(),
		callInline: o.CallInline, replyInline: o.ReplyInline,
		source: o.Source, max: o.Max,
		calls: make(map[callKey]*knownCall),
	}
	nfs.Register(e.registry)
	return e
}

// A callKey finds the Call of a Reply.
type callKey struct {
	conn   *capture.Conn
	stream *capture.Stream // of the Call
	xid    uint32
}

// A knownCall is what a Reply is compared with.
type knownCall struct {
	number   int
	known    bool        // the rest is set
	call     oncrpc.Call // without its message
	analysis ulb.Analysis
	binding  ulb.Binding
	planned  bool
	shape    ulb.Shape
	replies  int
	at       time.Time
	args     int // octets of the whole Call

	operations []op // of a COMPOUND
	title      string
}

// errEnough ends the explanation when there are as many messages as asked for.
var errEnough = errors.New("enough")

// A printer prints explanations as they are made.
type printer interface {
	begin(*header) error
	message(*message) error
	end(*summary) error
}

// show numbers m and prints it.
func (e *explainer) show(m *message) error {
	if e.max > 0 && e.count == e.max {
		return errEnough
	}
	e.count++
	m.Number = e.count
	switch m.Kind {
	case kindCall:
		e.callCount++
	case kindReply:
		e.replyCount++
	case kindMalformed:
		e.malformed++
	case kindCut:
		e.cut++
	}
	return e.print.message(m)
}

// remember keeps k for its Reply.
func (e *explainer) remember(m *message, c *capture.Message, k *knownCall) {
	key := callKey{c.Conn, c.Stream, k.call.XID}
	k.number = e.count + 1
	if before := e.calls[key]; before != nil && before.replies == 0 {
		if m.Call != nil && before.same(k) {
			m.Call.Retransmission = before.number
			k.number = before.number
		} else {
			e.unanswered++
		}
	}
	k.call.Message = nil // what a Reply needs is in k
	e.calls[key] = k
}

// same reports whether both are the same Call, as far as their headers say.
func (k *knownCall) same(o *knownCall) bool {
	a, b := &k.call, &o.call
	return k.known && o.known && k.args == o.args && a.Program == b.Program && a.Version == b.Version && a.Procedure == b.Procedure && a.Flavor == b.Flavor
}

// callOf finds the Call of a Reply.
func (e *explainer) callOf(c *capture.Message, xid uint32) *knownCall {
	key := callKey{c.Conn, c.Stream, xid}
	if c.Conn != nil && c.Stream != nil {
		key.stream = &c.Conn.Streams[0]
		if c.Stream == key.stream && c.First > 0 { // of records that are no capture, both are on one stream
			key.stream = &c.Conn.Streams[1]
		}
	}
	return e.calls[key]
}

// match notes that k has a Reply.
func (e *explainer) match(p *replyPart, k *knownCall, at time.Time) {
	p.title = k.title
	p.Call, p.Program = k.number, oncrpc.ProgramName(k.call.Program)
	p.ProcedureName = strings.TrimPrefix(k.analysis.Procedure, "COMPOUND/")
	if !at.IsZero() && !k.at.IsZero() {
		after := at.Sub(k.at).Seconds()
		p.After = &after
	}
	if k.replies++; k.replies > 1 {
		p.Duplicate = true
	}
}
