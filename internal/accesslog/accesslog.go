// Package accesslog writes a line for each chosen Call, with the four phases of its time.
//
// # Operation
//
// A Log is a observe.Observer. On the event loop it decides about a Call with a few comparisons, and copies
// the record of a chosen one into a queue. One goroutine writes the lines. When it cannot keep up, or
// what it writes to blocks, the queue fills, and further lines are dropped, counted, and mentioned in the
// log: clients never wait for the access log.
package accesslog

import (
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/loglimit"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/proxy/observe"
)

// A Mode chooses Calls. Each Mode chooses what those before it choose, and more.
type Mode uint8

const (
	Failed  Mode = iota // the Reply is an error of the server or of RPC, or there is none
	Slow                // and Calls that took Slower or more
	Sampled             // and a part of the others
	All
)

// Settings choose Calls.
type Settings struct {
	Mode   Mode
	Slower time.Duration
	Sample float64 // a part of all, above 0 and up to 1
}

// Options are the parameters of a Log.
type Options struct {
	Settings Settings
	Output   Output
	PID      int            // a member of each line; 0 for none
	Log      zerolog.Logger // for what goes wrong

	Lines, Dropped *metrics.Counter
}

// An Output is where the lines go. One goroutine uses it, apart from Reopen.
type Output interface {
	Write(line []byte) (int, error)
	Flush() error // called when no more lines follow at once
	Reopen() error
	Close() error
}

// A Log is an access log.
type Log struct {
	o        Options
	settings atomic.Pointer[choice]
	queue    chan entry
	stop     chan struct{} // closed by Close
	done     chan struct{} // closed when the goroutine has ended
	failures loglimit.Seldom
	left     loglimit.Seldom
	dropped  atomic.Uint64 // that no line of the log has mentioned

	kept uint64 // lines that Output has and has not flushed; owned by run
}

// An entry is one line to be written.
type entry struct {
	record observe.CallRecord
	why    string
}

// queueLen bounds the lines that wait: less than a MiB.
const queueLen = 2048

// A choice is Settings ready for comparisons.
type choice struct {
	mode   Mode
	slower int64
	sample uint64 // a random number below it is chosen
}

// Start starts a Log.
func Start(o Options) *Log {
	l := &Log{o: o, queue: make(chan entry, queueLen), stop: make(chan struct{}), done: make(chan struct{})}
	l.Set(o.Settings)
	go l.run()
	return l
}

// Set changes which Calls are chosen.
func (l *Log) Set(s Settings) {
	c := &choice{mode: s.Mode, slower: int64(s.Slower), sample: math.MaxUint64}
	if s.Sample < 1 {
		c.sample = uint64(s.Sample * (1 << 63) * 2)
	}
	l.settings.Store(c)
}

// Why a Call was chosen.
const (
	whyFailed  = "failed"
	whySlow    = "slow"
	whySampled = "sampled"
	whyAll     = "all"
)

// why says why r is chosen, or "" if it is not.
func (c *choice) why(r *observe.CallRecord) string {
	switch {
	case failed(r):
		return whyFailed
	case c.mode >= Slow && r.Settled-r.Began >= c.slower:
		return whySlow
	case c.mode == All:
		return whyAll
	case c.mode == Sampled && rand.Uint64() <= c.sample:
		return whySampled
	}
	return ""
}

// failed reports whether r is a failure. Programs ask for files that are not there, create what is there
// and try locks all the time; these answers are no failures.
func failed(r *observe.CallRecord) bool {
	if !r.Failed {
		return false
	}
	switch r.Status {
	case "noent", "exist", "locked":
		return false
	}
	return true
}

// Wants implements observe.Observer. Observe decides, so that a sample is drawn once.
func (l *Log) Wants(*observe.CallRecord) bool { return true }

// Observe implements observe.Observer.
func (l *Log) Observe(r *observe.CallRecord) {
	why := l.settings.Load().why(r)
	if why == "" {
		return
	}
	select {
	case l.queue <- entry{*r, why}:
	default:
		l.o.Dropped.Inc()
		l.dropped.Add(1)
	}
}

// Reopen opens the file again, after it was renamed.
func (l *Log) Reopen() error { return l.o.Output.Reopen() }

// closeTimeout bounds how long Close waits for an Output that blocks.
const closeTimeout = 2 * time.Second

// Close writes the lines that wait, and closes the Output. Calls that are observed later are not logged.
func (l *Log) Close() {
	close(l.stop)
	select {
	case <-l.done:
	case <-time.After(closeTimeout):
	}
}

// run writes lines until Close.
func (l *Log) run() {
	defer close(l.done)
	w := newWriter(l.o.Output, l.o.PID)
	for {
		select {
		case e := <-l.queue:
			l.write(w, &e)
			l.drain(w)
		case <-l.stop:
			l.drain(w)
			l.flushed(l.o.Output.Close())
			return
		}
	}
}

// drain writes what is in the queue.
func (l *Log) drain(w *writer) {
	for range queueLen {
		select {
		case e := <-l.queue:
			l.write(w, &e)
			continue
		default:
		}
		break
	}
	l.flushed(l.o.Output.Flush())
	l.mention()
}

func (l *Log) write(w *writer, e *entry) {
	l.kept++
	err := w.write(e)
	if _, each := l.o.Output.(*shared); each || err != nil { // shared keeps no lines
		l.flushed(err)
	}
}

// flushed counts the lines that Output had, which err has lost if it is not nil.
func (l *Log) flushed(err error) {
	n := l.kept
	l.kept = 0
	if err == nil {
		l.o.Lines.Add(n)
		return
	}
	l.o.Dropped.Add(n)
	l.failures.Line(&l.o.Log, zerolog.ErrorLevel, "access_log_failed").Err(err).Msg("the access log cannot be written; lines are lost")
}

// mention logs how many lines were dropped, once in a while.
func (l *Log) mention() {
	if l.dropped.Load() == 0 {
		return
	}
	if ok, _ := l.left.Allow(time.Now()); ok {
		loglimit.Line(&l.o.Log, zerolog.WarnLevel, "access_log_dropped", l.dropped.Swap(0)).
			Msg("the access log does not keep up; lines are left out")
	}
}
