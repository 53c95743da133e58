package session

import (
	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/pool"
)

// A Peer is the connection of a client.
type Peer interface {
	Ender
	Caller
}

// An Ender ends the connection of a client. Its methods may be called on any goroutine.
type Ender interface {
	// Gone reports whether the connection has ended.
	Gone() bool
	// Close ends the connection now.
	Close(reason error)
	// Drain ends the connection as soon as no Call is under way.
	Drain()
}

// A Caller calls a client. Its methods run on the client's loop.
type Caller interface {
	// Listens reports whether reverse Calls may go to the client: its connection has not ended and is not draining.
	Listens() bool
	// Deaf reports whether the client's Replies to reverse Calls are not read at present.
	Deaf() bool
	// CallBack sends the client the reverse Call m, a plain RPC Call that came on the connection from. It takes m until
	// it calls done.Release. If it reports false, m remains the caller's.
	CallBack(m []byte, done Releaser, from Reverser) bool
}

// A Releaser gives memory back.
type Releaser interface{ Release() }

// A Reverser answers reverse Calls: a connection to a server those of the server, and a client those that it was sent.
// Its methods run on the loop of the connection to the server, and those of a client on the client's.
type Reverser interface {
	// ReverseReply answers the Call xid with the plain RPC Reply m, and keeps m until it
	// calls done.Release. An error means that no such Call is outstanding, and that m
	// remains the caller's.
	ReverseReply(xid uint32, m []byte, done Releaser) error
	// ReverseRefuse answers the Call xid with SYSTEM_ERR.
	ReverseRefuse(xid uint32)
}

// A Loop runs tasks one after the other.
type Loop interface{ Post(loop.Task) }

// A Lease is memory for a Reply.
type Lease interface {
	Bytes() []byte
	Releaser
}

// A Member is the connection to the server that a [Conn] stands for.
type Member interface {
	pool.Member
	// LateCalls is how many late Calls the connection has. It runs on the loop.
	LateCalls() int
	// Drop ends the connection, because nobody needs it. Any goroutine.
	Drop()
}
