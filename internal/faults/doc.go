// Package faults is the server of `rdmabridge-bench server --faults`, for people who test their own
// clients of NFS, or of another RPC program, over RDMA and TCP. It stands in front of a real server
// and passes Calls and Replies through, but breaks some of them, as rules in a file say.
//
// # Operation
//
// A Plan is the file: a seed and rules. A rule names a fault, which is a row of the table in kind.go,
// the Calls that it applies to, and how often. The judge decides for each Call which rule strikes.
// The decision depends on the seed, the rule, and the number of Calls that the rule has matched, so the
// same Calls in the same order get the same faults.
//
// A client's connection is a session: it has its own connection to the server behind, and carries
// messages across without changing their XIDs. There are two kinds of front: tcpFront reads and writes
// records, and rdmaFront is a handler of a correct rdmaside.Responder. Faults on RDMA are injected
// below the Responder: an rdmaConn is a fabric.Conn between the Responder and the provider, and it
// changes what the Responder posts. Faults of the octets on the wire are injected below the
// provider: a wire is a loop.Socket between iWARP and the event loop.
//
// # Ownership
//
// A session is used in one place at a time: on the loop of its RDMA connection, or under the lock of
// its TCP connection. Its front says how to get there.
package faults
