package tcpframe

import (
	"net"
	"net/netip"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/metrics"
)

// EngineOptions configure an Engine.
type EngineOptions struct {
	// Loops is the number of event loops. 0 is GOMAXPROCS-1, but GOMAXPROCS where
	// that is 1 or 2. Start raises GOMAXPROCS above the number of loops: a loop
	// sits in epoll_wait with its P, and with no P to spare other goroutines'
	// network I/O waits for sysmon, 5 to 10 ms.
	Loops int
	// MaxConns bounds the connections accepted by all listeners together. 0 is
	// three quarters of RLIMIT_NOFILE.
	MaxConns int
	// Tick is the resolution of timeouts, which are late by it; 0 is 500 ms.
	Tick    time.Duration
	Log     zerolog.Logger
	Metrics *metrics.Registry
}

// ConnOptions bound one record-marked connection. Zero is the default given;
// for times, negative is none.
type ConnOptions struct {
	// Memory lends the buffers of records. nil is the Go heap, without a limit.
	Memory Memory
	// MaxRecord is the longest record in octets; 0 is 4 MiB + 64 KiB.
	MaxRecord int
	// MaxFragments is the most fragments of one record, empty ones included; 0 is 1024.
	MaxFragments int
	// MaxOutbound is how many octets may wait for the peer to read before reading
	// from it pauses; reading resumes below a quarter. 0 is 8 MiB.
	MaxOutbound int64
	// OutboundLimit is how many octets may wait before the connection is closed;
	// 0 is 256 MiB. The owner bounds what is still owed when reading pauses.
	OutboundLimit int64
	// StallTimeout is how long a begun record may go on with less than 4 KiB
	// arriving; 0 is 30 s.
	StallTimeout time.Duration
	// SendTimeout is how long the peer may take less than 64 KiB of what waits,
	// and not all; 0 is 2 min.
	SendTimeout time.Duration
	// MemoryTimeout is how long a begun record may wait for memory; 0 is 30 s.
	// It ends the deadlock in which begun records hold all memory.
	MemoryTimeout time.Duration
	// IdleTimeout is how long a connection may live without an octet either
	// way; 0 is none.
	IdleTimeout time.Duration
	// SilentTimeout is within what time it is found out that the peer's host is gone:
	// its TCP acknowledges nothing of what it was sent. 0 is never; less than 2 s finds
	// what is not so, 4 s and more is kept. Connections that are dialled have keepalive
	// to suit, unless DialOptions say otherwise; for accepted ones it is
	// ListenOptions.KeepAlive's to ask. It tells a host that is gone from a process that
	// is slow, and TCP_USER_TIMEOUT does not: that counts a window that stays closed too.
	SilentTimeout time.Duration
}

// ListenOptions configure a Listener.
type ListenOptions struct {
	Address string // host:port for TCP
	// Socket listens already, and is taken: Listen closes it when it fails. nil opens
	// Address.
	Socket *net.TCPListener
	Name   string // for logs and the label listener; default Address
	// MaxConns bounds the connections of this listener; 0 is 4096, negative none.
	MaxConns int
	// MaxConnsPerAddr bounds those from one address; 0 is 512, negative none.
	MaxConnsPerAddr int
	// Allow lists who may connect; empty is everybody. Others are closed at accept.
	Allow []netip.Prefix
	// KeepAlive probes idle peers; the zero value is 30 s, 15 s, 4 probes.
	// KeepAlive.Enable is not looked at; Idle negative disables.
	KeepAlive net.KeepAliveConfig
	// UserTimeout is TCP_USER_TIMEOUT: how long written octets may stay
	// unacknowledged. 0 is 2 min, negative the kernel's default.
	UserTimeout time.Duration
	Conn        ConnOptions
}

// DialOptions configure a connection to an upstream.
type DialOptions struct {
	Name        string              // for logs and the label listener; default "upstream"
	LocalAddr   netip.AddrPort      // the kernel chooses what is zero
	KeepAlive   net.KeepAliveConfig // as ListenOptions.KeepAlive
	UserTimeout time.Duration       // as ListenOptions.UserTimeout
	// Reset has the connection end with RST whatever ends it, the death of the process
	// included. What was not sent is lost with it, and nothing of it keeps the port.
	Reset bool
	Conn  ConnOptions
}
