package tcpframe

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/metrics"
)

// memoryTimeout bounds how long an incomplete record waits for memory, unless EngineOptions say
// otherwise. It ends the deadlock in which incomplete records hold all memory. A client whose
// record has got no memory at all is closed, too: the Conn does not read its FIN while it waits,
// so the connection would stay for ever. A connection to an upstream that holds nothing waits on,
// because its end would free nothing and lose Calls.
const memoryTimeout = 20 * time.Second

// EngineOptions configure an Engine.
type EngineOptions struct {
	// Loops is the number of event loops, at least 1. Start raises GOMAXPROCS above it:
	// a loop keeps its P while it sits in epoll_wait, and without a spare P the network
	// I/O of other goroutines waits 5 to 10 ms for sysmon.
	Loops   int
	Log     zerolog.Logger
	Metrics *metrics.Registry
	// MaxSockets is the limit of Engine.Sockets to begin with; 0 is three quarters of
	// RLIMIT_NOFILE.
	MaxSockets int

	// Handshakes is how many TLS handshakes of accepted connections, and as many of dialled ones, have a goroutine at
	// the same time; 0 is 512. HandshakeQueue is how many of each may wait for one; 0 is 4096.
	Handshakes, HandshakeQueue int

	// MemoryTimeout bounds how long an incomplete record waits for memory. 0 is 20 s, which
	// only tests change.
	MemoryTimeout time.Duration

	// BusyPoll is for how long a loop that has just done something looks for more before it sleeps; 0 is not at all.
	BusyPoll time.Duration

	tick time.Duration // 0 is tickInterval; tests set it
}

// ConnOptions bound one record-marked connection.
type ConnOptions struct {
	// Memory returns the memory that lends the buffers of records to the connections of
	// one loop, which is given by its Index. If Memory is nil, records are on the Go
	// heap, without a limit.
	Memory func(loop int) Memory
	// MaxRecord is the length of the longest record in octets, and how many octets its record
	// marks may have. Longer ones than 2^31-1 octets are never accepted.
	MaxRecord int
	// MaxOutbound is how many octets may wait for the peer to read before the connection
	// stops reading from it. Reading resumes when no more than a quarter is left.
	MaxOutbound int64
	// OutboundLimit is how many octets may wait before the connection is closed. It is
	// at least MaxOutbound, because records are still sent while reading is paused: the
	// owner bounds how many.
	OutboundLimit int64
	// StallTimeout is the longest time in which less than 4 KiB of an incomplete record may
	// arrive. Time in which the connection was not read from does not count. Negative is no
	// limit.
	StallTimeout time.Duration
	// Pace is how many octets a second must arrive, on average over each StallTimeout, of an
	// incomplete record that holds more than 64 KiB of memory. 0 is no limit besides that of
	// StallTimeout.
	Pace int64
	// RecordTimeout is the longest time that a record may take from its first octet to its last, whatever
	// progress it makes. Time in which the connection was not read from does not count. 0 is no limit.
	RecordTimeout time.Duration
	// SendTimeout is the longest time in which the peer may read less than 64 KiB of a
	// queue that does not empty. Negative is no limit.
	SendTimeout time.Duration
	// IdleTimeout is the longest time without an octet in either direction. 0 is no limit.
	IdleTimeout time.Duration
	// SilentTimeout is the time within which the connection ends with ErrSilent when the
	// peer's host is gone: its TCP then acknowledges nothing. The keepalive probes of idle
	// connections suit it. 0 is no limit. At least 2 s are necessary, because a host that is
	// there may be silent for almost as long. Times of 4 s and more are kept; with shorter
	// ones the end may come later.
	//
	// SilentTimeout tells a host that is gone from a process that is slow.
	// TCP_USER_TIMEOUT does not: it also counts the time in which the peer's window
	// stays closed.
	SilentTimeout time.Duration
}

