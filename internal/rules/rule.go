// Package rules decides what clients may do. A listener has a list of rules, and the first that matches a
// Call says what becomes of it.
//
// # Operation
//
// [Compile] makes a [Set] of rules. [Judge.Bind] evaluates the conditions that depend on the connection alone,
// once for a connection. [Judge.Decide] evaluates the others for a Call. Each condition is a table from a
// number, such as a program or a uid, to the set of rules whose condition holds for this number. The
// intersection of the sets is what matches, so that a Call costs a few lookups however many rules there are. A
// Judge remembers what it has decided, so that most Calls cost one lookup.
//
// [Set.ExplainCall] does the same by comparing one rule after the other, and says why each matches or does not.
package rules

import (
	"net/netip"
	"slices"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/tlsconf"
)

// A Rule says what becomes of the Calls that match all its conditions. A condition without a value holds
// always.
type Rule struct {
	Name string

	// Conditions of the connection.
	Clients    []netip.Prefix // that have the client's address
	Proxies    []netip.Prefix // that have the address of the proxy which has sent a PROXY header; without one the condition does not hold
	Privileged Port
	Identities []tlsconf.Pattern // that have a name in the client's certificate; without one the condition does not hold

	// Conditions of the Call.
	Flavors []Flavor // of the credential
	UIDs    []Range  // that have the user of AUTH_SYS; other Calls do not match
	GIDs    []Range  // that have one of the groups of AUTH_SYS; other Calls do not match
	Targets []Target // what the Call is for, one of them; empty: anything
	Class   Class
	Exports uint64 // that the Call is about, as bits: see Touched; 0: anything
	Names   string // of Exports, for people

	Action   Action
	Rate     Rate   // of Limit
	Answer   Answer // of Deny
	Upstream string // of Route
	Squash   Squash // of Allow and Route
	DryRun   bool   // the rule is counted when it matches, and has no effect
}

// A Rate bounds the Calls that a rule matches, all of them together. Zero values are no limit.
type Rate struct {
	Calls  int   // in a second
	Octets int64 // of Calls and their Replies together, in a second
}

// Decides reports whether no rule behind r is asked about Calls that r matches.
func (r *Rule) Decides() bool { return r.Action != Limit && !r.DryRun }

// A Port says which ports of clients match.
type Port uint8

// The ports.
const (
	AnyPort Port = iota
	PrivilegedPort
	UnprivilegedPort
)

// A Range has the numbers from Low to High.
type Range struct{ Low, High uint32 }

func (r Range) contains(v uint32) bool { return v >= r.Low && v <= r.High }

// A Target is what Calls are for. An empty list has everything.
type Target struct{ Programs, Versions, Procedures []uint32 }

// A Class says whether a Call may change a file: ulb.Analysis.Changes.
type Class uint8

// The classes.
const (
	AnyClass Class = iota
	Reading        // it is known to change none
	Changing       // it changes one, or may
)

// Facts are what a Call does.
type Facts struct {
	Changes bool    // it may change a file: ulb.Analysis.Changes
	Touched Touched // zero if no rule has Exports
}

// Touched are the exports that a Call is about: nfs.Touched.
type Touched struct {
	May, Changes uint64 // bits
	Unsure       bool
}

// UnknownExports is for a Call of which nobody knows which exports it is about. No rule with exports matches it.
var UnknownExports = Touched{Unsure: true}

// concerns reports whether the condition of exports holds for t. A rule that denies Calls matches those that may be
// about one of its exports, and with class changing, those that may change a file there; so does one that limits. Other rules match Calls that are about their exports and nothing
// else for certain, and those that allow, Calls that are about no export.
func (r *Rule) concerns(t *Touched) bool {
	switch {
	case r.Exports == 0:
		return true
	case r.Action == Allow || r.Action == Route:
		return !t.Unsure && t.May&^r.Exports == 0 && (t.May != 0 || r.Action == Allow)
	case r.Class == Changing:
		return t.Changes&r.Exports != 0
	}
	return t.May&r.Exports != 0
}

// A Flavor is what a rule says of credentials.
type Flavor uint8

