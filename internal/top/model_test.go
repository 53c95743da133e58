package top

import (
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/rdmabridge/rdmabridge/internal/show"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/status/statustest"
)

var update = flag.Bool("update", false, "write the golden files anew")

func init() { time.Local = time.UTC } // frames have the time of day

// newTestModel returns a model that has both documents.
func newTestModel(o Options) *model {
	if o.Interval == 0 {
		o.Interval = 2 * time.Second
	}
	m := newModel(o)
	m.update(statustest.Before(), nil)
	m.update(statustest.After(), nil)
	return m
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name+".txt")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (go test ./internal/top -update writes it anew):\n%s", file, got)
	}
}

func textOf(lines []show.Line) string {
	var b strings.Builder
	for _, l := range lines {
		b.WriteString(trim(l.String()) + "\n")
	}
	return b.String()
}

func typeKeys(m *model, keys string) {
	for _, k := range decode([]byte(keys)) {
		m.key(k)
	}
}

// TestFrames compares frames with those that were looked at.
func TestFrames(t *testing.T) {
	for _, tt := range []struct {
		name, keys    string
		width, height int
	}{
		{"clients-80x24", "", 80, 24},
		{"clients-200x50", "", 200, 50},
		{"operations-80x24", "2", 80, 24},
		{"connections-120x30", "3", 120, 30},
		{"upstreams-80x24", "4", 80, 24},
		{"links-80x24", "5", 80, 24},
		{"exports-80x24", "7", 80, 24},
		{"files-80x24", "8", 80, 24},
		{"files-160x24", "8", 160, 24},
		{"events-100x24", "6", 100, 24},
		{"help-80x24", "h", 80, 24},
		{"help-end-80x24", "hG", 80, 24},
		{"filter-typing-80x24", "3/2001", 80, 24},
		{"filter-80x24", "3/2001\r", 80, 24},
		{"filter-nothing-80x24", "/xyz\r", 80, 24},
		{"sorted-80x24", "3sssr", 80, 24},
		{"paused-80x24", "p", 80, 24},
		{"small-60x14", "", 60, 14},
		{"too-small", "", 30, 5},
	} {
		m := newTestModel(Options{})
		m.frame(tt.width, tt.height)
		typeKeys(m, tt.keys)
		lines := m.frame(tt.width, tt.height)
		golden(t, tt.name, textOf(lines))
		if len(lines) > tt.height {
			t.Errorf("%s: %d lines", tt.name, len(lines))
		}
	}
	golden(t, "once", textOf(newTestModel(Options{}).text(0)))
	golden(t, "once-80", textOf(newTestModel(Options{View: "links"}).text(80)))
	golden(t, "colours", strings.ReplaceAll(string(render(newTestModel(Options{}).frame(80, 24), 80, 24, true)), "\x1b", "^["))
	golden(t, "no-colours", strings.ReplaceAll(string(render(newTestModel(Options{}).frame(80, 24), 80, 24, false)), "\x1b", "^["))
}

// TestEveryKey: no key in any state makes a frame that does not fit, or panics.
func TestEveryKey(t *testing.T) {
	keys := []key{keyUp, keyDown, keyLeft, keyRight, keyPageUp, keyPageDown, keyHome, keyEnd, keyBackTab, keyOther, utf8.RuneError}
	for k := key(0); k < 0x80; k++ {
		keys = append(keys, k)
	}
	for _, documents := range [][]*status.Document{nil, {new(status.Document), statustest.After()}} {
		for _, before := range []string{"", "2", "3s", "5", "6", "h", "/", "/x", "p"} {
			for _, k := range keys {
				m := newModel(Options{Interval: time.Second})
				for _, d := range documents {
					m.update(d, nil)
				}
				typeKeys(m, before)
				m.key(k)
				_ = m.frame(1, 1)
				for _, size := range [][2]int{{80, 24}, {40, 10}} {
					lines := m.frame(size[0], size[1])
					if size[1] >= leastHeight && len(lines) > size[1] {
						t.Fatalf("%q then %d: %d lines of %d", before, k, len(lines), size[1])
					}
					_ = render(lines, size[0], size[1], true)
				}
			}
		}
	}
}

