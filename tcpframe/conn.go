package tcpframe

import (
	"net"
	"net/netip"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/tcpframe/eventloop"
)

// A RecordHandler owns a Conn. All its methods run on the Conn's loop.
type RecordHandler interface {
	// Opened is the first call.
	Opened(c *Conn)
	// Record takes b, which holds one record of at least 8 octets.
	Record(c *Conn, b Buffer)
	// Closed is the last call, after every Releaser of the Conn was released. err is
	//
	//   - io.EOF after the peer's FIN, but io.ErrUnexpectedEOF inside a record;
	//   - the error that Close or Abort was given;
	//   - an error that says which limit or timeout the peer exceeded, among them
	//     ErrSilent;
	//   - a *TLSError if TLS has failed;
	//   - an error that says that the engine has stopped;
	//   - otherwise the socket's error.
	Closed(c *Conn, err error)
}

// A RunHandler is a RecordHandler that can take records without a Buffer of their own.
type RunHandler interface {
	RecordHandler
	// Run takes a run, the records of at least 8 octets that one read has brought whole: it calls c.Next and c.Took for
	// one after the other. It borrows what Next returns, and may write to it. If it leaves a record, Record takes a copy
	// of that, and another Run begins behind it.
	Run(c *Conn)
}

// A BusyHandler is a RecordHandler whose peer may be silent for longer than
// ConnOptions.IdleTimeout while it waits for a Reply.
type BusyHandler interface {
	RecordHandler
	// Busy reports whether the handler still owes the peer a record. The connection is
	// not closed as idle while it returns true.
	Busy() bool
}

// An UnreadHandler is a RecordHandler that wants to know when the Conn does not read because its peer
// does not read what is queued for it.
type UnreadHandler interface {
	RecordHandler
	// Unread says that this has become so, or is no longer so.
	Unread(unread bool)
}

// A connState is a stage of a Conn's life.
//
//	opening -> announcing -> open -> draining -> lingering
//	     \           \          \         \           \
//	      +-> open    +----------+---------+-----------+--> ending -> closed
type connState uint8

const (
	opening    connState = iota // before Opened; the loop attaches the socket
	announcing                  // before Opened; a proxy is to say who the client is: see announcement
	open                        // records come and go; Close, Abort and every error leave it
	draining                    // Close was called: the Conn writes its queue and reads nothing
	lingering                   // FIN was sent; input is discarded until the peer's FIN
	ending                      // the socket closes at the end of the pass; Detached leaves it
	closed                      // Closed was called
)

// A Conn is a record-marked connection that was accepted or dialled. Its loop owns it:
// methods are for that goroutine, unless they say otherwise.
type Conn struct {
	opts     *ConnOptions // constant; shared by the connections of a Listener
	memory   Memory       // constant after Opened
	counters *counters    // constant
	handler  RecordHandler
	runner   RunHandler        // the handler, if it is one; otherwise nil
	listener *Listener         // the Listener that counts it; nil if it was dialled
	proxy    *announcement     // of a connection that a proxy has made; nil for all others; constant
	sock     *eventloop.Socket // constant after newConn
	loop     *Loop             // constant after newConn
	tls      *session          // nil until StartTLS

	state     connState
	why       pauseReason // for which the Conn itself does not read
	timed     bool        // in loop.timed
	blocked   bool        // the socket takes no more until Writable
	awaits    bool        // Input is called before a record is read
	sawPaused bool        // what the gauge counts at present
	err       error       // for Closed
	active    int64       // time of the last octet in either direction
	due       int64       // time at which draining or lingering is cut short

	// Receiving.
	split    splitter
	record   Buffer   // the record that is being received; nil for none
	buf      []byte   // record.Bytes(), at its full capacity
	have     int      // octets of record that have arrived
	drop     *dropped // the record that is being dropped; nil for none
	held     []byte   // octets that were read and are not parsed, because reading pauses
	rx       int64    // octets received
	records  uint64   // records received
	pauses   int32    // calls of Pause without their Resume
	memWant  int32    // octets that Memory.Wait was called for
	memFunc  func()   // posts memoryTask; made at first use
	memSince int64    // time since which Lease has failed; 0 if it has not
	stall    stallCheck

	// Sending.
	outQueue
	outbound int64 // octets queued
	tx       int64 // octets sent
	outSince int64 // time at which outMark was set
	outMark  int64 // tx when the queue began, or when sendOctets more had been sent
	copied   int   // octets copied that counters.copied does not count yet

	// The values that the gauges count at present.
	pausedAt           int64 // time
	sawIn, sawOutbound int64
}

// A stallCheck counts the time that an incomplete record, of RPC or of TLS, takes, and the part of it in
// which the record has not made enough progress. Both count only as far as this side was willing to read.
type stallCheck struct {
	seen    int64  // time of the last sweep that saw the record; 0 for none
	taken   int64  // time since a sweep first saw the record
	spent   int64  // time since rx was noted
	rx      int64  // result of progressed
	records uint64 // records received before this one
}

