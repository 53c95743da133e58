package audit

import (
	"bytes"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/loglimit"
	"github.com/rdmabridge/rdmabridge/internal/names"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/proxy/observe"
)

const (
	mostMemory  = 64 << 20 // octets of the Calls under way and of those that wait to be written
	mostBatch   = 256      // Calls that are written at a time
	mostLines   = 64 << 10 // octets of lines, and as many as the last Call has
	mostOpaque  = 1024     // clients whose encrypted Calls a loop counts apart
	opaqueEvery = time.Minute
	retryEvery  = time.Second

	// gather is how long lines wait for others: to write each by itself costs a client that makes one change after the other
	// much of its speed.
	gather = 50 * time.Millisecond
	// halfFull is how many Calls, or octets of them, do not wait.
	halfFull, halfMemory = 1024, mostMemory / 2

	// closeTimeout bounds how long Close waits for a disk that hangs.
	closeTimeout = 2 * time.Second
)

// IDs are user IDs from Low to High.
type IDs struct{ Low, High uint32 }

// A Choice says which operations have lines.
type Choice struct {
	Classes Classes
	Clients []netip.Prefix // empty: all
	UIDs    []IDs          // empty: all; users whose ID the Call does not say are always among them
	Exports []string       // paths; empty: all. What is not known to be elsewhere is always among them
	Deny    bool           // changes are refused while their lines cannot be written; otherwise lines are dropped
	Hide    names.Hidden
}

// Options are the parameters of a Log.
type Options struct {
	Choice Choice
	Output Output
	Loops  int
	Names  func() *names.Watch // who knows paths; it may return nil
	Log    zerolog.Logger      // for what goes wrong

	Lines, Dropped, Refused *metrics.Counter
}

// A Log is an audit log. It is safe for concurrent use.
type Log struct {
	o       Options
	choice  atomic.Pointer[Choice]
	loops   []watched     // by number; each belongs to its loop, apart from opaque
	memory  atomic.Int64  // octets of the Calls under way and of those that wait to be written
	failing atomic.Bool   // with Choice.Deny: lines could not be written, and are kept
	more    chan struct{} // one deep: there may be something to write
	half    chan struct{} // one deep: much waits to be written
	again   chan struct{} // one deep: what could not be written may be written now
	lacks   atomic.Uint64 // lines that are missing and that no line has told of
	stop    chan struct{} // closed by Close
	done    chan struct{} // closed when the goroutine has ended
	failed  loglimit.Seldom
	text    []byte // lines that are made; the goroutine's

	mu     sync.Mutex // guards output, and is held while a batch is written
	output Output

	waitingMu sync.Mutex // guards waiting; a leaf
	waiting   []*ended   // to be written; memory bounds it
}

// watched is what a loop knows.
type watched struct {
	calls map[uint64]*call // under way

	mu     sync.Mutex // guards opaque; a leaf
	opaque map[netip.Addr]uint64
}

// An ended is a Call that is over.
type ended struct {
	*call
	at   time.Time
	fate string // what became of it, as in rdmabridge_listener_calls_total
	sent bool   // it may have been executed

	log    *Log
	choice *Choice // when it ended
}

// Start starts a Log. The caller makes it a Tap.
func Start(o Options) *Log {
	l := &Log{o: o, output: o.Output, loops: make([]watched, o.Loops), more: make(chan struct{}, 1), half: make(chan struct{}, 1), again: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{})}
	for i := range l.loops {
		l.loops[i].calls, l.loops[i].opaque = make(map[uint64]*call), make(map[netip.Addr]uint64)
	}
	l.choice.Store(&o.Choice)
	go l.run()
	return l
}

// Set changes which operations have lines from now on, and where they go if to is not nil.
func (l *Log) Set(c Choice, to Output) {
	l.choice.Store(&c)
	if to != nil {
		l.mu.Lock()
		old := l.output
		l.output = to
		l.mu.Unlock()
		_ = old.Close()
	}
	signal(l.again)
}

// signal has the receiver of c look again.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // it will do so anyway
	}
}

// Reopen opens the file again, after it was renamed.
func (l *Log) Reopen() error {
	defer signal(l.again)
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.output.Reopen()
}

// Close writes the lines that wait, and closes the file. The Log is no Tap any more.
func (l *Log) Close() {
	close(l.stop)
	select {
	case <-l.done:
	case <-time.After(closeTimeout):
		l.o.Log.Error().Str("event", "audit_log_failed").Msg("the audit log cannot be written; its last lines are lost")
	}
}

// Wants is part of observe.Tap.
func (l *Log) Wants(c *observe.TapCall) uint32 {
	switch {
	case c.Reverse, c.Procedure == 0, c.Program != oncrpc.ProgramNFS && c.Program != oncrpc.ProgramNFSACL:
		return 0
	}
	choice := l.choice.Load()
	if c.Version != 4 && choice.Classes&Denials == 0 {
		if _, change := shapeOf(c.Program, c.Version, c.Procedure); !change || choice.Classes&Changes == 0 {
			return 0
		}
	}
	if !choice.client(c.Client.Addr().Unmap()) {
		return 0
	}
	return 1
}