// The flavors.
const (
	FlavorNone  Flavor = iota // AUTH_NONE
	FlavorSys                 // AUTH_SYS
	FlavorKrb5                // RPCSEC_GSS that signs no arguments
	FlavorKrb5i               // with integrity
	FlavorKrb5p               // with privacy
	flavorContext
	flavorOther
	flavors
)

// flavorOf returns the flavor of a Call. flavorContext is that of Calls that make and end the contexts of
// RPCSEC_GSS, which have no service yet: RFC 2203 Section 5.2.2. flavorOther is that of credentials that are
// none of the others or cannot be read.
func flavorOf(h *oncrpc.Call) Flavor {
	switch h.Flavor {
	case oncrpc.FlavorNone:
		return FlavorNone
	case oncrpc.FlavorSys:
		return FlavorSys
	case oncrpc.FlavorGSS:
		switch h.Protection {
		case oncrpc.ProtectNone:
			return FlavorKrb5
		case oncrpc.ProtectIntegrity:
			return FlavorKrb5i
		case oncrpc.ProtectPrivacy:
			return FlavorKrb5p
		case oncrpc.ProtectControl:
			return flavorContext
		}
	}
	return flavorOther
}

// hasFlavor reports whether the rule's condition holds for f. A Call that makes or ends a context serves all
// services of RPCSEC_GSS. So it matches a rule that denies only if that denies all three, and other rules
// if they have one of the three.
func (r *Rule) hasFlavor(f Flavor) bool {
	if len(r.Flavors) == 0 {
		return true
	}
	if slices.Contains(r.Flavors, f) {
		return true
	}
	n := 0
	for service := FlavorKrb5; service <= FlavorKrb5p; service++ {
		if slices.Contains(r.Flavors, service) {
			n++
		}
	}
	return f == flavorContext && (n == 3 || n > 0 && r.Action != Deny)
}

// An Action is what becomes of a Call.
type Action uint8

// The actions.
const (
	Allow Action = iota // it goes where the routes send it
	Deny                // it gets Answer
	Route               // it goes to Upstream
	Limit               // it counts for Rate, and the next rules decide
)

// An Answer is what the client of a denied Call gets.
type Answer uint8

// The answers.
const (
	AnswerAuth        Answer = iota // AUTH_ERROR with AUTH_TOOWEAK, which every program and flavor has
	AnswerReadOnly                  // the program's own error for a read-only file system, where it can be given
	AnswerUnavailable               // PROG_UNAVAIL, as if the server did not have the program
	AnswerClose                     // the connection is closed
)

// A Squash says which users of AUTH_SYS are mapped to another one.
type Squash uint8

// The values of Squash.
const (
	SquashDefault Squash = iota // as the listener has it
	SquashOff                   // none
	SquashRoot                  // user 0 and group 0
	SquashAll                   // all users and all their groups
)

// A Client is what rules say of connections.
type Client struct {
	Address netip.Addr
	Port    uint16     // 0: not known
	Proxy   netip.Addr // the zero Addr: the client has connected itself
	// Identity is who the client's certificate says it is; nil without TLS or a certificate.
	Identity *tlsconf.Identity
}

// matches reports whether the conditions of the connection hold for c.
func (r *Rule) matches(c *Client) bool {
	return in(r.Clients, c.Address) && (len(r.Proxies) == 0 || c.Proxy.IsValid() && in(r.Proxies, c.Proxy)) && r.Privileged.has(c.Port) &&
		r.identifies(c.Identity)
}

// identifies reports whether one of the patterns matches i, or there are none.
func (r *Rule) identifies(i *tlsconf.Identity) bool {
	return len(r.Identities) == 0 || slices.ContainsFunc(r.Identities, func(p tlsconf.Pattern) bool { return p.Matches(i) })
}

// in reports whether one of networks has a, or there are none.
func in(networks []netip.Prefix, a netip.Addr) bool {
	a = a.Unmap()
	for _, p := range networks {
		if p.Contains(a) {
			return true
		}
	}
	return len(networks) == 0
}

// has reports whether the condition holds for a port. A port that is not known is not privileged.
func (p Port) has(port uint16) bool {
	privileged := port > 0 && port < 1024
	return p == AnyPort || privileged == (p == PrivilegedPort)
}
