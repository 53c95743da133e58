package rules

import (
	"encoding/binary"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
)

// How much a Judge remembers. The first three are powers of two.
const (
	judgedHeaders   = 64
	judgedUsers     = 64
	judgedDecisions = 128
	judgedClasses   = 128 // different sets of cases of users
	judgedBounds    = 64
	judgedOctets    = 144 // of a header: a host name of 20 octets and 16 groups fit
	judgedDry       = 4   // rules that match a Call and do not decide
)

// A Judge decides about the Calls that one loop reads, by the rules of one Set. It belongs to the loop.
//
// Most Calls are like one that came before: they are for the same procedure, and of the same user. So a Judge
// remembers what it has decided, for all connections of the loop together, in three tables of fixed size.
//
// The first says what was decided about a Call with the same octets from the program to the end of the credential. It
// is for AUTH_SYS and AUTH_NONE; the credentials of RPCSEC_GSS have sequence numbers. The second says what was
// decided, by everything that the decision depends on: the Bound, the program, the version and the procedure,
// the flavor, the class of the user, and the facts of the Call. What no rule of the Bound asks for is left
// out. The third says of which class the user and the groups of a credential are. Users for whom the conditions hold
// in the same cases are of one class.
//
// A Judge compares whole keys, so that a Call never gets the decision about another one. A Call that is
// not in the tables costs the lookups of Bound.match.
type Judge struct {
	set       *Set
	bounds    map[cases]*Bound // those that Bind has made
	numbers   map[cases]uint16 // the classes of users, by their cases
	classes   []cases          // the cases of the classes; the first is that of Calls without a user
	headers   [judgedHeaders]judgedHeader
	users     [judgedUsers]judgedUser
	decisions [judgedDecisions]decision
	dry       [maxCases]uint8 // those of the latest Call
}

// A judgedHeader is the beginning of a Call's header, without the XID and what is the same in all Calls, and what was
// decided about the Call: program, version, procedure, flavor, length and body of the credential.
type judgedHeader struct {
	bound  *Bound // nil: the place is empty
	n      uint8  // octets
	facts  Facts
	ruling ruling
	octets [judgedOctets]byte
}

// A ruling is what was decided.
type ruling struct {
	rule int16 // -1: none
	n    uint8 // rules of dry
	dry  [judgedDry]uint8
}

// A judgedUser is the user and the groups of a credential.
type judgedUser struct {
	ids   [oncrpc.SysIDs]byte
	n     uint8 // octets of ids; 0: the place is empty
	class uint16
}

// A judgedCall is what a decision depends on.
type judgedCall struct {
	bound                       *Bound // nil: the place is empty
	program, version, procedure uint32
	user                        uint16 // a class
	flavor                      Flavor
	facts                       Facts
}

// A decision is what was decided about a Call.
type decision struct {
	call   judgedCall
	ruling ruling
}

// NewJudge returns a Judge of s.
func NewJudge(s *Set) *Judge {
	j := &Judge{set: s, bounds: make(map[cases]*Bound), numbers: make(map[cases]uint16)}
	j.forget()
	return j
}

// forget makes the tables empty.
func (j *Judge) forget() {
	clear(j.numbers)
	clear(j.users[:])
	clear(j.decisions[:])
	j.classes = append(j.classes[:0], j.set.nobody)
	j.numbers[j.set.nobody] = 0
}

// Bind evaluates the conditions of the connection. Connections that the same rules can match have one Bound.
func (j *Judge) Bind(c *Client) *Bound {
	all := j.set.casesOf(c)
	b := j.bounds[all]
	if b == nil {
		if len(j.bounds) == judgedBounds {
			clear(j.bounds) // connections keep those that they have
		}
		b = j.set.bound(all)
		j.bounds[all] = b
	}
	return b
}