// ListenOptions configure a Listener.
type ListenOptions struct {
	Address string // host:port for TCP
	// Socket is a socket that listens already. Listen takes it, and closes it on failure.
	// If it is nil, Listen opens Address.
	Socket *net.TCPListener
	// Name is the listener's name in logs and in the label listener. If it is empty,
	// Address stands for it.
	Name string
	// MaxConns bounds the connections of the listener. Negative is no limit.
	MaxConns int
	// MaxConnsPerAddr bounds the connections from one address, or from one /64 of IPv6.
	// Negative is no limit.
	MaxConnsPerAddr int
	// MakeRoom is asked when MaxConns or the limit of Engine.Sockets is reached, before a
	// connection from peer is refused. If it returns true, it closes another connection, and
	// the newcomer is let in although the other may not have ended yet. nil makes no room.
	MakeRoom func(peer netip.Addr) bool
	// Allow lists the addresses that may connect; if it is empty, all may. A connection
	// from another address is closed as soon as it is accepted.
	Allow []netip.Prefix
	// Privileged refuses connections from ports of 1024 and above, which every user of a
	// host can have.
	Privileged bool
	// Admit is asked, before the limits, about each connection that Allow and Privileged let in. If it
	// returns false, the connection is closed; Admit has counted and logged that. It does not block. nil
	// admits all.
	Admit func(peer netip.AddrPort) bool
	// Prefer returns the loop on which a client at that address costs least, or nil if all are alike. The client
	// gets another loop if that one has many more sockets. Prefer is called on the accept goroutine, and
	// does not block. nil stands for a function that returns nil.
	Prefer func(netip.Addr) *Loop
	// Rate is how many connections a second are let in. The others wait in the kernel's queue, so it does
	// not hold for those that Admit or a limit refuses, which take no time. 0 is no limit.
	Rate int
	// Proxies lists the addresses of proxies. Their connections begin with a PROXY header of version 2,
	// which says who the client is; the other options hold for the client then. A connection of theirs
	// without one is closed. A header from any other address is not believed: it is no record.
	Proxies []netip.Prefix
	// ProxyTimeout bounds how long the header may take.
	ProxyTimeout time.Duration
	Conn         ConnOptions
}

// DialOptions configure a connection to an upstream.
type DialOptions struct {
	// Name is the upstream's name in logs and in the label listener. If it is empty, the
	// address that was dialled stands for it.
	Name string
	// LocalAddr is the address to connect from. The kernel chooses those parts of it that
	// are zero.
	LocalAddr netip.AddrPort
	// Reset makes the kernel end the connection with RST, whatever ends it: also when the
	// process is killed. Octets that were not sent are lost, and the port is free at once.
	Reset bool
	// Preamble is what the connection begins with, before the first record: at most as many octets as a
	// socket takes at once.
	Preamble []byte
	Conn     ConnOptions
}

// Validate reports the options that Listen and Update would reject.
func (o ListenOptions) Validate() error {
	var proxies error
	if len(o.Proxies) > 0 {
		proxies = positive("ListenOptions.ProxyTimeout", int64(o.ProxyTimeout))
	}
	return errors.Join(
		limit("ListenOptions.MaxConns", o.MaxConns),
		limit("ListenOptions.MaxConnsPerAddr", o.MaxConnsPerAddr),
		proxies,
		o.Conn.validate(),
	)
}

func (o EngineOptions) validate() error { return positive("EngineOptions.Loops", o.Loops) }

func (o *ConnOptions) validate() error {
	var outbound error
	if o.OutboundLimit < o.MaxOutbound {
		outbound = fmt.Errorf("tcpframe: ConnOptions.OutboundLimit is %d; it must be at least MaxOutbound, %d", o.OutboundLimit, o.MaxOutbound)
	}
	var silent error
	if o.SilentTimeout > 0 && o.SilentTimeout < minSilent {
		silent = fmt.Errorf("tcpframe: ConnOptions.SilentTimeout is %v; it must be at least %v, or 0 for none", o.SilentTimeout, minSilent)
	}
	return errors.Join(
		positive("ConnOptions.MaxRecord", o.MaxRecord),
		positive("ConnOptions.MaxOutbound", o.MaxOutbound),
		outbound,
		limit("ConnOptions.StallTimeout", o.StallTimeout),
		limit("ConnOptions.SendTimeout", o.SendTimeout),
		silent,
	)
}

// positive reports an option that must be more than zero and is not.
func positive[T int | int64](name string, v T) error {
	if v > 0 {
		return nil
	}
	return fmt.Errorf("tcpframe: %s is %d; it must be at least 1", name, v)
}

// limit reports a limit of zero, which would let nothing pass.
func limit[T int | time.Duration](name string, v T) error {
	if v != 0 {
		return nil
	}
	return fmt.Errorf("tcpframe: %s is 0; a negative value means no limit", name)
}
