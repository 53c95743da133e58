package bench

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

const (
	// maxConns and maxDepth bound a load.
	maxConns = 50000
	maxDepth = 4096
	// maxOutstanding bounds their product: each Call has 200 octets and more.
	maxOutstanding = 1 << 20

	dialers = 8 // connections dialled at once; an iWARP listener allows 16
)

// A Load describes one run.
type Load struct {
	// Target is host:port. With tls:// before it, connections have TLS from the first octet on, and
	// with rpctls:// behind the probe of RFC 9289.
	Target string
	// TLS has the CAs and the name of a server with TLS, and the certificate of the load.
	TLS *tls.Config
	// Provider connects over RDMA. With nil, the load uses TCP.
	Provider fabric.Provider

	Conns int // connections
	Depth int // Calls outstanding on each; with Rate, the most
	Idle  int // further connections without Calls

	Work Work

	// Warmup is the time before the window that is measured, and Duration the length of
	// the window.
	Warmup, Duration time.Duration
	// Rate is how many Calls the load starts in a second over all connections,
	// regardless of Replies, as far as Depth allows. The latency of a Call counts from
	// the time when it was due, also when Depth delayed it. With 0 the load is a closed
	// loop: each Reply starts a Call.
	Rate float64
	// Timeout bounds connecting and the wait for the last Replies.
	Timeout time.Duration
	// Full compares all data of every Reply rather than both ends.
	Full bool
	// Processes are the processes under test, whose CPU time is measured.
	Processes Processes
}

func (l *Load) validate() error {
	switch {
	case l.Conns < 1 || l.Conns > maxConns:
		return fmt.Errorf("--conns %d is out of range; write 1 to %d", l.Conns, maxConns)
	case l.Depth < 1 || l.Depth > maxDepth:
		return fmt.Errorf("--depth %d is out of range; write 1 to %d", l.Depth, maxDepth)
	case l.Conns*l.Depth > maxOutstanding:
		return fmt.Errorf("--conns %d and --depth %d are %d Calls at once; write fewer, %d at most", l.Conns, l.Depth, l.Conns*l.Depth, maxOutstanding)
	case l.Idle < 0 || l.Idle > maxConns:
		return fmt.Errorf("--idle %d is out of range; write 0 to %d", l.Idle, maxConns)
	case l.Warmup < 0:
		return fmt.Errorf("--warmup %v is out of range; write 0 or more", l.Warmup)
	case l.Duration <= 0:
		return fmt.Errorf("--duration %v is out of range; write a time above 0", l.Duration)
	case l.Timeout <= 0:
		return fmt.Errorf("--timeout %v is out of range; write a time above 0", l.Timeout)
	case !(l.Rate >= 0):
		return fmt.Errorf("--rate %v is out of range; write 0 or more", l.Rate)
	case l.Provider != nil && strings.Contains(l.Target, "://"):
		return fmt.Errorf("%s is a target with TLS, and there is none over RDMA; write --transport tcp", l.Target)
	case l.Provider != nil && l.Idle > 0:
		return fmt.Errorf("--idle %d is for TCP; write --transport tcp, or leave it out", l.Idle)
	}
	return nil
}

// A Loader runs loads, one at a time, on event loops of its own.
type Loader struct {
	engine   *tcpframe.Engine
	arena    *regmem.Arena
	calls    *regmem.Account // of RDMA loads
	replies  *regmem.Account
	registry *ulb.Registry
	log      zerolog.Logger
}

// LoaderOptions configure a Loader.
type LoaderOptions struct {
	Loops  int   // event loops; 0 is two, or one when GOMAXPROCS is 1
	Budget int64 // octets of memory for messages of RDMA loads
	Log    zerolog.Logger
}

// NewLoader starts a Loader.
func NewLoader(o LoaderOptions) (*Loader, error) {
	if o.Loops == 0 {
		o.Loops = loaderLoops()
	}
	arena, err := regmem.New(regmem.Options{Budget: o.Budget})
	if err != nil {
		return nil, err
	}
	engine, err := tcpframe.Start(tcpframe.EngineOptions{Loops: o.Loops, Log: o.Log})
	if err != nil {
		return nil, errors.Join(err, arena.Close())
	}
	l := &Loader{engine: engine, arena: arena, registry: ulb.NewRegistry(ulb.Limits{}), log: o.Log}
	l.calls, l.replies = arena.Account("calls", 0), arena.Account("replies", 0)
	nfs.Register(l.registry)
	return l, nil
}

// Memory returns the extents of the memory that messages over RDMA are in, for a provider that
// registers it. They keep their pages from then on.
func (l *Loader) Memory() [][]byte { return l.arena.Pin() }

// Close ends the Loader. No run may be under way.
func (l *Loader) Close() error {
	l.engine.Stop()
	return l.arena.Close()
}

// stats are the counts of one loop in the window.
type stats struct {
	latency                 *histogram
	callOctets, replyOctets uint64
	began, ended            time.Duration // since the beginning of the run
}

func newStats() *stats { return &stats{latency: newHistogram()} }

func (s *stats) merge(o *stats) {
	s.latency.Merge(o.latency)
	s.callOctets += o.callOctets
	s.replyOctets += o.replyOctets
}

// A run is one load under way.
type run struct {
	Load
	loader *Loader
	ops    []*op
	order  []uint8
	base   time.Time
	seed   uint32 // start of the tags, which differs between runs

	callMax, replyMax int // octets

	address string        // host:port of Target
	tls     *tcpframe.TLS // nil without TLS
	probe   bool          // the probe of RFC 9289 comes before TLS

	workers []*worker
	failed  chan error     // the first error of a connection
	alive   sync.WaitGroup // connections
}

