// Package admit answers one question: may this client send more now, and if not, what must happen first?
//
// # Operation
//
// A [Client] is the record that a connection carries. It counts the client's Calls under way and the Replies that it
// is owed, and knows why the bridge does not read from it. A [Charge] is the record that a Call carries, so that what
// was counted for it can be undone. A client that may not go on gets a ticket at a gate: of a rate limit ([gates.Rates]),
// of its tenant ([Tenant]), or of the slow start of its upstream ([SlowStart]). Hosts take turns at a gate. [Memory]
// divides the memory for Calls among hosts, and has a line of its own. When memory is short, clients that send their
// Calls too slowly and those that do not read their Replies ([SlowReaders]) are closed.
//
// The package acts on a connection through [gates.Conn] only: it has the client read from again, or closes it.
//
// # Ownership
//
// A Client, its memberships and the Charges of its Calls belong to the client's loop. All that several clients share
// is safe for concurrent use. Two mutexes here are no leaves: that of a SlowStart is taken before that of the pool's
// slow start, and that of Hosts before the mutexes of pools.
//
// # Errors
//
// An error says why a client is closed, or why a connection is refused. No Call fails because of this package: a Call
// that may not begin waits.
package admit
