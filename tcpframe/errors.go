package tcpframe

import (
	"errors"
	"fmt"
	"time"
)

var (
	// errClosed is returned by what needs a connection that has ended, and by
	// an engine that has stopped.
	errClosed = errors.New("tcpframe: closed")
	// errStopped is what connections end with when their engine stops.
	errStopped = errors.New("tcpframe: engine stopped")
	// ErrSilent is what errors.Is finds in the error of a connection that ended because
	// its peer's host is gone: see ConnOptions.SilentTimeout.
	ErrSilent = errors.New("tcpframe: peer's host is silent")
)

// A reason says why a connection was turned away or ended from here. It is one
// of a small constant set and is the label of rdmabridge_tcp_refused_total.
type reason string

// Reasons of a Listener: the connection was closed before anything was read.
const (
	reasonDenied    reason = "denied"     // not in the allow list
	reasonConns     reason = "conns"      // too many connections at this listener
	reasonAddrConns reason = "addr_conns" // too many connections from this address
	reasonTotal     reason = "total"      // too many connections in the process
	reasonAttach    reason = "attach"     // the socket could not be set up
)

// Reasons of a Conn: it is closed, its RecordHandler's Closed gets a *recordError.
const (
	reasonTooLong   reason = "too_long"  // a record beyond MaxRecord
	reasonTooShort  reason = "too_short" // a record that cannot hold an XID and a message type
	reasonFragments reason = "fragments" // a record of more than MaxFragments fragments
	reasonStalled   reason = "stalled"   // a record began and did not go on for StallTimeout
	reasonMemory    reason = "memory"    // a begun record waited MemoryTimeout for memory
	reasonOutbound  reason = "outbound"  // OutboundLimit octets queued for a peer that does not read
	reasonUnread    reason = "unread"    // the peer took nothing for SendTimeout
	reasonIdle      reason = "idle"      // no octet either way for IdleTimeout
	reasonSilent    reason = "silent"    // the peer's TCP acknowledged nothing for SilentTimeout
)

// reasons are all of them.
var reasons = []reason{
	reasonDenied, reasonConns, reasonAddrConns, reasonTotal, reasonAttach,
	reasonTooLong, reasonTooShort, reasonFragments, reasonStalled,
	reasonMemory, reasonOutbound, reasonUnread, reasonIdle, reasonSilent,
}

// A recordError is why a record-marked stream was refused. Value is in octets or
// fragments, Limit in octets, fragments or nanoseconds, as reason says.
type recordError struct {
	reason       reason
	value, limit int64
}

// Is reports whether the error means what target means.
func (e *recordError) Is(target error) bool {
	return target == ErrSilent && e.reason == reasonSilent
}

func (e *recordError) Error() string {
	switch e.reason {
	case reasonTooLong:
		return fmt.Sprintf("tcpframe: record of at least %d octets, limit %d", e.value, e.limit)
	case reasonTooShort:
		return fmt.Sprintf("tcpframe: record of %d octets, too short for RPC", e.value)
	case reasonFragments:
		return fmt.Sprintf("tcpframe: record of more than %d fragments", e.limit)
	case reasonStalled:
		return fmt.Sprintf("tcpframe: record incomplete, no progress for %v", time.Duration(e.limit))
	case reasonMemory:
		return fmt.Sprintf("tcpframe: no memory for a begun record for %v", time.Duration(e.limit))
	case reasonOutbound:
		return fmt.Sprintf("tcpframe: %d octets queued for a peer that does not read, limit %d", e.value, e.limit)
	case reasonUnread:
		return fmt.Sprintf("tcpframe: peer took nothing for %v, %d octets queued", time.Duration(e.limit), e.value)
	case reasonSilent:
		return fmt.Sprintf("tcpframe: peer's host is silent for %v", time.Duration(e.limit))
	case reasonIdle:
		return fmt.Sprintf("tcpframe: idle for %v", time.Duration(e.limit))
	}
	return "tcpframe: " + string(e.reason)
}
