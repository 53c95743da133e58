package configs

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

// A Rule says what becomes of the Calls that match all its conditions. The first rule that matches counts. A
// condition that is left out holds always.
type Rule struct {
	Name string `mapstructure:"name"`

	// Conditions of the connection.
	Clients    []Prefix `mapstructure:"clients"`
	Proxies    []Prefix `mapstructure:"proxies"`    // of the proxy that has sent a PROXY header
	Identities []string `mapstructure:"identities"` // patterns of names in the client's certificate
	Privileged Switch   `mapstructure:"privileged"` // whether the client's port is below 1024

	// Conditions of the Call.
	Flavors    []string    `mapstructure:"flavors"`
	UIDs       []IDs       `mapstructure:"uids"`
	GIDs       []IDs       `mapstructure:"gids"`
	Programs   []Program   `mapstructure:"programs"`
	Versions   []uint32    `mapstructure:"versions"`
	Procedures []Procedure `mapstructure:"procedures"`
	Class      string      `mapstructure:"class"`
	Exports    []string    `mapstructure:"exports"` // paths, as MOUNT has them

	Action   string   `mapstructure:"action"`
	Rate     RuleRate `mapstructure:"rate"`     // with action limit
	Answer   string   `mapstructure:"answer"`   // with action deny
	Upstream string   `mapstructure:"upstream"` // with action upstream
	Squash   string   `mapstructure:"squash"`   // with the other actions; "": as the listener has it
	DryRun   Switch   `mapstructure:"dry_run"`
}

// A RuleRate is a limit per second of all Calls together that a rule matches. Zero means no limit.
type RuleRate struct {
	Calls int  `mapstructure:"calls"`
	Bytes Size `mapstructure:"bytes"` // of Calls and Replies together
}

// A Squash says which users of AUTH_SYS the bridge maps to another one.
type Squash struct {
	Mode string `mapstructure:"mode"` // SquashOff, SquashRoot or SquashAll
	UID  int    `mapstructure:"uid"`  // that the users are mapped to
	GID  int    `mapstructure:"gid"`  // that their groups are mapped to
}

// A Procedure is an RPC procedure as the file has it: a name such as MNT, or a number.
type Procedure string

// IDs is a user or a group, such as 0, or a range of them, such as 1000-1999, as the file has it.
type IDs string

// parseIDs parses a number or LOW-HIGH.
func parseIDs(s string) (IDs, error) {
	if _, _, err := IDs(s).split(); err != nil {
		return "", err
	}
	return IDs(s), nil
}

// Range returns the lowest and the highest number.
func (i IDs) Range() (low, high uint32) {
	low, high, _ = i.split()
	return low, high
}

func (i IDs) split() (low, high uint32, err error) {
	first, last, isRange := strings.Cut(string(i), "-")
	if !isRange {
		last = first
	}
	a, err1 := strconv.ParseUint(strings.TrimSpace(first), 10, 32)
	b, err2 := strconv.ParseUint(strings.TrimSpace(last), 10, 32)
	switch {
	case err1 != nil || err2 != nil:
		return 0, 0, fmt.Errorf("%q is neither a number nor a range; write one such as 0 or 1000-1999", string(i))
	case a > b:
		return 0, 0, fmt.Errorf("%q ends before it begins; write the lower number first", string(i))
	}
	return uint32(a), uint32(b), nil
}

// A Target is what Calls are for. An empty list has everything.
type Target struct{ Programs, Versions, Procedures []uint32 }

// An RPCProcedure is a procedure of a program that has a name.
type RPCProcedure struct{ Program, Version, Number uint32 }

// Targets returns what the Calls of r are for, one of them; nil for anything. A procedure that is named has
// other numbers in other versions, and so targets of its own.
func (k Known) Targets(r *Rule) ([]Target, error) {
	var programs, numbers []uint32
	for _, p := range r.Programs {
		n, err := k.ResolveProgram(p)
		if err != nil {
			return nil, err
		}
		programs = append(programs, n)
	}
	var all []Target
	for _, p := range r.Procedures {
		if n, err := strconv.ParseUint(string(p), 10, 32); err == nil {
			numbers = append(numbers, uint32(n))
			continue
		}
		if p == "NULL" {
			numbers = append(numbers, 0)
			continue
		}
		found := false
		for _, x := range k.procedures(string(p)) {
			if len(programs) > 0 && !slices.Contains(programs, x.Program) || len(r.Versions) > 0 && !slices.Contains(r.Versions, x.Version) {
				continue
			}
			found = true
			i := slices.IndexFunc(all, func(t Target) bool { return t.Programs[0] == x.Program && t.Procedures[0] == x.Number })
			if i >= 0 {
				all[i].Versions = append(all[i].Versions, x.Version)
				continue
			}
			all = append(all, Target{[]uint32{x.Program}, []uint32{x.Version}, []uint32{x.Number}})
		}
		if !found {
			return nil, fmt.Errorf("the rule's programs have no procedure %q; write a name such as MNT or WRITE, or a number. NFSv4 has the procedures NULL and COMPOUND; class is about its operations", string(p))
		}
	}
	if len(numbers) > 0 || len(r.Procedures) == 0 && len(programs)+len(r.Versions) > 0 {
		all = append(all, Target{programs, r.Versions, numbers})
	}
	return all, nil
}