func (c *Choice) client(a netip.Addr) bool {
	return len(c.Clients) == 0 || slices.ContainsFunc(c.Clients, func(p netip.Prefix) bool { return p.Contains(a) })
}

func (c *Choice) user(uid uint32) bool {
	return len(c.UIDs) == 0 || slices.ContainsFunc(c.UIDs, func(i IDs) bool { return i.Low <= uid && uid <= i.High })
}

// Message is part of observe.Tap.
func (l *Log) Message(m *observe.TapMessage) {
	w := &l.loops[m.Loop]
	if m.Reply {
		if c := w.calls[m.Call]; c != nil {
			c.reply(joined(m.Parts))
		}
		return
	}
	if m.Out {
		return
	}
	c := &call{client: m.Conn.Peer.Addr().Unmap(), listener: m.Conn.Name, identity: m.Identity}
	choice := l.choice.Load()
	var h oncrpc.Call
	if oncrpc.ParseCall(joined(m.Parts), &h) != nil || h.Protection == oncrpc.ProtectControl {
		return
	}
	c.program, c.version, c.protection = h.Program, h.Version, h.Protection
	if c.credential(&h); c.hasIDs && !choice.user(c.uid) {
		return
	}
	start, end, ok := h.Arguments()
	switch {
	case !ok:
		w.encrypted(c.client)
		return
	case h.Program == oncrpc.ProgramNFS && h.Version == 4:
		c.compound(&h, choice.Classes, start, end)
	default:
		c.arguments(&h, m.Operation, start, end)
	}
	if len(c.ops) == 0 {
		return
	}
	// The memory is for the line, too, until it is written.
	c.octets = c.memory()
	full := l.memory.Add(int64(c.octets)) > mostMemory
	m.Refuse = choice.Deny && (full || l.failing.Load()) && c.changes()
	if full || m.Refuse {
		l.memory.Add(-int64(c.octets))
		for i := range c.ops {
			if c.ops[i].class&choice.Classes != 0 {
				c.lost++
			}
		}
		c.ops, c.octets = nil, 0
	}
	w.calls[m.Call] = c
}

// changes reports whether an operation of c may change something.
func (c *call) changes() bool {
	return slices.ContainsFunc(c.ops, func(o operation) bool { return o.class&Changes != 0 })
}

// joined returns the parts of a message as one.
func joined(parts [][]byte) []byte {
	if len(parts) == 1 {
		return parts[0]
	}
	return bytes.Join(parts, nil)
}

// encrypted counts a Call of a client whose arguments cannot be read.
func (w *watched) encrypted(client netip.Addr) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, known := w.opaque[client]; !known && len(w.opaque) >= mostOpaque {
		client = netip.Addr{}
	}
	w.opaque[client]++
}

// Over is part of observe.Tap.
func (l *Log) Over(o *observe.TapOver) {
	w := &l.loops[o.Loop]
	c := w.calls[o.Call]
	if c == nil {
		return
	}
	delete(w.calls, o.Call)
	switch {
	case o.Postponed:
		l.o.Refused.Inc()
	case o.Repeated:
	case c.lost > 0:
		l.drop(c.lost)
	default:
		e := &ended{call: c, at: o.At, fate: o.Result, sent: o.Sent, log: l, choice: l.choice.Load()}
		if e.lines() == 0 {
			break
		}
		if w := l.o.Names(); w != nil && w.Ask(o.Loop, o.At, e) {
			signal(l.more)
		} else {
			l.put(e)
		}
		return // its memory is given back when it is written
	}
	l.memory.Add(-int64(c.octets))
}

// put has e written.
func (l *Log) put(e *ended) {
	l.waitingMu.Lock()
	l.waiting = append(l.waiting, e)
	much := len(l.waiting) >= halfFull || l.memory.Load() >= halfMemory
	l.waitingMu.Unlock()
	signal(l.more)
	if much {
		signal(l.half)
	}
}

// Learned is part of names.Asker.
func (e *ended) Learned(path func(listener, handle string) string) {
	for i := range e.ops {
		for _, p := range [...]*place{&e.ops[i].at, &e.ops[i].to} {
			if p.handle != "" {
				p.base = path(e.listener, p.handle)
				e.octets += len(p.base)
				e.log.memory.Add(int64(len(p.base)))
			}
		}
	}
	e.log.put(e)
}

// drop notes that n lines are missing.
func (l *Log) drop(n int) {
	l.o.Dropped.Add(uint64(n))
	l.lacks.Add(uint64(n))
}

// Ended is part of observe.Tap.
func (l *Log) Ended(*observe.TapConn, int, uint32, error) {}

