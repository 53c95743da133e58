package show

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/rdmabridge/rdmabridge/internal/status"
)

// The most lines of the parts of Stats that may be long.
const (
	mostOperations = 6
	mostEvents     = 6
	mostOfMany     = 12
)

// Stats is the document in words: what is wrong first, and on one screen.
func (p Pair) Stats() []Line {
	d := p.Now
	lines := p.Title()
	s := "started " + d.Started.UTC().Format("2006-01-02 15:04:05 UTC")
	if d.Config.File != "" {
		s += fmt.Sprintf(" with %s, loaded %s ago", d.Config.File, Since(d.Config.Loaded, d.Time))
	} else {
		s += " without a configuration file"
	}
	if d.Config.RestartNeeded {
		s += "; it has settings that take effect only after a restart"
	}
	lines = append(lines, plain(s))
	if h := d.Hardening; len(h.InForce)+len(h.Missing) > 0 {
		s := "restricted: " + cmp.Or(strings.Join(h.InForce, ", "), "nothing")
		if len(h.Missing) > 0 {
			s += "; not " + strings.Join(h.Missing, "; not ")
		}
		lines = append(lines, plain(s))
	}
	lines = append(lines, nil)
	lines = append(lines, Problems(d, true)...)
	lines = append(lines, nil, p.traffic())
	section := func(head string, body []Line) {
		if len(body) > 0 {
			lines = append(lines, nil, Line{{head, Strong}})
			lines = append(lines, body...)
		}
	}
	section("Listeners", p.listeners())
	section("Rules", p.rules())
	section("Tenants", p.tenants())
	section("Locks of NFSv3", p.locks())
	section("Upstreams", p.upstreamsInWords())
	section(fmt.Sprintf("Operations, those first that use most time (WHERE: %s)", LegendOfBar), p.busiest())
	section("Memory of messages", []Line{memoryLine(&d.Memory)})
	section("Last events", p.lastEvents())
	return lines
}

func plain(s string) Line { return Line{{Clean(s), Plain}} }

// Title is the first line: which process it is, and how it is.
func (p Pair) Title() []Line {
	d := p.Now
	state, style := strings.ReplaceAll(string(d.State), "_", " "), Good
	if d.State != status.Ready {
		style = Bad
		if d.NotReady != "" {
			state += ": " + d.NotReady
		}
	}
	return []Line{{
		{Clean(fmt.Sprintf("rdmabridge %s, process %d, up %s: ", d.Build.Version, d.Process, Since(d.Started, d.Time))), Strong},
		{Clean(state), style},
	}}
}

// Problems says what is wrong, and with advice what to do.
func Problems(d *status.Document, advice bool) []Line {
	if len(d.Problems) == 0 {
		return []Line{{{"No problems.", Good}}}
	}
	var lines []Line
	for i := range d.Problems {
		pr := &d.Problems[i]
		style := Plain
		switch pr.Severity {
		case status.Critical:
			style = Bad
		case status.Warning:
			style = Warn
		}
		lines = append(lines, Line{{fmt.Sprintf("%-8s ", strings.ToUpper(string(pr.Severity))), style}, {Clean(pr.Text), Plain}})
		if advice && pr.Advice != "" {
			lines = append(lines, Line{{"         " + Clean(pr.Advice), Dim}})
		}
	}
	return lines
}

// Totals of all listeners and of all clients together.
type totals struct {
	status.Traffic
	phases   status.Phases
	inFlight int
	clients  int
	paused   map[string]int
}

func totalsOf(d *status.Document) totals {
	t := totals{paused: make(map[string]int)}
	for i := range d.Listeners {
		l := &d.Listeners[i]
		t.BytesIn += l.BytesIn
		t.BytesOut += l.BytesOut
		t.inFlight += l.InFlight
		t.clients += l.Clients
		for why, n := range l.Paused {
			t.paused[why] += n
		}
	}
	for i := range d.Operations {
		t.phases.Add(&d.Operations[i].Phases)
	}
	return t
}

// traffic says how much passes, and where the time of Calls goes.
func (p Pair) traffic() Line {
	now := totalsOf(p.Now)
	var old totals
	if p.Before != nil {
		old = totalsOf(p.Before)
	}
	ph := p.phases(&now.phases, &old.phases)
	per, when := "", "since the start"
	if p.Before != nil {
		per, when = " a second", "in the last "+Duration(p.seconds())
	}
	return plain(fmt.Sprintf("%s Calls%s, %s in and %s out%s, %s. %s", Count(p.rate(now.phases.Calls, old.phases.Calls)), per,
		Size(p.rate(now.BytesIn, old.BytesIn)), Size(p.rate(now.BytesOut, old.BytesOut)), per, when, timeOf(&ph)))
}