// Decide returns the rule that decides about the Call h of a connection that b is bound to, or -1, and the rules
// before it that match and do not decide, until the next Decide. x are the facts of the Call.
// malformed is true if a rule asks for users and the Call has a credential of AUTH_SYS that cannot be read: nothing
// is decided then. b was returned by Bind.
func (j *Judge) Decide(b *Bound, h *oncrpc.Call, x Facts) (rule int, dry []uint8, malformed bool) {
	// From the program on: RFC 5531 Section 9.
	if octets := h.Message[12 : 32+h.CredentialLen]; len(octets) <= judgedOctets {
		n := binary.LittleEndian.Uint64(octets[len(octets)-8:]) ^ uint64(binary.BigEndian.Uint32(octets[8:]))<<8 ^ uint64(b.salt)
		e := &j.headers[n*0x9e3779b97f4a7c15>>32%judgedHeaders]
		if e.bound == b && e.facts == x && string(octets) == string(e.octets[:e.n]) {
			return int(e.ruling.rule), e.ruling.dry[:e.ruling.n], false
		}
		if h.Flavor == oncrpc.FlavorSys || h.Flavor == oncrpc.FlavorNone {
			rule, dry, malformed = j.decide(b, h, x)
			if !malformed && len(dry) <= judgedDry {
				e.bound, e.facts, e.n, e.ruling = b, x, uint8(copy(e.octets[:], octets)), newRuling(rule, dry)
			}
			return rule, dry, malformed
		}
	}
	return j.decide(b, h, x)
}

func newRuling(rule int, dry []uint8) ruling {
	r := ruling{rule: int16(rule), n: uint8(len(dry))}
	copy(r.dry[:], dry)
	return r
}

// decide does what Decide does, without the first table.
func (j *Judge) decide(b *Bound, h *oncrpc.Call, x Facts) (rule int, dry []uint8, malformed bool) {
	k := judgedCall{bound: b}
	if b.asksUser() && h.Flavor == oncrpc.FlavorSys {
		user, ok := h.Sys()
		if !ok {
			return -1, nil, true
		}
		k.user = j.classOf(&user)
	}
	if b.asks[asksProgram] {
		k.program = h.Program
	}
	if b.asks[asksVersion] {
		k.version = h.Version
	}
	if b.asks[asksProcedure] {
		k.procedure = h.Procedure
	}
	if b.asks[asksFlavor] {
		k.flavor = flavorOf(h)
	}
	k.facts.Changes = x.Changes && b.asks[asksClass]
	if b.asks[asksExports] {
		k.facts.Touched = x.Touched
	}
	d := &j.decisions[k.hash()%judgedDecisions]
	if d.call == k {
		return int(d.ruling.rule), d.ruling.dry[:d.ruling.n], false
	}
	m := b.match(&k, &j.classes[k.user])
	dry = j.dry[:0]
	for rule = m.next(); rule >= 0 && !j.set.rules[rule].Decides(); rule = m.next() {
		dry = append(dry, uint8(rule))
	}
	if len(dry) <= judgedDry {
		*d = decision{call: k, ruling: newRuling(rule, dry)}
	}
	return rule, dry, false
}

// hash returns a number that differs where keys are likely to.
func (k *judgedCall) hash() uint32 {
	x := k.procedure ^ k.program<<8 ^ k.version<<16 ^ uint32(k.user)<<12 ^ uint32(k.flavor)<<24
	if k.facts.Changes {
		x = ^x
	}
	x ^= k.bound.salt ^ uint32(k.facts.Touched.May)*0x85ebca6b
	return x * 0x9e3779b1 >> 16
}

// classOf returns the class of user.
func (j *Judge) classOf(user *oncrpc.SysCredential) uint16 {
	ids := user.IDs()
	n := len(ids)
	x := binary.BigEndian.Uint32(ids)*0x9e3779b1 ^ binary.BigEndian.Uint32(ids[4:])*0x85ebca6b ^ binary.BigEndian.Uint32(ids[n-4:])*0xc2b2ae35
	u := &j.users[x>>16%judgedUsers]
	if string(ids) == string(u.ids[:u.n]) {
		return u.class
	}
	all := j.set.casesOfUser(user)
	class, ok := j.numbers[all]
	if !ok {
		if len(j.classes) == judgedClasses {
			j.forget()
		}
		class = uint16(len(j.classes))
		j.classes = append(j.classes, all)
		j.numbers[all] = class
	}
	u.n, u.class = uint8(copy(u.ids[:], ids)), class
	return class
}
