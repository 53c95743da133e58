// Package explain describes RPC messages and how the bridge would carry them over RDMA.
// It implements rdmabridge explain.
//
// # Operation
//
// Read or ParseHex makes an Input: a capture, or RPC messages. Run describes one message after
// the other: explainCall with the binding of the Call's program and the plan of package ulb,
// explainReply by comparing the Reply with the plan of its Call. The description of a message
// is a struct, which a printer writes as text or as JSON.
package explain

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/rdmabridge/rdmabridge/internal/capture"
	"github.com/rdmabridge/rdmabridge/internal/names"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// Options say how the bridge would be configured and what Run prints.
type Options struct {
	CallInline  int           // inline threshold of Calls
	ReplyInline int           // inline threshold of Replies
	Registry    *ulb.Registry // what the bridge knows of programs; nil: what it knows by itself
	Mode        string        // pool.mode of the upstream; "" stands for auto
	Source      string        // the file that thresholds and limits come from; "" if there is none
	Rules       *Rules        // nil: say nothing of rules
	Files       names.Filter  // explain only Calls about these files, with their Replies; only for captures
	Max         int           // stop after so many messages; 0: explain all
	JSON        bool          // print one JSON object a line instead of text
	Summary     bool          // print a table by operation instead of messages
}

// errNoCapture reports Options.Files for an input without connections.
var errNoCapture = errors.New("only a capture tells which file a Call is about")

// Run explains the messages of in and prints the explanations to w.
func Run(w io.Writer, in *Input, o Options) error {
	if o.Files.Set() && in.capture == nil {
		return errNoCapture
	}
	e := newExplainer(o)
	switch {
	case o.Summary:
		e.print = newTablePrinter(w, o.JSON)
	case o.JSON:
		e.print = newJSONPrinter(w)
	default:
		e.print = newTextPrinter(w)
	}
	return e.explain(in)
}

// explain prints the header, the messages of in and the summary.
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

// explainCapture explains the messages of a capture.
func (e *explainer) explainCapture(c *capture.Capture) error {
	e.connections = make(map[*capture.Conn]*connection)
	e.comments = c.Comments
	all := c.Messages()
	for _, conn := range c.Conns {
		e.connections[conn] = newConnection(conn)
	}
	if e.filter.Set() {
		e.files, e.unknown = findFiles(all, e.filter)
	}
	for i := range all {
		e.index = i
		if err := e.explainMessage(&all[i]); err != nil {
			return err
		}
	}
	return nil
}

// explainRaw explains the messages of an input that is not a capture.
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
	m := &message{Place: newLocation(c), conn: e.connections[c.Conn]}
	for _, text := range e.comments[c.First] {
		m.Comments = append(m.Comments, printable([]byte(text)))
		e.ours = e.ours || strings.HasPrefix(text, "rdmabridge ")
	}
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
		m.note("the message is in a chunk, and the input does not have the octets of that chunk")
	case !ok && !whole:
		m.Kind, m.Problem = kindCut, fmt.Sprintf("the input has %d of %d octets: too few to tell a Call from a Reply", len(b), c.Length)
	case !ok:
		m.Kind, m.Problem = kindMalformed, fmt.Sprintf("not an RPC message: it has %d octets, and an XID and a message type take 8", len(b))
	case kind == oncrpc.TypeCall:
		m.XID = &xid
		return e.explainCall(m, c, b, whole)
	case kind == oncrpc.TypeReply:
		m.XID = &xid
		return e.explainReply(m, c, b, whole)
	default:
		m.XID = &xid
		m.Kind = kindMalformed
		m.Problem = fmt.Sprintf("not an RPC message: message type %d at offset 4; a Call has 0 and a Reply 1", kind)
	}
	return e.show(m)
}
