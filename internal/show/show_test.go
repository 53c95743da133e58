package show

import (
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/status/statustest"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares lines with a file of testdata.
func golden(t *testing.T, name string, lines []Line) {
	t.Helper()
	var b strings.Builder
	for _, l := range lines {
		b.WriteString(strings.TrimRight(l.String(), " ") + "\n")
	}
	file := filepath.Join("testdata", name+".txt")
	if *update {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("%s differs (go test ./internal/show -update writes it anew):\n%s", file, b.String())
	}
}

func pair() Pair { return NewPair(statustest.After(), statustest.Before()) }

func TestGolden(t *testing.T) {
	total := NewPair(statustest.After(), nil)
	golden(t, "stats", pair().Stats())
	golden(t, "stats-total", total.Stats())
	for name, table := range map[string]*Table{
		"clients": pair().Clients(), "clients-total": total.Clients(), "connections": pair().Connections(), "operations": pair().Operations(),
		"upstreams": pair().Upstreams(), "links": pair().Links(), "endpoints": pair().Endpoints(), "events": pair().Events(),
	} {
		table.SortBy(table.Sort, false)
		golden(t, name, table.Lines(0, table.Sort))
		golden(t, name+"-80", table.Lines(80, table.Sort))
	}
}

// TestEmpty: a document without anything in it is shown, too.
func TestEmpty(t *testing.T) {
	p := NewPair(new(status.Document), nil)
	for _, l := range p.Stats() {
		_ = l.String()
	}
	for _, table := range []*Table{p.Clients(), p.Connections(), p.Operations(), p.Upstreams(), p.Links(), p.Endpoints(), p.Events()} {
		if lines := table.Lines(80, ""); len(lines) != 1 {
			t.Errorf("%d lines, want the head alone", len(lines))
		}
		if table.Column(table.Sort) < 0 {
			t.Errorf("no column %q by which it is sorted", table.Sort)
		}
		keys := make(map[string]bool)
		for _, c := range table.Columns {
			if keys[c.Key] || c.Key == "" || c.Help == "" {
				t.Errorf("column %+v: its key is there twice, or it lacks a key or help", c)
			}
			keys[c.Key] = true
		}
		if table.Columns[0].Rank != 0 {
			t.Error("the first column may be left out")
		}
	}
}

// TestLinesFit: no line of a table is wider than the screen, down to 60 columns, whatever is in it.
func TestLinesFit(t *testing.T) {
	d := statustest.After()
	for i := range d.Upstreams {
		d.Upstreams[i].LastError = strings.Repeat("long ", 40)
		d.Upstreams[i].Name = strings.Repeat("n", 15)
	}
	p := NewPair(d, statustest.Before())
	for width := 60; width < 260; width += 7 {
		for n, table := range []*Table{p.Clients(), p.Connections(), p.Operations(), p.Upstreams(), p.Links(), p.Endpoints(), p.Events()} {
			for _, l := range table.Lines(width, "") {
				if w := utf8.RuneCountInString(l.String()); w > width && width >= 80 {
					t.Fatalf("table %d at %d: a line is %d wide: %q", n, width, w, l.String())
				}
			}
		}
	}
}

// TestOtherProcess: there are no rates between two processes.
func TestOtherProcess(t *testing.T) {
	before := statustest.Before()
	before.Process++
	if NewPair(statustest.After(), before).Before != nil {
		t.Error("another process counts as the same")
	}
	before = statustest.Before()
	before.Started = before.Started.Add(time.Second)
	if NewPair(statustest.After(), before).Before != nil {
		t.Error("a process that started at another time counts as the same")
	}
	if NewPair(statustest.After(), statustest.After()).Before != nil {
		t.Error("a document of the same moment gives rates")
	}
}

// TestAgain: the document of a pair is not changed by what is shown of it.
func TestAgain(t *testing.T) {
	p := pair()
	first := fmt.Sprint(p.Clients().Lines(0, ""))
	if again := fmt.Sprint(p.Clients().Lines(0, "")); again != first {
		t.Errorf("the same pair shows something else the second time:\n%s\n%s", first, again)
	}
}

func TestFormats(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 1e-9: "0", 1e-6: "1.00us", 0.00035: "350us", 0.00125: "1.25ms", 0.0125: "12.5ms", 0.9994: "999ms", 1.25: "1.25s",
		12.54: "12.5s", 99.94: "99.9s", 125: "2m05s", 3599: "59m59s", 3600: "1h00m", 100 * 3600: "4d04h", 5000 * 86400: "5000d",
	} {
		if got := Duration(v); got != want || len(got) > 6 {
			t.Errorf("Duration(%g) = %s, want %s", v, got, want)
		}
	}
	for v, want := range map[float64]string{0: "0", 0.25: "0.2", 1: "1", 9.99: "10", 1234: "1234", 9999: "9999", 12345: "12.3k", 999_600: "1.00M", 4.5e6: "4.50M", 1e12: "1.00T"} {
		if got := Count(v); got != want || len(got) > 5 {
			t.Errorf("Count(%g) = %s, want %s", v, got, want)
		}
	}
	for v, want := range map[float64]string{0: "0", 1023: "1023", 1024: "1.00K", 10 << 20: "10.0M", 1023 << 20: "1.00G", 1 << 40: "1.00T"} {
		if got := Bytes(v); got != want || len(got) > 5 {
			t.Errorf("Bytes(%g) = %s, want %s", v, got, want)
		}
	}
	for v, want := range map[float64]string{0: "0%", 0.0001: "<0.1%", 0.003: "0.3%", 0.5: "50%", 1: "100%", math.NaN(): "0%"} {
		if got := Percent(v); got != want {
			t.Errorf("Percent(%g) = %s, want %s", v, got, want)
		}
	}
	if got := Plural(1, "address") + ", " + Plural(0, "address") + ", " + Plural(2, "Call"); got != "1 address, 0 addresses, 2 Calls" {
		t.Errorf("Plural: %s", got)
	}
	if got := Size(1536); got != "1.50 KiB" {
		t.Errorf("Size(1536) = %s", got)
	}
	if got := Clean("a\x1b[2Jb\n\u202ec"); got != "a?[2Jb; ?c" {
		t.Errorf("Clean: %q", got)
	}
}

