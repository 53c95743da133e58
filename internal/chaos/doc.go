// Package chaos breaks everything around a bridge, by chance, and checks the rules that
// the bridge must keep all the same. It has only tests.
//
// # Operation
//
// A [world] is one bridge, Responders and TCP servers that misbehave, wires
// between them that lose, cut, stall and corrupt, good clients and rogues. A
// [sky] over each server and its wire says how often each fault happens, and changes every
// few seconds. Meanwhile the bridge is given other settings, upstreams and listeners, is
// drained and started again, and hands its sockets to another one: conduct_test.go.
// Clients that speak NFSv4.1 have sessions, and many of them are on few connections to a server
// (session_test.go, lanes_test.go). Servers call them back: reverse_test.go. All chance comes from
// one seed: CHAOS_SEED=n repeats every decision of every actor, though not the order in
// which the machine runs them. A run in a testing/synctest bubble repeats exactly:
// bubble_test.go.
//
// No test here sleeps until something has happened. The sleeps are what clients, servers and wires do: they think, send
// slowly, or are away for some time. The checks look again and again while a run lasts.
//
// Behind two listeners is a quiet server: neither the server nor the wire to it has faults, but some
// of its clients do harm. They have Calls that hang (hanger_test.go), they are interrupted or serve
// their Read chunks slowly (interrupted_test.go), or a great many of them connect and are silent
// (silent_test.go). The healthy clients next to them must be answered all the time: health_test.go.
// Sidecars are other bridges with the address of this one, which use the server of one of its
// upstreams: sidecar_test.go.
//
// The TCP servers, the RDMA clients and the RPC messages are those of package proxytest.
// The Responder is not: apart from the codecs it uses none of the bridge's code, so that it
// does not share a mistake with the Requester that it checks. Nor are the clients over TCP,
// which match Replies with Calls themselves: a Reply that comes twice, or under an XID of no
// Call, breaks a rule.
//
// # The model
//
// Each Call has a number of its own among its arguments, and its Reply is a
// function of them, so that a wrong or a swapped answer is seen. A [book] has an
// entry for each number: how often the client sent the Call to the bridge, how often the
// Call came to a server, how often a server executed it, how often all octets of a Reply were
// written for it, and how it was answered. The book reports a broken rule with the seed. The number
// of a REMOVE lies behind the octets that a server's duplicate request cache compares, and its
// Reply says whose REMOVE was executed: remove_test.go. rules_test.go breaks rules, and shows that
// the book notices.
package chaos
