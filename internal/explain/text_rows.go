package explain

import (
	"fmt"
	"io"
	"time"
)

// A textPrinter prints text: a block of lines for each message. A line has a key and a
// value.
type textPrinter struct {
	w     io.Writer
	err   error      // the first error of w; printf does nothing after it
	first *time.Time // header.First
}

func (p *textPrinter) printf(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}

// keyWidth is the width of a key.
const keyWidth = 11

// row prints a line of a block. A line without a key continues the line above.
func (p *textPrinter) row(key, format string, args ...any) {
	p.printf("  %-*s %s\n", keyWidth, key, fmt.Sprintf(format, args...))
}

// count formats n with a noun in the singular or the plural.
func count[N int | int64](n N, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// times formats n with format. It returns "" for 0.
func times(n int, format string) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(format, n)
}

// replies formats a number of Replies.
func replies(n int) string {
	if n == 1 {
		return "1 Reply"
	}
	return fmt.Sprintf("%d Replies", n)
}
