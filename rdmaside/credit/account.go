// Package credit does the arithmetic of RPC-over-RDMA credits, RFC 8166 Section
// 3.3, for both ends of a connection. [Account] is for the Requester, which must
// not send more Calls than it was granted. [Grantor] is for the Responder, which
// must not grant more than it has Receives for.
//
// The package has no clocks and no locks: the loop that owns the connection owns
// both types. Both also serve the reverse direction of RFC 8167, with the roles
// exchanged.
package credit

// Max is the largest credit value requested or granted here. It bounds how many
// Receives a number from the peer can make us post. Linux lets an administrator
// set no more.
const Max = 16384

// An Account is the Requester's side: it tells how many Calls may be outstanding.
//
//	Free = Granted - Outstanding, or 0 when that is negative
//
// RFC 8166 Section 3.3.1. The zero Account has requested nothing and is unusable;
// see [NewAccount].
type Account struct {
	Requested   uint32 // rdma_credit of every Call; 1 to Max
	Granted     uint32 // the latest grant, clamped to Requested; 1 until the first Reply
	Outstanding uint32 // Calls sent and not yet completed
}

// NewAccount returns the Account of a new connection that requests the given
// number of credits, which is clamped to the range from 1 to Max.
func NewAccount(requested int) Account {
	// "a Requester MUST NOT assume more than one credit is available and MUST
	// receive a valid reply from the Responder carrying the actual number of
	// available credits, prior to sending its next request." Section 3.3.3.
	return Account{Requested: uint32(min(max(requested, 1), Max)), Granted: 1}
}

// Grant records n, the rdma_credit of a Reply. A grant below Outstanding takes effect at once: the Requester sends
// nothing until enough Calls have completed.
func (a *Account) Grant(n uint32) {
	// "The granted value MUST NOT be zero, since such a value would result in
	// deadlock." If a peer sends zero anyway, it grants one. "The number of
	// allowed new requests [...] is then the lower of the current requested and
	// granted credit values, minus the number of requests in flight." Section
	// 3.3.1.
	a.Granted = min(max(n, 1), a.Requested)
}

// Free returns how many Calls may be sent now.
func (a *Account) Free() int {
	return max(0, int(a.Granted)-int(a.Outstanding))
}

// Take uses one credit for a Call that is about to be sent. It returns false when
// no credit is free.
func (a *Account) Take() bool {
	if a.Outstanding >= a.Granted {
		return false
	}
	a.Outstanding++
	return true
}

// Put returns the credit of a Call that has completed, after Grant has recorded
// the grant of its Reply. An abandoned Call keeps its credit: the Responder may
// still be working on it, and its Receive is used up.
func (a *Account) Put() {
	if a.Outstanding == 0 {
		panic("BUG: credit: Put without Take")
	}
	a.Outstanding--
}
