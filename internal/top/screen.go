package top

import (
	"bytes"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/rdmabridge/rdmabridge/internal/show"
)

// Sequences of terminals (ECMA-48 and DEC private modes).
const (
	enter = "\x1b[?1049h\x1b[?25l\x1b[?7l"        // alternate screen, no cursor, no wrapping
	leave = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l" // and back
	begin = "\x1b[?2026h\x1b[H"                   // a frame: terminals that know how show it as a whole
	end   = "\x1b[0m\x1b[?2026l"                  // of a frame
	reset = "\x1b[0m"
)

// sgr are the sequences of the styles, and those without colours.
var sgr = map[show.Style][2]string{
	show.Dim:    {"\x1b[2m", "\x1b[2m"},
	show.Strong: {"\x1b[1m", "\x1b[1m"},
	show.Good:   {"\x1b[32m", ""},
	show.Warn:   {"\x1b[33m", "\x1b[1m"},
	show.Bad:    {"\x1b[1;31m", "\x1b[1m"},
	show.Head:   {"\x1b[7m", "\x1b[7m"},
	show.Mark:   {"\x1b[1;4;7m", "\x1b[1;4;7m"},
}

// The size of a terminal that does not say it.
const (
	usualWidth  = 80
	usualHeight = 24
)

// A screen is a terminal while top runs in it. Its methods are called by one goroutine.
type screen struct {
	in, out *os.File
	color   bool

	state *term.State // of the terminal before; nil while it is as it was
	last  []byte      // the frame that the terminal shows; nil if that is not known
}

// open takes the terminal over.
func (s *screen) open() error {
	state, err := term.MakeRaw(int(s.in.Fd()))
	if err != nil {
		return err
	}
	s.state, s.last = state, nil
	_, err = s.out.WriteString(enter)
	return err
}

// close leaves the terminal as it was. It does nothing the second time.
func (s *screen) close() {
	if s.state == nil {
		return
	}
	_, _ = s.out.WriteString(leave) // the terminal may have gone
	_ = term.Restore(int(s.in.Fd()), s.state)
	s.state = nil
}

// suspend stops the process, as Ctrl-Z does elsewhere, until the shell continues it.
func (s *screen) suspend() error {
	s.close()
	if err := unix.Kill(0, unix.SIGTSTP); err != nil { // the process group: sudo with it
		return err
	}
	return s.open()
}

// forget makes show write the next frame even if it is like the last.
func (s *screen) forget() { s.last = nil }

// show writes the frame that make makes for the size of the terminal.
func (s *screen) show(make func(width, height int) []show.Line) error {
	width, height, err := term.GetSize(int(s.out.Fd()))
	if err != nil || width <= 0 || height <= 0 {
		width, height = usualWidth, usualHeight
	}
	frame := render(make(width, height), width, height, s.color)
	if bytes.Equal(frame, s.last) {
		return nil
	}
	s.last = frame
	_, err = s.out.Write(frame)
	return err
}

// render returns the octets of a frame: each line is padded, so that nothing needs to be erased and
// nothing flickers.
func render(lines []show.Line, width, height int, color bool) []byte {
	var b bytes.Buffer
	b.WriteString(begin)
	for i := range height {
		if i > 0 {
			b.WriteString("\r\n")
		}
		left := width
		if i < len(lines) {
			for _, span := range lines[i] {
				left -= renderSpan(&b, span, left, color)
			}
		}
		b.WriteString(strings.Repeat(" ", left))
	}
	b.WriteString(end)
	return b.Bytes()
}

// renderSpan writes as much of span as fits, and returns how wide that is.
func renderSpan(b *bytes.Buffer, span show.Span, width int, color bool) int {
	text := span.Text
	n := utf8.RuneCountInString(text)
	if n > width {
		text, n = string([]rune(text)[:width]), width
	}
	if n == 0 {
		return 0
	}
	style := sgr[span.Style][0]
	if !color {
		style = sgr[span.Style][1]
	}
	if style == "" {
		b.WriteString(text)
		return n
	}
	b.WriteString(style + text + reset)
	return n
}

func trim(s string) string { return strings.TrimRight(s, " ") }
