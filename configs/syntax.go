package configs

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

// The YAML library says where it gave up and what it expected there. This file finds the mistake from that, and
// says what to write.

// addSyntax adds the problems that the YAML library found in a file. data is its content, or nil if no excerpt
// of it helps.
func (r *report) addSyntax(file string, data []byte, err error) {
	var several *yaml.LoadErrors
	if errors.As(err, &several) {
		for _, e := range several.Errors {
			r.add(problem{File: file, Line: e.Mark.Line, Text: e.Message})
		}
		return
	}
	var e *yaml.LoadError
	if !errors.As(err, &e) {
		r.add(problem{File: file, Text: err.Error()})
		return
	}
	if data == nil {
		r.add(problem{File: file, Line: e.Mark.Line, Text: e.Message})
		return
	}
	x := syntaxError{LoadError: e, lines: strings.Split(string(data), "\n")}
	x.mark = e.Mark
	text := x.explain()
	r.add(problem{File: file, Line: x.mark.Line, Text: text, excerpt: x.excerpt()})
}

// A syntaxError is an error of the YAML library with the file that it is about.
type syntaxError struct {
	*yaml.LoadError
	lines []string
	mark  yaml.Mark // where the mistake is: columns count characters from 1
}

// An address in brackets begins a list, unless it is in quotes.
var (
	bracketed = regexp.MustCompile(`\[[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(?:%\w+)?\]:\w*`)
	noSpace   = regexp.MustCompile(`^\s*(?:- )?([A-Za-z_]\w*):([^\s:].*)$`)
	setting   = regexp.MustCompile(`:(?:\s|$)`)
	expansion = regexp.MustCompile(`\$\{[^}]*\}?`)
)

// explain moves the mark to the mistake, and returns what it is and what to write.
func (x *syntaxError) explain() string {
	if x.mark.Line == 0 {
		return x.explainOctet()
	}
	if x.mark.Line > len(x.lines) || strings.TrimSpace(x.line(x.mark.Line)) == "" && x.ContextMark.Line == x.mark.Line {
		x.toLastLine()
	}
	line := x.line(x.mark.Line)
	if at := bracketed.FindStringIndex(line); at != nil && !quoted(line, at[0]) {
		x.column(line, at[0])
		return fmt.Sprintf("an address in brackets would be a list here; write it in quotes: %q", line[at[0]:at[1]])
	}
	if tab := strings.IndexByte(line, '\t'); tab >= 0 && strings.TrimSpace(line[:tab]) == "" {
		x.column(line, tab)
		return "a tab indents this line; write spaces"
	}
	switch m := x.Message; {
	case strings.HasPrefix(m, "unknown anchor "), strings.Contains(x.ContextMsg, "scanning an alias"):
		return x.explainAlias(line)
	case strings.HasPrefix(m, "found character that cannot start"):
		c, _ := utf8.DecodeRuneInString(x.from(line))
		return fmt.Sprintf("a value cannot begin with %c; write it in quotes", c)
	case strings.Contains(x.ContextMsg, "quoted scalar"):
		if strings.HasPrefix(m, "found unknown escape") {
			return `in double quotes, \ begins an escape; write \\, or single quotes`
		}
		x.mark = x.ContextMark
		return "the quote that begins here has no end; write the same sign behind the value"
	case strings.HasPrefix(m, "mapping values are not allowed"):
		return x.explainMapping(line)
	case strings.HasPrefix(m, "could not find expected ':'"):
		x.mark = x.ContextMark
		return explainPlain(x.line(x.mark.Line))
	case strings.HasPrefix(m, "did not find expected ',' or"):
		return x.explainFlow(line)
	case strings.HasPrefix(m, "did not find expected node content"):
		return "a list [ ] or settings { } have no end; write ] or }"
	case strings.HasPrefix(m, "did not find expected '-'"):
		return x.explainIndent(line)
	case strings.HasPrefix(m, "did not find expected key"):
		if strings.TrimSpace(line[:x.offset(line)]) != "" {
			return "text follows the end of the value; remove it, or write all of the value in quotes, and a quote in it twice"
		}
		return x.explainIndent(line)
	}
	return x.Message
}

// explainOctet finds an octet that YAML does not allow. The library does not say where it is.
func (x *syntaxError) explainOctet() string {
	for i, line := range x.lines {
		for at, c := range line {
			if _, n := utf8.DecodeRuneInString(line[at:]); c == utf8.RuneError && n == 1 {
				x.mark = yaml.Mark{Line: i + 1, Column: utf8.RuneCountInString(line[:at]) + 1}
				return "the file is not in UTF-8; save it as such"
			}
			if c < ' ' && c != '\t' && c != '\r' || c == 0x7f {
				x.mark = yaml.Mark{Line: i + 1, Column: utf8.RuneCountInString(line[:at]) + 1}
				return fmt.Sprintf("the control character 0x%02x is not possible here; remove it", c)
			}
		}
	}
	return x.Message
}

// explainAlias explains a value that begins with *.
func (x *syntaxError) explainAlias(line string) string {
	text, _, _ := strings.Cut(x.from(line), " ")
	text = strings.TrimRight(text, ",]}")
	if at := strings.LastIndexByte(line[:x.offset(line)], '*'); x.Message[0] != 'u' && at >= 0 {
		x.column(line, at)
		return "a value cannot begin with *, which refers to an anchor; write it in quotes"
	}
	if port, ok := strings.CutPrefix(text, "*:"); ok {
		return fmt.Sprintf("* refers to an anchor; write :%s, which is every address of this host", port)
	}
	return fmt.Sprintf("no line above has the anchor &%s; write that, or the value in quotes if it begins with *", strings.TrimPrefix(text, "*"))
}

