package explain

import (
	"fmt"
	"io"
	"time"
)

// A textPrinter prints for humans: a block of lines for each message, each line a
// word and what it says.
type textPrinter struct {
	w     io.Writer
	err   error
	first *time.Time
}

func (p *textPrinter) printf(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}

// keyWidth is the width of the words.
const keyWidth = 11

// row prints a line of a block; one without a key goes on with the line before.
func (p *textPrinter) row(key, format string, args ...any) {
	p.printf("  %-*s %s\n", keyWidth, key, fmt.Sprintf(format, args...))
}

func count[N int | int64](n N, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func times(n int, format string) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(format, n)
}

func replies(n int) string {
	if n == 1 {
		return "1 Reply"
	}
	return fmt.Sprintf("%d Replies", n)
}
