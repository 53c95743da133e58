package explain

import (
	"net/netip"

	"github.com/rdmabridge/rdmabridge/internal/capture"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rules"
)

// Rules are those of the listener that would have read the Calls.
type Rules struct {
	Listener string
	Port     uint16 // of the listener: Calls of a capture that go to other ports are not its Calls; 0: all are
	Set      *rules.Set
	// Client is who makes the Calls. If it has no address, the sender in the capture makes them.
	Client rules.Client
}

// A ruled is what the rules of a listener say of a Call.
type ruled struct {
	Listener string        `json:"listener"`
	Client   string        `json:"client"`
	Effect   string        `json:"effect"` // of the rule that decides, or allow
	Rules    []ruleVerdict `json:"rules"`
}

// A ruleVerdict is what one rule says of a Call.
type ruleVerdict struct {
	Number  int    `json:"number"`
	Name    string `json:"name"`
	Matches bool   `json:"matches"`
	Why     string `json:"why,omitempty"` // it does not match
	Effect  string `json:"effect"`
}

// judge says what the rules say of the Call h, which came in m. It returns nil if m did not go to the listener, or
// if nobody knows who sent it.
func (r *Rules) judge(m *capture.Message, h *oncrpc.Call, changes bool) *ruled {
	c := r.Client
	if !c.Address.IsValid() {
		if m.Stream == nil || r.Port != 0 && m.Stream.To.Port() != r.Port {
			return nil
		}
		c.Address, c.Port = m.Stream.From.Addr().Unmap(), m.Stream.From.Port()
	}
	d := &ruled{Listener: r.Listener, Client: c.Address.String(), Effect: "allow, because no rule matches"}
	if c.Port != 0 {
		d.Client = netip.AddrPortFrom(c.Address, c.Port).String()
	}
	for i, v := range r.Set.ExplainCall(&c, h, rules.Facts{Changes: changes, Touched: rules.UnknownExports}) {
		d.Rules = append(d.Rules, ruleVerdict{Number: i, Name: v.Rule.Name, Matches: v.Matches(), Why: v.Fails, Effect: v.Rule.Effect()})
		if v.Matches() && v.Rule.Decides() {
			d.Effect = v.Rule.Effect()
		}
	}
	return d
}
