// Package loop names what an event loop lends to the code that runs on it: tasks,
// and TCP sockets that are read and written without blocking.
//
// Package tcpframe implements these interfaces with its event loops, and providers of
// package fabric use them, so that a client's socket and the RDMA connections that
// serve it live on one loop. Neither package knows the other.
package loop

import (
	"errors"
	"net"
	"net/netip"
	"time"
)

// ErrStopped ends the sockets of a SocketLoop that stops: Attach returns it, and
// Stream.Detached receives it.
var ErrStopped = errors.New("loop: stopped")

// A Task is work posted to a Loop. Tasks that are posted often are long-lived
// or pooled values, so that posting does not allocate.
type Task interface{ Run() }

// TaskFunc adapts a function to Task, for rare work.
type TaskFunc func()

// Run calls f.
func (f TaskFunc) Run() { f() }

// Elsewhere is the number of a goroutine that is no loop, where the number of the calling loop is asked for.
const Elsewhere = -1

// A Loop is a goroutine that owns connections.
type Loop interface {
	// Post queues t to run on the loop's goroutine. It is safe for concurrent
	// use, never blocks, and keeps the order of each poster. Many posts cost one
	// wake-up. After the loop has stopped, Post drops t.
	Post(t Task)
}

// A SocketLoop is a Loop that can also drive TCP sockets. Providers that work
// over TCP need one.
type SocketLoop interface {
	Loop
	// Attach hands the connected socket c to the loop. The loop calls s.Attached, and
	// from then on all of s's methods run on the loop. Attach may be called on any
	// goroutine except a loop's own and may block briefly. When it returns an error,
	// c is closed and no method of s was or will be called. Socket options set on c
	// stay in force.
	Attach(c net.Conn, s Stream) error
}

// A Clock is a Loop that reads the time once in a pass and gives every caller of
// that pass the same answer. A connection that needs the time for each Call saves two
// system clock reads with it. Loops may lack this ability.
type Clock interface {
	Loop
	// Now is the time of this pass in nanoseconds. It only grows, wall clocks cannot
	// move it, and its origin is arbitrary. For the loop only.
	Now() int64
}

// A Stream is the consumer of an attached socket. All methods run on the loop.
type Stream interface {
	// Attached is the first call and hands over the Socket.
	Attached(Socket)
	// Received lends b, in stream order, until it returns. The octets may be
	// changed in place.
	Received(b []byte)
	// Writable is called after a short Writev once the socket has room again.
	Writable()
	// Flush is called once at the end of a loop pass in which Socket.FlushSoon was
	// called, however often that was.
	Flush()
	// Detached is the last call. err is io.EOF after the peer's FIN, nil after
	// Socket.Close and Socket.Abort, ErrStopped when the loop stops, and
	// the socket's error otherwise.
	Detached(err error)
}

// A Socket is an attached TCP socket. All methods are for the loop only. After
// Stream.Detached they do nothing and return an error or zero values; only the
// addresses stay.
type Socket interface {
	// Writev writes as much of bufs as the kernel accepts without blocking and without
	// changing bufs. A loop may write less in one pass than the kernel would accept, so
	// that other sockets have their turn. When n is less than the sum and the error is
	// nil, Stream.Writable follows. Writev keeps nothing: the caller holds the octets
	// that were not written.
	Writev(bufs [][]byte) (n int, err error)
	// Read reads without blocking, for a Stream that reads octets straight to their
	// destination. It may be called only inside Stream.Received, after b is consumed. It
	// returns 0, nil in four cases: nothing waits, the loop cannot read here, this pass
	// has already read the socket's share (Received is called again soon), or the
	// stream has ended or failed, which Detached reports.
	Read(p []byte) (n int, err error)
	// FlushSoon asks for one Stream.Flush at the end of this loop pass.
	FlushSoon()
	// FlushLate is FlushSoon, but the Flush comes at the end of the next pass, which serves the
	// sockets that are ready by then, or none. The messages of many clients then become one write.
	FlushLate()
	// CloseWrite sends FIN. Received goes on.
	CloseWrite() error
	// Close closes the socket. Detached follows, on the loop, after the call that
	// is running now has returned.
	Close()
	// Abort does what Close does, but resets the connection.
	Abort()
	// LocalAddr is constant.
	LocalAddr() netip.AddrPort
	// RemoteAddr is constant.
	RemoteAddr() netip.AddrPort
	// MSS is the kernel's current estimate of the payload of one TCP segment
	// towards the peer, or 0 if unknown.
	MSS() int
}

// A WatchedSocket is a Socket that can tell whether the peer's host still answers.
// Sockets may lack this ability.
type WatchedSocket interface {
	Socket
	// Silent is how long the peer's TCP has owed an acknowledgement: for octets that
	// were sent, or for the kernel's probes. The caller asks at least every 2 s; the
	// result may be too long by the time since the last call. It costs a system call.
	Silent() time.Duration
}

// A MeasuredSocket is a Socket that can tell what the kernel knows of its TCP connection. Sockets may lack
// this ability.
type MeasuredSocket interface {
	Socket
	// Measure costs two system calls. It reports false if the kernel does not answer.
	Measure() (TCP, bool)
}

// A TCP is what the kernel knows of a TCP connection.
type TCP struct {
	RTT         time.Duration // smoothed
	Retransmits uint64        // segments sent again so far
	Needless    uint64        // of Retransmits, those whose original had arrived, so far
	Segments    uint64        // segments sent so far
	Received    uint64        // segments received so far
	OutOfOrder  uint64        // of Received, those that came after a gap
	Unacked     uint64        // segments that are not acknowledged
	Unsent      uint64        // octets in the send buffer that were never sent
	Unread      uint64        // octets in the receive buffer
	Away        bool          // the peer's host acknowledges nothing, though the kernel has sent the same three times or more
}
