package ibverbs

import (
	"errors"
	"net/netip"
	"time"

	"github.com/rs/zerolog"
)

// ErrUnavailable is wrapped by the error of New when this program or this host cannot use RDMA
// devices.
var ErrUnavailable = errors.New("ibverbs: RDMA devices are not available")

// Options are the settings of a Provider. A negative number means none.
type Options struct {
	// Memory has the extents of the memory of messages. No message crosses the border of an
	// extent. The extents must stay mapped, and their pages must not be given back to the
	// kernel: an adapter goes on writing to the pages that it knew.
	Memory [][]byte

	// DialTimeout bounds Dial. It must be set.
	DialTimeout time.Duration
	// AcceptTimeout bounds Incoming.Accept. It must be set.
	AcceptTimeout time.Duration
	// SilentTimeout is the time after which a message that no adapter acknowledges ends its
	// connection. InfiniBand and RoCE count it in powers of two, of which the provider
	// chooses the next smaller. iWARP ignores it. 0 means what the kernel chooses.
	SilentTimeout time.Duration
	// CloseTimeout bounds an orderly close, in which posted work is completed first. 0 means 5 s.
	CloseTimeout time.Duration

	// Select restricts the Provider to a device, a port or a GID.
	Select Selector

	// Source is the address of this host that Dial connects from: the device, port and GID are those of
	// the address. With the zero Addr, Select and the kernel's routes decide. Dial fails while this host
	// does not have the address.
	Source netip.Addr

	// TOS is the type of service: the DSCP in the upper six bits. Dial sets it on its connections. Listen
	// sets it for the connections that it accepts, which only iWARP uses. 0 means what the kernel chooses.
	TOS uint8

	// BusyPoll is for how long a connection polls for completions, after it has posted work or got a
	// completion, before it asks for an event. It polls once in each pass of its loop, which does not
	// sleep meanwhile. 0 means not at all.
	BusyPoll time.Duration

	// Exposure is how peers access the memory of Calls.
	Exposure Exposure

	// MaxConnections bounds the connections of the Provider. 0 means 16384.
	MaxConnections int

	// Log gets one line for each connection that an error ended, at most a few a second.
	Log zerolog.Logger
}
