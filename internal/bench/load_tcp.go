package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/rdmabridge/rdmabridge/internal/loop"
)

const (
	markLen = 4
	// directRead is how many octets of a record must be missing for the client to read
	// them into the record's own memory, rather than through the loop's buffer.
	directRead = 16 << 10
	// maxBufs bounds the pieces of one write.
	maxBufs = 64
)

// A slot is one outstanding Call of a connection.
type slot struct {
	busy  bool
	sent  bool // all of it was written
	op    uint8
	xid   uint32
	tag   uint32
	shift uint32
	start int64
	head  []byte // record mark and Call, with its data if those are short
	data  []byte // a slice of the pattern; nil if the data are in head
}

// A tcpClient is one connection of a load over TCP. It reads and writes the records
// itself, many in one read or write, and does not copy a record that arrived whole.
type tcpClient struct {
	w     *worker
	index int
	sock  loop.Socket
	seq   sequence
	table []slot
	spare []uint16 // free slots

	// Out: a ring of slots, the oldest first.
	ring        []uint16
	first, wait int
	written     int  // octets of the first slot
	blocked     bool // the socket accepts no more until Writable

	// In: a record that has arrived in part.
	buf      []byte
	have     int // octets in buf
	mark     [markLen]byte
	markHave int  // octets in mark
	left     int  // octets to come of the fragment
	last     bool // the fragment is the record's last
	parts    [1][]byte

	closing bool
}

func newTCPClient(w *worker, i int) *tcpClient {
	c := &tcpClient{w: w, index: i}
	if i >= w.Conns {
		return c // idle
	}
	c.seq = w.sequence(i)
	c.table = make([]slot, w.Depth)
	c.ring, c.spare = make([]uint16, w.Depth), make([]uint16, w.Depth)
	room := 0
	for _, o := range w.ops {
		n := markLen + len(o.head)
		if o.size <= inlineData {
			n += o.size
		}
		room = max(room, n)
	}
	heads := make([]byte, room*w.Depth)
	for n := range c.table {
		s := &c.table[n]
		s.head = heads[n*room : n*room : (n+1)*room]
		s.shift = w.shift(i, n)
		c.encode(s, 0)
		c.spare[n] = uint16(w.Depth - 1 - n)
	}
	return c
}

// encode makes s hold a Call of kind k.
func (c *tcpClient) encode(s *slot, k uint8) {
	o := c.w.ops[k]
	s.op = k
	s.head = binary.BigEndian.AppendUint32(s.head[:0], 1<<31|uint32(o.callLen()))
	s.head = append(s.head, o.head...)
	s.data = dataOf(pattern(), s.shift, o.size)
	if o.size <= inlineData {
		s.head, s.data = append(s.head, s.data...), nil
	}
}

// Attached is part of loop.Stream.
func (c *tcpClient) Attached(s loop.Socket) {
	c.sock = s
	if c.w.ended {
		c.close()
		return
	}
	if c.table == nil {
		c.w.idle = append(c.w.idle, c)
		return
	}
	c.w.clients = append(c.w.clients, c)
}

func (c *tcpClient) slots() int { return len(c.spare) }

func (c *tcpClient) call(start int64) {
	n := c.spare[len(c.spare)-1]
	c.spare = c.spare[:len(c.spare)-1]
	s := &c.table[n]
	if k := c.seq.op(c.w.run); k != s.op {
		c.encode(s, k)
	}
	s.xid, s.tag = c.seq.next(int(n), s.shift)
	c.w.ops[s.op].patch(s.head[markLen:], s.xid, s.tag)
	s.busy, s.sent, s.start = true, false, start
	at := c.first + c.wait
	if at >= len(c.ring) {
		at -= len(c.ring)
	}
	c.ring[at] = n
	c.wait++
	c.w.inFlight++
	c.sock.FlushSoon()
}

// Flush is part of loop.Stream.
func (c *tcpClient) Flush() {
	for c.wait > 0 && !c.blocked && !c.closing {
		bufs, want := c.gather()
		n, err := c.sock.Writev(bufs)
		clear(bufs)
		if err != nil {
			c.fail(err)
			return
		}
		c.blocked = n < want
		c.advance(n)
	}
}

// Writable is part of loop.Stream.
func (c *tcpClient) Writable() {
	c.blocked = false
	c.Flush()
}

