// Package reach answers one question: how is a server reached?
//
// # Operation
//
// An endpoint is a host and a port. [EndpointFor] says which of several endpoints a client belongs to, and
// [Endpoints] which of them are in use. [Addresses] finds the addresses of an endpoint that is a name, and tries
// them one after the other, first the one whose server answered last. [Ports] chooses the port of this host that
// a connection comes from. [DialLimits] says how many attempts there may be, and [Lines] logs what becomes of them.
// A [Handshake] gives a connection TLS. A [Probe] shows that the server answers on it, first and whenever it is silent.
//
// # Ownership
//
// An upstream has one [Endpoints], [Addresses], [Ports], [Lines], [Watch] and [Handshakes], which any goroutine may
// use. A [Trial], a [Handshake] and a [Probe] belong to their connection, and so to that connection's loop.
//
// # Errors
//
// [IsLocal] tells what this host lacks from what a server does wrong. Only the latter counts against an endpoint
// or an address.
package reach
