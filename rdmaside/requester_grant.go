package rdmaside

// What Replies grant
//
// "a Requester [...] MUST receive a valid reply from the Responder carrying the actual number of available credits",
// RFC 8166 Section 3.3.3. Whether a Reply is valid is known only when its Call's handles are invalidated and its Payload
// stream has been read: see settle. So a lower grant takes effect with the header, and a higher one when its Reply turns
// out to be valid.
//
// With a provider that invalidates later, newer Replies may have come by then, and on a busy connection they always have.
// The newest one decides as soon as it is valid. Until then one of the older ones may raise the grant, but not above what
// any newer Reply grants: each of them may turn out to be the newest that is valid.

// announcedGrants are the grants of Replies that are not known to be valid.
type announcedGrants struct {
	newest announcedGrant
	older  announcedGrant // of an older Reply, or of the newest; credits is the least that it and newer ones grant
}

// An announcedGrant is the grant in the header of a Reply.
type announcedGrant struct {
	of      *pendingCall // nil for none
	credits uint32
}

// any reports whether there are any.
func (g *announcedGrants) any() bool { return g.newest.of != nil || g.older.of != nil }

// announced is called with the grant in the header of the Reply to pc.
func (r *Requester) announced(pc *pendingCall, credits uint32) {
	g := &r.grants
	g.newest = announcedGrant{pc, credits}
	if g.older.of == nil {
		g.older = g.newest
	} else {
		g.older.credits = min(g.older.credits, credits)
	}
	r.credits.Grant(min(credits, r.credits.Granted))
}

// valid is called when the Reply to pc is valid.
func (r *Requester) valid(pc *pendingCall) {
	switch g := &r.grants; pc {
	case g.newest.of:
		r.credits.Grant(g.newest.credits)
		*g = announcedGrants{}
	case g.older.of:
		r.credits.Grant(g.older.credits)
		g.older = announcedGrant{}
	}
}

// invalid is called when the Reply to pc is not valid.
func (r *Requester) invalid(pc *pendingCall) {
	g := &r.grants
	if g.newest.of == pc {
		g.newest = announcedGrant{}
	}
	if g.older.of == pc {
		g.older = announcedGrant{}
	}
}

// tellGrant publishes the grant and tells the Watcher, if it has changed.
func (r *Requester) tellGrant() {
	if r.state == up && r.publish() {
		r.watcher.Granted(r, r.Grant())
	}
}
