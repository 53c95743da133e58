package explain

import (
	"fmt"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/capture"
)

// The output of --json consists of the types of this package that have JSON tags. The
// names of their fields are stable, and new fields may be added. Lengths, positions and
// thresholds are in octets. A position counts from the first octet of the RPC message.

// The kinds of messages.
const (
	kindCall      = "call"
	kindReply     = "reply"
	kindRDMA      = "rdma"      // a Transport header without an RPC message: RDMA_ERROR
	kindMalformed = "malformed" // message.Problem says why
	kindCut       = "cut"       // too little was captured; message.Problem says what
)

// A header is the first object of the output.
type header struct {
	Kind        string     `json:"kind"`   // always input
	Format      string     `json:"format"` // capture, hex or raw
	Octets      int        `json:"octets"`
	Packets     int        `json:"packets,omitempty"`
	First       *time.Time `json:"first,omitempty"` // time of the first packet that has one
	Last        *time.Time `json:"last,omitempty"`  // time of the last packet that has one
	InlineCall  int        `json:"inline_call"`
	InlineReply int        `json:"inline_reply"`
	MaxIO       uint32     `json:"max_io"`
	MaxReply    uint32     `json:"max_reply"`
	From        string     `json:"from,omitempty"` // the file that thresholds and limits come from
}

// A location says where in the input a message was found.
type location struct {
	Packet         int        `json:"packet,omitempty"` // number of the first packet; 0 outside a capture
	LastPacket     int        `json:"last_packet,omitempty"`
	Time           *time.Time `json:"time,omitempty"`
	Connection     int        `json:"connection,omitempty"`
	From           string     `json:"from,omitempty"`
	To             string     `json:"to,omitempty"`
	Offset         int64      `json:"offset"` // in the stream; in the input outside a capture
	Octets         int64      `json:"octets"` // length of the record or of the Send, without record marks
	Missing        int64      `json:"missing,omitempty"`
	Fragments      int        `json:"fragments,omitempty"`
	Resynchronised bool       `json:"resynchronised,omitempty"`
	BadCRC         bool       `json:"bad_crc,omitempty"`
}

// A message is the description of one RPC message, an object of the output.
type message struct {
	Kind    string   `json:"kind"`
	Number  int      `json:"number"` // counts the messages of the output, from 1
	Place   location `json:"place"`
	XID     *uint32  `json:"xid,omitempty"`
	Problem string   `json:"problem,omitempty"`
	Notes   []string `json:"notes,omitempty"`
	// Comments are those of the packet in which the message begins.
	Comments []string   `json:"comments,omitempty"`
	RDMA     *transport `json:"rdma,omitempty"`
	Call     *callPart  `json:"call,omitempty"`
	Reply    *replyPart `json:"reply,omitempty"`

	conn *connection
}

// note adds a remark to m.
func (m *message) note(format string, args ...any) {
	m.Notes = append(m.Notes, fmt.Sprintf(format, args...))
}

// newLocation returns where c was found.
func newLocation(c *capture.Message) location {
	p := location{
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
