package tcpframe

import (
	"net/netip"
	"time"
)

// A Task is work posted to a Loop. Tasks that are posted often are long-lived
// or pooled values, so that posting does not allocate.
type Task interface{ Run() }

// TaskFunc adapts a function to Task, for rare work.
type TaskFunc func()

// Run calls f.
func (f TaskFunc) Run() { f() }

// A Stream is the consumer of an attached socket. All methods run on the loop.
type Stream interface {
	// Attached is the first call and hands over the Socket.
	Attached(Socket)
	// Received lends b, in stream order, until it returns. The bytes may be
	// changed in place.
	Received(b []byte)
	// Writable is called after a short Writev once the socket takes more.
	Writable()
	// Flush is called at the end of a loop pass in which Socket.FlushSoon was
	// called, once, whatever number of times it was.
	Flush()
	// Detached is the last call. err is io.EOF after the peer's FIN, nil after
	// Socket.Close and Socket.Abort, ErrStopped when the engine stops, and the
	// socket's error otherwise.
	Detached(err error)
}

// A Socket is the attached TCP socket. All methods are for the loop only. Once
// Detached was called they do nothing and return ErrClosed or zero values; the
// addresses stay.
type Socket interface {
	// Writev writes what the kernel takes of bufs without blocking and without
	// changing bufs, in one pass no more than the socket's share of it. n less than
	// the sum with a nil error promises a later Stream.Writable. Nothing is kept: the
	// caller holds what was not taken.
	Writev(bufs [][]byte) (n int, err error)
	// Read reads without blocking, for a Stream that wants bytes placed where
	// they belong; only inside Stream.Received, after b is consumed. It returns
	// 0, nil when nothing waits, when this pass has moved its share of bytes
	// already (Received is called again soon), and at end of stream and errors,
	// which are left to Detached.
	Read(p []byte) (n int, err error)
	// FlushSoon asks for one Stream.Flush at the end of this loop pass.
	FlushSoon()
	// FlushLate is FlushSoon, but after the sockets that are ready now have had
	// their passes: what many clients send in one turn of the loop becomes one
	// write. It costs a wake-up, so it is for a Stream that is busy.
	FlushLate()
	// CloseWrite sends FIN; Received goes on.
	CloseWrite() error
	// Close ends the socket; Detached follows, on the loop, after the call that
	// is running now has returned.
	Close()
	// Abort is Close with RST.
	Abort()
	LocalAddr() netip.AddrPort
	RemoteAddr() netip.AddrPort
	// MSS is the kernel's current estimate of the payload of one TCP segment
	// towards the peer, or 0 if unknown.
	MSS() int
	// Silent is how long the peer's TCP has left unanswered what it has to answer:
	// octets sent, and the kernel's probes. Looks at it are to be no more than 2 s
	// apart; the result may be too long by the time since the last one. It costs a
	// system call.
	Silent() time.Duration
}
