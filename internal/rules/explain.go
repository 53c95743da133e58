package rules

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
)

// A Verdict says what a rule does with the Calls of a client, or with one Call.
type Verdict struct {
	Rule  *Rule
	Fails string   // the condition that does not hold, and why; "" if none fails
	Asks  []string // the conditions of the Call that remain, if no Call was given
}

// Matches reports whether the rule matches: the Call, or all Calls of the client.
func (v *Verdict) Matches() bool { return v.Fails == "" && len(v.Asks) == 0 }

// ExplainClient says of each rule whether it can match Calls of c, and which. It ends with the first rule that
// matches all Calls and decides.
func (s *Set) ExplainClient(c *Client) (all []Verdict) {
	for i := range s.rules {
		r := &s.rules[i]
		v := Verdict{Rule: r, Fails: r.clientFails(c)}
		if v.Fails == "" {
			v.Asks = r.asks()
		}
		all = append(all, v)
		if v.Matches() && r.Decides() {
			break
		}
	}
	return all
}

// ExplainCall says of each rule whether it matches the Call h of c, and ends with the one that decides. x are the facts of
// the Call.
func (s *Set) ExplainCall(c *Client, h *oncrpc.Call, x Facts) (all []Verdict) {
	for i := range s.rules {
		r := &s.rules[i]
		v := Verdict{Rule: r, Fails: r.clientFails(c)}
		if v.Fails == "" {
			v.Fails = r.callFails(h, x)
		}
		all = append(all, v)
		if v.Matches() && r.Decides() {
			break
		}
	}
	return all
}

// clientFails says which condition of the connection does not hold for c; "" if all hold.
func (r *Rule) clientFails(c *Client) string {
	switch {
	case !in(r.Clients, c.Address):
		return fmt.Sprintf("clients %s do not have %s", join(r.Clients), c.Address.Unmap())
	case len(r.Proxies) > 0 && !c.Proxy.IsValid():
		return "proxies: the client has connected itself"
	case !in(r.Proxies, c.Proxy):
		return fmt.Sprintf("proxies %s do not have %s", join(r.Proxies), c.Proxy.Unmap())
	case len(r.Identities) > 0 && c.Identity == nil:
		return "identities: the client has shown no certificate"
	case !r.identifies(c.Identity):
		return fmt.Sprintf("identities %s do not have %s", join(r.Identities), strings.Join(c.Identity.Names(), ", "))
	case r.Privileged.has(c.Port):
		return ""
	case c.Port == 0:
		return "privileged: the client's port is not known"
	}
	return fmt.Sprintf("privileged: the client's port is %d", c.Port)
}

// callFails says which condition of the Call does not hold for h; "" if all hold.
func (r *Rule) callFails(h *oncrpc.Call, x Facts) string {
	user, isSys := h.Sys()
	has := func(ranges []Range, id uint32) bool {
		return slices.ContainsFunc(ranges, func(x Range) bool { return x.contains(id) })
	}
	switch {
	case len(r.Targets) > 0 && !slices.ContainsFunc(r.Targets, func(t Target) bool { return t.matches(h) }):
		return fmt.Sprintf("the Call is not for %s", joinOr(r.Targets))
	case !r.hasFlavor(flavorOf(h)):
		return fmt.Sprintf("flavors %s: the credential is another one", join(r.Flavors))
	case (len(r.UIDs) > 0 || len(r.GIDs) > 0) && !isSys:
		return "uids or gids: the credential has none"
	case len(r.UIDs) > 0 && !has(r.UIDs, user.UID()):
		return fmt.Sprintf("uids %s do not have %d", join(r.UIDs), user.UID())
	case len(r.GIDs) > 0 && !hasGroup(&user, r.GIDs):
		return fmt.Sprintf("gids %s have none of the user's groups", join(r.GIDs))
	case r.Class == Changing && !x.Changes:
		return "class changing: the Call changes no file"
	case r.Class == Reading && x.Changes:
		return "class reading: the Call changes a file, or may"
	case r.Exports != 0 && x.Touched == UnknownExports:
		return "exports " + r.Names + ": which exports a Call is about is known to the bridge alone"
	case !r.concerns(&x.Touched):
		return "exports " + r.Names + ": the Call is about something else"
	}
	return ""
}

func hasGroup(user *oncrpc.SysCredential, ranges []Range) bool {
	for i := range user.Groups() {
		if slices.ContainsFunc(ranges, func(x Range) bool { return x.contains(user.Group(i)) }) {
			return true
		}
	}
	return false
}

