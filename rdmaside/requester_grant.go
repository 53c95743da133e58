package rdmaside

// A newGrant is what the newest Reply grants, from its Transport header. "a Requester [...] MUST receive a valid reply
// from the Responder carrying the actual number of available credits", RFC 8166 Section 3.3.3. Whether a Reply is
// valid is known only when its Call's handles are invalidated and its Payload stream has been read: see settle. So a
// lower grant takes effect with the header, and a higher one when its Reply turns out to be valid, unless a newer
// Reply has come by then.
type newGrant struct {
	of      *pendingCall // nil if there is nothing left to decide
	credits uint32
}

// announced is called with the grant in the header of the Reply to pc.
func (r *Requester) announced(pc *pendingCall, credits uint32) {
	r.newGrant = newGrant{of: pc, credits: credits}
	r.credits.Grant(min(credits, r.credits.Granted))
}

// raise is called when the Reply to pc is valid.
func (r *Requester) raise(pc *pendingCall) {
	if r.newGrant.of == pc {
		r.newGrant.of = nil
		r.credits.Grant(r.newGrant.credits)
	}
}

// tellGrant publishes the grant and tells the Watcher, if it has changed.
func (r *Requester) tellGrant() {
	if r.state == up && r.publish() {
		r.watcher.Granted(r, r.Grant())
	}
}
