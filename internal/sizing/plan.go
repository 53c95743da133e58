// Package sizing says how large bridges must be, and simulates many of them.
//
// Plan has the formulas: what clients ask for, divided among bridges, gives credits, connections, processors and
// memory. Simulate runs a fleet of bridges, clients and servers event by event, for what formulas do not say: what
// happens when bridges or servers fail. docs/scaling.md has the formulas in words, and results.
package sizing

import (
	"fmt"
	"math"
	"time"
)

// What a bridge costs, measured with `rdmabridge-bench` and an RDMA upstream; docs/performance.md and docs/scaling.md.
const (
	// Seconds of a processor for a Call and its Reply, and for each octet of data. Clients that always have many Calls
	// under way cost 3 us for each, because the bridge handles many at a time, and those with one cost 20 us.
	callCPU  = 12e-6
	octetCPU = 0.75e-9
	busiest  = 0.6 // the part of its processors that a bridge should use: beyond it, Calls wait for each other

	processMemory = 64 << 20   // of a process without its messages, and what the Go heap may come to
	clientMemory  = 3 << 10    // of an idle client's connection; the Go heap may come to twice as much
	receiveMemory = 16 << 10   // of each credit of an RDMA connection: its Receive
	longestRecord = 4160 << 10 // limits.record, of which memory.budget must hold eight

	// headroom is how many times the mean number of Calls under way a bridge has credits for. Calls come in bursts, and
	// the last eighth of the credits is for clients that have none.
	headroom = 2.0

	acceptRate  = 6000.0          // connections a second that a bridge accepts
	clientRetry = 3 * time.Second // when Linux tries again after a connection was refused, and up to a second later
)

// A Demand is what clients want and what the storage gives.
type Demand struct {
	Clients     int           // connections of clients; with nconnect several of one host
	Calls       float64       // a second, of all clients together
	Octets      float64       // a second, of the data of these Calls
	Latency     time.Duration // of the storage for one Call
	Bridges     int
	Spare       int // bridges that may be away, with no loss of speed
	Grant       int // credits that the storage grants to one connection
	Connections int // that the storage accepts from all bridges together
	Threads     int // of the storage; 0: unknown. Linux accepts 20 connections for each, and 60 more
	Largest     int // octets of the longest READ or WRITE
}

// A Plan is what each bridge needs so that the Demand is met.
type Plan struct {
	Demand        Demand
	Clients       int     // of one bridge while Spare bridges are away
	Calls, Octets float64 // likewise, a second
	Credits       int     // of one bridge
	Connections   int     // of one bridge, of each kind: Calls of NFSv4.1 and later have as many of their own
	AtStorage     int     // connections of all bridges at the storage
	CPU           float64 // processors that one bridge uses
	Loops         int     // processors that it should have
	Budget        int64   // memory.budget
	Memory        int64   // of the process
	Descriptors   int     // RLIMIT_NOFILE
	Back          time.Duration
	Reasons       []string // what bounds it, for people
	Problems      []string // what of the Demand cannot be had
}

func (d *Demand) validate() error {
	switch {
	case d.Clients < 1 || d.Clients > 100_000_000:
		return fmt.Errorf("--clients %d is out of range; write 1 to 100000000", d.Clients)
	case d.Bridges < 1 || d.Bridges > 100_000:
		return fmt.Errorf("--bridges %d is out of range; write 1 to 100000", d.Bridges)
	case d.Spare < 0 || d.Spare >= d.Bridges:
		return fmt.Errorf("--spare %d is out of range; write a number below --bridges, which is %d", d.Spare, d.Bridges)
	case !(d.Calls >= 0 && d.Calls <= 1e12) || !(d.Octets >= 0 && d.Octets <= 1e15) || d.Calls == 0 && d.Octets == 0:
		return fmt.Errorf("--calls %g and --bytes %g: write how much the clients do in a second, in one of the two or in both, more than 0, and at most 1e12 Calls and 1e15 octets", d.Calls, d.Octets)
	case d.Latency <= 0 || d.Latency > time.Minute:
		return fmt.Errorf("--latency %s is out of range; write how long the storage takes for a Call, more than 0 and at most 1m", d.Latency)
	case d.Grant < 1 || d.Grant > 4096:
		return fmt.Errorf("--credits %d is out of range; write 1 to 4096", d.Grant)
	case d.Connections < 0 || d.Threads < 0:
		return fmt.Errorf("--connections %d and --threads %d: write 0, or a number above it", d.Connections, d.Threads)
	case d.Largest < 4096 || d.Largest > 8<<20:
		return fmt.Errorf("--largest %d octets is out of range; write 4KiB to 8MiB", d.Largest)
	}
	return nil
}