// timeOf says how long Calls take and where that time goes.
func timeOf(ph *status.Phases) string {
	if ph.Calls == 0 || ph.Total() <= 0 {
		return "No Call was answered."
	}
	part := func(x float64) string { return Percent(x / ph.Total()) }
	return fmt.Sprintf("A Call takes %s: %s admission, %s waiting for a credit, %s server and network, %s until the client has read the Reply.",
		Duration(mean(ph.Total(), ph.Calls)), part(ph.Admission), part(ph.Credit), part(ph.Server), part(ph.Client))
}

// few says how many there are of each kind: "2 (calls 1, outbound 1)".
func few(m map[string]int) string {
	keys := make([]string, 0, len(m))
	total := 0
	for k, n := range m {
		if n != 0 {
			keys = append(keys, k)
			total += n
		}
	}
	if total == 0 {
		return ""
	}
	slices.Sort(keys)
	var parts []string
	for _, k := range keys {
		parts = append(parts, fmt.Sprintf("%s %d", k, m[k]))
	}
	return fmt.Sprintf("%d (%s)", total, strings.Join(parts, ", "))
}

func (p Pair) listeners() []Line {
	t := &Table{Columns: []Column{{Left: true}, {Left: true}, {Left: true}, {Left: true}}}
	for i := range p.Now.Listeners {
		l := &p.Now.Listeners[i]
		parts := []string{fmt.Sprintf("%s (of at most %d)", Plural(l.Clients, "connection"), l.Limit), fmt.Sprintf("%d Calls in flight", l.InFlight)}
		if s := few(l.Paused); s != "" {
			parts = append(parts, "not read from: "+s)
		}
		refused := make(map[string]int)
		for why, n := range l.Refused {
			refused[why] = int(n)
		}
		if s := few(refused); s != "" {
			parts = append(parts, "refused or closed so far: "+s)
		}
		c := text(strings.Join(parts, ", "))
		if l.Unreachable != "" {
			c = text("does not accept connections: "+l.Unreachable).as(Bad, true)
		}
		t.Rows = append(t.Rows, Row{text("  " + l.Name), text(l.Transport), text(l.Address), c})
	}
	return bounded(t.Lines(0, "")[1:])
}

// rules says how many Calls each rule has matched.
func (p Pair) rules() []Line {
	t := &Table{Columns: []Column{{Left: true}, {Left: true}, {}, {Left: true}, {Left: true}}}
	for i := range p.Now.Listeners {
		l := &p.Now.Listeners[i]
		for k := range l.Rules {
			r := &l.Rules[k]
			latest := "none since the rules were loaded"
			if r.Latest != nil {
				latest = "latest " + Duration(max(0, p.Now.Time.Sub(*r.Latest)).Seconds()) + " ago"
			}
			effect := r.Effect
			if r.Waiting > 0 {
				effect += "; " + Plural(uint64(r.Waiting), "client") + " over it"
			}
			t.Rows = append(t.Rows, Row{text("  " + l.Name), text(r.Name), text(Plural(r.Calls, "Call")), text(latest), text(effect)})
		}
	}
	return bounded(t.Lines(0, "")[1:])
}

// tenants says what each tenant uses of what it may.
func (p Pair) tenants() []Line {
	t := &Table{Columns: []Column{{Left: true}, {Left: true}}}
	for i := range p.Now.Tenants {
		n := &p.Now.Tenants[i]
		of := func(s string, most int64, format func(float64) string) string {
			if most > 0 {
				s += " of at most " + format(float64(most))
			}
			return s
		}
		parts := []string{
			of(Plural(n.Clients, "connection"), int64(n.Total.Connections), Count) + " from " + Plural(n.Addresses, "address"),
			of(Plural(n.InFlight, "Call")+" in flight", int64(n.Total.Calls), Count),
			of(Size(float64(n.Memory)), n.Total.Memory, Size),
		}
		if s := few(n.Waiting); s != "" {
			parts = append(parts, "not read from: "+s)
		}
		refused := make(map[string]int)
		for why, n := range n.Refused {
			refused[why] = int(n)
		}
		if s := few(refused); s != "" {
			parts = append(parts, "refused so far: "+s)
		}
		t.Rows = append(t.Rows, Row{text("  " + n.Name), text(strings.Join(parts, ", "))})
	}
	if len(t.Rows) == 0 {
		return nil
	}
	return bounded(t.Lines(0, "")[1:])
}

// locks says what clients of the lock manager have.
func (p Pair) locks() []Line {
	l := p.Now.Locks
	if l == nil {
		return nil
	}
	lines := []Line{plain(fmt.Sprintf("  %d held and %d waited for, of %s, at %s", l.Held, l.Waiting, Plural(l.Clients, "client"), l.Server))}
	for i := range l.Most {
		c := &l.Most[i]
		lines = append(lines, plain(fmt.Sprintf("  %s: %d held, %d waited for", c.Address, c.Held, c.Waiting)))
	}
	return bounded(lines)
}