// checkIdentity returns why a pattern of names in certificates is none.
func (k Known) checkIdentity(pattern string) error {
	if k.Identity == nil {
		return nil
	}
	return k.Identity(pattern)
}

// procedures returns the procedures of a name.
func (k Known) procedures(name string) []RPCProcedure {
	if k.Procedures == nil {
		return nil
	}
	return k.Procedures(name)
}

const (
	maxRules       = 128 // of a listener
	maxCases       = 256 // of the rules of a listener: package rules
	maxRuleExports = 63  // of the rules of a listener: nfs.MaxExports
)

// RuleExports returns the paths of exports that rules of l name, each once.
func (l *Listener) RuleExports() (paths []string) {
	for i := range l.Rules {
		for _, e := range l.Rules[i].Exports {
			paths = append(paths, path.Clean(e))
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// exportPath checks the path of an export.
func (r *report) exportPath(at, e string) {
	if !path.IsAbs(e) && !r.has(at) {
		r.addf(at, "%q is not the path of an export; write one such as /export/home, as showmount -e shows it", e)
	}
}

// validateRules checks each rule, and that Calls can reach it.
func (l *Listener) validateRules(path string, k Known, c *Config, r *report) {
	if len(l.Rules) > maxRules {
		r.addf(path, "there are %d rules; write at most %d", len(l.Rules), maxRules)
		return
	}
	names := make(map[string]int)
	all, cases := -1, 0
	for i := range l.Rules {
		x := &l.Rules[i]
		p := fmt.Sprintf("%s[%d]", path, i)
		if r.required(p+".name", x.Name, "read-only") {
			checkName(path, i, x.Name, names, r)
		}
		x.validate(p, l, k, c, r)
		if all >= 0 {
			r.addf(p, "no Call reaches this rule, because rules[%d] matches all Calls; remove one of the two", all)
		} else if x.matchesAll() && !r.has(p) {
			all = i
		}
		targets, _ := k.Targets(x)
		cases += max(1, len(targets))
	}
	if n := len(l.RuleExports()); n > maxRuleExports && !r.has(path) {
		r.addf(path, "the rules name %d exports; write at most %d", n, maxRuleExports)
	}
	if cases > maxCases && !r.has(path) {
		r.addf(path, "the rules name too many procedures, which have other numbers in other programs and versions; write programs and versions, or fewer procedures")
	}
}

// matchesAll reports whether x has no condition, and decides.
func (x *Rule) matchesAll() bool {
	return len(x.Clients)+len(x.Proxies)+len(x.Identities)+len(x.Flavors)+len(x.UIDs)+len(x.GIDs)+len(x.Programs)+len(x.Versions)+len(x.Procedures)+len(x.Exports) == 0 &&
		x.Privileged == 0 && x.Class == "" && x.DryRun != On && x.Action != ActionLimit
}

func (x *Rule) validate(path string, l *Listener, k Known, c *Config, r *report) {
	for _, list := range []string{"clients", "proxies", "identities", "flavors", "uids", "gids", "programs", "versions", "procedures", "exports"} {
		if p := path + "." + list; r.source.given(p) && !r.has(p) && x.isEmpty(list) {
			r.addf(p, "the list is empty; write at least one, or remove this setting, and the rule has no such condition")
		}
	}
	for i, f := range x.Flavors {
		r.oneOf(fmt.Sprintf("%s.flavors[%d]", path, i), f, FlavorNone, FlavorSys, FlavorKrb5, FlavorKrb5i, FlavorKrb5p)
	}
	if l.RDMA() {
		r.needs(path, "transport tcp", "proxies", "identities")
	} else if !l.TLS.On() || l.TLS.Client.Mode == TLSClientNone {
		r.needs(path, "tls.client.mode request or require", "identities")
	}
	for i, n := range x.Identities {
		if err := k.checkIdentity(n); err != nil {
			r.addf(fmt.Sprintf("%s.identities[%d]", path, i), "%v", err)
		}
	}
	r.oneOf(path+".class", x.Class, ClassReading, ClassChanging)
	if r.required(path+".action", x.Action, ActionDeny) {
		r.oneOf(path+".action", x.Action, ActionAllow, ActionDeny, ActionUpstream, ActionLimit)
	}
	if x.Action != ActionDeny {
		r.needs(path, "action deny", "answer")
	}
	for i, e := range x.Exports {
		r.exportPath(fmt.Sprintf("%s.exports[%d]", path, i), e)
	}
	if x.Action == ActionUpstream && len(x.Exports) > 0 && (len(x.Versions) == 0 || slices.Contains(x.Versions, 4)) {
		r.addf(path+".exports", "a client of NFSv4 has all its state at one server, and finds exports below the root of that one; write versions: [3] beside, or leave the exports out")
	}
	r.oneOf(path+".answer", x.Answer, AnswerAuth, AnswerReadOnly, AnswerUnavailable, AnswerClose)
	if x.Answer == AnswerReadOnly && x.Class != ClassChanging {
		r.addf(path+".answer", "read_only needs class changing; write that, or another answer")
	}
	r.oneOf(path+".squash", x.Squash, SquashOff, SquashRoot, SquashAll)
	if x.Action == ActionDeny || x.Action == ActionLimit {
		r.needs(path, "action allow or upstream", "squash")
	}
	x.validateRate(path, r)
	switch {
	case x.Action != ActionUpstream:
		r.needs(path, "action upstream", "upstream")
	case r.required(path+".upstream", x.Upstream, "storage"):
		c.checkUpstream(path+".upstream", x.Upstream, r)
	}
	if _, err := k.Targets(x); err != nil && !r.has(path+".programs") && !r.has(path+".procedures") {
		at := ".procedures"
		if slices.ContainsFunc(x.Programs, func(p Program) bool { _, err := k.ResolveProgram(p); return err != nil }) {
			at = ".programs"
		}
		r.addf(path+at, "%v", err)
	}
}

// validateRate checks what bounds the rate of Calls.
func (x *Rule) validateRate(path string, r *report) {
	switch {
	case x.Action != ActionLimit:
		r.needs(path, "action limit", "rate")
	case x.Rate == (RuleRate{}) && !r.has(path+".rate"):
		r.addf(path+".rate", "this setting is required; write it, such as rate: {calls: 1000}, or rate: {bytes: 100MiB}")
	}
	(&Rate{Calls: x.Rate.Calls, Bytes: x.Rate.Bytes}).validate(path+".rate", r)
}

// squashes reports whether the listener maps users for some Calls.
func (l *Listener) squashes() bool {
	maps := func(mode string) bool { return mode == SquashRoot || mode == SquashAll }
	return maps(l.Squash.Mode) || slices.ContainsFunc(l.Rules, func(x Rule) bool { return maps(x.Squash) })
}

const maxID = 1<<32 - 1

func (s *Squash) validate(path string, l *Listener, r *report) {
	r.oneOf(path+".mode", s.Mode, SquashOff, SquashRoot, SquashAll)
	r.atMost(path+".uid", s.UID, maxID)
	r.atMost(path+".gid", s.GID, maxID)
	if !l.squashes() && !r.has(path) {
		r.needs(path, "mode root or all, or a rule with such a squash", "uid", "gid")
	}
}

// isEmpty reports whether one of the lists of x, by its name, is empty.
func (x *Rule) isEmpty(list string) bool {
	return map[string]int{
		"clients": len(x.Clients), "identities": len(x.Identities), "proxies": len(x.Proxies), "flavors": len(x.Flavors), "uids": len(x.UIDs), "gids": len(x.GIDs),
		"programs": len(x.Programs), "versions": len(x.Versions), "procedures": len(x.Procedures), "exports": len(x.Exports),
	}[list] == 0
}

// warnRules warns of a rule that denies procedures by name, where NFSv4 has other means to the same end.
func (l *Listener) warnRules(path string, k Known, w *report) {
	for i := range l.Rules {
		x := &l.Rules[i]
		if x.Action != ActionDeny || len(x.Procedures) == 0 || len(x.Versions) > 0 && !slices.Contains(x.Versions, 4) {
			continue
		}
		targets, err := k.Targets(x)
		nfs, _ := k.ResolveProgram("nfs")
		if err != nil || !slices.ContainsFunc(targets, func(t Target) bool { return slices.Contains(t.Programs, nfs) }) ||
			slices.ContainsFunc(targets, func(t Target) bool { return slices.Contains(t.Versions, 4) }) {
			continue
		}
		w.addf(fmt.Sprintf("%s[%d].procedures", path, i), "Calls of NFSv4 do not match, because all its operations are in the procedure COMPOUND; write class: changing to deny what changes files, or versions: [2, 3] if this is meant")
	}
}
