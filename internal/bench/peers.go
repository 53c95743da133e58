package bench

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// PeerCases returns the loads that compare proxies: small echoes over few and many
// connections, and bulk data in both directions.
func PeerCases() []Case {
	echo := func(name string, conns, depth, call, reply int) Case {
		return Case{
			Name: name, Bulk: call+reply > 64<<10,
			Load: Load{Conns: conns, Depth: depth, Work: Work{Call: call, Reply: reply}},
		}
	}
	return []Case{
		echo("100 B, 1 x 1", 1, 1, 100, 100),
		echo("100 B, 16 x 16", 16, 16, 100, 100),
		echo("100 B, 256 x 1", 256, 1, 100, 100),
		echo("100 B, 256 x 16", 256, 16, 100, 100),
		echo("1 MiB calls, 1 x 1", 1, 1, 1<<20, 100),
		echo("1 MiB calls, 4 x 4", 4, 4, 1<<20, 100),
		echo("1 MiB replies, 1 x 1", 1, 1, 100, 1<<20),
		echo("1 MiB replies, 4 x 4", 4, 4, 100, 1<<20),
	}
}

// NFSCases returns similar loads of NFSv3, whose binding places data directly.
func NFSCases() []Case {
	mix := func(name string, conns, depth int, mix string, size int) Case {
		return Case{
			Name: name, Bulk: size > 64<<10,
			Load: Load{Conns: conns, Depth: depth, Work: Work{Mix: "nfs3:" + mix, Size: size}},
		}
	}
	// As many Calls as a few active clients make, whatever the proxy can do: only latency and CPU time tell.
	paced := mix("GETATTR, 2,000/s of 16", 16, 16, "getattr", 64<<10)
	paced.Load.Rate = 2000
	return []Case{
		paced,
		mix("GETATTR, 1 x 1", 1, 1, "getattr", 64<<10),
		mix("GETATTR, 16 x 16", 16, 16, "getattr", 64<<10),
		mix("GETATTR, 256 x 1", 256, 1, "getattr", 64<<10),
		mix("GETATTR, 256 x 16", 256, 16, "getattr", 64<<10),
		mix("WRITE of 1 MiB, 1 x 1", 1, 1, "write", 1<<20),
		mix("WRITE of 1 MiB, 4 x 4", 4, 4, "write", 1<<20),
		mix("READ of 1 MiB, 1 x 1", 1, 1, "read", 1<<20),
		mix("READ of 1 MiB, 4 x 4", 4, 4, "read", 1<<20),
		mix("50/30/20 of 64 KiB, 16 x 4", 16, 4, "read=50,write=30,getattr=20", 64<<10),
	}
}

// busy is the load average above which a machine is too busy to measure.
const busy = 1

// A Report writes comparisons as a page of Markdown.
type Report struct {
	Notes    []string // versions and settings
	Began    time.Time
	Loads    [2]float64 // load averages before and after
	Took     time.Duration
	Sections []Comparisons
}

// Comparisons are the comparisons of one section.
type Comparisons struct {
	Title string
	Of    []*Comparison
}

// Markdown writes the report as a page.
func (r *Report) Markdown(w io.Writer) error {
	p := &printer{w: bufio.NewWriter(w)}
	p.f("# The bridge against its peers\n\n")
	p.f("Written by `deploy/bench/peers.sh`, on %s, in %s.\n\n", r.Began.UTC().Format("2006-01-02 15:04 UTC"), r.Took.Round(time.Second))
	for _, n := range r.Notes {
		p.f("- %s\n", n)
	}
	p.f("- load average %.2f before, %.2f after\n", r.Loads[0], r.Loads[1])
	if r.Loads[0] > busy {
		p.f("\n**Other programs kept the machine busy: do not rely on these figures.**\n")
	}
	p.f("\nThe first column has absolute figures. Every other column has its ratio to the first\nwithin a round: the median [quartiles] over the rounds. Calls/s and GB/s are better\nabove 1, latency and the proxy's CPU time below 1. GB are 10^9 octets of RPC\nmessages, both ways.\n")
	for _, s := range r.Sections {
		r.section(p, s)
	}
	if p.err != nil {
		return p.err
	}
	return p.w.(*bufio.Writer).Flush()
}

func (r *Report) section(p *printer, s Comparisons) {
	if len(s.Of) == 0 {
		return
	}
	p.f("\n## %s\n", s.Title)
	for _, m := range []string{"calls/s", "p50", "p99", "CPU/call"} {
		table(p, m, s.Of, func(c *Comparison) bool { return !c.Case.Bulk })
	}
	for _, m := range []string{"GB/s", "p99", "CPU/GB"} {
		table(p, m, s.Of, func(c *Comparison) bool { return c.Case.Bulk })
	}
	var failures []error
	for _, c := range s.Of {
		failures = append(failures, c.Failures...)
	}
	if len(failures) > 0 {
		p.f("\nRuns that failed and are missing above:\n\n")
	}
	for _, err := range failures {
		p.f("- %s\n", oneLine(err))
	}
}

// table writes one metric of the comparisons that want selects.
func table(p *printer, name string, all []*Comparison, want func(*Comparison) bool) {
	m := metric(name)
	begun := false
	for _, c := range all {
		if !want(c) {
			continue
		}
		if !begun {
			begun = true
			p.f("\n### %s\n\n| work | %s |", name, c.Targets[c.Baseline].Name)
			for i, t := range c.Targets {
				if i != c.Baseline {
					p.f(" %s |", t.Name)
				}
			}
			p.f("\n|%s\n", strings.Repeat("---|", len(c.Targets)+1))
		}
		p.f("| %s | %s |", c.Case.Name, m.Format(c.Figures(c.Baseline, m)))
		for i := range c.Targets {
			if i != c.Baseline {
				p.f(" %s |", c.Ratios(i, m))
			}
		}
		p.f("\n")
	}
}

// LoadAverage returns the load average of the last minute, or 0 when it cannot read it.
func LoadAverage() float64 {
	var v float64
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	if _, err := fmt.Sscan(string(b), &v); err != nil {
		return 0
	}
	return v
}

// Machine describes this machine in one line: CPUs, kernel and Go version.
func Machine() string {
	model := runtime.GOARCH
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
				model = strings.TrimSpace(v)
				break
			}
		}
	}
	kernel := "Linux"
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		kernel += " " + unix.ByteSliceToString(u.Release[:])
	}
	return fmt.Sprintf("%d CPUs, %s; %s; %s", runtime.NumCPU(), model, kernel, runtime.Version())
}
