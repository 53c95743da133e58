// Package gates knows why the bridge does not read from a client at present, and for how long it has not: a [Reason] says
// why. Clients that wait for something they share wait at a [Gate], where hosts take turns. Rate limits ([Rates]) have
// gates of their own; those of tenants and of slow start belong to package admit.
package gates