// NewPlan computes what d needs.
func NewPlan(d Demand) (*Plan, error) {
	if err := d.validate(); err != nil {
		return nil, err
	}
	if d.Calls == 0 { // long Calls only
		d.Calls = d.Octets / float64(d.Largest)
	}
	p := &Plan{Demand: d}
	active := float64(d.Bridges - d.Spare)
	p.Clients = int(math.Ceil(float64(d.Clients) / active))
	p.Calls, p.Octets = d.Calls/active, d.Octets/active
	because := func(format string, args ...any) { p.Reasons = append(p.Reasons, fmt.Sprintf(format, args...)) }
	problem := func(format string, args ...any) { p.Problems = append(p.Problems, fmt.Sprintf(format, args...)) }

	underWay := p.Calls * d.Latency.Seconds()
	p.Credits = max(16, int(math.Ceil(headroom*underWay)))
	p.Connections = max(2, ceilDiv(p.Credits, d.Grant))
	if p.Connections > 64 {
		problem("%d connections of one bridge, of at most 64: use more bridges, or a storage that grants more than %d credits to a connection", p.Connections, d.Grant)
		p.Connections = 64
	}
	because("%.0f Calls/s x %v are %.0f Calls under way, and credits for %.0f times as many", p.Calls, d.Latency, underWay, headroom)
	p.AtStorage = 2 * p.Connections * d.Bridges
	most := d.Connections
	if d.Threads > 0 {
		if linux := 20 * (d.Threads + 3); most == 0 || linux < most {
			most = linux
		}
	}
	if most > 0 && p.AtStorage > most {
		problem("%d connections at the storage, which takes %d: use fewer bridges, more threads there, or pool.mode auto with clients of one kind only, which halves them", p.AtStorage, most)
	}
	because("2 kinds x %d connections x %d bridges at the storage", p.Connections, d.Bridges)

	p.CPU = CPU(p.Calls, p.Octets)
	p.Loops = max(1, int(math.Ceil(p.CPU/busiest)))
	if p.Loops > 64 {
		problem("%d processors for one bridge: use more bridges", p.Loops)
		p.Loops = 64
	}
	because("%.0f Calls/s x %.1f us and %.2f GB/s x %.2f s/GB are %.2f processors, of which %.0f %% may be used", p.Calls, callCPU*1e6, p.Octets/1e9, octetCPU*1e9, p.CPU, busiest*100)

	// Half of the budget is for Replies, a little more than a quarter at the least for Calls. Data of a Call are in memory
	// from their first octet to their last, at the client's and at the server's speed, so for about twice the latency.
	data := headroom * 2 * p.Octets * d.Latency.Seconds()
	receives := float64(2 * p.Connections * d.Grant * receiveMemory)
	replies := receives + max(data, 8*longestRecord)
	budget := int64(max(48<<20, 4*replies))
	p.Budget = ceilTo(budget, 16<<20)
	p.Memory = ceilTo(p.Budget+p.Budget/8+processMemory+int64(2*ClientMemory(p.Clients)), 16<<20)
	because("4 x (%.0f MiB of Receives and %.0f MiB of data under way) for memory.budget; the process has an eighth more, %d MiB, and %d KiB for each of %d clients",
		receives/(1<<20), max(data, 8*longestRecord)/(1<<20), processMemory>>20, 2*clientMemory>>10, p.Clients)
	p.Descriptors = p.Clients*5/4 + 2*p.Connections + 256
	p.Back = p.recovery()
	because("clients of a bridge that has ended are back after %v and %.0f connections at %.0f a second", clientRetry, float64(d.Clients)/float64(d.Bridges), acceptRate)
	return p, nil
}

// CreditRate is how many Calls a second a number of credits allows to one address: the last eighth is for others.
func CreditRate(credits int, latency time.Duration) float64 {
	return float64(credits-ceilDiv(credits, 8)) / latency.Seconds()
}

// ClientRate is the rate of clients that have a number of Calls under way together.
func ClientRate(calls int, latency time.Duration) float64 { return float64(calls) / latency.Seconds() }

// CPU is how many processors a bridge uses for Calls and octets a second.
func CPU(calls, octets float64) float64 { return calls*callCPU + octets*octetCPU }

// ClientMemory is the memory of clients' connections, with nothing under way.
func ClientMemory(clients int) float64 { return clientMemory * float64(clients) }

// recovery is how long it takes until all clients of a lost bridge are answered by the others.
func (p *Plan) recovery() time.Duration {
	lost := float64(p.Demand.Clients) / float64(p.Demand.Bridges)
	each := lost / max(1, float64(p.Demand.Bridges-1)) // at each of the others; at itself if it is alone
	return clientRetry + max(time.Second, time.Duration(each/acceptRate*float64(time.Second))) + 2*p.Demand.Latency
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }

func ceilTo(n, unit int64) int64 { return (n + unit - 1) / unit * unit }
