package show

import (
	"fmt"
	"strings"
)

// Rates says in one line how much passes now.
func (p Pair) Rates() Line {
	now := totalsOf(p.Now)
	var old totals
	if p.Before != nil {
		old = totalsOf(p.Before)
	}
	ph := p.phases(&now.phases, &old.phases)
	per := ""
	if p.Before != nil {
		per = "/s"
	}
	l := Line{
		{Count(p.rate(now.phases.Calls, old.phases.Calls)), Strong},
		{" Calls" + per + "  in ", Plain},
		{Bytes(p.rate(now.BytesIn, old.BytesIn)), Strong},
		{per + "  out ", Plain},
		{Bytes(p.rate(now.BytesOut, old.BytesOut)), Strong},
		{per + "  a Call ", Plain},
	}
	if ph.Calls == 0 {
		l = append(l, Span{"-", Dim})
	} else {
		l = append(l, Span{Duration(mean(ph.Total(), ph.Calls)), Strong}, Span{" ", Plain}, Span{bar(&ph), whereStyle(&ph)})
	}
	return append(l, Span{fmt.Sprintf("  %d in flight", now.inFlight), Plain})
}

// UpstreamLine says in one line how the upstreams are: credits in use of those granted, and Calls that
// wait.
func (p Pair) UpstreamLine() Line {
	l := Line{{"credits ", Plain}}
	for i := range p.Now.Upstreams {
		u := &p.Now.Upstreams[i]
		if i > 0 {
			l = append(l, Span{"  ", Plain})
		}
		state := stateCell(string(u.State))
		l = append(l, Span{Clean(u.Name) + " ", Plain}, Span{state.Text, state.Style})
		if u.Credits.Granted > 0 {
			c := creditsCell(&u.Credits)
			l = append(l, Span{" " + gauge(float64(u.Credits.Used)/float64(u.Credits.Granted), 8) + " ", Plain}, Span{c.Text, c.Style})
		}
		if u.Credits.Waiting > 0 {
			l = append(l, Span{fmt.Sprintf(" %d wait", u.Credits.Waiting), Warn})
		}
	}
	return l
}

// ClientLine says in one line how many clients there are, and how much of the memory of messages is in
// use.
func (p Pair) ClientLine() Line {
	m, now := &p.Now.Memory, totalsOf(p.Now)
	l := Line{{Plural(now.clients, "client"), Plain}}
	if s := few(now.paused); s != "" {
		l = append(l, Span{", not read from: " + s, Warn})
	}
	l = append(l, Span{"  memory ", Plain})
	if m.Budget > 0 {
		l = append(l, Span{gauge(float64(m.Used)/float64(m.Budget), 8) + " ", Plain})
	}
	l = append(l, Span{fmt.Sprintf("%s/%s", Bytes(float64(m.Used)), Bytes(float64(m.Budget))), Plain})
	waiting := m.Waiting
	for _, a := range m.Accounts {
		waiting += a.Waiting
		if a.Limit > 0 && a.Used > a.Limit/2 {
			l = append(l, Span{fmt.Sprintf("  %s %s", Clean(a.Name), Percent(float64(a.Used)/float64(a.Limit))), Warn})
		}
	}
	if waiting > 0 {
		l = append(l, Span{fmt.Sprintf("  %d wait", waiting), Warn})
	}
	return l
}

// gauge draws a share as a bar of that width.
func gauge(share float64, width int) string {
	n := min(width, max(0, int(share*float64(width)+0.5)))
	if share > 0 && n == 0 {
		n = 1
	}
	return "[" + strings.Repeat("#", n) + strings.Repeat("-", width-n) + "]"
}
