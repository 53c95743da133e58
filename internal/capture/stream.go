package capture

import (
	"cmp"
	"io"
	"net/netip"
	"slices"
	"sort"
	"time"

	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp/wire"
)

// A Capture has the TCP connections of a file.
type Capture struct {
	Packets     int
	First, Last time.Time  // times of the first and the last packet with a time
	Skipped     [skips]int // packets without a TCP segment, by Skip
	Conns       []*Conn    // in the order of their first packets

	// Comments are those of packets, by their number. rdmabridge capture writes them.
	Comments map[int][]string

	// Err says where the file is broken. It is nil when the file is complete. The
	// packets before that place are good.
	Err error

	byPair map[pair]*Conn // the newest of each pair of addresses
}

// A Conn is a TCP connection.
type Conn struct {
	Number  int // from 1
	Streams [2]Stream

	// MPA are the start-up frames on the Streams of the same index, nil when they were
	// not captured. RFC 5044 Section 7.1.
	MPA [2]*wire.Frame
	// Protocol is the protocol of the messages that Messages found.
	Protocol Protocol
}

// A Protocol is the protocol of a connection.
type Protocol uint8

// The protocols.
const (
	Unknown Protocol = iota // neither of the others, or too few octets to tell
	RPC                     // RPC over TCP
	IWARP                   // RPC-over-RDMA on iWARP
)

// A Stream is one direction of a Conn.
type Stream struct {
	From, To netip.AddrPort
	started  bool // offset 0 is the octet behind the captured SYN; else the first packet's

	Captured int64 // octets
	Missing  int64 // octets missing between captured ones
	Cut      int64 // octets of packets beyond the snap length
	Again    int64 // octets captured more than once: retransmissions
	Late     int   // segments behind one with a higher sequence number

	base   uint32  // sequence number of offset 0
	newest int64   // offset of the previous segment, to extend sequence numbers
	end    int64   // offset behind all segments
	begun  bool    // base is known
	pieces []piece // sorted and without overlap after finish
}

// A piece is the payload of a segment, without octets that an earlier piece has.
type piece struct {
	off    int64
	data   []byte
	packet int
	at     int64 // Unix time in ns
}

func (p *piece) end() int64 { return p.off + int64(len(p.data)) }

// A pair is the two addresses of a connection, the smaller first.
type pair struct{ a, b netip.AddrPort }

// Read finds the TCP connections of the capture b. It returns an error when b is no
// capture. A file that is broken further on is good up to that place: see [Capture.Err].
func Read(b []byte) (*Capture, error) {
	r, err := newPackets(b)
	if err != nil {
		return nil, err
	}
	c := &Capture{byPair: make(map[pair]*Conn), Comments: make(map[int][]string)}
	var p packet
	var s tcpSegment
	for {
		if err := r.read(&p); err != nil {
			if err != io.EOF {
				c.Err = err
			}
			break
		}
		c.Packets++
		if len(p.Comments) > 0 {
			c.Comments[p.Number] = p.Comments
		}
		if !p.Time.IsZero() {
			if c.First.IsZero() {
				c.First = p.Time
			}
			c.Last = p.Time
		}
		why := p.tcp(&s)
		c.Skipped[why]++
		if why == notSkipped {
			c.add(&p, &s)
		}
	}
	for _, conn := range c.Conns {
		conn.Streams[0].finish()
		conn.Streams[1].finish()
	}
	return c, nil
}

// add adds a segment to its connection.
func (c *Capture) add(p *packet, s *tcpSegment) {
	k := pair{s.From, s.To}
	if k.a.Compare(k.b) > 0 {
		k.a, k.b = k.b, k.a
	}
	conn := c.byPair[k]
	if conn == nil || conn.reopened(s) {
		conn = &Conn{Number: len(c.Conns) + 1}
		conn.Streams[0].From, conn.Streams[0].To = s.From, s.To
		conn.Streams[1].From, conn.Streams[1].To = s.To, s.From
		c.byPair[k] = conn
		c.Conns = append(c.Conns, conn)
	}
	conn.stream(s).add(p, s)
}

// stream returns the direction of s. A connection of an address with itself has only
// one.
func (c *Conn) stream(s *tcpSegment) *Stream {
	if c.Streams[0].From == s.From {
		return &c.Streams[0]
	}
	return &c.Streams[1]
}

// reopened reports whether s is the SYN of a new connection between the same
// addresses, and not a retransmission of c's SYN.
func (c *Conn) reopened(s *tcpSegment) bool {
	if !s.SYN {
		return false
	}
	have := c.stream(s)
	return have.begun && s.Sequence+1 != have.base
}

func (s *Stream) add(p *packet, t *tcpSegment) {
	seq := t.Sequence
	if t.SYN {
		seq++
	}
	if !s.begun {
		s.begun, s.base = true, seq
	}
	if t.SYN {
		s.started = true
	}
	off := s.newest + int64(int32(seq-uint32(int64(s.base)+s.newest)))
	s.newest = off
	if t.Length == 0 {
		return
	}
	if off < s.end {
		s.Late++
	}
	s.end = max(s.end, off+t.Length)
	s.Cut += t.Length - int64(len(t.Payload))
	if len(t.Payload) == 0 {
		return
	}
	at := int64(0)
	if !p.Time.IsZero() {
		at = p.Time.UnixNano()
	}
	s.pieces = append(s.pieces, piece{off: off, data: t.Payload, packet: p.Number, at: at})
}