// gather returns the first of the waiting octets: short Calls copied into one piece, and
// long ones as they are.
func (c *tcpClient) gather() (bufs [][]byte, want int) {
	w := c.w
	out, from := w.out[:0], 0
	bufs = w.bufs[:0]
	skip, at := c.written, c.first
	for range c.wait {
		s := &c.table[c.ring[at]]
		if at++; at == len(c.ring) {
			at = 0
		}
		head, data := s.head, s.data
		if k := min(skip, len(head)); k > 0 {
			head, skip = head[k:], skip-k
		}
		if skip > 0 {
			data, skip = data[skip:], 0
		}
		if len(out)+len(head) > cap(out) || len(bufs)+2 > maxBufs {
			break
		}
		out = append(out, head...)
		want += len(head) + len(data)
		if len(data) > 0 {
			bufs = append(bufs, out[from:], data)
			from = len(out)
		}
	}
	if from < len(out) {
		bufs = append(bufs, out[from:])
	}
	w.bufs = bufs
	return bufs, want
}

// advance removes n octets from the front of the waiting ones.
func (c *tcpClient) advance(n int) {
	c.written += n
	for c.wait > 0 {
		s := &c.table[c.ring[c.first]]
		size := len(s.head) + len(s.data)
		if c.written < size {
			return
		}
		c.written -= size
		s.sent = true
		if c.first++; c.first == len(c.ring) {
			c.first = 0
		}
		c.wait--
	}
}

// Received is part of loop.Stream.
func (c *tcpClient) Received(b []byte) {
	now := c.w.now() // the arrival of everything in this read
	for len(b) > 0 && !c.closing {
		if c.have == 0 && c.left == 0 && c.markHave == 0 && len(b) >= markLen {
			mark := binary.BigEndian.Uint32(b)
			if n := int(mark &^ (1 << 31)); mark>>31 == 1 && n <= len(b)-markLen {
				c.reply(b[markLen:markLen+n], now)
				b = b[markLen+n:]
				continue
			}
		}
		b = c.take(b, now)
	}
	for c.left >= directRead && !c.closing {
		n, _ := c.sock.Read(c.buf[c.have : c.have+c.left]) // an error ends the stream by itself
		if n == 0 {
			return
		}
		c.advanceRecord(n, 0)
	}
}

// take adds some of b to the record that has arrived in part, and returns the rest.
func (c *tcpClient) take(b []byte, now int64) []byte {
	if c.left == 0 {
		n := copy(c.mark[c.markHave:], b)
		b = b[n:]
		if c.markHave += n; c.markHave < markLen {
			return b
		}
		c.markHave = 0
		mark := binary.BigEndian.Uint32(c.mark[:])
		c.left, c.last = int(mark&^(1<<31)), mark>>31 == 1
		if most := c.w.replyMax + headMax; c.left > most-c.have {
			c.fail(fmt.Errorf("%w: more than %d octets", errShortReply, most))
			return nil
		}
		if need := c.have + c.left; need > len(c.buf) {
			buf := make([]byte, need)
			copy(buf, c.buf[:c.have])
			c.buf = buf
		}
	}
	n := copy(c.buf[c.have:c.have+c.left], b)
	c.advanceRecord(n, now)
	return b[n:]
}

// advanceRecord counts n more octets of the record, which arrived at now. If now is 0, it
// reads the clock when the record is whole.
func (c *tcpClient) advanceRecord(n int, now int64) {
	c.have += n
	if c.left -= n; c.left > 0 || !c.last {
		return
	}
	if now == 0 {
		now = c.w.now()
	}
	m := c.buf[:c.have]
	c.have, c.last = 0, false
	c.reply(m, now)
}

// reply handles a Reply.
func (c *tcpClient) reply(m []byte, now int64) {
	if len(m) < 4 {
		c.fail(errShortReply)
		return
	}
	xid := binary.BigEndian.Uint32(m)
	n := c.seq.slot(xid)
	if n >= len(c.table) || !c.table[n].busy || !c.table[n].sent || c.table[n].xid != xid {
		c.fail(fmt.Errorf("reply with xid %#08x, but no call with it is outstanding", xid))
		return
	}
	s := &c.table[n]
	o := c.w.ops[s.op]
	c.parts[0] = m
	if err := o.check(c.parts[:], s.tag, c.w.Full, c.w.scratch[:]); err != nil {
		c.fail(fmt.Errorf("%s: %w", o.name, err))
		return
	}
	s.busy = false
	c.spare = append(c.spare, uint16(n))
	c.w.answered(c, o, s.start, now)
}

func (c *tcpClient) fail(err error) {
	if !c.closing {
		c.w.fail(fmt.Errorf("connection %d: %w", c.index, err))
		c.close()
	}
}

func (c *tcpClient) close() {
	c.closing = true
	c.sock.Close()
}

// Detached is part of loop.Stream.
func (c *tcpClient) Detached(err error) {
	if !c.closing {
		if err == nil || errors.Is(err, io.EOF) {
			err = errors.New("closed by the peer")
		}
		c.fail(err)
	}
	c.w.alive.Done()
}
