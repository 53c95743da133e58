package tcpframe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/protocol"
	"github.com/rdmabridge/rdmabridge/tcpframe/eventloop"
)

var (
	errClosed = eventloop.ErrClosed
	// ErrSilent matches, by errors.Is, the error of a connection that ended because its
	// peer's host is gone: see ConnOptions.SilentTimeout.
	ErrSilent = errors.New("tcpframe: peer's host is silent")
	// ErrMemory matches, by errors.Is, the error of a record for which there was no memory.
	ErrMemory = errors.New("tcpframe: no memory for a record")
	// ErrProtocol matches, by errors.Is, the error of a connection whose peer speaks another protocol.
	ErrProtocol = errors.New("tcpframe: the peer speaks another protocol")
)

// A reason says why this side closed a connection, or dropped a record. It is the label reason of
// rdmabridge_listener_refused_connections_total.
type reason string

// Reasons of a Listener. It closes the connection before reading anything, or when it has read no more than
// the header of a proxy.
const (
	reasonDenied    reason = "address"                 // the address is not in the allow list
	reasonPort      reason = "port"                    // the port is not privileged
	reasonConns     reason = "connections"             // the listener has too many connections
	reasonAddrConns reason = "connections_per_address" // the address has too many connections
	reasonTotal     reason = "sockets"                 // the process has too many connections
	reasonAttach    reason = "setup"                   // the socket could not be set up

	// Reasons for connections of proxies, whose PROXY header has to say who the client is.
	reasonProxyMissing  reason = "proxy_missing"  // the connection begins with something else
	reasonProxyV1       reason = "proxy_v1"       // the header is of version 1
	reasonProxyHeader   reason = "proxy_header"   // the header is malformed, or not there in full
	reasonProxyTimeout  reason = "proxy_timeout"  // the header did not come in time
	reasonProxyStarting reason = "proxy_starting" // too many connections of the proxy have no header yet
)

// Reasons of a Conn. It closes itself, and RecordHandler.Closed gets a *recordError.
const (
	reasonTooLong   reason = "too_long"        // the record is longer than MaxRecord
	reasonTooShort  reason = "too_short"       // the record cannot hold an XID and a message type
	reasonFragments reason = "fragments"       // the record has more octets of marks than MaxRecord
	reasonStalled   reason = "stalled"         // StallTimeout passed inside a record
	reasonRecord    reason = "request_timeout" // RecordTimeout passed inside a record
	reasonMemory    reason = "memory"          // an incomplete record waited memoryTimeout for memory
	reasonOutbound  reason = "outbound"        // more than OutboundLimit octets are queued
	reasonUnread    reason = "unread"          // SendTimeout passed, and the peer does not read
	reasonIdle      reason = "idle"            // IdleTimeout passed without an octet
	reasonSilent    reason = "silent"          // the peer's TCP acknowledged nothing for SilentTimeout
)

// connReasons are the reasons for which a connection of either side is closed, and listenerReasons those that only
// connections of a listener have: a Reply with a fault is dropped, and a server may take its time for one.
var (
	listenerReasons = []reason{
		reasonDenied, reasonPort, reasonConns, reasonAddrConns, reasonTotal, reasonAttach,
		reasonProxyMissing, reasonProxyV1, reasonProxyHeader, reasonProxyTimeout, reasonProxyStarting,
		reasonTooShort, reasonMemory, reasonRecord,
	}
	connReasons = []reason{
		reasonTooLong, reasonFragments, reasonStalled, reasonOutbound, reasonUnread, reasonIdle, reasonSilent,
	}
)

// A recordError says why a Conn closed itself.
type recordError struct {
	reason reason
	value  int64 // octets
	limit  int64 // octets or nanoseconds, as reason says
}

// Is makes errors.Is find ErrSilent, ErrMemory and ErrProtocol.
func (e *recordError) Is(target error) bool {
	switch target {
	case ErrSilent:
		return e.reason == reasonSilent
	case ErrMemory:
		return e.reason == reasonMemory
	case ErrProtocol:
		return e.protocol() != ""
	}
	return false
}

// protocol returns the protocol whose first octets were read as the mark of a record that is too long, or "".
func (e *recordError) protocol() string {
	if e.reason != reasonTooLong || e.value > maxFragment {
		return ""
	}
	var mark [markLen]byte
	binary.BigEndian.PutUint32(mark[:], uint32(e.value))
	return protocol.Of(mark[:])
}

func (e *recordError) Error() string {
	switch e.reason {
	case reasonTooLong:
		switch p := e.protocol(); p {
		case "":
		case protocol.PROXY:
			return "tcpframe: a PROXY header instead of a record; proxy_protocol.from does not have the address"
		default:
			return "tcpframe: the peer speaks " + p + " and not ONC RPC over TCP"
		}
		return fmt.Sprintf("tcpframe: record of at least %d octets, limit %d", e.value, e.limit)
	case reasonTooShort:
		return fmt.Sprintf("tcpframe: record of %d octets, too short for RPC", e.value)
	case reasonFragments:
		return fmt.Sprintf("tcpframe: record with at least %d octets of record marks, limit %d", e.value, e.limit)
	case reasonStalled:
		return fmt.Sprintf("tcpframe: record incomplete, too little progress for %v", time.Duration(e.limit))
	case reasonRecord:
		return fmt.Sprintf("tcpframe: record incomplete after %v, %d octets have arrived", time.Duration(e.limit), e.value)
	case reasonMemory:
		return fmt.Sprintf("tcpframe: no memory for an incomplete record for %v", time.Duration(e.limit))
	case reasonOutbound:
		return fmt.Sprintf("tcpframe: %d octets queued for a peer that does not read, limit %d", e.value, e.limit)
	case reasonUnread:
		return fmt.Sprintf("tcpframe: peer does not read: no progress for %v, %d octets queued", time.Duration(e.limit), e.value)
	case reasonSilent:
		return fmt.Sprintf("tcpframe: peer's host silent for %v", time.Duration(e.limit))
	case reasonIdle:
		return fmt.Sprintf("tcpframe: idle for %v", time.Duration(e.limit))
	}
	return "tcpframe: " + string(e.reason)
}