// finish sorts the pieces and removes octets that overlap.
func (s *Stream) finish() {
	slices.SortStableFunc(s.pieces, func(a, b piece) int { return cmp.Compare(a.off, b.off) })
	kept := s.pieces[:0]
	var end int64
	for i, p := range s.pieces {
		if i > 0 && p.off < end {
			n := min(end-p.off, int64(len(p.data)))
			s.Again += n
			p.off += n
			p.data = p.data[n:]
			if len(p.data) == 0 {
				continue
			}
		}
		if len(kept) > 0 {
			s.Missing += p.off - end
		} else if s.started {
			s.Missing += max(p.off, 0)
		}
		end = p.end()
		s.Captured += int64(len(p.data))
		kept = append(kept, p)
	}
	s.pieces = kept
}

// A reader reads a finished stream from front to back.
type reader struct {
	s   *Stream
	i   int   // index of the first piece that ends behind pos
	pos int64 // the position, an offset

	// marked is whether the stream has MPA Markers, the first at offset base.
	marked bool
	base   int64
}

// reader returns a reader at the start of s, or at its first captured octet when the start
// was not captured.
func (s *Stream) reader() reader {
	r := reader{s: s}
	if !s.started && len(s.pieces) > 0 {
		r.pos = s.pieces[0].off
	}
	r.seek(r.pos)
	return r
}

// seek moves to pos, which must not be before the position.
func (r *reader) seek(pos int64) {
	r.pos = pos
	left := r.s.pieces[r.i:]
	if len(left) == 0 || left[0].end() > pos {
		return
	}
	// Mostly it is the next piece. But octets that only look like a record mark can lead
	// anywhere.
	if len(left) > 1 && left[1].end() > pos {
		r.i++
		return
	}
	r.i += sort.Search(len(left), func(i int) bool { return left[i].end() > pos })
}

// done reports whether no octet was captured at the position or behind it.
func (r *reader) done() bool { return r.i == len(r.s.pieces) }

// hole moves over the octets that are missing at the position.
func (r *reader) hole() {
	if !r.done() {
		r.pos = max(r.pos, r.s.pieces[r.i].off)
	}
}

// missing reports whether the octet at the position was not captured.
func (r *reader) missing() bool { return r.done() || r.s.pieces[r.i].off > r.pos }

// A span says in which packets octets came.
type span struct {
	first, last int   // packets; 0 for none
	at          int64 // time of the first
}

func (s *span) add(p *piece) {
	if s.first == 0 {
		s.first, s.at = p.packet, p.at
	}
	s.last = max(s.last, p.packet)
}

// peek returns up to n octets at the position, as many as were captured without a
// hole. It copies them only if they are in several packets.
func (r *reader) peek(n int64, where *span) []byte {
	if r.missing() || n <= 0 {
		return nil
	}
	p := &r.s.pieces[r.i]
	b := p.data[r.pos-p.off:]
	if int64(len(b)) >= n {
		where.add(p)
		return b[:n:n]
	}
	// Count the octets without a hole first, and allocate only for those.
	have, last := int64(len(b)), r.i
	for last+1 < len(r.s.pieces) && have < n && r.s.pieces[last+1].off == r.s.pieces[last].end() {
		last++
		have += int64(len(r.s.pieces[last].data))
	}
	where.add(p)
	if last == r.i {
		return b[:len(b):len(b)]
	}
	have = min(have, n)
	out := append(make([]byte, 0, have), b...)
	for i := r.i + 1; i <= last; i++ {
		p := &r.s.pieces[i]
		where.add(p)
		out = append(out, p.data[:min(int64(len(p.data)), have-int64(len(out)))]...)
	}
	return out
}

// captured returns how many of the n octets from the position on were captured.
func (r *reader) captured(n int64) int64 {
	end, got := r.pos+n, int64(0)
	for i := r.i; i < len(r.s.pieces) && r.s.pieces[i].off < end; i++ {
		p := &r.s.pieces[i]
		got += min(p.end(), end) - max(p.off, r.pos)
	}
	return got
}

// mark steps over a Marker at the position, if there is one.
func (r *reader) mark() {
	if r.marked && (r.pos-r.base)%wire.MarkerSpacing == 0 {
		r.seek(r.pos + wire.MarkerLen)
	}
}

// take returns up to n octets of the stream without Markers, and moves n octets on even if it
// returns fewer. For FPDUs a field of 16 bits bounds n; records have no Markers and use peek.
func (r *reader) take(n int64, where *span) []byte {
	if !r.marked {
		b := r.peek(n, where)
		r.seek(r.pos + n)
		return b
	}
	var out []byte
	whole := true
	for n > 0 {
		r.mark()
		k := min(n, wire.MarkerSpacing-(r.pos-r.base)%wire.MarkerSpacing)
		if whole {
			b := r.peek(k, where)
			out = append(out, b...)
			whole = int64(len(b)) == k
		}
		r.seek(r.pos + k)
		n -= k
	}
	return out
}
