package translate

import (
	"path"
	"slices"
	"strings"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/rules"
	"github.com/rdmabridge/rdmabridge/internal/tlsconf"
)

var (
	ruleFlavors = map[string]rules.Flavor{
		configs.FlavorNone: rules.FlavorNone, configs.FlavorSys: rules.FlavorSys,
		configs.FlavorKrb5: rules.FlavorKrb5, configs.FlavorKrb5i: rules.FlavorKrb5i, configs.FlavorKrb5p: rules.FlavorKrb5p,
	}
	ruleClasses  = map[string]rules.Class{configs.ClassReading: rules.Reading, configs.ClassChanging: rules.Changing}
	rulePorts    = map[configs.Switch]rules.Port{configs.On: rules.PrivilegedPort, configs.Off: rules.UnprivilegedPort}
	ruleActions  = map[string]rules.Action{configs.ActionAllow: rules.Allow, configs.ActionDeny: rules.Deny, configs.ActionUpstream: rules.Route, configs.ActionLimit: rules.Limit}
	ruleSquashes = map[string]rules.Squash{
		configs.SquashOff: rules.SquashOff, configs.SquashRoot: rules.SquashRoot, configs.SquashAll: rules.SquashAll,
	}
	ruleAnswers = map[string]rules.Answer{
		configs.AnswerAuth: rules.AnswerAuth, configs.AnswerReadOnly: rules.AnswerReadOnly,
		configs.AnswerUnavailable: rules.AnswerUnavailable, configs.AnswerClose: rules.AnswerClose,
	}
)

// Rules translates the rules of a listener for package rules.
func Rules(l *configs.Listener) (all []rules.Rule, err error) {
	exports := l.RuleExports()
	for i := range l.Rules {
		x := &l.Rules[i]
		r := rules.Rule{
			Name: x.Name, Clients: Prefixes(x.Clients), Proxies: Prefixes(x.Proxies), Privileged: rulePorts[x.Privileged],
			UIDs: idRanges(x.UIDs), GIDs: idRanges(x.GIDs), Class: ruleClasses[x.Class],
			Action: ruleActions[x.Action], Answer: ruleAnswers[x.Answer], Upstream: x.Upstream, Rate: rules.Rate{Calls: x.Rate.Calls, Octets: int64(x.Rate.Bytes)}, Squash: ruleSquashes[x.Squash], DryRun: x.DryRun == configs.On,
		}
		for _, e := range x.Exports {
			r.Exports |= 1 << slices.Index(exports, path.Clean(e))
		}
		r.Names = strings.Join(x.Exports, ", ")
		for _, n := range x.Identities {
			p, err := tlsconf.ParsePattern(n)
			if err != nil {
				return nil, err
			}
			r.Identities = append(r.Identities, p)
		}
		for _, f := range x.Flavors {
			r.Flavors = append(r.Flavors, ruleFlavors[f])
		}
		targets, err := Known.Targets(x)
		if err != nil {
			return nil, err
		}
		for _, t := range targets {
			r.Targets = append(r.Targets, rules.Target(t))
		}
		all = append(all, r)
	}
	return all, nil
}

func idRanges(ids []configs.IDs) (all []rules.Range) {
	for _, i := range ids {
		low, high := i.Range()
		all = append(all, rules.Range{Low: low, High: high})
	}
	return all
}
