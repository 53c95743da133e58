package top

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/rdmabridge/rdmabridge/internal/show"
	"github.com/rdmabridge/rdmabridge/internal/status"
)

// A view is one of the tables.
type view struct {
	name  string
	help  string
	table func(show.Pair) *show.Table
}

var views = []view{
	{"clients", "hosts, with all their connections", show.Pair.Clients},
	{"operations", "kinds of Calls", show.Pair.Operations},
	{"connections", "connections of clients", show.Pair.Connections},
	{"upstreams", "servers", show.Pair.Upstreams},
	{"links", "connections to upstreams", show.Pair.Links},
	{"events", "what happened last", show.Pair.Events},
	{"exports", "what clients mount", show.Pair.Exports},
	{"files", "files that are used most", show.Pair.Files},
	{"export-clients", "clients of exports", show.Pair.ExportClients},
}

// firstNames is the index of the first view of names, which few bridges learn: names.mode. They are hidden until one
// of them is chosen.
const firstNames = 6

// links is the index of the view that needs the connections of upstreams.
const links = 4

// intervals are those that + and - choose.
var intervals = []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second, time.Minute}

// maxFilter bounds what is typed as a filter.
const maxFilter = 64

// A model is what is shown. One goroutine uses it.
type model struct {
	view     int
	sort     []string // of each view: the key of a column
	reverse  []bool   // of each view
	filter   string
	interval time.Duration
	clients  int
	namesOf  string // the one export that the views of names are about; "" for all
	minutes  int    // how long they are about

	scroll int  // rows of the table, or lines of the help, above the screen
	help   bool // instead of the table
	paused bool
	typing bool   // of the filter
	typed  string // so far

	now, before   *status.Document
	pair          show.Pair // what is shown: while paused it stays
	err           error     // of the last attempt to get a document
	width, height int       // of the last frame
	rows          int       // of the last frame that can be scrolled
}

func newModel(o Options) *model {
	m := &model{interval: o.Interval, filter: o.Filter, clients: o.Clients, namesOf: o.NamesOf, minutes: o.Minutes, sort: make([]string, len(views)), reverse: make([]bool, len(views)), width: usualWidth, height: usualHeight}
	empty := show.Pair{Now: new(status.Document)}
	for i, v := range views {
		m.sort[i] = v.table(empty).Sort
		if v.name == o.View {
			m.view = i
			if o.Sort != "" {
				m.sort[i] = o.Sort
			}
			m.reverse[i] = o.Reverse
		}
	}
	return m
}

// query returns what to ask the bridge for.
func (m *model) query() status.Query {
	q := status.Query{Clients: m.clients, Connections: m.view == links, Names: m.view >= firstNames, NamesOf: m.namesOf, Minutes: m.minutes}
	if m.now != nil && m.now.Clients.Shown < m.now.Clients.Total {
		q.Filter = m.filter // the bridge leaves some out: not those that are looked for
	}
	return q
}

// update takes a new document, or the reason why there is none.
func (m *model) update(d *status.Document, err error) {
	m.err = err
	if err != nil {
		return
	}
	// A document that came early, because another view was chosen, does not shorten the time over which
	// rates are.
	if m.now == nil || d.Time.Sub(m.now.Time) >= m.interval/2 || d.Process != m.now.Process {
		m.before = m.now
	}
	m.now = d
	if !m.paused || m.pair.Now == nil {
		m.pair = show.NewPair(m.now, m.before)
	}
}

// What a key asks the caller to do.
type request int

const (
	nothing request = iota
	quit
	suspend
	redraw
	ask // for a document at once
)

