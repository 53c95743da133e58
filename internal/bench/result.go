package bench

import (
	"fmt"
	"io"
	"time"
)

// A Result has the figures of one run of a load.
type Result struct {
	Target  string  `json:"target"`
	Work    string  `json:"work"`
	Conns   int     `json:"conns"`
	Depth   int     `json:"depth"`
	Rate    float64 `json:"rate,omitempty"` // of Load, calls a second
	Seconds float64 `json:"seconds"`        // length of the window

	Calls          uint64  `json:"calls"`
	CallOctets     uint64  `json:"call_octets"`  // RPC messages of answered Calls
	ReplyOctets    uint64  `json:"reply_octets"` // RPC messages of Replies
	CallsPerSecond float64 `json:"calls_per_second"`
	GBPerSecond    float64 `json:"gb_per_second"` // 10^9 octets of Calls and Replies together

	Latency Latency `json:"latency"`
	CPU     *CPU    `json:"cpu,omitempty"` // of Load.Processes, if there are any
}

// Latency is the time from the start of a Call to the end of its Reply, in microseconds.
type Latency struct {
	Mean float64 `json:"mean_us"`
	P50  float64 `json:"p50_us"`
	P90  float64 `json:"p90_us"`
	P99  float64 `json:"p99_us"`
	P999 float64 `json:"p999_us"`
	Max  float64 `json:"max_us"`
}

// CPU is the CPU time of the processes under test in the window.
type CPU struct {
	Seconds float64 `json:"seconds"`
	PerCall float64 `json:"per_call_us"` // microseconds
	PerGB   float64 `json:"per_gb_s"`    // seconds for 10^9 octets of Calls and Replies
}

func (r *Result) cpu(f func(*CPU) float64) (float64, bool) {
	if r.CPU == nil {
		return 0, false
	}
	return f(r.CPU), true
}

// fill computes the figures from the counts of a window.
func (r *Result) fill(s *stats, window time.Duration) {
	r.Seconds = window.Seconds()
	r.Calls, r.CallOctets, r.ReplyOctets = s.latency.Count(), s.callOctets, s.replyOctets
	r.CallsPerSecond = float64(r.Calls) / r.Seconds
	r.GBPerSecond = r.gb() / r.Seconds
	us := func(d time.Duration) float64 { return float64(d) / 1e3 }
	h := s.latency
	r.Latency = Latency{
		Mean: us(h.Mean()), P50: us(h.Quantile(0.5)), P90: us(h.Quantile(0.9)),
		P99: us(h.Quantile(0.99)), P999: us(h.Quantile(0.999)), Max: us(h.Max()),
	}
}

func (r *Result) gb() float64 { return float64(r.CallOctets+r.ReplyOctets) / 1e9 }

// spent sets the CPU time of the window.
func (r *Result) spent(d time.Duration) {
	c := &CPU{Seconds: d.Seconds()}
	if r.Calls > 0 {
		c.PerCall = c.Seconds * 1e6 / float64(r.Calls)
		c.PerGB = c.Seconds / r.gb()
	}
	r.CPU = c
}

// Print writes r as a table.
func (r *Result) Print(w io.Writer) error {
	p := &printer{w: w}
	p.f("target    %s\n", r.Target)
	p.f("work      %s, %d connections x %d", r.Work, r.Conns, r.Depth)
	if r.Rate > 0 {
		p.f(", %.0f calls/s", r.Rate)
	}
	p.f("\ncalls     %d in %.2f s\n", r.Calls, r.Seconds)
	p.f("calls/s   %.0f\n", r.CallsPerSecond)
	p.f("GB/s      %.3f\n", r.GBPerSecond)
	p.f("latency   p50 %.1f  p90 %.1f  p99 %.1f  p99.9 %.1f  max %.1f  mean %.1f us\n",
		r.Latency.P50, r.Latency.P90, r.Latency.P99, r.Latency.P999, r.Latency.Max, r.Latency.Mean)
	if c := r.CPU; c != nil {
		p.f("CPU       %.3f s, %.2f us/call, %.3f s/GB\n", c.Seconds, c.PerCall, c.PerGB)
	}
	return p.err
}

// A printer writes until the first error, and keeps that.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) f(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}
