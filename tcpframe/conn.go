package tcpframe

import (
	"net"
	"net/netip"

	"github.com/rdmabridge/rdmabridge/internal/loop"
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
	listener *Listener     // the Listener that counts it; nil if it was dialled
	proxy    *announcement // of a connection that a proxy has made; nil for all others; constant
	sock     *socket       // constant after newConn
	tls      *session      // nil until StartTLS

	state  connState
	err    error // for Closed
	active int64 // time of the last octet in either direction
	due    int64 // time at which draining or lingering is cut short

	// Receiving.
	split    splitter
	record   Buffer   // the record that is being received; nil for none
	buf      []byte   // record.Bytes(), at its full capacity
	have     int      // octets of record that have arrived
	drop     *dropped // the record that is being dropped; nil for none
	held     []byte   // octets that were read and are not parsed, because reading pauses
	holdBuf  []byte   // the buffer that held is a slice of
	rx       int64    // octets received
	records  uint64   // records received
	pauses   int32    // calls of Pause without their Resume
	why      pauseReason
	timed    bool   // in loop.timed
	memWant  int    // octets that Memory.Wait was called for
	memFunc  func() // posts memoryTask; made at first use
	memSince int64  // time since which Lease has failed; 0 if it has not
	stall    stallCheck

	// Sending.
	head, tail *outRecord
	first      *outRecord // the last record in the queue that SendFirst queued; nil for none
	headSent   int        // octets of head that were written
	outbound   int64      // octets queued
	tx         int64      // octets sent
	outSince   int64      // time at which outMark was set
	outMark    int64      // tx when the queue began, or when sendOctets more had been sent
	copied     int        // octets copied that counters.copied does not count yet
	blocked    bool       // the socket takes no more until Writable

	// The values that the gauges count at present.
	sawPaused          bool
	pausedAt           int64 // time
	sawIn, sawOutbound int64
}

// newConn makes the Conn of a socket that is not attached yet. It keeps o, which must not change.
func newConn(l *Loop, c net.Conn, o *ConnOptions, m *counters) *Conn {
	x := &Conn{
		opts:     o,
		memory:   heap{},
		counters: m,
		split:    splitter{maxRecord: min(o.MaxRecord, maxFragment)},
		active:   l.engine.Now(),
	}
	if o.Memory != nil {
		x.memory = o.Memory(l.index)
	}
	x.sock = newSocket(l, c, (*connStream)(x))
	return x
}

// Loop returns the loop that owns the Conn. It is safe for concurrent use.
func (c *Conn) Loop() *Loop { return c.sock.loop }

// RemoteAddr returns the address of the peer: of the client, when a proxy has made the connection for
// it. It is safe for concurrent use after Opened.
func (c *Conn) RemoteAddr() netip.AddrPort {
	if c.proxy != nil && c.proxy.client.IsValid() {
		return c.proxy.client
	}
	return c.sock.remote
}

// WireAddr returns the address of the host at the other end of the socket. It is safe for concurrent use.
func (c *Conn) WireAddr() netip.AddrPort { return c.sock.remote }

// LocalAddr returns this side's address. It is safe for concurrent use.
func (c *Conn) LocalAddr() netip.AddrPort { return c.sock.local }

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
func (c *Conn) Open() bool { return c.state == open && !c.sock.closing }

// Ended reports, to a Releaser, that its record was not written in full: it is released
// because the connection has ended.
func (c *Conn) Ended() bool { return c.state == closed }

// A connStream is a Conn as its socket sees it: a loop.Stream.
type connStream Conn

func (s *connStream) Attached(loop.Socket) {
	c := (*Conn)(s)
	c.counters.accepted.Add(1)
	c.counters.conns.Add(1)
	if c.proxy != nil {
		c.awaitAnnouncement()
	} else {
		c.state = open
		c.handler.Opened(c)
	}
	c.watch()
}

func (s *connStream) Received(b []byte) { (*Conn)(s).received(b) }

func (s *connStream) Writable() {
	c := (*Conn)(s)
	c.blocked = false
	c.sock.FlushSoon()
}

// Flush ends a pass that touched the Conn.
func (s *connStream) Flush() {
	c := (*Conn)(s)
	c.parseHeld()
	c.write()
	if c.state == draining && !c.owes() && c.notifyClosed() {
		c.linger()
	}
	c.settle()
}

// settle makes the socket and the gauges follow the state at the end of the pass.
func (c *Conn) settle() {
	paused := c.state == open && c.paused()
	if c.tls != nil {
		paused = c.tls.settle(paused)
	} else {
		c.sock.setPaused(paused || c.state == draining)
	}
	c.watch()
	if paused != c.sawPaused {
		c.notePaused(paused)
	}
	if c.copied > 0 {
		c.counters.copied.Add(uint64(c.copied))
		c.copied = 0
	}
	in := int64(c.have + len(c.held))
	if c.tls != nil {
		in += int64(c.tls.buffered())
	}
	if in != c.sawIn {
		c.counters.inbound.Add(in - c.sawIn)
		c.sawIn = in
	}
	if c.outbound != c.sawOutbound {
		c.counters.outbound.Add(c.outbound - c.sawOutbound)
		c.sawOutbound = c.outbound
	}
}

func (c *Conn) notePaused(on bool) {
	c.sawPaused = on
	if on {
		c.pausedAt = c.Loop().Now()
		c.counters.paused.Add(1)
		return
	}
	c.counters.paused.Add(-1)
	c.counters.pausedNs.Add(uint64(max(0, c.Loop().Now()-c.pausedAt)))
}
