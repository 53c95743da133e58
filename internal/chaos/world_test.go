package chaos

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp/iwarptest"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// TestMain fails on goroutines that outlive the tests.
func TestMain(m *testing.M) { testkit.Main(m) }

func bufferedReader(c net.Conn) io.Reader { return bufio.NewReaderSize(c, 64<<10) }

// The bridge's settings: short times, so that much happens.
const (
	budget      = 96 << 20
	callTimeout = 1500 * time.Millisecond
	unavailable = 5 * time.Second

	// acceptTimeout is how long an RDMA listener waits for the set-up.
	acceptTimeout = time.Second

	// bound is the longest that a client may wait on a live connection: a Call is
	// sent six times at most, and waits for a credit before each; see the table in
	// docs/faults.md.
	bound = 6*(callTimeout+unavailable) + patience/2
)

// A world is a bridge and all that is around it.
type world struct {
	t      testing.TB
	seed   seed
	book   *book
	counts counts
	logs   logBook
	health infirmary

	living    sync.RWMutex // guards the next four, of the present life: life_test.go
	h         *proxytest.Harness
	proxy     *proxy.Proxy
	iwarp     *iwarp.Provider // the bridge's, towards its upstreams
	front     *iwarp.Provider // the bridge's, towards its clients
	providers iwarp.Options   // of both; constant

	memory []*inMemory

	callTimeout, unavailable time.Duration // of the upstreams

	loop       *iwarptest.Loop  // of the Responders
	memLoop    *fabrictest.Loop // of those in memory
	clientLoop *iwarptest.Loop  // of RDMA clients
	responders []*responder
	servers    []*tcpServer
	wires      []*wire
	skies      []*sky
	worst      []*weather // of each sky
}

// A logBook counts the lines of the log by their message.
type logBook struct {
	mu    sync.Mutex // guards lines
	lines map[string]int
}

// Write is part of io.Writer.
func (l *logBook) Write(b []byte) (int, error) {
	_, rest, _ := bytes.Cut(b, []byte(`"message":"`))
	msg, _, _ := bytes.Cut(rest, []byte(`"`))
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lines == nil {
		l.lines = make(map[string]int)
	}
	l.lines[string(msg)]++
	return len(b), nil
}