// asks lists the conditions of Calls.
func (r *Rule) asks() (all []string) {
	if len(r.Targets) > 0 {
		all = append(all, "for "+joinOr(r.Targets))
	}
	if len(r.Flavors) > 0 {
		all = append(all, "with credentials "+join(r.Flavors))
	}
	if len(r.UIDs) > 0 {
		all = append(all, "of users "+join(r.UIDs))
	}
	if len(r.GIDs) > 0 {
		all = append(all, "of groups "+join(r.GIDs))
	}
	switch r.Class {
	case Changing:
		all = append(all, "that may change files")
	case Reading:
		all = append(all, "that change no files")
	}
	switch {
	case r.Exports != 0 && (r.Action == Deny || r.Action == Limit):
		all = append(all, "that may be about "+r.Names)
	case r.Exports != 0:
		all = append(all, "about "+r.Names+" alone")
	}
	return all
}

// Effect says in words what the rule does with a Call that it matches.
func (r *Rule) Effect() string {
	what := "allow"
	switch r.Action {
	case Deny:
		what = "deny: " + map[Answer]string{
			AnswerAuth: "AUTH_TOOWEAK", AnswerReadOnly: "read-only file system", AnswerUnavailable: "PROG_UNAVAIL", AnswerClose: "the connection is closed",
		}[r.Answer]
	case Route:
		what = "upstream " + r.Upstream
	case Limit:
		what = "limit: " + r.Rate.String()
	}
	switch r.Squash {
	case SquashRoot:
		what += ", root is mapped"
	case SquashAll:
		what += ", all users are mapped"
	case SquashOff:
		what += ", no user is mapped"
	}
	if r.DryRun {
		what = "only counted (dry run of: " + what + ")"
	}
	return what
}

// String says how much is possible in a second.
func (r Rate) String() string {
	var words []string
	if r.Calls > 0 {
		words = append(words, fmt.Sprintf("%d Calls", r.Calls))
	}
	if r.Octets > 0 {
		words = append(words, fmt.Sprintf("%d bytes", r.Octets))
	}
	return strings.Join(words, " and ") + " a second together"
}

// matches reports whether h is one of the Calls of t.
func (t *Target) matches(h *oncrpc.Call) bool {
	has := func(all []uint32, v uint32) bool { return len(all) == 0 || slices.Contains(all, v) }
	return has(t.Programs, h.Program) && has(t.Versions, h.Version) && has(t.Procedures, h.Procedure)
}

// String describes t, such as "nfs versions 2 3 procedure 1".
func (t Target) String() string {
	var words []string
	for _, p := range t.Programs {
		name := oncrpc.ProgramName(p)
		if name == "" {
			name = fmt.Sprint("program ", p)
		}
		words = append(words, name)
	}
	if len(t.Versions) > 0 {
		words = append(words, "version "+join(t.Versions))
	}
	if len(t.Procedures) > 0 {
		words = append(words, "procedure "+join(t.Procedures))
	}
	return strings.Join(words, " ")
}

// String returns the range as a configuration has it.
func (r Range) String() string {
	if r.Low == r.High {
		return fmt.Sprint(r.Low)
	}
	return fmt.Sprintf("%d-%d", r.Low, r.High)
}

// String returns the word of a configuration.
func (f Flavor) String() string {
	return [flavors]string{"none", "sys", "krb5", "krb5i", "krb5p", "context", "other"}[f]
}

// join lists values as a configuration does.
func join[T any](all []T) string {
	var words []string
	for _, v := range all {
		words = append(words, fmt.Sprint(v))
	}
	return strings.Join(words, ", ")
}

func joinOr(all []Target) string {
	var words []string
	for _, t := range all {
		words = append(words, t.String())
	}
	return strings.Join(words, ", or ")
}

// ParseClient parses an address, or an address with a port, of a client.
func ParseClient(s string) (*Client, error) {
	if a, err := netip.ParseAddr(s); err == nil {
		return &Client{Address: a.Unmap()}, nil
	}
	p, err := netip.ParseAddrPort(s)
	if err != nil {
		return nil, fmt.Errorf("%q is not a client; write an address such as 10.0.0.7, or with the port, 10.0.0.7:800", s)
	}
	return &Client{Address: p.Addr().Unmap(), Port: p.Port()}, nil
}
