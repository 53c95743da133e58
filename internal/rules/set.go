package rules

import (
	"fmt"
	"math/bits"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
)

// maxCases is how many cases a Set may have.
const maxCases = 256

// A cases is a set of the cases of a Set, by their numbers. A rule has a case for each of its targets,
// and at least one. The cases of a rule are neighbours, and those of earlier rules come first.
type cases [maxCases / 64]uint64

func (c *cases) add(i int)      { c[i/64] |= 1 << (i % 64) }
func (c *cases) has(i int) bool { return c[i/64]>>(i%64)&1 != 0 }

func (c *cases) keep(o *cases) {
	for i := range c {
		c[i] &= o[i]
	}
}

// keepIf removes the cases for which f is false.
func (c *cases) keepIf(f func(i int) bool) {
	for w := range c {
		for rest := c[w]; rest != 0; rest &= rest - 1 {
			if i := bits.TrailingZeros64(rest); !f(64*w + i) {
				c[w] &^= 1 << i
			}
		}
	}
}

// first returns the lowest case, or -1.
func (c *cases) first() int {
	for i, w := range c {
		if w != 0 {
			return 64*i + bits.TrailingZeros64(w)
		}
	}
	return -1
}

// drop removes the cases up to i.
func (c *cases) drop(i int) {
	for w := range c {
		switch {
		case w < i/64:
			c[w] = 0
		case w == i/64:
			c[w] &^= 1<<(i%64+1) - 1
		}
	}
}

// meets reports whether c and o have a case in common.
func (c *cases) meets(o *cases) bool {
	for i := range c {
		if c[i]&o[i] != 0 {
			return true
		}
	}
	return false
}

// A Set has the rules of a listener, compiled. It is constant.
type Set struct {
	rules []Rule
	of    []int // the rule of each case
	last  []int // the last case of each rule

	programs, versions, procedures, uids, gids table
	flavors                                    [flavors]cases
	classes                                    [2]cases // by whether the Call changes files
	asks                                       [conditions]cases
	nobody                                     cases // that have no condition of users
	final                                      cases // that match every Call and end the search
}

// The conditions of Calls.
const (
	asksProgram = iota
	asksVersion
	asksProcedure
	asksUID
	asksGID
	asksFlavor
	asksClass
	asksExports
	conditions
)

// Compile makes a Set of rules, which it keeps.
func Compile(rules []Rule) (*Set, error) {
	s := &Set{rules: rules}
	var targets []Target
	for i, r := range rules {
		all := r.Targets
		if len(all) == 0 {
			all = []Target{{}}
		}
		for _, t := range all {
			s.of = append(s.of, i)
			targets = append(targets, t)
		}
		s.last = append(s.last, len(s.of)-1)
	}
	if len(s.of) > maxCases {
		return nil, fmt.Errorf("rules: the rules have %d cases, of programs and named procedures; at most %d are possible", len(s.of), maxCases)
	}
	single := func(values []uint32) (ranges []Range) {
		for _, v := range values {
			ranges = append(ranges, Range{v, v})
		}
		return ranges
	}
	n := len(s.of)
	s.programs = newTable(n, func(i int) []Range { return single(targets[i].Programs) })
	s.versions = newTable(n, func(i int) []Range { return single(targets[i].Versions) })
	s.procedures = newTable(n, func(i int) []Range { return single(targets[i].Procedures) })
	s.uids = newTable(n, func(i int) []Range { return rules[s.of[i]].UIDs })
	s.gids = newTable(n, func(i int) []Range { return rules[s.of[i]].GIDs })
	s.nobody = s.uids.none
	s.nobody.keep(&s.gids.none)
	for i, t := range targets {
		r := &rules[s.of[i]]
		asks := [conditions]bool{
			len(t.Programs) > 0, len(t.Versions) > 0, len(t.Procedures) > 0,
			len(r.UIDs) > 0, len(r.GIDs) > 0, len(r.Flavors) > 0, r.Class != AnyClass, r.Exports != 0,
		}
		for k, asked := range asks {
			if asked {
				s.asks[k].add(i)
			}
		}
		if asks == [conditions]bool{} && r.Decides() {
			s.final.add(i)
		}
		for f := range flavors {
			if r.hasFlavor(f) {
				s.flavors[f].add(i)
			}
		}
		if r.Class != Changing {
			s.classes[0].add(i)
		}
		if r.Class != Reading {
			s.classes[1].add(i)
		}
	}
	return s, nil
}

