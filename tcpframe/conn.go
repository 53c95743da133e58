package tcpframe

import (
	"net"
	"net/netip"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
)

const (
	defaultMaxRecord     = 4<<20 + 64<<10
	defaultMaxFragments  = 1024
	defaultMaxOutbound   = 8 << 20
	defaultOutboundLimit = 256 << 20
	defaultStallTimeout  = 30 * time.Second
	defaultSendTimeout   = 2 * time.Minute
	defaultMemoryTimeout = 30 * time.Second

	// closeTimeout is how long Close may take to write what is queued, and then
	// to wait for the peer's FIN.
	closeTimeout = 5 * time.Second
)

func (o ConnOptions) withDefaults() ConnOptions {
	if o.Memory == nil {
		o.Memory = heap{}
	}
	setDefault(&o.MaxRecord, defaultMaxRecord)
	setDefault(&o.MaxFragments, defaultMaxFragments)
	setDefault(&o.MaxOutbound, defaultMaxOutbound)
	setDefault(&o.OutboundLimit, defaultOutboundLimit)
	setDefault(&o.StallTimeout, defaultStallTimeout)
	setDefault(&o.SendTimeout, defaultSendTimeout)
	setDefault(&o.MemoryTimeout, defaultMemoryTimeout)
	o.MaxRecord = min(o.MaxRecord, maxFragment)
	return o
}

func setDefault[T int | int64 | time.Duration](v *T, d T) {
	if *v == 0 {
		*v = d
	}
}

// A RecordHandler owns a Conn. All methods run on the Conn's loop.
type RecordHandler interface {
	// Opened is the first call.
	Opened(c *Conn)
	// Record takes b. The record is b.Bytes(), at least 8 octets.
	Record(c *Conn, b Buffer)
	// Closed is the last call, after every Releaser of the Conn was released.
	// err is io.EOF after the peer's FIN, io.ErrUnexpectedEOF when that came
	// inside a record, a *recordError for what was refused here, what Close or
	// Abort was given, errStopped, and the socket's error otherwise.
	Closed(c *Conn, err error)
}

// A BusyHandler is a RecordHandler of a connection that may be silent for longer than
// ConnOptions.IdleTimeout while a Reply is being made.
type BusyHandler interface {
	RecordHandler
	// Busy reports whether the handler still owes the peer a record. The connection is
	// not closed as idle until it returns false.
	Busy() bool
}

// A connState is how far a Conn's life has gone.
//
//	opening -> open -> draining -> lingering
//	             \         \           \
//	              +---------+-----------+--> ending -> closed
type connState uint8

const (
	opening   connState = iota // no Opened yet
	open                       // records come and go
	draining                   // Close: nothing is read, what is queued is written
	lingering                  // FIN sent; what comes is thrown away until the peer's
	ending                     // the socket is told to close
	closed                     // Closed was called
)

// A Conn is a record-marked connection, of either role. It is owned by its
// loop: methods are for that goroutine, unless they say otherwise.
type Conn struct {
	opts     ConnOptions // constant
	counters *counters   // constant
	handler  RecordHandler
	listener *Listener // whose place it takes; nil if dialled
	sock     *socket   // constant after newConn

	state  connState
	err    error // for Closed
	active int64 // time of the last octet either way
	due    int64 // when draining or lingering ends the hard way

	// Receiving.
	split    splitter
	record   Buffer // being filled
	buf      []byte // its memory
	have     int    // octets of it that have come
	held     []byte // read, not parsed, while paused
	holdBuf  []byte // what held is a slice of
	rx       int64  // octets received
	records  uint64 // records received
	pauses   int    // Pause calls without their Resume
	why      pauseReason
	memWant  int    // what Memory.Wait was asked for
	memFunc  func() // posts memoryTask; made at first use
	memSince int64  // since when Lease has said no; 0 when it has not
	stall    stallCheck

	// Sending.
	head, tail *outRecord
	first      *outRecord // the last of those that SendFirst queued; nil for none
	headSent   int        // octets of head that are gone
	outbound   int64      // octets queued
	tx         int64      // octets sent
	outSince   int64      // when the queue began, or the last sendOctets of it went
	outMark    int64      // tx then
	blocked    bool       // Writable will come

	copied int // octets copied that copied_bytes_total does not know of yet

	// What the gauges know.
	sawPaused          bool
	pausedAt           time.Time
	sawIn, sawOutbound int64
}

// newConn makes the Conn of a socket that is not attached yet.
func newConn(l *Loop, c net.Conn, o ConnOptions, m *counters) *Conn {
	o = o.withDefaults()
	if m, ok := o.Memory.(LoopMemory); ok {
		o.Memory = m.On(l.index)
	}
	x := &Conn{
		opts:     o,
		counters: m,
		split:    splitter{maxRecord: o.MaxRecord, maxFragments: o.MaxFragments},
		active:   l.engine.Now(),
	}
	x.sock = &socket{loop: l, stream: (*connStream)(x), fd: -1, local: addrPort(c.LocalAddr()), remote: addrPort(c.RemoteAddr())}
	return x
}

// Loop is the Conn's loop. Any goroutine.
func (c *Conn) Loop() *Loop { return c.sock.loop }

// RemoteAddr is the peer. Any goroutine.
func (c *Conn) RemoteAddr() netip.AddrPort { return c.sock.remote }

// LocalAddr is this end. Any goroutine.
func (c *Conn) LocalAddr() netip.AddrPort { return c.sock.local }

// Open reports whether what is sent is taken.
func (c *Conn) Open() bool { return c.state == open }

// Ended reports, in a Releaser, that its record was not written in full: it is
// released because the connection has ended.
func (c *Conn) Ended() bool { return c.state == closed }

// connStream is a Conn as its socket sees it.
type connStream Conn

func (s *connStream) Attached(loop.Socket) {
	c := (*Conn)(s)
	c.state = open
	c.counters.accepted.Inc()
	c.counters.conns.Add(1)
	c.handler.Opened(c)
}

func (s *connStream) Received(b []byte) { (*Conn)(s).received(b) }

func (s *connStream) Writable() {
	c := (*Conn)(s)
	c.blocked = false
	c.sock.FlushSoon()
}

// Flush is the end of a pass that touched the Conn.
func (s *connStream) Flush() {
	c := (*Conn)(s)
	c.parseHeld()
	c.write()
	if c.state == draining && c.head == nil {
		c.linger()
	}
	c.settle()
}

// settle makes the socket and the gauges follow what the pass decided.
func (c *Conn) settle() {
	paused := c.state == open && c.paused()
	c.sock.setPaused(paused || c.state == draining)
	if paused != c.sawPaused {
		c.notePaused(paused)
	}
	if c.copied > 0 {
		c.counters.copied.Add(uint64(c.copied))
		c.copied = 0
	}
	if in := int64(c.have + len(c.held)); in != c.sawIn {
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
		c.pausedAt = time.Now()
		c.counters.paused.Add(1)
		return
	}
	c.counters.paused.Add(-1)
	c.counters.pausedNs.Add(uint64(max(0, time.Since(c.pausedAt))))
}
