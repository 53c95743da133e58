package explain

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/capture"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp/wire"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// The types of this file are what --json prints. Names of fields stay; new ones
// may come. Lengths, positions and thresholds are in octets, positions from the
// first octet of the RPC message.

// The kinds of message.
const (
	kindCall      = "call"
	kindReply     = "reply"
	kindRDMA      = "rdma"      // a Transport header without an RPC message: RDMA_ERROR
	kindMalformed = "malformed" // see Problem
	kindCut       = "cut"       // too little of it was captured to say anything: see Problem
)

// A header is the first object.
type header struct {
	Kind        string     `json:"kind"`   // input
	Format      string     `json:"format"` // capture, hex, raw
	Octets      int        `json:"octets"`
	Packets     int        `json:"packets,omitempty"`
	First       *time.Time `json:"first,omitempty"` // packet with a time
	Last        *time.Time `json:"last,omitempty"`
	InlineCall  int        `json:"inline_call"`
	InlineReply int        `json:"inline_reply"`
	MaxIO       uint32     `json:"max_io"`
	MaxReply    uint32     `json:"max_reply"`
	From        string     `json:"from,omitempty"` // where thresholds and limits are from, if not the command line
}

// A summary is the last object.
type summary struct {
	Kind        string        `json:"kind"` // summary
	Messages    int           `json:"messages"`
	Calls       int           `json:"calls"`
	Replies     int           `json:"replies"`
	Unanswered  int           `json:"unanswered"` // Calls without a Reply in a capture
	Malformed   int           `json:"malformed"`
	Cut         int           `json:"cut"`
	Incomplete  bool          `json:"incomplete"` // --max ended it
	Broken      string        `json:"broken,omitempty"`
	Skipped     []skipped     `json:"skipped_packets,omitempty"`
	Connections []*connection `json:"connections,omitempty"`
	Hints       []string      `json:"hints,omitempty"`
}

type skipped struct {
	Reason  string `json:"reason"`
	Packets int    `json:"packets"`
}

// A connection is a TCP connection of a capture.
type connection struct {
	Number   int       `json:"number"`
	Protocol string    `json:"protocol"` // rpc, iwarp, other
	Streams  [2]stream `json:"streams"`
	MPA      []startup `json:"mpa,omitempty"`
	Inline   *[2]int   `json:"inline,omitempty"` // thresholds of Streams, as RFC 8797 makes them

	printed bool
	calls   *capture.Stream // where its first Call was
}

// A stream is one direction of a connection.
type stream struct {
	From          string `json:"from"`
	To            string `json:"to"`
	Octets        int64  `json:"octets"`
	Missing       int64  `json:"missing"`
	Cut           int64  `json:"cut"`           // by the snap length
	Retransmitted int64  `json:"retransmitted"` // captured more than once
	Late          int    `json:"late_segments"`
}

// A startup is an MPA start-up frame.
type startup struct {
	Reply              bool  `json:"reply"`
	Revision           uint8 `json:"revision"`
	Markers            bool  `json:"markers"`
	CRC                bool  `json:"crc"`
	Rejected           bool  `json:"rejected"`
	IRD                int   `json:"ird,omitempty"`
	ORD                int   `json:"ord,omitempty"`
	SendSize           int   `json:"send_size,omitempty"`
	RecvSize           int   `json:"receive_size,omitempty"`
	RemoteInvalidation bool  `json:"remote_invalidation,omitempty"`
}

// A place is where a message was found.
type place struct {
	Packet         int        `json:"packet,omitempty"` // 0: not of a capture
	LastPacket     int        `json:"last_packet,omitempty"`
	Time           *time.Time `json:"time,omitempty"`
	Connection     int        `json:"connection,omitempty"`
	From           string     `json:"from,omitempty"`
	To             string     `json:"to,omitempty"`
	Offset         int64      `json:"offset"` // in the stream, or in the input
	Octets         int64      `json:"octets"` // of the record or the Send, without marks
	Missing        int64      `json:"missing,omitempty"`
	Fragments      int        `json:"fragments,omitempty"`
	Resynchronised bool       `json:"resynchronised,omitempty"`
	BadCRC         bool       `json:"bad_crc,omitempty"`
}