func (p Pair) upstreamsInWords() []Line {
	t := &Table{Columns: []Column{{Left: true}, {Left: true}, {Left: true}}}
	for u, b := range status.Beside(p.Now.Upstreams, p.before().Upstreams, (*status.Upstream).Key) {
		t.Rows = append(t.Rows, Row{text("  " + u.Name), stateCell(string(u.State)), text(p.upstreamInWords(u, b))})
	}
	return bounded(t.Lines(0, "")[1:])
}

func (p Pair) upstreamInWords(u, b *status.Upstream) string {
	parts := []string{fmt.Sprintf("%d of %s", u.Usable, Plural(u.Wanted, "connection"))}
	if u.Asleep > 0 {
		parts = append(parts, fmt.Sprintf("%d asleep", u.Asleep))
	}
	if u.DownSince != nil {
		parts = append(parts, "down for "+Since(*u.DownSince, p.Now.Time))
	}
	if u.Credits.Granted > 0 {
		parts = append(parts, fmt.Sprintf("%d of %d credits used", u.Credits.Used, u.Credits.Granted))
	}
	if u.Credits.Waiting > 0 {
		parts = append(parts, Plural(u.Credits.Waiting, "Call")+" waiting")
	}
	for _, e := range u.Endpoints {
		if e.State == status.EndpointEjected {
			parts = append(parts, e.Address+" ejected")
		}
	}
	if u.OldestCall >= 1 {
		parts = append(parts, "oldest Call "+Duration(u.OldestCall))
	}
	if share, ok := p.lost(u.TCP, b.TCP); ok && share >= 0.001 {
		parts = append(parts, Percent(share)+" of segments lost")
	}
	if ph := p.phases(&u.Phases, &b.Phases); ph.Calls > 0 {
		parts = append(parts, fmt.Sprintf("a Call takes %s there", Duration(mean(ph.Server, ph.Calls))))
	}
	if u.LastError != "" && u.State != status.Up {
		parts = append(parts, "last error: "+u.LastError)
	}
	return strings.Join(parts, ", ")
}

// bounded leaves out lines beyond those that fit one screen.
func bounded(lines []Line) []Line {
	if len(lines) > mostOfMany {
		more := len(lines) - mostOfMany
		lines = append(lines[:mostOfMany:mostOfMany], plain(fmt.Sprintf("  and %d more", more)))
	}
	return lines
}

// busiest is the table of the operations that use most time.
func (p Pair) busiest() []Line {
	t := p.Operations()
	t.SortBy("load", false)
	i := t.Column("calls")
	t.Rows = slices.DeleteFunc(t.Rows, func(r Row) bool { return r[i].Number == 0 })
	if len(t.Rows) == 0 {
		return nil
	}
	t.Rows = t.Rows[:min(mostOperations, len(t.Rows))]
	var keep []int
	for _, key := range []string{"operation", "listener", "upstream", "calls", "in", "out", "time", "where", "p99", "flight", "failed"} {
		keep = append(keep, t.Column(key))
	}
	small := new(Table)
	for _, i := range keep {
		small.Columns = append(small.Columns, t.Columns[i])
	}
	for _, r := range t.Rows {
		var row Row
		for _, i := range keep {
			row = append(row, r[i])
		}
		row[0].Text = "  " + row[0].Text
		small.Rows = append(small.Rows, row)
	}
	small.Columns[0].Name = "  " + small.Columns[0].Name
	return small.Lines(0, "")
}

func memoryLine(m *status.Memory) Line {
	s := fmt.Sprintf("  %s of %s used", Size(float64(m.Used)), Size(float64(m.Budget)))
	for _, a := range m.Accounts {
		if a.Used == 0 && a.Waiting == 0 {
			continue
		}
		s += fmt.Sprintf("; %s %s of %s", a.Name, Size(float64(a.Used)), Size(float64(a.Limit)))
		if a.Waiting > 0 {
			s += fmt.Sprintf(" (%s waiting)", Plural(a.Waiting, "connection"))
		}
	}
	if m.Waiting > 0 {
		s += "; " + Plural(m.Waiting, "connection") + " waiting for memory"
	}
	return plain(s)
}

func (p Pair) lastEvents() []Line {
	var lines []Line
	for i := range p.Now.Events[:min(mostEvents, len(p.Now.Events))] {
		e := &p.Now.Events[i]
		c := levelCell(e.Level)
		lines = append(lines, Line{{"  " + clock(e.Time, p.Now.Time) + " ", Dim}, {fmt.Sprintf("%-5s ", c.Text), c.Style}, {Clean(eventText(e)), Plain}})
	}
	return lines
}
