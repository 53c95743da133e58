package explain

import (
	"fmt"

	"github.com/rdmabridge/rdmabridge/internal/capture"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// A transport describes a Transport header.
type transport struct {
	Version    uint32  `json:"version"`
	Procedure  string  `json:"procedure"`
	Credits    uint32  `json:"credits"`
	Error      string  `json:"error,omitempty"`
	Reads      []chunk `json:"read_chunks,omitempty"`
	Writes     []chunk `json:"write_chunks,omitempty"`
	Reply      *chunk  `json:"reply_chunk,omitempty"`
	Invalidate *uint32 `json:"invalidate,omitempty"`
	Payload    int64   `json:"payload"` // octets after the header
}

// A chunk describes a Read chunk, a Write chunk or a Reply chunk.
type chunk struct {
	Position *uint32   `json:"position,omitempty"`
	Octets   int64     `json:"octets"`
	Seen     int64     `json:"seen"` // octets that the capture has of it
	Segments []segment `json:"segments"`
}

// A segment describes an RDMA segment.
type segment struct {
	Handle uint32 `json:"handle"`
	Length uint32 `json:"length"`
	Offset uint64 `json:"offset"`
}

// explainTransport describes the Transport header of c in m.
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

func (c *chunk) String() string {
	s := fmt.Sprintf("%s in %s", count(c.Octets, "octet"), count(len(c.Segments), "segment"))
	if len(c.Segments) == 1 {
		s += fmt.Sprintf(" (handle %#x)", c.Segments[0].Handle)
	}
	if c.Seen > 0 {
		s += fmt.Sprintf(", %d captured", c.Seen)
	}
	return s
}