// TestRender: each frame has as many lines as the terminal, each as wide as it, whatever the lines are.
func TestRender(t *testing.T) {
	lines := []show.Line{{{Text: strings.Repeat("é", 200), Style: show.Bad}, {Text: "more"}}, nil, {{Text: "x"}}}
	got := string(render(lines, 10, 4, false))
	if !strings.HasPrefix(got, begin) || !strings.HasSuffix(got, end) {
		t.Errorf("no frame: %q", got)
	}
	got = strings.TrimSuffix(strings.TrimPrefix(got, begin), end)
	got = strings.NewReplacer("\x1b[1m", "", reset, "").Replace(got)
	if want := strings.Repeat("é", 10) + "\r\n          \r\nx         \r\n          "; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestDecode(t *testing.T) {
	for in, want := range map[string][]key{
		"q":               {'q'},
		"\x1b":            {keyEscape},
		"\x1b[A\x1bOB":    {keyUp, keyDown},
		"\x1b[5~x":        {keyPageUp, 'x'},
		"\x1b[Z":          {keyBackTab},
		"\x1b[200~ab":     {keyOther, 'a', 'b'}, // a paste
		"\x1b[1;5C":       {keyOther},
		"\x1bq":           {keyEscape, 'q'},
		"\x1b\x1b[B":      {keyEscape, keyDown},
		"\x1b[":           {keyEscape, '['},
		"é\xff\b\n\r\x7f": {'é', keyOther, keyBackspace, keyEnter, keyEnter, keyBackspace},
	} {
		got := decode([]byte(in))
		if string(runes(got)) != string(runes(want)) {
			t.Errorf("decode(%q) = %v, want %v", in, got, want)
		}
	}
}

func runes(keys []key) (r []rune) {
	for _, k := range keys {
		r = append(r, rune(k))
	}
	return r
}

// TestUpdate: a document that comes early, of another process, or not at all.
func TestUpdate(t *testing.T) {
	m := newTestModel(Options{Interval: 10 * time.Second})
	early := statustest.After()
	early.Time = early.Time.Add(time.Second)
	m.update(early, nil)
	if got := m.pair.Now.Time.Sub(m.pair.Before.Time); got != 11*time.Second {
		t.Errorf("rates are over %s after an early document, want 11s", got)
	}
	other := statustest.After()
	other.Process++
	m.update(other, nil)
	if m.pair.Before != nil {
		t.Error("rates between two processes")
	}
	m.update(nil, errors.New("no bridge listens"))
	if s := textOf(m.frame(80, 24)); !strings.Contains(s, "No answer from the bridge; trying again: no bridge listens") || !strings.Contains(s, "10.0.0.21") {
		t.Errorf("after an error:\n%s", s)
	}
	m.key('p')
	m.update(statustest.After(), nil)
	if m.pair.Now != other {
		t.Error("paused, and the frame changes")
	}
	m.key('p')
	if m.pair.Now == other {
		t.Error("not paused any more, and the frame is old")
	}
}

// TestQuery: connections of upstreams are asked for only by the view that shows them.
func TestQuery(t *testing.T) {
	m := newTestModel(Options{Clients: 7})
	if q := m.query(); q != (status.Query{Clients: 7}) {
		t.Errorf("clients: %+v", q)
	}
	if m.key('5') != ask {
		t.Error("links does not ask at once")
	}
	if q := m.query(); q != (status.Query{Clients: 7, Connections: true}) {
		t.Errorf("links: %+v", q)
	}
	m.now.Clients.Total = 1000
	typeKeys(m, "1/home\r")
	if q := m.query(); q != (status.Query{Clients: 7, Filter: "home"}) {
		t.Errorf("a filter of more clients than are listed: %+v", q)
	}
}

func TestIntervals(t *testing.T) {
	m := newTestModel(Options{Interval: 3 * time.Second})
	for range 20 {
		m.key('+')
	}
	if m.interval != time.Minute {
		t.Errorf("the longest is %s", m.interval)
	}
	for range 20 {
		m.key('-')
	}
	if m.interval != 500*time.Millisecond {
		t.Errorf("the shortest is %s", m.interval)
	}
}

// TestOnce: one frame as text, with rates over the interval.
func TestOnce(t *testing.T) {
	documents := []*status.Document{statustest.Before(), statustest.After()}
	var b strings.Builder
	err := Once(t.Context(), &b, 0, Options{Interval: time.Millisecond, Fetch: func(context.Context, status.Query) (*status.Document, error) {
		d := documents[0]
		documents = documents[1:]
		return d, nil
	}})
	if err != nil || b.String() != textOf(newTestModel(Options{}).text(0)) {
		t.Errorf("%v\n%s", err, &b)
	}
	want := errors.New("no")
	if err := Once(t.Context(), &b, 0, Options{Fetch: func(context.Context, status.Query) (*status.Document, error) { return nil, want }}); err != want {
		t.Errorf("err = %v", err)
	}
}