func TestBar(t *testing.T) {
	for _, tt := range []struct {
		p    status.Phases
		want string
	}{
		{status.Phases{}, "........"},
		{status.Phases{Calls: 1, Server: 5}, "SSSSSSSS"},
		{status.Phases{Calls: 1, Admission: 1, Credit: 1, Server: 1, Client: 1}, "AACCSSRR"},
		{status.Phases{Calls: 1, Credit: 0.55, Server: 0.4, Client: 0.05}, "CCCCCSSS"},
	} {
		if got := bar(&tt.p); got != tt.want {
			t.Errorf("bar(%+v) = %s, want %s", tt.p, got, tt.want)
		}
	}
}

func TestQuantile(t *testing.T) {
	bounds, counts := []float64{0.001, 0.002, 0.004}, []uint64{50, 40, 9, 1}
	for q, want := range map[float64]float64{0.5: 0.001, 0.25: 0.0005, 0.7: 0.0015, 0.99: 0.004} {
		if got, beyond := quantile(bounds, counts, 100, q); math.Abs(got-want) > 1e-9 || beyond {
			t.Errorf("quantile %g = %g, %v, want %g", q, got, beyond, want)
		}
	}
	if got, beyond := quantile(bounds, counts, 100, 0.999); got != 0.004 || !beyond {
		t.Errorf("beyond the last bound: %g, %v", got, beyond)
	}
}

func TestSortAndFilter(t *testing.T) {
	c := pair().Connections()
	c.SortBy("oldest", false)
	if !strings.HasPrefix(c.Rows[0][0].Text, "[2001:db8") {
		t.Errorf("the oldest Call: %s", c.Rows[0][0].Text)
	}
	c.SortBy("address", false)
	if c.Rows[0][0].Text != "10.0.0.21:873" {
		t.Errorf("by address: %s", c.Rows[0][0].Text)
	}
	c.Filter("HOME")
	if len(c.Rows) != 4 {
		t.Errorf("%d clients of home", len(c.Rows))
	}
}
