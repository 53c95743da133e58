package explain

import (
	"github.com/rdmabridge/rdmabridge/internal/capture"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp/wire"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// A connection is a TCP connection of a capture.
type connection struct {
	Number   int       `json:"number"`
	Protocol string    `json:"protocol"` // rpc, iwarp, other
	Streams  [2]stream `json:"streams"`
	MPA      []startup `json:"mpa,omitempty"`
	Inline   *[2]int   `json:"inline,omitempty"` // inline threshold of each stream, by RFC 8797

	printed bool            // whether the text has it already
	calls   *capture.Stream // the direction of its first Call
}

// A stream is one direction of a connection.
type stream struct {
	From          string `json:"from"`
	To            string `json:"to"`
	Octets        int64  `json:"octets"`
	Missing       int64  `json:"missing"`
	Cut           int64  `json:"cut"`           // captured packets lack them because of the snap length
	Retransmitted int64  `json:"retransmitted"` // captured again
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

// protocols names the protocols in the output.
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