// Rules returns the rules. The caller must not change them.
func (s *Set) Rules() []Rule { return s.rules }

// A Bound has the rules of a Set that can match the Calls of some connections. It is constant.
type Bound struct {
	set    *Set
	cases  cases
	asks   [conditions]bool
	always int    // the rule that matches every Call; -1: there is none
	salt   uint32 // of the hashes of Calls
}

// casesOf returns the cases that can match Calls of c.
func (s *Set) casesOf(c *Client) (all cases) {
	for i, r := range s.of {
		if !s.rules[r].matches(c) {
			continue
		}
		all.add(i)
		if s.final.has(i) {
			break // later rules match nothing that this one does not
		}
	}
	return all
}

// bound makes the Bound of the connections whose Calls all can match.
func (s *Set) bound(all cases) *Bound {
	b := &Bound{set: s, cases: all, always: -1}
	if i := all.first(); i >= 0 && s.final.has(i) {
		b.always = s.of[i]
	}
	for k := range b.asks {
		b.asks[k] = all.meets(&s.asks[k])
	}
	for _, w := range all {
		b.salt = (b.salt ^ uint32(w) ^ uint32(w>>32)) * 0x9e3779b1
	}
	return b
}

// Set returns the Set that b is bound to.
func (b *Bound) Set() *Set { return b.set }

// Always returns the rule that matches every Call of the connection, and is the first that does. ok is false
// when the Call has to be looked at.
func (b *Bound) Always() (rule int, ok bool) { return b.always, b.always >= 0 }

// asksUser reports whether a rule needs the credential of AUTH_SYS.
func (b *Bound) asksUser() bool { return b.asks[asksUID] || b.asks[asksGID] }

// A match is the cases that match a Call, without those that next has returned.
type match struct {
	cases cases
	set   *Set
}

// match evaluates the conditions of the Call of k, of which user is the cases in which the conditions of its
// user hold.
func (b *Bound) match(k *judgedCall, user *cases) match {
	s := b.set
	m := match{set: s, cases: b.cases}
	if b.asks[asksProgram] {
		m.cases.keep(s.programs.at(k.program))
	}
	if b.asks[asksVersion] {
		m.cases.keep(s.versions.at(k.version))
	}
	if b.asks[asksProcedure] {
		m.cases.keep(s.procedures.at(k.procedure))
	}
	if b.asks[asksFlavor] {
		m.cases.keep(&s.flavors[k.flavor])
	}
	if b.asks[asksClass] {
		i := 0
		if k.facts.Changes {
			i = 1
		}
		m.cases.keep(&s.classes[i])
	}
	if b.asks[asksExports] {
		m.cases.keepIf(func(i int) bool { return s.rules[s.of[i]].concerns(&k.facts.Touched) })
	}
	if b.asksUser() {
		m.cases.keep(user)
	}
	return m
}

// casesOfUser returns the cases in which the conditions of uids and gids hold for user.
func (s *Set) casesOfUser(user *oncrpc.SysCredential) cases {
	all := s.gids.none
	for i := range user.Groups() {
		for w, c := range s.gids.at(user.Group(i)) {
			all[w] |= c
		}
	}
	all.keep(s.uids.at(user.UID()))
	return all
}

// next returns the next rule that matches, or -1 after the last.
func (m *match) next() int {
	i := m.cases.first()
	if i < 0 {
		return -1
	}
	r := m.set.of[i]
	m.cases.drop(m.set.last[r])
	return r
}