// A message is one object of the output.
type message struct {
	Kind    string     `json:"kind"`
	Number  int        `json:"number"` // from 1, in the output
	Place   place      `json:"place"`
	XID     *uint32    `json:"xid,omitempty"`
	Problem string     `json:"problem,omitempty"`
	Notes   []string   `json:"notes,omitempty"`
	RDMA    *transport `json:"rdma,omitempty"`
	Call    *callPart  `json:"call,omitempty"`
	Reply   *replyPart `json:"reply,omitempty"`

	conn *connection
}

func (m *message) note(format string, args ...any) {
	m.Notes = append(m.Notes, fmt.Sprintf(format, args...))
}

// A transport is a Transport header.
type transport struct {
	Version    uint32  `json:"version"`
	Procedure  string  `json:"procedure"`
	Credits    uint32  `json:"credits"`
	Error      string  `json:"error,omitempty"`
	Reads      []chunk `json:"read_chunks,omitempty"`
	Writes     []chunk `json:"write_chunks,omitempty"`
	Reply      *chunk  `json:"reply_chunk,omitempty"`
	Invalidate *uint32 `json:"invalidate,omitempty"`
	Payload    int64   `json:"payload"` // octets behind the header
}

type chunk struct {
	Position *uint32   `json:"position,omitempty"`
	Octets   int64     `json:"octets"`
	Seen     int64     `json:"seen"` // octets that moved in the capture
	Segments []segment `json:"segments"`
}

type segment struct {
	Handle uint32 `json:"handle"`
	Length uint32 `json:"length"`
	Offset uint64 `json:"offset"`
}

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

func newPlace(c *capture.Message) place {
	p := place{
		Packet: c.First, LastPacket: c.Last, Offset: c.Offset, Octets: c.Length, Missing: c.Missing,
		Fragments: c.Fragments, Resynchronised: c.Resynchronised, BadCRC: c.BadCRC,
	}
	if !c.Time.IsZero() {
		p.Time = &c.Time
	}
	if c.Conn != nil && c.First > 0 {
		p.Connection = c.Conn.Number
		p.From, p.To = c.Stream.From.String(), c.Stream.To.String()
	}
	return p
}

var protocols = map[capture.Protocol]string{capture.Unknown: "other", capture.RPC: "rpc", capture.IWARP: "iwarp"}

func newConnection(c *capture.Conn) *connection {
	n := &connection{Number: c.Number, Protocol: protocols[c.Protocol]}
	for i := range c.Streams {
		s := &c.Streams[i]
		n.Streams[i] = stream{
			From: s.From.String(), To: s.To.String(), Octets: s.Captured, Missing: s.Missing, Cut: s.Cut,
			Retransmitted: s.Again, Late: s.Late,
		}
		if f := c.MPA[i]; f != nil {
			u := startup{
				Reply: f.Reply, Revision: f.Revision, Markers: f.Flags&wire.FlagMarkers != 0, CRC: f.Flags&wire.FlagCRC != 0,
				Rejected: f.Reply && f.Flags&wire.FlagReject != 0, IRD: int(f.Enhanced.IRD), ORD: int(f.Enhanced.ORD),
			}
			if p, ok := rpcrdma.FindPrivateData(f.Private); ok {
				u.SendSize, u.RecvSize, u.RemoteInvalidation = p.SendSize, p.RecvSize, p.RemoteInvalidation
			}
			n.MPA = append(n.MPA, u)
		}
	}
	if a, ok := c.Inline(0); ok {
		b, _ := c.Inline(1)
		n.Inline = &[2]int{a, b}
	}
	return n
}

// summarise makes the last object.
func (e *explainer) summarise(in *Input, incomplete bool) *summary {
	s := &summary{
		Kind: "summary", Messages: e.count, Calls: e.callCount, Replies: e.replyCount, Malformed: e.malformed, Cut: e.cut, Incomplete: incomplete,
	}
	if in.capture == nil {
		return s
	}
	if !incomplete {
		s.Unanswered = e.unanswered
		for _, k := range e.calls {
			if k.replies == 0 {
				s.Unanswered++
			}
		}
	}
	if err := in.capture.Err; err != nil {
		s.Broken = err.Error()
	}
	for why, n := range in.capture.Skipped {
		if why > 0 && n > 0 {
			s.Skipped = append(s.Skipped, skipped{capture.Skip(why).String(), n})
		}
	}
	var cut, missing int64
	for _, c := range in.capture.Conns {
		s.Connections = append(s.Connections, e.connections[c])
		for i := range c.Streams {
			cut += c.Streams[i].Cut
			missing += c.Streams[i].Missing
		}
	}
	if cut > 0 {
		s.Hints = append(s.Hints, "packets were cut: capture with tcpdump -s 0")
	}
	if missing > cut {
		s.Hints = append(s.Hints, "packets are missing: capture with a larger buffer, tcpdump -B 65536")
	}
	return s
}

