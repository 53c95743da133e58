package explain

import (
	"errors"
	"strings"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/capture"
	"github.com/rdmabridge/rdmabridge/internal/names"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
)

// An explainer explains one input.
type explainer struct {
	registry    *ulb.Registry
	limits      map[nfs.SessionID]nfs.SessionLimits // of the NFSv4.1 sessions of all servers in the input
	callInline  int                                 // Options.CallInline
	replyInline int                                 // Options.ReplyInline
	mode        string                              // Options.Mode, never ""
	source      string                              // Options.Source
	rules       *Rules                              // Options.Rules
	max         int                                 // Options.Max
	print       printer

	count      int // messages printed
	callCount  int // Calls among them
	replyCount int // Replies among them
	malformed  int // malformed messages among them
	cut        int // messages among them of which too little was captured
	unanswered int // Calls without a Reply that calls does not have any more

	filter  *names.Filter // Options.Files
	files   files         // what it chooses; nil for all messages
	index   int           // in files, of the message that is explained
	unknown int           // Calls that it cannot judge

	connections map[*capture.Conn]*connection
	comments    map[int][]string       // of packets
	ours        bool                   // rdmabridge capture has made the input
	calls       map[callKey]*knownCall // the last Call with an XID
	bound       map[nfs.SessionID]int  // the Reply that bound the back channel of a session
}

func newExplainer(o Options) *explainer {
	e := &explainer{
		registry: o.Registry, limits: make(map[nfs.SessionID]nfs.SessionLimits),
		callInline: o.CallInline, replyInline: o.ReplyInline,
		source: o.Source, max: o.Max, mode: o.Mode, rules: o.Rules, filter: &o.Files,
		calls: make(map[callKey]*knownCall), bound: make(map[nfs.SessionID]int),
	}
	if e.mode == "" {
		e.mode = modeAuto
	}
	if e.registry == nil {
		e.registry = ulb.NewRegistry(ulb.Limits{})
		nfs.Register(e.registry)
	}
	return e
}

// A callKey identifies a Call, to find it when its Reply is explained.
type callKey struct {
	conn   *capture.Conn
	stream *capture.Stream // the direction of the Call
	xid    uint32
}

// A knownCall is a Call that was explained. explainReply compares its Reply with it.
type knownCall struct {
	number  int       // of the message
	at      time.Time // when the Call was captured
	length  int       // octets of the whole Call
	replies int       // Replies explained so far
	hidden  bool      // Options.Files does not choose it

	parsed     bool        // whether the header was complete; the fields below are set then
	call       oncrpc.Call // without Message
	analysis   ulb.Analysis
	binding    ulb.Binding
	operations []op   // of a COMPOUND
	title      string // for the text of the Reply

	planned bool // whether shape is set
	shape   ulb.Shape
}

// errEnough stops the explanation after Options.Max messages.
var errEnough = errors.New("enough")

// A printer prints explanations one by one.
type printer interface {
	begin(*header) error
	message(*message) error
	end(*summary) error
}

// show numbers, counts and prints m.
func (e *explainer) show(m *message) error {
	if e.hides() {
		return nil
	}
	if m.Call != nil {
		m.Call.File = e.files[e.index]
	}
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

// hides reports whether Options.Files does not choose the message that is explained.
func (e *explainer) hides() bool { return e.files != nil && e.files[e.index] == nil }

// remember stores k for its Reply. A Call that was stored before with the same XID and a
// similar header makes k a retransmission.
func (e *explainer) remember(m *message, c *capture.Message, k *knownCall) {
	key := callKey{c.Conn, c.Stream, k.call.XID}
	k.number, k.hidden = e.count+1, e.hides()
	if before := e.calls[key]; before != nil && before.replies == 0 {
		if m.Call != nil && before.same(k) {
			m.Call.Retransmission = before.number
			k.number = before.number
		} else if !before.hidden {
			e.unanswered++
		}
	}
	k.call.Message = nil // releases the input: k has all that a Reply is compared with
	e.calls[key] = k
}

// same reports whether the headers of k and o may be those of one Call.
func (k *knownCall) same(o *knownCall) bool {
	a, b := &k.call, &o.call
	return k.parsed && o.parsed && k.length == o.length && a.Program == b.Program && a.Version == b.Version && a.Procedure == b.Procedure && a.Flavor == b.Flavor
}

// callOf returns the Call of the Reply c, or nil.
func (e *explainer) callOf(c *capture.Message, xid uint32) *knownCall {
	return e.calls[answered(c, xid)]
}

// answered returns the key of the Call of the Reply c.
func answered(c *capture.Message, xid uint32) callKey {
	key := callKey{c.Conn, c.Stream, xid}
	if c.Conn != nil && c.Stream != nil {
		key.stream = &c.Conn.Streams[0]
		// Records outside a capture have one stream for both directions.
		if c.Stream == key.stream && c.First > 0 {
			key.stream = &c.Conn.Streams[1]
		}
	}
	return key
}

// match records in p that it answers k.
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