// key obeys a key.
func (m *model) key(k key) request {
	switch k {
	case keyCtrlC:
		return quit
	case keyCtrlZ:
		return suspend
	case keyCtrlL:
		return redraw
	}
	if m.typing {
		return m.typeFilter(k)
	}
	if k >= '1' && int(k-'1') < len(views) {
		return m.choose(int(k - '1'))
	}
	switch k {
	case 'q', 'Q':
		return quit
	case 'h', '?':
		m.help, m.scroll = !m.help, 0
	case keyEscape:
		if m.help {
			m.help, m.scroll = false, 0
			return nothing
		}
		m.filter = ""
		return ask
	case keyTab:
		return m.choose((m.view + 1) % m.shown())
	case keyBackTab:
		return m.choose((m.view + m.shown() - 1) % m.shown())
	case 's', '>', keyRight:
		m.sortNext(1)
	case 'S', '<', keyLeft:
		m.sortNext(-1)
	case 'r', 'R':
		m.reverse[m.view] = !m.reverse[m.view]
	case '/':
		m.typing, m.typed = true, m.filter
	case 'p', 'P', ' ':
		m.paused = !m.paused
		if !m.paused && m.now != nil {
			m.pair = show.NewPair(m.now, m.before)
		}
	case '+', '=':
		m.interval = next(m.interval, 1)
		return ask
	case '-', '_':
		m.interval = next(m.interval, -1)
		return ask
	default:
		m.scrollBy(k)
	}
	return nothing
}

// shown is how many views there are to choose from with Tab.
func (m *model) shown() int {
	if m.view < firstNames {
		return firstNames
	}
	return len(views)
}

// choose shows another view.
func (m *model) choose(view int) request {
	m.view, m.scroll, m.help = view, 0, false
	if (m.view == links || m.view >= firstNames) && !m.paused {
		return ask
	}
	return nothing
}

// next returns the interval before or after d.
func next(d time.Duration, step int) time.Duration {
	if step > 0 {
		for _, i := range intervals {
			if i > d {
				return i
			}
		}
		return d
	}
	for _, i := range slices.Backward(intervals) {
		if i < d {
			return i
		}
	}
	return d
}

// sortNext sorts by another one of the columns that are shown.
func (m *model) sortNext(step int) {
	if m.pair.Now == nil {
		return
	}
	keys := views[m.view].table(m.pair).Shown(m.width, m.sort[m.view])
	i := slices.Index(keys, m.sort[m.view])
	if i < 0 && step < 0 {
		i = 0
	}
	m.sort[m.view], m.reverse[m.view] = keys[(i+step+len(keys))%len(keys)], false
}

func (m *model) scrollBy(k key) {
	page := max(1, m.rows-1)
	switch k {
	case keyUp, 'k':
		m.scroll--
	case keyDown, 'j':
		m.scroll++
	case keyPageUp:
		m.scroll -= page
	case keyPageDown:
		m.scroll += page
	case keyHome, 'g':
		m.scroll = 0
	case keyEnd, 'G':
		m.scroll = 1 << 30
	}
	m.scroll = max(0, m.scroll) // frame bounds it from above
}

// typeFilter obeys a key while the filter is typed.
func (m *model) typeFilter(k key) request {
	switch k {
	case keyEnter:
		m.typing, m.filter, m.scroll = false, strings.TrimSpace(m.typed), 0
		return ask
	case keyEscape:
		m.typing = false
	case keyBackspace:
		if r := []rune(m.typed); len(r) > 0 {
			m.typed = string(r[:len(r)-1])
		}
	case keyCtrlU:
		m.typed = ""
	default:
		if k <= unicode.MaxRune && unicode.IsPrint(rune(k)) && len(m.typed) < maxFilter {
			m.typed += string(rune(k))
		}
	}
	return nothing
}

// table returns the table of the view, filtered and sorted.
func (m *model) table() *show.Table {
	t := views[m.view].table(m.pair)
	t.Filter(m.filter)
	t.SortBy(m.sort[m.view], m.reverse[m.view])
	return t
}

// The parts of a frame

// The least size of a terminal in which a frame makes sense.
const (
	leastWidth  = 40
	leastHeight = 10
)

