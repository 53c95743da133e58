// Package oncrpc walks ONC RPC headers: RFC 5531.
package oncrpc

// A Call is the header of an RPC Call.
type Call struct{}

// A Reply is the header of an RPC Reply.
type Reply struct{}