func (l *logBook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []string
	for msg, n := range l.lines {
		all = append(all, fmt.Sprintf("%q %d", msg, n))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

func newWorld(t testing.TB, s seed, budget int64) *world {
	w := &world{t: t, seed: s, h: proxytest.NewHarness(t, budget), callTimeout: callTimeout, unavailable: unavailable}
	w.book = newBook(t, s)
	w.h.Log = zerolog.New(&w.logs).Level(zerolog.WarnLevel)
	w.h.Engine.Stop() // its lines are to be counted as well
	var err error
	if w.h.Engine, err = tcpframe.Start(tcpframe.EngineOptions{Loops: 2, Log: w.h.Log, Metrics: w.h.Metrics}); err != nil {
		t.Fatal(err)
	}
	w.loop, w.clientLoop, w.memLoop = iwarptest.NewLoop(), iwarptest.NewLoop(), fabrictest.NewLoop()
	w.providers = iwarp.Options{ProgressTimeout: 2 * time.Second, CloseTimeout: time.Second, DialTimeout: time.Second, AcceptTimeout: acceptTimeout, Log: w.h.Log}
	w.iwarp, w.front = proxytest.IWARP(w.providers), proxytest.IWARP(w.providers)
	return w
}

// newSky is a sky whose weather is drawn from worst.
func (w *world) newSky(worst *weather) *sky {
	s := newSky(&w.counts)
	w.skies = append(w.skies, s)
	w.worst = append(w.worst, worst)
	return s
}

// wire puts a wire before the address given and returns where it listens.
func (w *world) wire(name string, sk *sky, target string, corrupt bool) string {
	w.t.Helper()
	return w.wireFrom(wireOptions{corrupt: corrupt}, name, sk, target)
}

// wireFrom is wire with options.
func (w *world) wireFrom(o wireOptions, name string, sk *sky, target string) string {
	w.t.Helper()
	wi, err := newWire(o, "wire to "+name, w.seed, sk, target)
	if err != nil {
		w.t.Fatal(err)
	}
	w.wires = append(w.wires, wi)
	return wi.addr
}

// strangers is a provider for the other side: its handles are not the bridge's.
func strangers() *iwarp.Provider {
	return proxytest.IWARP(iwarp.Options{ProgressTimeout: 5 * time.Second, CloseTimeout: time.Second, DialTimeout: 2 * time.Second, AcceptTimeout: time.Second, Log: zerolog.Nop()})
}

// overRDMA adds a faulty Responder behind a faulty wire, and returns the wire's
// address.
func (w *world) overRDMA(name string, s *server) string {
	w.t.Helper()
	sk := w.newSky(&responderFaults)
	r := &responder{name: name, seed: w.seed, server: s, sky: sk}
	if err := r.listen(strangers(), w.loop, "127.0.0.1:0"); err != nil {
		w.t.Fatal(err)
	}
	w.responders = append(w.responders, r)
	return w.wire(name, sk, r.l.Addr().String(), true)
}

// calm adds a server without faults and wires, and returns its address.
func (w *world) calm(name string, s *server, rdma bool) string {
	w.t.Helper()
	sk := newSky(&w.counts)
	if rdma {
		r := &responder{name: name, seed: w.seed, server: s, sky: sk}
		if err := r.listen(strangers(), w.loop, "127.0.0.1:0"); err != nil {
			w.t.Fatal(err)
		}
		w.responders = append(w.responders, r)
		return r.l.Addr().String()
	}
	ts, err := listenTCP(name, w.seed, s, sk)
	if err != nil {
		w.t.Fatal(err)
	}
	w.servers = append(w.servers, ts)
	return ts.Addr()
}

// overTCP adds a faulty TCP server behind a faulty wire.
func (w *world) overTCP(name string, s *server) string {
	w.t.Helper()
	sk := w.newSky(&tcpFaults)
	ts, err := listenTCP(name, w.seed, s, sk)
	if err != nil {
		w.t.Fatal(err)
	}
	w.servers = append(w.servers, ts)
	return w.wire(name, sk, ts.Addr(), false)
}

// inMemory adds a faulty Responder on a faulty provider in memory.
func (w *world) inMemory(name string, s *server, async bool) *inMemory {
	w.t.Helper()
	sk := w.newSky(&memoryFaults)
	p := newInMemory(w.seed, sk, async)
	w.memory = append(w.memory, p)
	r := &responder{name: name, seed: w.seed, server: s, sky: sk}
	if err := r.listen(p, w.memLoop, name); err != nil {
		w.t.Fatal(err)
	}
	w.responders = append(w.responders, r)
	return p
}

// start starts the bridge.
func (w *world) start(ls []settings.ListenerOptions, us []settings.UpstreamOptions) {
	for i := range ls {
		ls[i].StallTimeout = cmp.Or(ls[i].StallTimeout, stallTimeout)
	}
	w.proxy = w.h.Proxy(ls, w.timed(us))
}

// timed gives upstreams the times of the world.
func (w *world) timed(us []settings.UpstreamOptions) []settings.UpstreamOptions {
	for i := range us {
		us[i].CallTimeout, us[i].UnavailableAfter = cmp.Or(us[i].CallTimeout, w.callTimeout), cmp.Or(us[i].UnavailableAfter, w.unavailable)
		us[i].ConnectTimeout = time.Second
		us[i].BackoffMin, us[i].BackoffMax = 5*time.Millisecond, 100*time.Millisecond
	}
	return us
}

// blow changes the weather until ctx ends, and then clears every sky.
func (w *world) blow(ctx context.Context) {
	dice := w.seed.dice("weather", 0)
	for ctx.Err() == nil {
		for i, s := range w.skies {
			if dice.IntN(2) == 0 {
				s.set(draw(dice, w.worst[i]))
			}
		}
		if dice.IntN(25) == 0 {
			w.wires[dice.IntN(len(w.wires))].shut(between(dice, 10*time.Millisecond, time.Second))
		}
		select {
		case <-ctx.Done():
		case <-time.After(between(dice, 200*time.Millisecond, 1200*time.Millisecond)):
		}
	}
	for _, s := range w.skies {
		s.set(weather{})
	}
}

// watch checks, again and again until ctx ends, the rules that must hold at every moment.
func (w *world) watch(ctx context.Context) {
	for ctx.Err() == nil {
		st := w.life().proxy.Status(status.Query{})
		if st.Memory.Used > st.Memory.Budget {
			w.book.wrong("%d octets of memory used of a budget of %d", st.Memory.Used, st.Memory.Budget)
		}
		for _, a := range st.Memory.Accounts {
			if a.Used > a.Limit || a.Peak > a.Limit {
				w.book.wrong("account %s: %d octets used, %d at most, of %d", a.Name, a.Used, a.Peak, a.Limit)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// sum adds up the series of the bridge's metrics with that name and, if any, with
// these labels in their text.
func (w *world) sum(name string, labels ...string) (n float64) {
	return w.life().sum(name, labels...)
}

func (l life) sum(name string, labels ...string) (n float64) {
	rec := httptest.NewRecorder()
	l.h.Metrics.Handler().ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
next:
	for line := range strings.Lines(rec.Body.String()) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != name && !strings.HasPrefix(line, name+"{") {
			continue
		}
		for _, l := range labels {
			if !strings.Contains(line, l) {
				continue next
			}
		}
		v, _ := strconv.ParseFloat(f[len(f)-1], 64)
		n += v
	}
	return n
}

// rest checks that a bridge without clients has nothing left of them.
func (w *world) rest() {
	w.rested(w.life())
	if n := w.handles(); n != 0 && !testkit.Settles(5*time.Second, func() bool { return w.handles() == 0 }) {
		w.book.wrong("%d handles are live, and no Call is", n)
	}
}

// rested is rest for the counters of one life.
func (w *world) rested(l life) {
	ok := testkit.Settles(testkit.Patience, func() bool {
		left := 0
		for _, u := range l.proxy.Status(status.Query{}).Upstreams {
			left += u.Credits.Used + u.Credits.Waiting + u.Pinned
		}
		return left == 0 && l.sum("rdmabridge_listener_received_calls_total") == l.sum("rdmabridge_listener_calls_total")
	})
	if !ok {
		w.book.wrong("calls that were read have not ended: %v read, %v ended; %+v", l.sum("rdmabridge_listener_received_calls_total"), l.sum("rdmabridge_listener_calls_total"), l.proxy.Status(status.Query{}).Upstreams)
	}
	ended := func() (sent, ends float64) {
		return l.sum("rdmabridge_upstream_sent_calls_total"), l.sum("rdmabridge_upstream_calls_total") + l.sum("rdmabridge_upstream_replays_total")
	}
	if sent, ends := ended(); sent != ends {
		w.book.wrong("%v Calls were sent, and %v ended or were replayed", sent, ends)
	}
}

// handles is how many the bridge has given out that are live.
func (w *world) handles() int {
	n := w.iwarp.Handles() + w.front.Handles()
	for _, p := range w.memory {
		n += p.handles()
	}
	return n
}

// close ends everything and checks that all memory is back.
func (w *world) close() {
	_ = w.proxy.Close()
	for _, wi := range w.wires {
		wi.close()
	}
	for _, r := range w.responders {
		_ = r.l.Close()
	}
	for _, s := range w.servers {
		s.Close()
	}
	if !testkit.Settles(10*time.Second, func() bool { return w.h.Arena.Outstanding() == 0 }) {
		w.book.wrong("%d leases are not back: %+v", w.h.Arena.Outstanding(), w.h.Arena.Stats().Accounts)
	}
	w.h.Engine.Stop()
	w.clientLoop.Stop()
	w.loop.Stop()
	w.memLoop.Stop()
	if err := w.h.Arena.Close(); err != nil {
		w.book.wrong("%v", err)
	}
}