// frame returns the lines for a terminal of a size.
func (m *model) frame(width, height int) []show.Line {
	m.width, m.height = width, height
	if width < leastWidth || height < leastHeight {
		return []show.Line{line(show.Warn, fmt.Sprintf("%dx%d is too small", width, height)), line(show.Plain, fmt.Sprintf("for top: %dx%d", leastWidth, leastHeight))}
	}
	if m.pair.Now == nil {
		return []show.Line{line(show.Plain, "asking the bridge...")}
	}
	lines := m.header(width, height)
	if m.help {
		lines = lines[:1]
	}
	lines = append(lines, m.tabs(width))
	var head, body []show.Line
	if m.help {
		body = m.helpLines(width)
	} else {
		all := m.table().Lines(width, m.sort[m.view])
		head, body = all[:1], all[1:]
	}
	m.rows = max(1, height-len(lines)-len(head)-1)
	m.scroll = min(m.scroll, max(0, len(body)-m.rows))
	lines = append(lines, head...)
	shown := body[m.scroll:min(len(body), m.scroll+m.rows)]
	lines = append(lines, shown...)
	if len(body) == 0 {
		lines = append(lines, line(show.Dim, m.emptyText()))
	}
	for len(lines) < height-1 {
		lines = append(lines, nil)
	}
	return append(lines[:height-1], m.footer(len(body), len(shown)))
}

// text returns the lines of a frame as text: as many as need be.
func (m *model) text(width int) []show.Line {
	if width == 0 {
		width = 1000
	}
	lines := m.header(width, 1000)
	lines = append(lines, nil)
	t := m.table()
	all := t.Lines(width, m.sort[m.view])
	if len(all) == 1 {
		all = append(all, line(show.Dim, m.emptyText()))
	}
	return append(lines, all...)
}

func line(style show.Style, text string) show.Line { return show.Line{{Text: text, Style: style}} }

func (m *model) emptyText() string {
	if m.filter != "" {
		return fmt.Sprintf("Nothing in %s contains %q; Esc removes the filter.", views[m.view].name, m.filter)
	}
	if m.view >= firstNames && m.pair.Now.Names == nil {
		return "This bridge learns no names, or has just begun to: docs/names.md."
	}
	return "There are no " + views[m.view].name + "."
}

// header says how the bridge is.
func (m *model) header(width, height int) []show.Line {
	lines := m.pair.Title()
	right := m.pair.Now.Time.Local().Format(time.TimeOnly)
	if m.paused {
		right = "PAUSED " + right
	}
	lines[0] = spread(lines[0], right, width)
	lines = append(lines, m.pair.Rates(), m.pair.UpstreamLine(), m.pair.ClientLine())
	if m.err != nil {
		lines = append(lines, line(show.Bad, "No answer from the bridge; trying again: "+show.Clean(m.err.Error())))
	}
	most := 2 // a short terminal keeps its lines for the table
	switch {
	case height >= 1000:
		most = 1000
	case height >= 40:
		most = 8
	case height >= 24:
		most = 4
	}
	var problems []show.Line
	for _, l := range show.Problems(m.pair.Now, false) {
		one := wrap([]show.Line{l}, width, len("CRITICAL "))
		if most := max(1, min(most/2, len(one))); most < len(one) {
			one = one[:most]
			one[most-1] = shorten(one[most-1], width, " ...")
		}
		problems = append(problems, one...)
	}
	if len(problems) > most {
		problems = problems[:most]
		problems[most-1] = shorten(problems[most-1], width, " ... more: rdmabridge stats")
	}
	return append(lines, problems...)
}

// shorten puts end at the end of l, which it cuts where it is too wide.
func shorten(l show.Line, width int, end string) show.Line {
	n := min(len([]rune(l.String())), max(0, width-len(end)))
	return append(cut(l, n), show.Span{Text: end, Style: show.Dim})
}

// cut returns the first n columns of l.
func cut(l show.Line, n int) show.Line {
	var c show.Line
	for _, s := range l {
		r := []rune(s.Text)
		if len(r) > n {
			r = r[:n]
		}
		c = append(c, show.Span{Text: string(r), Style: s.Style})
		n -= len(r)
	}
	return c
}

// spread puts right at the right end of the line l.
func spread(l show.Line, right string, width int) show.Line {
	n := len([]rune(l.String()))
	if room := width - n - len(right); room >= 2 && width < 1000 {
		return append(l, show.Span{Text: strings.Repeat(" ", room)}, show.Span{Text: right})
	}
	return l
}