// A dropped is a record that the Conn reads to its end and delivers to nobody. It takes no memory, and must make
// progress as any other record.
type dropped struct {
	err  *recordError
	head [minRecord]byte // the first octets of the record
	have int             // octets of head that have arrived
	told bool            // the handler knows
}

// newConn makes the Conn of a socket that is not attached yet. It keeps o, which must not change. ln is the Listener that
// counts it, and p what a proxy is to say; both may be nil.
func newConn(l *Loop, c net.Conn, o *ConnOptions, m *counters, now int64, ln *Listener, p *announcement) *Conn {
	x := &Conn{
		listener: ln,
		proxy:    p,
		opts:     o,
		memory:   heap{},
		counters: m,
		split:    splitter{maxRecord: min(o.MaxRecord, maxFragment)},
		active:   now,
	}
	if o.Memory != nil {
		x.memory = o.Memory(l.Index())
	}
	x.loop, x.sock = l, eventloop.NewSocket(l.Loop, c, (*connStream)(x))
	return x
}

// setHandler makes h the owner of the Conn.
func (c *Conn) setHandler(h RecordHandler) {
	c.handler = h
	c.runner, _ = h.(RunHandler)
}

// Loop returns the loop that owns the Conn. It is safe for concurrent use.
func (c *Conn) Loop() *Loop { return c.loop }

// RemoteAddr returns the address of the peer: of the client, when a proxy has made the connection for
// it. It is safe for concurrent use after Opened.
func (c *Conn) RemoteAddr() netip.AddrPort {
	if c.proxy != nil && c.proxy.client.IsValid() {
		return c.proxy.client
	}
	return c.sock.RemoteAddr()
}

// WireAddr returns the address of the host at the other end of the socket. It is safe for concurrent use.
func (c *Conn) WireAddr() netip.AddrPort { return c.sock.RemoteAddr() }

// LocalAddr returns this side's address. It is safe for concurrent use.
func (c *Conn) LocalAddr() netip.AddrPort { return c.sock.LocalAddr() }

// SetMemory makes m the memory of the Conn. RecordHandler.Opened calls it.
func (c *Conn) SetMemory(m Memory) { c.memory = m }

// An Incoming is what a Conn receives, for an owner that looks twice whether a record makes
// progress.
type Incoming struct {
	Memory  int   // octets of the block that holds the incomplete record; 0 for none
	Octets  int64 // received so far, on the whole connection; behind a handshake, of records alone
	Records uint64
	Paused  bool // the Conn does not read
}

// Incoming describes what the Conn receives now.
func (c *Conn) Incoming() Incoming {
	return Incoming{Memory: len(c.buf), Octets: c.progressed(), Records: c.records, Paused: c.paused()}
}

// Open reports whether there is a use in sending another record: not before Opened, not after Close or Abort, and not when
// the end of the connection was found.
func (c *Conn) Open() bool { return c.state == open && !c.sock.Closing() }

// Ended reports, to a Releaser, that its record was not written in full: it is released
// because the connection has ended.
func (c *Conn) Ended() bool { return c.state == closed }

// Measure tells what the kernel knows of the connection. It costs two system calls.
func (c *Conn) Measure() (loop.TCP, bool) { return c.sock.Measure() }

// A pauseReason is a reason of the Conn's own for not reading.
type pauseReason uint8

const (
	whyOutbound pauseReason = 1 << iota // the peer does not read what is queued for it
	whyMemory                           // Memory has nothing to lend
)

func (c *Conn) paused() bool { return c.pauses > 0 || c.why != 0 }

// Pause stops reading until Resume was called as often. No record is delivered after the record
// that is being delivered now. The Conn holds the octets that were read already, at most 128
// KiB.
func (c *Conn) Pause() {
	c.pauses++
	c.sock.FlushSoon()
}

// Resume undoes one Pause. Records are delivered again at the end of this pass.
func (c *Conn) Resume() {
	if c.pauses--; c.pauses < 0 {
		panic("BUG: tcpframe: Resume without Pause")
	}
	c.sock.FlushSoon()
}

// An InputHandler is a RecordHandler that decides whether to read from a peer only when the peer
// has sent something.
type InputHandler interface {
	RecordHandler
	// Input is called once after AwaitInput, when octets of the peer have come. It
	// may pause the Conn before a record is read.
	Input(c *Conn)
}

// AwaitInput makes the Conn call Input of the handler, which must be an InputHandler, when octets of the peer come,
// and before it parses them. Unlike a paused Conn, one that awaits input notices the peer's FIN and has an idle
// timeout. It is for a Conn from which nothing has been read yet.
func (c *Conn) AwaitInput() {
	if c.state != open {
		return
	}
	c.awaits = true
}

// owes reports whether octets wait to be written.
func (c *Conn) owes() bool {
	if c.tls != nil {
		return c.tls.owes(c.head != nil)
	}
	return c.head != nil
}