// Run runs o and returns its Result. It fails when a Call fails, a Reply is wrong, or a
// connection ends.
func (l *Loader) Run(ctx context.Context, o Load) (*Result, error) {
	r, err := l.prepare(o)
	if err != nil {
		return nil, err
	}
	res, err := r.measure(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.Target, err)
	}
	return res, nil
}

// prepare makes a run without connections.
func (l *Loader) prepare(o Load) (*run, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	r := &run{Load: o, loader: l, base: time.Now(), seed: rand.Uint32(), failed: make(chan error, 1)}
	var err error
	if r.ops, r.order, err = o.Work.ops(); err != nil {
		return nil, err
	}
	for _, p := range r.ops {
		r.callMax, r.replyMax = max(r.callMax, p.callLen()), max(r.replyMax, p.reply)
	}
	pattern() // computed before the window
	if err := r.prepareTLS(); err != nil {
		return nil, err
	}
	for i, loop := range l.engine.Loops() {
		w := &worker{run: r, loop: loop, index: i, out: make([]byte, 0, 64<<10)}
		w.stats, w.window = newStats(), newStats()
		r.workers = append(r.workers, w)
	}
	return r, nil
}

func (r *run) measure(ctx context.Context) (res *Result, err error) {
	defer func() { err = errors.Join(err, r.end()) }()
	if err := r.connect(ctx); err != nil {
		return nil, err
	}
	pacers := make(chan struct{})
	var pacing sync.WaitGroup
	defer func() { close(pacers); pacing.Wait() }()
	for _, w := range r.workers {
		w.post(w.begin)
		if r.Rate > 0 {
			pacing.Go(func() { w.pace(pacers) })
		}
	}
	if err := r.sleep(ctx, r.Warmup); err != nil {
		return nil, err
	}
	before, err := r.Processes.CPU()
	if err != nil {
		return nil, err
	}
	for _, w := range r.workers {
		w.post(w.open)
	}
	if err := r.sleep(ctx, r.Duration); err != nil {
		return nil, err
	}
	var closed sync.WaitGroup
	closed.Add(len(r.workers))
	for _, w := range r.workers {
		w.post(func() { w.shut(); closed.Done() })
	}
	after, err := r.Processes.CPU()
	if err != nil {
		return nil, err
	}
	if err := r.wait(ctx, &closed, "an event loop does not respond"); err != nil {
		return nil, err
	}
	sum := newStats()
	var window time.Duration
	for _, w := range r.workers {
		sum.merge(w.window)
		window += w.window.ended - w.window.began
	}
	window /= time.Duration(len(r.workers))
	if err := r.drain(ctx); err != nil {
		return nil, err
	}
	if sum.latency.Count() == 0 {
		return nil, fmt.Errorf("no call was answered in %v", window.Round(time.Millisecond))
	}
	res = &Result{Target: r.Target, Work: r.Work.String(), Conns: r.Conns, Depth: r.Depth, Rate: r.Rate}
	res.fill(sum, window)
	if len(r.Processes) > 0 {
		res.spent(after - before)
	}
	return res, nil
}

// connect makes all connections.
func (r *run) connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	next := make(chan int)
	errc := make(chan error, dialers)
	for range dialers {
		go func() {
			for i := range next {
				if err := r.dial(ctx, i); err != nil {
					errc <- err
					return
				}
			}
			errc <- nil
		}()
	}
	left := dialers
	var err error
	for i := 0; i < r.Conns+r.Idle && err == nil; {
		select {
		case next <- i:
			i++
		case err = <-errc:
			left--
		}
	}
	close(next)
	for range left {
		err = errors.Join(err, <-errc)
	}
	return err
}

// dial makes connection i.
func (r *run) dial(ctx context.Context, i int) error {
	w := r.workers[i%len(r.workers)]
	if r.Provider != nil {
		return dialRDMA(ctx, w, i)
	}
	if r.tls != nil {
		return dialTLS(ctx, w, i)
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", r.address)
	if err != nil {
		return err
	}
	r.alive.Add(1)
	if err := w.loop.Attach(c, newTCPClient(w, i)); err != nil {
		r.alive.Done()
		return err
	}
	return nil
}

// sleep lets the load run for d.
func (r *run) sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case err := <-r.failed:
		return err
	}
}

// wait waits for wg, but at most for Timeout. Then it returns problem as an error.
func (r *run) wait(ctx context.Context, wg *sync.WaitGroup, problem string) error {
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	select {
	case <-done:
		return nil
	case err := <-r.failed:
		return err
	case <-ctx.Done():
		return errors.New(problem)
	}
}

// drain waits for the Replies to the last Calls.
func (r *run) drain(ctx context.Context) error {
	var quiet sync.WaitGroup
	quiet.Add(len(r.workers))
	for _, w := range r.workers {
		w.post(func() { w.quiet = quiet.Done; w.settle() })
	}
	return r.wait(ctx, &quiet, "calls stay unanswered")
}

// end closes all connections.
func (r *run) end() error {
	for _, w := range r.workers {
		w.post(w.end)
	}
	return r.wait(context.Background(), &r.alive, "connections do not close")
}

// fail makes the run fail with err. Any goroutine may call it.
func (r *run) fail(err error) {
	select {
	case r.failed <- err:
	default: // not the first
	}
}
