// Package show says in words and tables what is in a status.Document: it is what rdmabridge stats,
// clients and upstreams print, and the tables of rdmabridge top. A [Pair] of documents gives rates; one
// document alone gives totals.
package show

import (
	"math"
	"strings"

	"github.com/rdmabridge/rdmabridge/internal/status"
)

// A Pair is a document with an earlier one of the same process, which may be nil.
type Pair struct {
	Now, Before *status.Document
}

// NewPair returns a Pair without the earlier document if that is of another process.
func NewPair(now, before *status.Document) Pair {
	if before != nil && (before.Process != now.Process || !before.Started.Equal(now.Started) || !now.Time.After(before.Time)) {
		before = nil
	}
	return Pair{now, before}
}

// seconds is the time between the documents; 0 for one document alone.
func (p Pair) seconds() float64 {
	if p.Before == nil {
		return 0
	}
	return p.Now.Time.Sub(p.Before.Time).Seconds()
}

// per returns " a second" heads for rates.
func (p Pair) head(name string) string {
	if p.Before == nil {
		return name
	}
	return name + "/s"
}

// help returns the end of a sentence about a number that is a rate or a total.
func (p Pair) help(what string) string {
	if p.Before == nil {
		return what + " so far"
	}
	return what + " a second"
}

// rate returns how fast a counter grows, or its value where there is one document alone.
func (p Pair) rate(now, before uint64) float64 {
	if p.Before == nil {
		return float64(now)
	}
	if now < before {
		before = 0 // it began anew
	}
	return float64(now-before) / p.seconds()
}

// share returns which part of the time between the documents a sum of seconds has grown by, from 0 to
// 1; or NaN where there is one document alone.
func (p Pair) share(now, before float64) float64 {
	if p.Before == nil {
		return math.NaN()
	}
	return min(1, max(0, now-before)/p.seconds())
}

// before returns the earlier document, or an empty one where there is one document alone.
func (p Pair) before() *status.Document {
	if p.Before == nil {
		return new(status.Document)
	}
	return p.Before
}

// phases returns the phases of the Calls that were answered between the documents.
func (p Pair) phases(now, before *status.Phases) status.Phases {
	if p.Before == nil || before == nil || now.Calls < before.Calls {
		return *now
	}
	return now.Sub(before)
}

// mean returns the mean time of the Calls of ph; 0 without Calls.
func mean(total float64, calls uint64) float64 {
	if calls == 0 {
		return 0
	}
	return total / float64(calls)
}

// barWidth is the width of a bar of phases.
const barWidth = 8

// bar draws how the time of Calls divides: AACCSSSR. Each letter is an eighth.
func bar(p *status.Phases) string {
	total := p.Total()
	if p.Calls == 0 || total <= 0 {
		return strings.Repeat(".", barWidth)
	}
	parts := [4]float64{p.Admission, p.Credit, p.Server, p.Client}
	var counts [4]int
	left := barWidth
	for i, x := range parts {
		counts[i] = int(x / total * barWidth)
		left -= counts[i]
	}
	for ; left > 0; left-- { // to the one that lost most by rounding
		most, at := -1.0, 0
		for i, x := range parts {
			if lost := x/total*barWidth - float64(counts[i]); lost > most {
				most, at = lost, i
			}
		}
		counts[at]++
	}
	var b strings.Builder
	for i, letter := range "ACSR" {
		b.WriteString(strings.Repeat(string(letter), counts[i]))
	}
	return b.String()
}

// LegendOfBar explains the letters of a bar.
const LegendOfBar = "A admission, C waiting for a credit, S server and network, R the client reads the Reply"

// phaseColumns are the columns of phaseCells.
func phaseColumns(rank int) []Column {
	return []Column{
		{Key: "time", Name: "TIME", Help: "mean time of a Call, from reading it until its client has taken the Reply"},
		{Key: "where", Name: "WHERE", Help: "where that time goes, an eighth a letter: " + LegendOfBar, Left: true},
		{Key: "admission", Name: "ADMIT", Help: "mean time until a Call may ask for a credit: rate limits, slow start, memory, order", Rank: rank},
		{Key: "credit", Name: "CREDIT", Help: "mean time until a connection of the upstream had a credit for it", Rank: rank},
		{Key: "server", Name: "SERVER", Help: "mean time from sending a Call until its Reply: network and storage", Rank: rank},
		{Key: "client", Name: "CLIENT", Help: "mean time until the client had taken the Reply", Rank: rank},
	}
}

// phaseCells returns the cells of phaseColumns.
func phaseCells(p *status.Phases) []Cell {
	cell := func(total float64) Cell {
		if p.Calls == 0 {
			return number(0, "-")
		}
		m := mean(total, p.Calls)
		return number(m, Duration(m))
	}
	where := Cell{Text: bar(p), Style: whereStyle(p)}
	if p.Calls == 0 {
		where.Style = Dim
	}
	return []Cell{cell(p.Total()), where, cell(p.Admission), cell(p.Credit), cell(p.Server), cell(p.Client)}
}

// whereStyle marks the bars of Calls that wait in the bridge or for their clients more than for the
// server.
func whereStyle(p *status.Phases) Style {
	if p.Calls > 0 && p.Server < p.Total()/2 && mean(p.Total(), p.Calls) > 0.001 {
		return Warn
	}
	return Plain
}

// lost returns the share of TCP segments that were lost, and whether any passed: of those that the bridge
// sent, what it sent again and had to; of those that came, what came after a gap. The larger share counts.
func (p Pair) lost(now, before *status.TCP) (share float64, ok bool) {
	if now == nil {
		return 0, false
	}
	if p.Before == nil || before == nil || now.Segments < before.Segments || now.Received < before.Received {
		before = new(status.TCP)
	}
	part := func(n, of uint64) float64 {
		if of == 0 {
			return 0
		}
		ok = true
		return min(1, float64(n)/float64(of))
	}
	again := max(0, int64(now.Retransmits-before.Retransmits)-int64(now.Needless-before.Needless))
	sent := part(uint64(again), now.Segments-before.Segments)
	return max(sent, part(now.OutOfOrder-before.OutOfOrder, now.Received-before.Received)), ok
}

// lostCell is a cell of the column lost.
func (p Pair) lostCell(now, before *status.TCP) Cell {
	share, ok := p.lost(now, before)
	if !ok {
		return number(0, "-")
	}
	return number(share, Percent(share)).as(Warn, share >= 0.005).as(Bad, share >= 0.05)
}

func rttCell(t *status.TCP) Cell {
	if t == nil || t.RTT == 0 {
		return number(0, "-")
	}
	return number(t.RTT, Duration(t.RTT))
}

// oldestCell is a cell of the column oldest.
func oldestCell(seconds float64) Cell {
	if seconds == 0 {
		return number(0, "-")
	}
	return number(seconds, Duration(seconds)).as(Warn, seconds >= 1).as(Bad, seconds >= 10)
}

func countCell(n int) Cell { return number(float64(n), Count(float64(n))) }

const (
	helpRTT    = "round-trip time of the TCP connection, the longest if there are several"
	helpLost   = "part of the TCP segments that the network loses: those that the bridge must send again, or that come after a gap"
	helpFlight = "Calls that were read and are not yet answered"
	helpOldest = "how long the oldest of these has taken so far"
)
