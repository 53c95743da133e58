// Package explain says of RPC messages what they are and how the bridge would carry
// them over RDMA: the verb of rdmabridge explain.
package explain

import (
	"errors"
	"io"

	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
)

// Options say what explanations are made with.
type Options struct {
	CallInline  int        // inline threshold of Calls
	ReplyInline int        // inline threshold of Replies
	Limits      ulb.Limits // of what the bridge offers for Replies
	Source      string     // where thresholds and limits are from, for humans; "" for none
	Max         int        // messages; 0 for all
	JSON        bool       // one object a line, rather than text
}

// Run explains in on w.
func Run(w io.Writer, in *Input, o Options) error {
	e := newExplainer(o)
	if o.JSON {
		e.print = newJSONPrinter(w)
	} else {
		e.print = newTextPrinter(w)
	}
	return e.explain(in)
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

// errEnough ends the explanation when there are as many messages as asked for.
var errEnough = errors.New("enough")

// A printer prints explanations as they are made.
type printer interface {
	begin(*header) error
	message(*message) error
	end(*summary) error
}

// explain explains all of in.
func (e *explainer) explain(in *Input) error {
	h := header{
		Kind: "input", Format: in.format, Octets: in.octets, InlineCall: e.callInline, InlineReply: e.replyInline,
		MaxIO: e.registry.Limits().MaxIO, MaxReply: e.registry.Limits().MaxReply, From: e.source,
	}
	if in.capture != nil {
		h.Packets = in.capture.Packets
		if !in.capture.First.IsZero() {
			h.First, h.Last = &in.capture.First, &in.capture.Last
		}
	}
	if err := e.print.begin(&h); err != nil {
		return err
	}
	var err error
	if in.capture != nil {
		err = e.explainCapture(in.capture)
	} else {
		err = e.explainRaw(in)
	}
	if err != nil && !errors.Is(err, errEnough) {
		return err
	}
	return e.print.end(e.summarise(in, err != nil))
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
