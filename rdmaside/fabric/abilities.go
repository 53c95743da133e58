package fabric

import (
	"net"
	"os"

	"github.com/rdmabridge/rdmabridge/internal/loop"
)

// The interfaces in this file are abilities that a provider may have and may lack.
// Users of package fabric assert them, and do without the ability when the assertion
// fails. Package fabrictest tests each ability that a provider has.

// A SocketProvider is a Provider whose listeners are TCP sockets. It can listen on a
// socket that another process, or another listener of this one, opened.
type SocketProvider interface {
	Provider
	// ListenOn is Listen on ln, which listens already. It owns ln, and closes it with the
	// Listener or when it fails.
	ListenOn(ln *net.TCPListener, o ListenOptions, incoming func(Incoming)) (Listener, error)
}

// A CopyCounter is a Provider that copies payload between buffers of this process and counts
// what it copies. A provider that leaves the work to an adapter does not implement it.
type CopyCounter interface {
	Provider
	// Copied is the number of octets of payload that all connections have copied so
	// far. It may be called on any goroutine.
	Copied() int64
}

// A DeviceEventCounter is a Provider that counts what its devices report: ports that go down and
// come up, changes of addresses, and failures.
type DeviceEventCounter interface {
	Provider
	// DeviceEvents returns how to read the count of each kind of event. The functions may be
	// called on any goroutine.
	DeviceEvents() map[string]func() uint64
}

// A RemoteInvalidator is a Conn that knows whether its peer may invalidate its handles with Send With
// Invalidate. The peer of a Conn without this ability may not. The answer can depend on the device,
// so Dial chooses between ConnOptions.PrivateData and InvalidatingData.
type RemoteInvalidator interface {
	Conn
	// RemoteInvalidation reports whether the peer may invalidate each handle of Register, and
	// Completion.Invalidated tells when it has. It is constant.
	RemoteInvalidation() bool
}

// InvalidatesRemotely reports whether the peer of c may invalidate the handles of c.
func InvalidatesRemotely(c Conn) bool {
	ri, ok := c.(RemoteInvalidator)
	return ok && ri.RemoteInvalidation()
}

// A LimitSetter is a Listener whose limits can change while it listens.
type LimitSetter interface {
	Listener
	// SetLimits replaces MaxConnections, MaxStarting and MaxStartingPerAddr of
	// ListenOptions. Connections that exist stay, even those beyond the new limits.
	SetLimits(connections, starting, startingPerAddr int)
}

// An AcceptStopper is a Listener that can stop listening without cutting off the
// connections that are still starting. Close cuts them off.
type AcceptStopper interface {
	Listener
	// StopAccepting closes the listening socket. Close may follow.
	StopAccepting() error
}

// A SocketListener is a Listener whose socket can be handed to another process.
type SocketListener interface {
	Listener
	// File returns a duplicate of the descriptor of the listening socket, as [loop.Duplicate] does. The caller
	// closes it. The socket goes on listening until both descriptors are closed.
	File() (*os.File, error)
}

// A PlacementTracker is a Conn that knows which octets of registered memory its peer has
// written. Memory that the peer has not written holds what it held before, perhaps octets of
// somebody else. A user of a Conn without this ability clears memory before registering it for
// RemoteWrite. That costs a pass over the memory for each registration, some 30 us for 1 MiB.
type PlacementTracker interface {
	Conn
	// Placed returns the number of octets, from the first octet of h's memory to the first
	// that the peer has not written. To bound what it remembers of a peer that writes in no
	// order, a provider may clear octets and count them as written. The number never falls.
	//
	// When the connection ends, Placed goes on to answer for the handles that were live then,
	// until Handler.Closed: messages that came before may be delivered after. Otherwise it is 0
	// for a dead handle; Completion.Placed has the number of a handle that the peer has
	// invalidated.
	Placed(h Handle) uint32
}

// A CopySender is a Conn that can copy a short message when it is posted, so that nobody has to hear when it has been sent.
type CopySender interface {
	Conn
	// SendCopy posts a message as PostSend does, but copies the parts, which are the caller's again when it returns, and
	// takes no place among ConnOptions.Sends. There is no Completion, not even when the connection ends, but a call of
	// Handler.Completed follows soon, with no completions if there are none, or one of Handler.Closed. If the message is
	// too long for that, if it cannot be built now, or if the connection has ended, SendCopy does nothing and reports
	// false.
	SendCopy(parts [][]byte) bool
	// Unwritten reports whether the provider may still have to send something that SendCopy has copied.
	Unwritten() bool
}

// A TCPConn is a Conn that runs over TCP, such as iWARP's in software, and can tell what the kernel knows of
// the TCP connection.
type TCPConn interface {
	Conn
	// Measure costs two system calls. It reports false if there is nothing to tell.
	Measure() (loop.TCP, bool)
}

// Measure tells what the kernel knows of c, if c runs over TCP.
func Measure(c Conn) (loop.TCP, bool) {
	if t, ok := c.(TCPConn); ok {
		return t.Measure()
	}
	return loop.TCP{}, false
}
