// Package chaos breaks everything around a bridge, by chance, and checks that
// what must always hold does. It is tests only.
//
// # Operation
//
// A [world] is one bridge, Responders and TCP servers that misbehave, wires
// between them that lose, cut, stall and corrupt, good clients and rogues. The
// [sky] over each of them says how often which fault happens, and changes every
// few seconds. Meanwhile the bridge is given other settings, upstreams and listeners, is
// drained and started again, and hands its sockets to another one: conduct_test.go.
// Servers call the clients that speak NFSv4.1 back: reverse_test.go. All chance comes from
// one seed: CHAOS_SEED=n repeats every decision of every actor, though not the order in
// which the machine runs them. What runs in a testing/synctest bubble repeats exactly:
// bubble_test.go.
//
// # The model
//
// Each Call has a number of its own among its arguments, and its Reply is a
// function of them, so that a wrong or a swapped answer is seen. A [book] has an
// entry for each number: how often it was sent to the bridge, how often it came
// out, how often it was executed, and what the far side said. What breaks a rule
// is reported with the seed.
package chaos