// wrap breaks lines of two spans, a word and a text, at spaces. The further lines are indented.
func wrap(lines []show.Line, width, indent int) []show.Line {
	var all []show.Line
	for _, l := range lines {
		if len(l) != 2 || len([]rune(l.String())) <= width {
			all = append(all, l)
			continue
		}
		first, style := l[0], l[1].Style
		var b strings.Builder
		flush := func() {
			all = append(all, show.Line{first, {Text: b.String(), Style: style}})
			first = show.Span{Text: strings.Repeat(" ", indent)}
			b.Reset()
		}
		for word := range strings.FieldsSeq(l[1].Text) {
			if b.Len() > 0 && indent+len([]rune(b.String()))+1+len([]rune(word)) > width {
				flush()
			}
			if b.Len() > 0 {
				b.WriteByte(' ')
			}
			b.WriteString(word)
		}
		flush()
	}
	return all
}

// tabs names the views.
func (m *model) tabs(width int) show.Line {
	var l show.Line
	for i, v := range views[:m.shown()] {
		style := show.Dim
		if i == m.view {
			style = show.Strong
		}
		name := v.name
		if (width < 70 || width < 120 && m.view >= firstNames) && i != m.view {
			name = name[:4]
		}
		if i == m.view {
			name = "[" + name + "]"
		}
		l = append(l, show.Span{Text: fmt.Sprintf("%d %s  ", i+1, name), Style: style})
	}
	if m.help {
		l = append(l, show.Span{Text: "help", Style: show.Strong})
	}
	return l
}

// footer says how the table is sorted and filtered, and which keys there are.
func (m *model) footer(rows, shown int) show.Line {
	if m.typing {
		return show.Line{{Text: "show only what contains: ", Style: show.Strong}, {Text: m.typed}, {Text: " ", Style: show.Head}, {Text: "  Enter, or Esc"}}
	}
	var parts []string
	if rows > shown {
		parts = append(parts, fmt.Sprintf("%d-%d of %d", m.scroll+1, m.scroll+shown, rows))
	}
	if !m.help {
		by := "by " + m.sort[m.view]
		if m.reverse[m.view] {
			by += " reversed"
		}
		parts = append(parts, by)
	}
	if m.filter != "" {
		parts = append(parts, fmt.Sprintf("filter %q", m.filter))
	}
	if c := &m.pair.Now.Clients; (m.view == 0 || m.view == 2) && c.Shown < c.Total {
		parts = append(parts, fmt.Sprintf("%d of %d connections", c.Shown, c.Total))
	}
	l := show.Line{{Text: strings.Join(parts, ", "), Style: show.Strong}}
	if len(parts) > 0 {
		l = append(l, show.Span{Text: "  "})
	}
	return append(l, show.Span{Text: fmt.Sprintf("q quit  h help  s sort  r reverse  / filter  p pause  +- %s", m.interval), Style: show.Dim})
}

// helpLines explain the keys and the columns of the view.
func (m *model) helpLines(width int) []show.Line {
	lines := []show.Line{line(show.Strong, "Keys")}
	for _, k := range [][2]string{
		{"1 to 6, Tab", "another view: clients (hosts), operations, connections of clients, upstreams, links (connections to upstreams), events"},
		{"7 to 9", "exports, files, and clients of exports, if the bridge learns names"},
		{"s S, < >", "sort by the next or the previous column"},
		{"r", "reverse the order"},
		{"/", "show only the lines that contain a text; Esc shows all again"},
		{"p, space", "pause, and go on"},
		{"+ -", "a longer or shorter interval; rates are over one interval"},
		{"j k, arrows", "scroll; PgUp, PgDn, g and G, too"},
		{"h ?", "this help; again: back to the table"},
		{"q, Ctrl-C", "quit"},
	} {
		lines = append(lines, show.Line{{Text: fmt.Sprintf("%-12s", k[0]), Style: show.Strong}, {Text: k[1]}})
	}
	lines = wrap(lines, width, 12)
	lines = append(lines, nil, line(show.Strong, fmt.Sprintf("Columns of %s: %s (a narrow terminal lacks some)", views[m.view].name, views[m.view].help)))
	return append(lines, wrap(views[m.view].table(m.pair).Legend(), width, 11)...)
}