// kind returns the word for why an operation has a line; "" if it has none.
func (e *ended) kind(i int) string {
	o := &e.ops[i]
	why := o.class & e.choice.Classes
	switch {
	case e.replied && e.refused == "" && e.version == 4 && !o.answered:
		return "" // the server has not come to it
	case why&Changes != 0:
		return "change"
	case why&Opens != 0:
		return "open"
	case e.choice.Classes&Denials != 0 && (o.answered && denial(o.status) || e.denied && i == 0):
		return "denial"
	}
	return ""
}

// lines returns how many lines e has.
func (e *ended) lines() (n int) {
	for i := range e.ops {
		if e.kind(i) != "" {
			n++
		}
	}
	return n
}

// run writes lines until Close.
func (l *Log) run() {
	defer close(l.done)
	retry, minute := time.NewTicker(retryEvery), time.NewTicker(opaqueEvery)
	defer retry.Stop()
	defer minute.Stop()
	for {
		select {
		case <-l.more:
			select {
			case <-time.After(gather):
			case <-l.half:
			case <-l.stop:
			}
			l.writeWaiting()
		case <-retry.C:
			if l.lacks.Load() > 0 {
				l.write(nil, 0)
			}
		case now := <-minute.C:
			l.tellOpaque(now)
		case <-l.stop:
			l.writeWaiting()
			l.tellOpaque(time.Now())
			l.write(nil, 0)
			l.mu.Lock()
			defer l.mu.Unlock()
			_ = l.output.Close()
			return
		}
	}
}

// writeWaiting writes the lines of the Calls that wait, and of those that wait for their paths.
func (l *Log) writeWaiting() {
	if w := l.o.Names(); w != nil {
		w.Settle()
	}
	l.waitingMu.Lock()
	all := l.waiting
	l.waiting = nil
	l.waitingMu.Unlock()
	for some := range slices.Chunk(all, mostBatch) {
		l.batch(some)
	}
}

// batch writes the lines of all.
func (l *Log) batch(all []*ended) {
	exports := l.choice.Load().Exports
	text, lines := l.text[:0], 0
	for _, e := range all {
		for i := range e.ops {
			if kind := e.kind(i); kind != "" && e.ops[i].in(exports) {
				text = e.line(text, kind, &e.ops[i])
				lines++
			}
		}
		l.memory.Add(-int64(e.octets))
		if len(text) >= mostLines {
			l.write(text, lines)
			text, lines = text[:0], 0
		}
	}
	l.write(text, lines)
	if l.text = text; cap(text) > 2*mostLines {
		l.text = nil
	}
}

// tellOpaque writes how many Calls of each client could not be read.
func (l *Log) tellOpaque(now time.Time) {
	sum := make(map[netip.Addr]uint64)
	for i := range l.loops {
		w := &l.loops[i]
		w.mu.Lock()
		for a, n := range w.opaque {
			sum[a] += n
		}
		clear(w.opaque)
		w.mu.Unlock()
	}
	var text []byte
	for a, n := range sum {
		text = opaqueLine(text, now, a, n)
	}
	l.write(text, len(sum))
}

// write writes lines. With Choice.Deny it waits for that, and has changes refused meanwhile. Otherwise it counts those
// that cannot be written.
func (l *Log) write(text []byte, lines int) {
	for {
		written, err := l.try(text, lines)
		if written == lines && err == nil {
			if l.failing.Swap(false) {
				l.o.Log.Info().Str("event", "audit_log_restored").Msg("the audit log can be written again, and no change is refused for it any more")
			}
			return
		}
		for range written { // those that are in the file
			text = text[bytes.IndexByte(text, '\n')+1:]
		}
		lines -= written
		stopped := l.waitAgain(err)
		if stopped || !l.choice.Load().Deny {
			l.failing.Store(false)
			l.drop(lines)
			l.failed.Line(&l.o.Log, zerolog.ErrorLevel, "audit_log_failed").Err(err).Msg("the audit log cannot be written; lines are missing")
			return
		}
	}
}

// waitAgain waits until lines that could not be written because of err are to be tried again, if changes are refused
// meanwhile. It reports whether the Log is closed.
func (l *Log) waitAgain(err error) (stopped bool) {
	if !l.choice.Load().Deny {
		return false
	}
	select {
	case <-l.stop:
		return true
	default:
	}
	l.failing.Store(true)
	l.failed.Line(&l.o.Log, zerolog.ErrorLevel, "audit_log_failed").Err(err).
		Msg("the audit log cannot be written; clients have to wait with changes until it can be")
	select {
	case <-l.again:
	case <-time.After(retryEvery):
	case <-l.stop: // once more
	}
	return false
}

// try writes lines, behind one that says how many are missing before them if some are. It returns how many it has written.
func (l *Log) try(text []byte, lines int) (written int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if lacks := l.lacks.Load(); lacks > 0 {
		first := missingLine(nil, time.Now(), lacks)
		if n, err := l.output.Write(first); n < len(first) {
			return 0, err
		}
		l.lacks.Add(-lacks)
	}
	if lines == 0 {
		return 0, nil
	}
	n, err := l.output.Write(text)
	written = bytes.Count(text[:n], []byte{'\n'})
	l.o.Lines.Add(uint64(written))
	return written, err
}
