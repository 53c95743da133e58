package tlsloop

import (
	"cmp"
	"container/list"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/crowd"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// Bounds of handshakes, unless EngineOptions say otherwise.
const (
	// mostHandshakes is how many handshakes have a goroutine. Each holds some 40 KiB, most of the time while it waits
	// for the peer.
	mostHandshakes = 512
	// mostQueued is how many handshakes wait for a goroutine. Each holds what the peer has sent.
	mostQueued = 4096
	// stallPatience is how long a handshake may wait for its peer before it gives way to one of the same host. To one of
	// another host, which has fewer, it gives way at once.
	stallPatience = int64(time.Second)
)

// Queue bounds the handshakes of an Engine: how many compute at the same time, how many have a goroutine, and how
// many wait for one. Hosts take turns. When all goroutines are in use, a handshake that waits for its peer gives
// way, one of the host that has the most: thousands of clients that begin handshakes and do not end them do not keep
// another host out.
type Queue struct {
	now     func() int64
	waits   *metrics.Counter // handshakes that had to wait
	compute chan struct{}    // a token for each handshake that computes
	ended   sync.WaitGroup   // goroutines

	mu       sync.Mutex // guards the rest; a handshake's own lock may be taken with it
	most     int        // how many may have a goroutine
	queued   int        // how many may wait for one
	patience int64      // stallPatience; tests change it
	running  crowd.Crowd[*entry]
	waiting  map[crowd.Host]*hostLine
	turns    list.List // of *hostLine: the hosts in waiting, the next one first
	length   int       // handshakes in waiting
	leaving  int       // handshakes in running that have given way
}

// An entry is a handshake as the Queue sees it. It belongs to the Queue, whose lock guards it, except for began.
type entry struct {
	addr netip.Addr  // of the peer; constant, as the next two
	run  func()      // is the goroutine
	stop func(error) // makes run end

	place   crowd.Member[*entry]
	began   atomic.Int64  // time at which the goroutine has begun; 0 in the queue
	stalled int64         // time since which the goroutine waits for the peer; 0 if it does not
	evicted bool          // it has given way
	line    *list.Element // its place among those that wait; nil for none
}

// A hostLine is the handshakes of one host that wait for a goroutine.
type hostLine struct {
	host  crowd.Host
	line  list.List // of *handshake
	place *list.Element
}

// NewQueue makes the handshakes of one side, which is the label of their metrics.
func NewQueue(most, queued, compute int, now func() int64, m *metrics.Registry, side string) *Queue {
	q := &Queue{
		now: now, waits: m.Counter(metrics.TLSHandshakeWaits, side),
		compute: make(chan struct{}, max(1, compute)), patience: stallPatience,
		waiting: make(map[crowd.Host]*hostLine),
	}
	q.Limit(most, queued)
	m.GaugeFunc(metrics.TLSRunningHandshakes, func() float64 { running, _ := q.Counts(); return float64(running) }, side)
	m.GaugeFunc(metrics.TLSWaitingHandshakes, func() float64 { _, waiting := q.Counts(); return float64(waiting) }, side)
	return q
}

// Limit replaces the bounds. Handshakes that are under way stay, and those that wait, too.
func (q *Queue) Limit(most, queued int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.most, q.queued = cmp.Or(most, mostHandshakes), cmp.Or(queued, mostQueued)
	q.startWaiting()
}

// Counts returns how many handshakes have a goroutine, and how many wait for one.
func (q *Queue) Counts() (running, waiting int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.running.Len(), q.length
}

// enter starts h, or lets it wait. It returns false when too many wait.
func (q *Queue) enter(h *entry) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.running.Len() < q.most {
		q.start(h)
		return true
	}
	host := crowd.HostOf(h.addr)
	l := q.waiting[host]
	if q.length >= q.queued && !q.overflows(l) {
		return false
	}
	q.waits.Inc()
	if l == nil {
		l = &hostLine{host: host}
		l.place = q.turns.PushBack(l)
		q.waiting[host] = l
	}
	h.line = l.line.PushBack(h)
	q.length++
	q.makeRoom(h)
	return true
}

