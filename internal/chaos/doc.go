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
// Call came to a server, how often a server executed it, and how it was answered. The book
// reports a broken rule with the seed.
package chaos
