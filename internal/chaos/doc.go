// Package chaos breaks everything around a bridge, by chance, and checks the rules that
// the bridge must keep all the same. It is tests only.
//
// # Operation
//
// A [world] is one bridge, Responders and TCP servers that misbehave, wires
// between them that lose, cut, stall and corrupt, good clients and rogues. A
// [sky] over each server and its wire says how often each fault happens, and changes every
// few seconds. Meanwhile the bridge is given other settings, upstreams and listeners, is
// drained and started again, and hands its sockets to another one: conduct_test.go.
// Servers call the clients that speak NFSv4.1 back: reverse_test.go. All chance comes from
// one seed: CHAOS_SEED=n repeats every decision of every actor, though not the order in
// which the machine runs them. A run in a testing/synctest bubble repeats exactly:
// bubble_test.go.
//
// Behind two listeners is a quiet server: it and the way to it have no faults. Its trouble is its
// clients. Some have Calls that hang (hanger_test.go), are interrupted or serve their Read chunks
// slowly (interrupted_test.go), are silent or very many (silent_test.go). The healthy clients
// next to them must be answered all the time: health_test.go. Sidecars are other bridges with the
// address of this one, at the server of one of its upstreams: sidecar_test.go.
//
// The TCP servers, the RDMA clients and the RPC messages are those of package proxytest.
// The Responder is not: it uses none of the code that the bridge is made of but the codecs,
// so that it does not share a mistake with the Requester that it checks. Nor are the
// clients over TCP, which match Replies with Calls themselves: a Reply that comes twice, or
// under an XID of no Call, breaks a rule.
//
// # The model
//
// Each Call has a number of its own among its arguments, and its Reply is a
// function of them, so that a wrong or a swapped answer is seen. A [book] has an
// entry for each number: how often the client sent the Call to the bridge, how often the
// Call came to a server, how often a server executed it, how often all octets of a Reply were
// written for it, and how it was answered. The book reports a broken rule with the seed. The number
// of a REMOVE is where a server's duplicate request cache does not look, and its Reply says
// whose REMOVE was executed: remove_test.go. rules_test.go shows that rules can be broken.
package chaos
