package bench

import (
	"runtime"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// serverLoops is one loop per CPU, but leaves one CPU to the kernel where there are more
// than two.
func serverLoops() int {
	if cpus := runtime.GOMAXPROCS(0); cpus > 2 {
		return cpus - 1
	}
	return runtime.GOMAXPROCS(0)
}

// loaderLoops returns how many event loops a Loader has when LoaderOptions do not say.
func loaderLoops() int { return min(2, runtime.GOMAXPROCS(0)) }

// A client is one connection of a load. Its methods run on its loop.
type client interface {
	// call starts a Call whose latency counts from start. A slot must be free.
	call(start int64)
	// slots returns how many Calls can be started now.
	slots() int
	close()
}

// A worker is one event loop's part of a run. Only the loop may use it, except for post.
type worker struct {
	*run
	loop  *tcpframe.Loop
	index int

	clients  []client
	idle     []client
	inFlight int
	stopping bool
	ended    bool
	quiet    func() // called once when no Call is in flight

	stats  *stats // the counts at the moment
	window *stats // the counts of the window, once it is shut

	// With Rate.
	due  int64 // time of the next Call
	step int64 // time between Calls
	turn int   // index of the client that gets a Call first

	out     []byte // small Calls of one write
	bufs    [][]byte
	scratch [headMax]byte

	analysed []analysed // by kind; for RDMA
}

func (w *worker) post(f func()) { w.loop.Post(loop.TaskFunc(f)) }

// now returns the time since the beginning of the run, in nanoseconds.
func (w *worker) now() int64 { return int64(time.Since(w.base)) }

// begin starts the load.
func (w *worker) begin() {
	now := w.now()
	if w.Rate > 0 {
		w.step = max(1, int64(float64(time.Second)*float64(w.Conns)/w.Rate/float64(max(1, len(w.clients)))))
		w.due = now
		w.catchUp(now, now)
		return
	}
	for _, c := range w.clients {
		for c.slots() > 0 {
			c.call(now)
		}
	}
}

// open begins the window.
func (w *worker) open() {
	w.stats.latency.Reset()
	*w.stats = stats{latency: w.stats.latency, began: time.Since(w.base)}
}

// shut ends the window. The worker starts no more Calls.
func (w *worker) shut() {
	w.stopping = true
	w.stats.ended = time.Since(w.base)
	w.stats, w.window = w.window, w.stats
}

// settle calls quiet when no Call is in flight.
func (w *worker) settle() {
	if w.inFlight == 0 && w.quiet != nil {
		w.quiet()
		w.quiet = nil
	}
}

// end closes the connections.
func (w *worker) end() {
	w.stopping, w.ended = true, true
	for _, c := range w.clients {
		c.close()
	}
	for _, c := range w.idle {
		c.close()
	}
}

// answered counts a Reply and starts the next Call. A slot of c is free again.
func (w *worker) answered(c client, o *op, start, now int64) {
	w.inFlight--
	w.stats.latency.Add(time.Duration(now - start))
	w.stats.callOctets += uint64(o.callLen())
	w.stats.replyOctets += uint64(o.reply)
	switch {
	case w.stopping:
		w.settle()
	case w.Rate > 0:
		w.catchUp(now, 0)
	default:
		c.call(now)
	}
}

// catchUp starts the Calls that are due. Their latency counts from start. If start is 0,
// they have waited for a slot, and their latency counts from the time when they were due.
// The pacer passes its own time as start, so that its delays do not count.
func (w *worker) catchUp(now, start int64) {
	for w.due <= now && !w.stopping {
		var c client
		for range w.clients {
			w.turn = (w.turn + 1) % len(w.clients)
			if w.clients[w.turn].slots() > 0 {
				c = w.clients[w.turn]
				break
			}
		}
		if c == nil {
			return
		}
		from := start
		if from == 0 {
			from = w.due
		}
		c.call(from)
		w.due += w.step
	}
}

// pace wakes the worker for Calls that are due, until done is closed. It runs in a
// goroutine of its own.
func (w *worker) pace(done <-chan struct{}) {
	share := w.Rate / float64(len(w.workers))
	every := min(max(time.Duration(float64(time.Second)/share), 100*time.Microsecond), 10*time.Millisecond)
	t := time.NewTicker(every)
	defer t.Stop()
	tick := loop.TaskFunc(func() {
		if now := w.now(); w.step > 0 {
			w.catchUp(now, now)
		}
	})
	for {
		select {
		case <-t.C:
			w.loop.Post(tick)
		case <-done:
			return
		}
	}
}

// A sequence makes the XIDs and tags of a connection. XIDs of different connections are
// far apart, so that they stay different for longer than any bridge remembers them.
type sequence struct {
	base  uint32 // first XID of slot 0
	count uint32
	bits  int // low bits of an XID that hold the slot
	seed  uint32
	at    int // index in run.order
}

func (r *run) sequence(i int) sequence {
	s := sequence{seed: r.seed, at: i * 7 % len(r.order)}
	for 1<<s.bits < r.Depth {
		s.bits++
	}
	stride := uint64(1<<32) / uint64(r.Conns+1)
	s.base = uint32(uint64(i)*stride) + r.seed
	s.base &^= 1<<s.bits - 1
	return s
}

// next returns the XID and tag of the next Call of a slot. Its data have this shift.
func (s *sequence) next(slot int, shift uint32) (xid, tag uint32) {
	s.count++
	return s.base + s.count<<s.bits + uint32(slot), (s.count+s.seed)<<shiftBits | shift
}

// slot returns the slot of a Call by its XID. A Reply may have an XID that no Call has.
func (s *sequence) slot(xid uint32) int { return int(xid & (1<<s.bits - 1)) }

// shift returns the offset of a slot's data in the pattern, in steps of 8 octets.
func (r *run) shift(conn, slot int) uint32 {
	return uint32(conn*r.Depth+slot) * 2654435761 % patternShifts
}

// op returns the next kind of Call.
func (s *sequence) op(r *run) uint8 {
	if len(r.order) == 1 {
		return 0
	}
	o := r.order[s.at]
	if s.at++; s.at == len(r.order) {
		s.at = 0
	}
	return o
}
