package explain

import (
	"fmt"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/capture"
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
