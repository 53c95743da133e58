package tcpframe

import (
	"errors"
	"fmt"
	"time"
)

var (
	// ErrClosed is returned by what needs a connection that has ended, and by
	// an engine that has stopped.
	ErrClosed = errors.New("tcpframe: closed")
	// ErrStopped is what connections end with when their engine stops.
	ErrStopped = errors.New("tcpframe: engine stopped")
)

// A Reason says why a connection was turned away or ended from here. It is one
// of a small constant set and is the label of rdmabridge_tcp_refused_total.
type Reason string

// Reasons of a Listener: the connection was closed before anything was read.
const (
	ReasonDenied    Reason = "denied"     // not in the allow list
	ReasonConns     Reason = "conns"      // too many connections at this listener
	ReasonAddrConns Reason = "addr_conns" // too many connections from this address
	ReasonTotal     Reason = "total"      // too many connections in the process
	ReasonAttach    Reason = "attach"     // the socket could not be set up
)

// Reasons of a Conn: it is closed, its RecordHandler's Closed gets a *RecordError.
const (
	ReasonTooLong   Reason = "too_long"  // a record beyond MaxRecord
	ReasonTooShort  Reason = "too_short" // a record that cannot hold an XID and a message type
	ReasonFragments Reason = "fragments" // a record of more than MaxFragments fragments
	ReasonStalled   Reason = "stalled"   // a record began and did not go on for StallTimeout
	ReasonMemory    Reason = "memory"    // a begun record waited MemoryTimeout for memory
	ReasonOutbound  Reason = "outbound"  // OutboundLimit octets queued for a peer that does not read
	ReasonUnread    Reason = "unread"    // the peer took nothing for SendTimeout
	ReasonIdle      Reason = "idle"      // no octet either way for IdleTimeout
	ReasonSilent    Reason = "silent"    // the peer's TCP acknowledged nothing for SilentTimeout
)

// reasons are all of them.
var reasons = []Reason{
	ReasonDenied, ReasonConns, ReasonAddrConns, ReasonTotal, ReasonAttach,
	ReasonTooLong, ReasonTooShort, ReasonFragments, ReasonStalled,
	ReasonMemory, ReasonOutbound, ReasonUnread, ReasonIdle, ReasonSilent,
}

// A RecordError is why a record-marked stream was refused. Value is in octets or
// fragments, Limit in octets, fragments or nanoseconds, as Reason says.
type RecordError struct {
	Reason       Reason
	Value, Limit int64
}

func (e *RecordError) Error() string {
	switch e.Reason {
	case ReasonTooLong:
		return fmt.Sprintf("tcpframe: record of at least %d octets, limit %d", e.Value, e.Limit)
	case ReasonTooShort:
		return fmt.Sprintf("tcpframe: record of %d octets, too short for RPC", e.Value)
	case ReasonFragments:
		return fmt.Sprintf("tcpframe: record of more than %d fragments", e.Limit)
	case ReasonStalled:
		return fmt.Sprintf("tcpframe: record incomplete, no progress for %v", time.Duration(e.Limit))
	case ReasonMemory:
		return fmt.Sprintf("tcpframe: no memory for a begun record for %v", time.Duration(e.Limit))
	case ReasonOutbound:
		return fmt.Sprintf("tcpframe: %d octets queued for a peer that does not read, limit %d", e.Value, e.Limit)
	case ReasonUnread:
		return fmt.Sprintf("tcpframe: peer took nothing for %v, %d octets queued", time.Duration(e.Limit), e.Value)
	case ReasonSilent:
		return fmt.Sprintf("tcpframe: peer's host is silent for %v", time.Duration(e.Limit))
	case ReasonIdle:
		return fmt.Sprintf("tcpframe: idle for %v", time.Duration(e.Limit))
	}
	return "tcpframe: " + string(e.Reason)
}