// overflows reports whether a handshake more of a host may wait although as many wait as may: the host, whose line is l
// or nil, has fewer than its share of them. All of these handshakes together are at most as many again. The caller holds
// mu.
func (q *Queue) overflows(l *hostLine) bool {
	if q.length >= 2*q.queued {
		return false
	}
	if l == nil {
		return true
	}
	return l.line.Len() < q.queued/len(q.waiting)
}

// start starts the goroutine of h. The caller holds mu.
func (q *Queue) start(h *entry) {
	q.running.Add(&h.place, h.addr, 1)
	h.began.Store(q.now())
	q.ended.Go(h.run)
}

// makeRoom ends a handshake that waits for its peer, if h has a better right to its goroutine, and no goroutine that
// others have given up is on its way to h. The caller holds mu.
func (q *Queue) makeRoom(h *entry) bool {
	if q.leaving >= q.length {
		return false
	}
	host, yields := q.running.Yields(h.addr, 1)
	patience := int64(0)
	if !yields {
		host, patience = h.addr, q.patience
	}
	var victim *entry
	for m := range q.running.Newest(host) {
		x := m.Value
		if !x.evicted && x.stalled != 0 && q.now()-x.stalled >= patience && (victim == nil || x.stalled <= victim.stalled) {
			victim = x
		}
	}
	if victim == nil {
		return false
	}
	victim.evicted = true
	q.leaving++
	victim.stop(ErrGaveWay)
	return true
}

// Tick makes room for handshakes that wait, as far as others have waited too long for their peers.
func (q *Queue) Tick() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for e := q.turns.Front(); e != nil; e = e.Next() {
		l := e.Value.(*hostLine)
		for range l.line.Len() {
			if !q.makeRoom(l.line.Front().Value.(*entry)) {
				break
			}
		}
	}
}

// leave ends the goroutine of h, which computes, and starts that of another one.
func (q *Queue) leave(h *entry) {
	<-q.compute
	q.mu.Lock()
	defer q.mu.Unlock()
	q.running.Remove(&h.place)
	if h.evicted {
		q.leaving--
	}
	q.startWaiting()
}

// startWaiting starts handshakes that wait, as many as may run. The caller holds mu.
func (q *Queue) startWaiting() {
	for q.running.Len() < q.most && q.length > 0 {
		l := q.turns.Front().Value.(*hostLine)
		next := l.line.Front().Value.(*entry)
		q.turns.MoveToBack(l.place)
		q.remove(l, next)
		q.start(next)
	}
}

// abandon removes h from those that wait. It returns false if h has a goroutine.
func (q *Queue) abandon(h *entry) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if h.line == nil {
		return false
	}
	q.remove(q.waiting[crowd.HostOf(h.addr)], h)
	return true
}

// remove removes h from l. The caller holds mu.
func (q *Queue) remove(l *hostLine, h *entry) {
	l.line.Remove(h.line)
	h.line = nil
	q.length--
	if l.line.Len() == 0 {
		q.turns.Remove(l.place)
		delete(q.waiting, l.host)
	}
}

// stall says that h, which computes, waits for its peer.
func (q *Queue) stall(h *entry) {
	<-q.compute
	q.mu.Lock()
	defer q.mu.Unlock()
	h.stalled = q.now()
	if q.length > 0 {
		q.makeRoom(q.turns.Front().Value.(*hostLine).line.Front().Value.(*entry))
	}
}

// resume returns when h may compute.
func (q *Queue) resume(h *entry) {
	q.mu.Lock()
	h.stalled = 0
	q.mu.Unlock()
	q.compute <- struct{}{}
}

// Waits returns how many handshakes had to wait so far.
func (q *Queue) Waits() uint64 { return q.waits.Value() }

// SetPatience replaces the time that a handshake may wait for its peer before it gives way to one of the same host.
func (q *Queue) SetPatience(d time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.patience = int64(d)
}

// Empty reports whether there is no handshake.
func (q *Queue) Empty() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.running.Len() == 0 && q.length == 0 && len(q.waiting) == 0 && q.turns.Len() == 0 && len(q.compute) == 0
}

// Wait waits until no goroutine is left.
func (q *Queue) Wait() { q.ended.Wait() }

// ErrGaveWay says that a handshake waited for its peer, and gave way to another one.
var ErrGaveWay = errors.New("the handshake waited for the peer, and gave way to others")
