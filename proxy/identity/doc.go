// Package identity says what makes a Call, a client or a lock owner the same one, on both sides of the bridge and for
// the next process of the bridge.
//
// # Operation
//
// A server knows a client by its address and port, and a Call by its XID and arguments. Behind a bridge, all clients
// have one address. So the package derives everything that has to differ between clients from a key, a [Bridge]: the
// XIDs that servers see (xid.go), and the owners of NLM locks (nlm.go). All of it follows from what comes with the
// Call and with its connection, an [Origin], so that nothing has to be remembered for it. What is remembered, in [Users]
// and in a [LatestUser], only saves time.
//
// A client sends a Call again when no Reply comes. While the first transmission is in flight, [Flights] recognise the
// second, and say what the caller has to do with it. The Calls of an RPCSEC_GSS context have an order of their own, which
// servers look at: [GSSContexts] say whose turn it is (gss.go).
//
// # Ownership
//
// A [Bridge], a [ClientKey] and an [Origin] are values. Users belong to an event loop, and a LatestUser to the loop of
// its connection. [XIDs], [Flights] and [GSSContexts] are safe for concurrent use. A Call holds its [Flight]
// and its [GSSCall] by value.
//
// # Errors
//
// Nothing here fails. A Call that cannot be walked is left as it is, and the server refuses it.
package identity
