package show

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// A Style says how a terminal shows a text.
type Style uint8

// The styles.
const (
	Plain Style = iota
	Dim         // less important
	Strong
	Good
	Warn
	Bad
	Head // of a table
	Mark // the column by which a table is sorted
)

// A Span is a text with one style, without line breaks.
type Span struct {
	Text  string
	Style Style
}

// A Line is one line.
type Line []Span

// String returns the text of l.
func (l Line) String() string {
	var b strings.Builder
	for _, s := range l {
		b.WriteString(s.Text)
	}
	return b.String()
}

// A Column is a column of a table.
type Column struct {
	Key  string // what users call it, for example after --sort
	Name string // the head
	Help string // one sentence for the legend
	Left bool   // aligned left: text; numbers are aligned right, and largest first when sorted
	Flex bool   // gets narrower before other columns are left out, but not narrower than flexLeast
	Rank int    // a screen that is too narrow lacks the columns with the highest rank; 0 is always there
}

// flexLeast is the least width of a Flex column.
const flexLeast = 15

// A Cell is one value.
type Cell struct {
	Text   string
	Number float64 // for sorting columns that are not Left
	Style  Style
}

// A Row is one row.
type Row []Cell // one for each column

// A Table is what a view shows.
type Table struct {
	Columns []Column
	Rows    []Row
	Sort    string // the Key of the column by which the view is sorted unless the user chooses another
}

// text makes a Cell of text.
func text(s string) Cell { return Cell{Text: Clean(s)} }

// number makes a Cell of a number and its text; 0 is shown dimly.
func number(n float64, s string) Cell {
	c := Cell{Text: s, Number: n}
	if n == 0 {
		c.Style = Dim
	}
	return c
}

// as returns c with a style if worse.
func (c Cell) as(style Style, worse bool) Cell {
	if worse {
		c.Style = style
	}
	return c
}

// Column returns the index of the column with a key, or -1.
func (t *Table) Column(key string) int {
	return slices.IndexFunc(t.Columns, func(c Column) bool { return c.Key == key })
}

// SortBy sorts the rows by the column with a key: numbers with the largest first, text in alphabetical
// order, and the other way round if reverse.
func (t *Table) SortBy(key string, reverse bool) {
	i := t.Column(key)
	if i < 0 {
		return
	}
	slices.SortStableFunc(t.Rows, func(a, b Row) int {
		var c int
		if t.Columns[i].Left {
			c = cmp.Compare(a[i].Text, b[i].Text)
		} else {
			c = cmp.Compare(b[i].Number, a[i].Number)
		}
		if reverse {
			c = -c
		}
		return c
	})
}

// Filter keeps the rows in which a text column contains what, in whatever case.
func (t *Table) Filter(what string) {
	if what == "" {
		return
	}
	what = strings.ToLower(what)
	t.Rows = slices.DeleteFunc(t.Rows, func(r Row) bool {
		return !slices.ContainsFunc(r, func(c Cell) bool { return strings.Contains(strings.ToLower(c.Text), what) })
	})
}

// Lines lays t out for a screen of that width; 0 is as wide as need be. mark is the key of the column by
// which it is sorted, which is always there. The first line is the head.
func (t *Table) Lines(width int, mark string) []Line {
	widths := t.widths(width, mark)
	lines := make([]Line, 0, len(t.Rows)+1)
	head := make(Row, len(t.Columns))
	for i, c := range t.Columns {
		head[i] = Cell{Text: c.Name, Style: Head}
		if c.Key == mark {
			head[i].Style = Mark
		}
	}
	lines = append(lines, t.line(head, widths))
	for _, r := range t.Rows {
		lines = append(lines, t.line(r, widths))
	}
	return lines
}

// widths returns how wide each column is on a screen of that width; 0 for a column that is left out, which
// the one with the key mark is not.
func (t *Table) widths(width int, mark string) []int {
	widths := make([]int, len(t.Columns))
	for i, c := range t.Columns {
		widths[i] = len(c.Name)
		for _, r := range t.Rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(r[i].Text))
		}
	}
	if width > 0 {
		columns := slices.Clone(t.Columns)
		if i := t.Column(mark); i >= 0 {
			columns[i].Rank = 0
		}
		fit(columns, widths, width)
	}
	return widths
}

// Keys returns the keys of all columns.
func (t *Table) Keys() []string {
	var keys []string
	for _, c := range t.Columns {
		keys = append(keys, c.Key)
	}
	return keys
}

// Shown returns the keys of the columns that a screen of that width has. mark is as for Lines.
func (t *Table) Shown(width int, mark string) []string {
	var keys []string
	for i, w := range t.widths(width, mark) {
		if w > 0 {
			keys = append(keys, t.Columns[i].Key)
		}
	}
	return keys
}

// fit makes widths fit a screen: first it leaves out columns until the others can be narrow enough, and
// then it makes the widest of those narrower that can be.
func fit(columns []Column, widths []int, width int) {
	for {
		total, last := -1, 0
		for i, c := range columns {
			if widths[i] == 0 {
				continue
			}
			w := widths[i]
			if c.Flex {
				w = min(w, flexLeast)
			}
			total += w + 1
			if c.Rank > columns[last].Rank {
				last = i
			}
		}
		if total <= width || columns[last].Rank == 0 {
			break
		}
		widths[last] = 0
	}
	over := -1 - width
	for _, w := range widths {
		if w > 0 {
			over += w + 1
		}
	}
	for ; over > 0; over-- {
		widest := -1
		for i, c := range columns {
			if c.Flex && widths[i] > flexLeast && (widest < 0 || widths[i] > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			return // the ends of the lines are cut
		}
		widths[widest]--
	}
}

func (t *Table) line(r Row, widths []int) Line {
	var l Line
	last := len(widths) - 1
	for last > 0 && widths[last] == 0 {
		last--
	}
	for i, c := range r {
		if widths[i] == 0 {
			continue
		}
		if len(l) > 0 {
			l = append(l, Span{Text: " ", Style: padStyle(c.Style)})
		}
		s := shorten(c.Text, widths[i])
		pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(s))
		switch {
		case !t.Columns[i].Left:
			s = pad + s
		case i < last || c.Style == Head || c.Style == Mark:
			s += pad
		}
		l = append(l, Span{Text: s, Style: c.Style})
	}
	return l
}

// padStyle is the style of the space before a cell: that of the head reaches from edge to edge.
func padStyle(s Style) Style {
	if s == Mark || s == Head {
		return Head
	}
	return Plain
}

// shorten cuts the middle of s, if it is wider than width: both ends of an address tell it from others.
func shorten(s string, width int) string {
	r := []rune(s)
	if len(r) <= width {
		return s
	}
	if width < 3 {
		return string(r[:width])
	}
	front := (width - 1) / 2
	return string(r[:front]) + "~" + string(r[len(r)-(width-1-front):])
}

// Write writes t as text without styles, for a screen of that width; 0 is as wide as need be.
func (t *Table) Write(w io.Writer, width int, mark string) error {
	for _, l := range t.Lines(width, mark) {
		if _, err := fmt.Fprintln(w, strings.TrimRight(l.String(), " ")); err != nil {
			return err
		}
	}
	return nil
}

// Legend returns a line for each column: its head and what it means.
func (t *Table) Legend() []Line {
	var lines []Line
	for _, c := range t.Columns {
		lines = append(lines, Line{{fmt.Sprintf("%-10s ", c.Name), Strong}, {c.Help, Plain}})
	}
	return lines
}