// explainTransport describes the Transport header of c.
func (e *explainer) explainTransport(m *message, c *capture.Message) {
	r := c.RDMA
	t := &transport{Version: r.Version}
	m.RDMA = t
	if r.Err != nil {
		m.XID = &r.XID
		return
	}
	m.XID = &r.XID
	t.Procedure, t.Credits, t.Payload = r.Proc.String(), r.Credits, c.Length-int64(r.Payload)
	if r.Proc == rpcrdma.Error {
		t.Error = r.Code.String()
		if r.Code == rpcrdma.ErrVers {
			t.Error += fmt.Sprintf(", versions %d to %d", r.Low, r.High)
		}
	}
	if r.HasInvalidate {
		t.Invalidate = &r.Invalidate
	}
	for i := range r.Reads {
		k := newChunk(&r.Reads[i])
		k.Position = &r.Reads[i].Position
		t.Reads = append(t.Reads, k)
	}
	for i := range r.Writes {
		t.Writes = append(t.Writes, newChunk(&r.Writes[i]))
	}
	if r.Reply != nil {
		k := newChunk(r.Reply)
		t.Reply = &k
	}
}

func newChunk(m *capture.Moved) chunk {
	k := chunk{Octets: m.Length, Seen: int64(len(m.Data)), Segments: make([]segment, 0, len(m.Segments))}
	for _, g := range m.Segments {
		k.Segments = append(k.Segments, segment{g.Handle, g.Length, g.Offset})
	}
	return k
}

// transportProblem says what is wrong with a Transport header, and what the bridge
// would answer.
func transportProblem(err error) string {
	var h *rpcrdma.HeaderError
	if !errors.As(err, &h) {
		return err.Error()
	}
	s := fmt.Sprintf("not an RPC-over-RDMA message: %s: %v", h.Field, h.Err)
	if h.Answer == rpcrdma.Silence {
		return s + "; it is discarded"
	}
	return s + "; the answer to a Call is " + h.Answer.String()
}

// rpcProblem says what is wrong with the header of the message b.
func rpcProblem(what string, b []byte, err error) string {
	var h *oncrpc.Error
	if !errors.As(err, &h) {
		return fmt.Sprintf("not a %s: %v", what, err)
	}
	field := map[string]string{"cred": "credential", "verf": "verifier"}[h.Field]
	word := func() (uint32, bool) {
		if h.Position+4 > len(b) {
			return 0, false
		}
		return binary.BigEndian.Uint32(b[h.Position:]), true
	}
	v, ok := word()
	switch {
	case h.Field == "call" || h.Field == "reply":
		return fmt.Sprintf("not a %s: %d octets, which is shorter than any", what, len(b))
	case field != "" && ok && errors.Is(h, oncrpc.ErrBound):
		return fmt.Sprintf("not a %s: %s of %d octets at offset %d, %d are allowed", what, field, v, h.Position, oncrpc.MaxAuth)
	case field != "" && ok:
		return fmt.Sprintf("not a %s: %s of %d octets at offset %d, the message ends at %d", what, field, v, h.Position, len(b))
	case h.Field == "rpcvers" && ok:
		return fmt.Sprintf("not a %s: RPC version %d at offset %d, there is only %d", what, v, h.Position, oncrpc.RPCVersion)
	case ok && errors.Is(h, oncrpc.ErrValue):
		return fmt.Sprintf("not a %s: %s is %d at offset %d, which means nothing", what, h.Field, v, h.Position)
	}
	return fmt.Sprintf("not a %s: it ends at offset %d, inside %s", what, h.Position, h.Field)
}
