package show

import (
	"slices"
	"strings"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/status"
)

// Events is the table of the last events.
func (p Pair) Events() *Table {
	t := &Table{Sort: "ago", Columns: []Column{
		{Key: "ago", Name: "AGO", Help: "how long ago it happened"},
		{Key: "level", Name: "LEVEL", Help: "level of the log line", Left: true},
		{Key: "event", Name: "EVENT", Help: "what users can search the log for", Left: true, Rank: 2},
		{Key: "text", Name: "WHAT", Help: "the log line", Left: true, Flex: true},
	}}
	for i := range p.Now.Events {
		e := &p.Now.Events[i]
		ago := p.Now.Time.Sub(e.Time).Seconds()
		t.Rows = append(t.Rows, Row{{Text: Since(e.Time, p.Now.Time), Number: -ago}, levelCell(e.Level), text(e.Event), text(eventText(e))})
	}
	return t
}

func levelCell(level string) Cell {
	return text(level).as(Warn, level == "warn").as(Bad, level == "error" || level == "fatal")
}

// eventText is the line of an event with its fields.
func eventText(e *status.Event) string {
	var b strings.Builder
	b.WriteString(e.Text)
	keys := make([]string, 0, len(e.Fields))
	for k := range e.Fields {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		b.WriteString(" " + k + "=" + e.Fields[k])
	}
	if e.Repeated > 0 {
		b.WriteString(" (and " + Plural(e.Repeated, "line") + " like it)")
	}
	return b.String()
}

// clock formats a time of today without the date.
func clock(t, now time.Time) string {
	if t.YearDay() == now.YearDay() && t.Year() == now.Year() {
		return t.Format(time.TimeOnly)
	}
	return t.Format("2006-01-02 15:04")
}
