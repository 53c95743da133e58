package capture

import (
	"cmp"
	"encoding/binary"
	"slices"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// A Message is an RPC message as it was captured: a record of RPC over TCP, or a
// Send of RPC-over-RDMA.
type Message struct {
	Conn   *Conn
	Stream *Stream
	Offset int64 // position in Stream of its first record mark or FPDU

	First, Last int       // packets
	Time        time.Time // of packet First; zero when unknown

	// Length is the octets of the whole message, without record marks and headers of
	// iWARP. If its end was not captured, it counts at least the captured octets.
	Length    int64
	Missing   int64  // octets of Length that were not captured
	Data      []byte // octets captured up to the first missing one
	Fragments int    // record fragments or DDP Segments

	// BadCRC is whether an FPDU of the message has a wrong CRC.
	BadCRC bool
	// Resynchronised is whether the octets before the message could not be read, so that
	// Messages searched for its beginning.
	Resynchronised bool
	// Wrong says why Data are no message. It is "" for a message.
	Wrong string

	// RDMA is the Transport header and the chunks; nil for a record.
	RDMA *RDMA
}

// An RDMA is the part of a Message that only RPC-over-RDMA has: the Transport header and
// the data that moved in chunks.
type RDMA struct {
	Err error // from decoding the header, a *rpcrdma.HeaderError: only XID and Version are set then

	XID, Version uint32
	Credits      uint32 // requested in a Call, granted in a Reply
	Proc         rpcrdma.Proc
	Code         rpcrdma.ErrCode // of an RDMA_ERROR
	Low, High    uint32          // versions, with ERR_VERS
	Payload      int             // position in Data of the Payload stream

	// Call is true for a Call and false for a Reply. A Call offers Write chunks and a
	// Reply chunk; a Reply returns the lengths written into them.
	Call   bool
	Reads  []Moved // Read chunks, in order of position
	Writes []Moved
	Reply  *Moved // nil when there is none

	// Invalidate is the handle in a Send With Invalidate.
	Invalidate    uint32
	HasInvalidate bool
}

// A Moved is a chunk and its captured data.
type Moved struct {
	Position uint32 // of a Read chunk
	Segments []rpcrdma.Segment
	Length   int64  // octets of the chunk; in a Reply, octets written
	Data     []byte // octets captured up to the first missing one; nil for a chunk that a Call offers
}

// whole reports whether all of the chunk was captured.
func (m *Moved) whole() bool { return int64(len(m.Data)) == m.Length }

// Messages returns the messages of a capture in the order in which they were
// complete. Call it only once.
func (c *Capture) Messages() []Message {
	var all []Message
	for _, conn := range c.Conns {
		all = append(all, conn.messages()...)
	}
	slices.SortStableFunc(all, func(a, b Message) int {
		return cmp.Or(cmp.Compare(a.Last, b.Last), cmp.Compare(a.Offset, b.Offset))
	})
	return all
}

// Records cuts b, which begins with a record mark, into records. It returns none when b
// does not look like RPC.
func Records(b []byte) []Message {
	c := new(Conn)
	s := &c.Streams[0]
	s.started = true
	if len(b) > 0 {
		s.pieces = []piece{{data: b}}
	}
	return c.records(s)
}

// Send returns the message of RPC-over-RDMA in b, which begins with a Transport header.
// Its chunks have no data.
func Send(b []byte) Message {
	m := Message{Data: b, Length: int64(len(b)), Fragments: 1, RDMA: new(RDMA)}
	newTransfers().send(0, &m)
	return m
}

func (c *Conn) messages() []Message {
	if c.startup() {
		c.Protocol = IWARP
		return c.sends()
	}
	// A Send is easier to recognise than a record, so search for Sends first, but only when
	// the start of the connection was not captured.
	if !c.Streams[0].started || !c.Streams[1].started {
		if all := c.sends(); len(all) > 0 {
			c.Protocol = IWARP
			return all
		}
	}
	var all []Message
	for i := range c.Streams {
		all = append(all, c.records(&c.Streams[i])...)
	}
	if len(all) > 0 {
		c.Protocol = RPC
	}
	return all
}

func (m *Message) found(where span) {
	m.First, m.Last = where.first, where.last
	if where.at != 0 {
		m.Time = time.Unix(0, where.at).UTC()
	}
}

// Bounds on records. A record may be as long as the longest READ that a bridge can
// be configured to carry, with room for its header.
const (
	markLen      = 4
	lastFragment = 1 << 31
	maxRecord    = 1<<30 + 1<<20
	maxSearch    = 64 << 20 // longest record that search accepts: a longer one is chance
	minRecord    = 8        // XID, message type
	minMessage   = 20       // the shortest message that makes sense: a denied Reply
	certain      = 48       // octets that plausible examines
)

// records cuts a stream of RPC over TCP into records. It returns none for a stream of
// another protocol.
func (c *Conn) records(s *Stream) []Message {
	var all []Message
	r := s.reader()
	inStep := s.started  // a record begins at the position
	resync := !s.started // the next record was searched for
	for !r.done() {
		if r.missing() {
			// The record mark was not captured.
			r.hole()
			inStep = false
		}
		if !inStep {
			if !r.search() {
				break
			}
			resync = true
		}
		m := Message{Conn: c, Stream: s, Offset: r.pos, Resynchronised: resync}
		if !possible(r.peek(markLen+minRecord, &span{})) {
			inStep, resync = false, true
			if len(all) == 0 { // not RPC, or RPC that starts later
				continue
			}
			var where span
			m.Data = r.peek(certain, &where)
			m.found(where)
			m.Length, m.Wrong = int64(len(m.Data)), "no record of an RPC message begins here"
			all = append(all, m)
			r.seek(r.pos + 1)
			continue
		}
		inStep = r.record(&m)
		resync = false
		if m.Fragments > 0 { // else the capture ends inside a mark
			all = append(all, m)
		}
	}
	return all
}

// record reads the fragments of a record. It reports whether it found the end of the
// record.
func (r *reader) record(m *Message) bool {
	var where span
	whole := true // no octet is missing so far
	defer func() { m.found(where) }()
	for {
		b := r.peek(markLen, &where)
		if len(b) < markLen {
			// The mark of a further fragment was not captured, or only in part.
			if len(b) > 0 || m.Fragments == 0 {
				r.seek(r.pos + int64(len(b)))
			}
			if m.Length == 0 { // only marks of empty fragments, such as zeros: no message
				m.Fragments = 0
				return false
			}
			m.Missing++ // at least one octet
			m.Length++
			return false
		}
		mark := binary.BigEndian.Uint32(b)
		n := int64(mark &^ lastFragment)
		if m.Fragments > 0 && m.Length+n > maxRecord {
			m.Wrong = "fragments of more octets than any message has"
			return false
		}
		r.seek(r.pos + markLen)
		m.Fragments++
		m.Length += n
		got := r.captured(n)
		m.Missing += n - got
		if whole {
			b := r.peek(n, &where)
			if m.Data == nil {
				m.Data = b
			} else {
				m.Data = append(m.Data, b...)
			}
			whole = int64(len(b)) == n
		}
		r.seek(r.pos + n)
		if mark&lastFragment != 0 {
			return true
		}
	}
}

// possible reports whether b can be the first octets of a record: a mark, an XID and a
// message type, as far as b has them.
func possible(b []byte) bool {
	if len(b) < markLen {
		return true
	}
	n := binary.BigEndian.Uint32(b)
	if n&lastFragment != 0 && n&^lastFragment < minRecord || n&^lastFragment > maxRecord {
		return false
	}
	return len(b) < markLen+minRecord || n&^lastFragment < minRecord ||
		binary.BigEndian.Uint32(b[8:]) <= oncrpc.TypeReply
}

// search moves to the next position at which a record is plausible.
func (r *reader) search() bool {
	for !r.done() {
		if r.missing() {
			r.hole()
		}
		p := &r.s.pieces[r.i]
		b := p.data[r.pos-p.off:]
		// Search most of the packet without a call for each octet, then its last octets.
		k := 0
		for ; k+12 <= len(b); k++ {
			if b[k]&0x80 != 0 && b[k+8]|b[k+9]|b[k+10] == 0 && b[k+11] <= 1 {
				at := *r
				at.seek(r.pos + int64(k))
				if at.plausible() {
					*r = at
					return true
				}
			}
		}
		end := p.end()
		for r.seek(r.pos + int64(k)); r.pos < end; r.seek(r.pos + 1) {
			if r.plausible() {
				return true
			}
		}
	}
	return false
}

// plausible reports whether a record of one fragment, with a Call or a Reply,
// begins at the position, and, if the octets behind it were captured, another record
// there.
func (r *reader) plausible() bool {
	b := r.peek(certain, &span{})
	if len(b) < markLen+minMessage || b[0]&0x80 == 0 {
		return false
	}
	n := int64(binary.BigEndian.Uint32(b) &^ lastFragment)
	if n < minMessage || n > maxSearch || !plausibleMessage(b[markLen:], n) {
		return false
	}
	next := *r
	next.seek(r.pos + markLen + n)
	return possible(next.peek(markLen+minRecord, &span{}))
}

// plausibleMessage reports whether a message of n octets may begin with b, which has minMessage
// octets or more.
func plausibleMessage(b []byte, n int64) bool {
	switch w := words(b); w.at(1) {
	case oncrpc.TypeCall:
		return w.plausibleCall(n)
	case oncrpc.TypeReply:
		return w.plausibleReply(n)
	}
	return false
}

// words are the first units of a message.
type words []byte

// at returns unit i, or 0 when the capture has not that many.
func (w words) at(i int) uint32 {
	if 4*i+4 > len(w) {
		return 0
	}
	return binary.BigEndian.Uint32(w[4*i:])
}

func (w words) plausibleCall(n int64) bool {
	return n >= oncrpc.CallHeaderMin && w.at(2) == oncrpc.RPCVersion && w.at(3) != 0 &&
		w.at(4) < 256 && w.at(5) < 1024 && plausibleFlavor(w.at(6)) && w.at(7) <= oncrpc.MaxAuth
}

func (w words) plausibleReply(n int64) bool {
	if w.at(2) == 1 { // MSG_DENIED
		return n == 20 && w.at(3) == oncrpc.AuthError && w.at(4) < 64 ||
			n == 24 && w.at(3) == oncrpc.RPCMismatch && w.at(4) == oncrpc.RPCVersion
	}
	return w.at(2) == 0 && n >= oncrpc.ReplyHeader && plausibleFlavor(w.at(3)) && w.at(4) <= oncrpc.MaxAuth &&
		(w.at(4) != 0 || w.at(5) <= oncrpc.SystemError)
}

// plausibleFlavor reports whether v is a small number or of the range that starts with
// 390000, as every flavor that the IANA has assigned.
func plausibleFlavor(v uint32) bool { return v <= 7 || v>>16 == 390000>>16 }
