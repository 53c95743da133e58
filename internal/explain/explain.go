// Package explain says of RPC messages what they are and how the bridge would carry
// them over RDMA: the verb of rdmabridge explain.
package explain

import (
	"errors"
	"fmt"
	"io"

	"github.com/rdmabridge/rdmabridge/internal/capture"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
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

// explainCapture explains all messages of a capture.
func (e *explainer) explainCapture(c *capture.Capture) error {
	e.connections = make(map[*capture.Conn]*connection)
	all := c.Messages()
	for _, conn := range c.Conns {
		e.connections[conn] = newConnection(conn)
	}
	for i := range all {
		if err := e.explainMessage(&all[i]); err != nil {
			return err
		}
	}
	return nil
}

// explainRaw explains what is not a capture.
func (e *explainer) explainRaw(in *Input) error {
	if in.marked {
		all := capture.Records(in.data)
		for i := range all {
			if err := e.explainMessage(&all[i]); err != nil {
				return err
			}
		}
		if len(all) > 0 {
			return nil
		}
	}
	m := capture.Message{Data: in.data, Length: int64(len(in.data))}
	if transportHeader(in.data) {
		m = capture.Send(in.data)
	}
	return e.explainMessage(&m)
}

// explainMessage explains one message.
func (e *explainer) explainMessage(c *capture.Message) error {
	m := &message{Place: newPlace(c), conn: e.connections[c.Conn]}
	if c.Wrong != "" {
		m.note("%s", c.Wrong)
	}
	if c.RDMA != nil {
		e.explainTransport(m, c)
		if c.RDMA.Err != nil {
			m.Kind, m.Problem = kindMalformed, transportProblem(c.RDMA.Err)
			return e.show(m)
		}
		if c.RDMA.Proc == rpcrdma.Error || c.RDMA.Proc == rpcrdma.Done {
			m.Kind = kindRDMA
			return e.show(m)
		}
	}
	b, whole := c.Payload()
	xid, kind, ok := oncrpc.MessageType(b)
	switch {
	case !ok && !whole && c.RDMA != nil && c.RDMA.Proc == rpcrdma.NoMsg:
		m.Kind = kindRDMA
		m.note("the message is in a chunk whose octets are not in the input")
	case !ok && !whole:
		m.Kind, m.Problem = kindCut, fmt.Sprintf("%d octets of %d are in the input: too few to say anything", len(b), c.Length)
	case !ok:
		m.Kind, m.Problem = kindMalformed, fmt.Sprintf("not an RPC message: %d octets, an XID and a message type take 8", len(b))
	case kind == oncrpc.TypeCall:
		m.XID = &xid
		return e.explainCall(m, c, b, whole)
	case kind == oncrpc.TypeReply:
		m.XID = &xid
		return e.explainReply(m, c, b, whole)
	default:
		m.XID = &xid
		m.Kind = kindMalformed
		m.Problem = fmt.Sprintf("not an RPC message: message type %d at offset 4, a Call has 0 and a Reply 1", kind)
	}
	return e.show(m)
}