// explainMapping explains a colon at the mark where no name of a setting can end.
func (x *syntaxError) explainMapping(line string) string {
	if len(setting.FindAllString(line, 2)) > 1 {
		return `a value with a colon and a space would be another setting; write it in quotes, or in a line of its own`
	}
	above := x.mark.Line - 1
	for above > 0 && strings.TrimSpace(x.line(above)) == "" {
		above--
	}
	if above > 0 && !setting.MatchString(x.line(above)) {
		x.mark = yaml.Mark{Line: above, Column: 1}
		return explainPlain(x.line(above))
	}
	x.mark.Column = indent(line) + 1
	return "this line is deeper than the one above, which has a value already; indent both with as many spaces"
}

// explainIndent explains a line whose indentation none of the settings and lists around it has.
func (x *syntaxError) explainIndent(line string) string {
	have := indent(line)
	x.mark.Column = have + 1
	var open []string // the indentations of what is not yet over, the deepest first
	least := maxFile
	for n := x.mark.Line - 1; n > 0 && least > 0; n-- {
		above := x.line(n)
		text := strings.TrimSpace(above)
		if i := indent(above); text != "" && text[0] != '#' && i < least {
			open, least = append(open, strconv.Itoa(i)), i
		}
	}
	return fmt.Sprintf("the indentation of this line is %d; the lines above, which it may belong to, have %s; indent it with as many spaces as one of those", have, alternatives(open))
}

// explainPlain explains a line that is no setting.
func explainPlain(line string) string {
	if m := noSpace.FindStringSubmatch(line); m != nil {
		return fmt.Sprintf("a space after the colon is missing; write %s: %s", m[1], m[2])
	}
	return "this line is neither a setting nor the entry of a list; write name: value, or - value"
}

// explainFlow explains a list or settings in brackets or braces that have no end.
func (x *syntaxError) explainFlow(line string) string {
	if e := expansion.FindString(line); e != "" {
		x.column(line, strings.Index(line, e))
		return fmt.Sprintf("write %q, in quotes, within [ ] and { }", e)
	}
	open, end := "[", "]"
	if strings.Contains(x.ContextMsg, "mapping") {
		open, end = "{", "}"
	}
	if x.mark.Line != x.ContextMark.Line {
		x.mark = x.ContextMark
		return fmt.Sprintf("the %s that begins here has no end; write %s", open, end)
	}
	return fmt.Sprintf("an entry ends before this; write a comma or %s here, or the whole value in quotes", end)
}

// line returns line n, from 1.
func (x *syntaxError) line(n int) string {
	if n < 1 || n > len(x.lines) {
		return ""
	}
	return strings.TrimSuffix(x.lines[n-1], "\r")
}

// offset returns the octet of line at which the mark is.
func (x *syntaxError) offset(line string) int {
	n := 0
	for at := range line {
		if n++; n >= x.mark.Column {
			return at
		}
	}
	return len(line)
}

// from returns what line has from the mark on.
func (x *syntaxError) from(line string) string { return line[x.offset(line):] }

// column moves the mark to an octet of its line.
func (x *syntaxError) column(line string, at int) {
	x.mark.Column = utf8.RuneCountInString(line[:at]) + 1
}

// toLastLine moves the mark behind the last line that has something.
func (x *syntaxError) toLastLine() {
	n := min(x.mark.Line, len(x.lines))
	for n > 1 && strings.TrimSpace(x.line(n)) == "" {
		n--
	}
	x.mark = yaml.Mark{Line: n, Column: utf8.RuneCountInString(x.line(n)) + 1}
}

// quoted reports whether the octet at of line is within quotes.
func quoted(line string, at int) bool {
	var open byte
	for i := range at {
		switch c := line[i]; {
		case open == 0 && (c == '"' || c == '\''):
			open = c
		case c == open:
			open = 0
		}
	}
	return open != 0
}

func indent(line string) int { return len(line) - len(strings.TrimLeft(line, " ")) }

// maxExcerpt bounds how many characters of a line an excerpt has.
const maxExcerpt = 120

// excerpt returns the line of the mark, with a caret below the mistake. A line with the identity is not shown,
// because that is a secret.
func (x *syntaxError) excerpt() string {
	line := x.line(x.mark.Line)
	if line == "" || strings.Contains(strings.ToLower(line), "identity") || utf8.RuneCountInString(line) > maxExcerpt {
		return ""
	}
	number := fmt.Sprintf("%6d | ", x.mark.Line)
	pad := make([]rune, 0, maxExcerpt)
	for i, c := range []rune(line) {
		if i >= x.mark.Column-1 {
			break
		}
		if c != '\t' { // so that the caret stands below the mistake however wide a tab is
			c = ' '
		}
		pad = append(pad, c)
	}
	visible := strings.Map(func(c rune) rune {
		if c < ' ' && c != '\t' || c == 0x7f || c == utf8.RuneError {
			return '?'
		}
		return c
	}, line)
	return number + visible + "\n" + strings.Repeat(" ", len(number)-2) + "| " + string(pad) + "^"
}
