//go:build ibverbs

package ibverbs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
)

// An eventTest is a Provider with a listener, whose connections are all in this process.
type eventTest struct {
	t        testing.TB
	log      lockedText
	loop     *fabrictest.Loop // of both sides
	dialLoop *fabrictest.Loop // of the side that dials; loop unless a test changes it
	p        *Provider
	l        fabric.Listener
	otherc   chan *recorder // handlers of accepted connections
}

func newEventTest(t testing.TB, addr string) *eventTest { return newEventTestWith(t, addr, Options{}) }

func newEventTestWith(t testing.TB, addr string, o Options) *eventTest {
	if standIn == nil {
		t.Skip("the tests run on a device")
	}
	et := &eventTest{t: t, loop: fabrictest.NewLoop(), otherc: make(chan *recorder, 64)}
	et.dialLoop = et.loop
	o.DialTimeout, o.AcceptTimeout, o.Log = patience, patience, zerolog.New(&et.log)
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	et.p = p.(*Provider)
	et.l, err = p.Listen(addr, fabric.ListenOptions{MaxConnections: -1, MaxStarting: -1, MaxStartingPerAddr: -1}, func(in fabric.Incoming) {
		other := newRecorderOf(4)
		var err error
		if other.c, err = in.Accept(context.Background(), et.loop, fabric.ConnOptions{Sends: 4, Receives: 4}, other); err == nil {
			et.otherc <- other
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return et
}

func (et *eventTest) close() {
	et.l.Close()
	et.loop.Stop()
}

// A line is a connection and the handlers of its two sides.
type line struct {
	c          *conn
	own, other *recorder
}

func (et *eventTest) tryDial() (line, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	own := newRecorderOf(4)
	c, err := et.p.Dial(ctx, et.dialLoop, et.l.Addr().String(), fabric.ConnOptions{Sends: 4, Receives: 4}, own)
	if err != nil {
		return line{}, err
	}
	return line{c.(*conn), own, <-et.otherc}, nil
}

func (et *eventTest) dial() line {
	et.t.Helper()
	ln, err := et.tryDial()
	if err != nil {
		et.t.Fatal(err)
	}
	return ln
}

// mustWork sends a message over ln.
func (et *eventTest) mustWork(ln line) {
	et.t.Helper()
	et.dialLoop.Do(func() { ln.own.post(ln.c, 1) })
	select {
	case got := <-ln.other.gotc:
		if got != "hello" {
			et.t.Errorf("got %q", got)
		}
	case <-time.After(patience):
		et.t.Fatal("the message did not arrive")
	}
}

// mustEnd waits for the ends of both sides of ln.
func (et *eventTest) mustEnd(ln line, want string) {
	et.t.Helper()
	waitClosed(et.t, ln.own, want)
	select {
	case <-ln.other.closedc:
	case <-time.After(patience):
		et.t.Fatal("the peer's side did not end")
	}
	if ln.own.wrong != "" || ln.other.wrong != "" {
		et.t.Error(ln.own.wrong, ln.other.wrong)
	}
}

// hangUp ends ln in order.
func (et *eventTest) hangUp(ln line) {
	et.t.Helper()
	et.dialLoop.Do(func() { ln.c.Close(nil) })
	et.mustEnd(ln, "")
}

// until waits for what other goroutines do.
func (et *eventTest) until(what string, ok func() bool) {
	et.t.Helper()
	if !testkit.Settles(patience, ok) {
		et.t.Fatal("never: ", what)
	}
}

// A lockedText is what was logged.
type lockedText struct{ testkit.Log }

// lines returns how many lines contain all of the words.
func (l *lockedText) lines(words ...string) (n int) {
next:
	for s := range strings.Lines(l.String()) {
		for _, w := range words {
			if !strings.Contains(s, w) {
				continue next
			}
		}
		n++
	}
	return n
}

// eventsOf returns the counts of the events of devices that are not 0.
func eventsOf(p *Provider) (s string) {
	for _, name := range asyncNames {
		if n := p.DeviceEvents()[name]; n != nil && n() > 0 {
			s += fmt.Sprintf("%s %d\n", name, n())
		}
	}
	return s
}

// TestDeviceEvents checks that what a device reports about a queue ends the connection of this queue
// alone, that a fatal error of the device ends all, and that nothing else ends any; that each event
// that concerns the Provider is logged once and counted once; and that a connection can be made then.
func TestDeviceEvents(t *testing.T) {
	for _, tt := range []struct {
		kind   int64
		object string // cq or qp of the first connection, port, or other: a queue of nobody
		name   string // of the counter; "" if it is neither counted nor logged
		first  string // the error that ends the first connection; "" if none does
		second string // the same of the other
	}{
		{0, "cq", "cq_error", "ibverbs: device standin0: cq error", ""},
		{1, "qp", "qp_fatal", "ibverbs: device standin0: qp fatal", ""},
		{2, "qp", "qp_request", "ibverbs: device standin0: qp request", ""},
		{3, "qp", "qp_access", "ibverbs: device standin0: qp access", ""},
		{8, "port", "device_fatal", "ibverbs: device standin0: device fatal", "ibverbs: device standin0: device fatal"},
		{9, "port", "port_active", "", ""},
		{10, "port", "port_down", "", ""},
		{11, "port", "lid_change", "", ""},
		{12, "port", "pkey_change", "", ""},
		{13, "port", "sm_change", "", ""},
		{17, "port", "client_reregister", "", ""},
		{18, "port", "gid_change", "", ""},
		{4, "qp", "", "", ""},
		{7, "qp", "", "", ""},
		{14, "other", "", "", ""},
		{16, "qp", "", "", ""},
		{19, "other", "", "", ""},
		{1 << 20, "other", "", "", ""},
		{-1, "other", "", "", ""},
		{0, "other", "", "", ""},
		{1, "other", "", "", ""},
		{1, "cq", "", "", ""},
	} {
		t.Run(fmt.Sprint(tt.kind, " ", tt.object), func(t *testing.T) {
			leaks := watchLeaks()
			et := newEventTest(t, "127.0.0.1:0")
			a, b := et.dial(), et.dial()
			object := map[string]uint64{"cq": a.c.cq, "qp": a.c.qp, "port": 1, "other": 0xdead0000}[tt.object]
			tellStandIn(t, standInAsync, object, tt.kind)
			mark := "port_active"
			fatal := tt.kind == int64(asyncDeviceFatal)
			if fatal {
				mark = tt.name // the provider reads no events of a device without connections
			} else {
				// Events come in order, so that the first has been handled when this is counted.
				tellStandIn(t, standInAsync, 1, int64(asyncPortActive))
			}
			et.until("the event that follows is counted", func() bool { return strings.Contains(eventsOf(et.p), mark) })
			for ln, want := range map[*line]string{&a: tt.first, &b: tt.second} {
				if want != "" {
					et.mustEnd(*ln, want)
				} else {
					et.mustWork(*ln)
				}
			}
			want := "port_active 1\n"
			switch {
			case fatal:
				want = tt.name + " 1\n"
			case tt.name == mark:
				want = "port_active 2\n"
			case tt.name != "" && tt.kind < int64(asyncPortActive):
				want = tt.name + " 1\n" + want
			case tt.name != "":
				want += tt.name + " 1\n"
			}
			et.until("counts: "+want, func() bool { return eventsOf(et.p) == want })
			logged := strings.Count(want, " ") + strings.Count(want, "active 2") // each after it is counted
			about := func() int { return et.log.lines("event of an RDMA device", `"device":"standin0"`) }
			et.until("a line for each in the log", func() bool { return about() >= logged })
			if got := about(); got != logged {
				t.Errorf("%d lines in the log about %s:\n%s", got, want, et.log.String())
			}
			if tt.name != "" && et.log.lines(`"kind":"`+strings.ReplaceAll(tt.name, "_", " ")+`"`) == 0 {
				t.Errorf("no line in the log about %s", tt.name)
			}
			again := et.redial()
			et.mustWork(again)
			et.hangUp(again)
			if tt.first == "" {
				et.hangUp(a)
			}
			if tt.second == "" {
				et.hangUp(b)
			}
			et.close()
			leaks(t)
		})
	}
}

// redial dials until the device can be used again.
func (et *eventTest) redial() (ln line) {
	et.t.Helper()
	var err error
	et.until("a connection after the fault", func() bool {
		ln, err = et.tryDial()
		return err == nil
	})
	return ln
}

// TestDeviceFatal checks that a device that had a fatal error is not used until the last of its
// connections is gone, and that connections on another device stay.
func TestDeviceFatal(t *testing.T) {
	leaks := watchLeaks()
	defer func(d time.Duration) { eventTimeout = d }(eventTimeout)
	eventTimeout = patience              // every connection here ends with an event that says why
	et := newEventTest(t, "127.0.0.2:0") // on standin1, to which routes lead from standin0
	et.dialLoop = fabrictest.NewLoop()
	a, b := et.dial(), et.dial()
	a.own.holdc = make(chan struct{})
	tellStandIn(t, standInAsync, 1, int64(asyncDeviceFatal), 0)
	waitClosed(t, a.own, "device standin0: device fatal")
	if _, err := et.tryDialOn(et.loop); !errors.Is(err, errFatal) {
		t.Errorf("Dial on a device that had a fatal error: %v", err)
	}
	close(a.own.holdc)
	waitClosed(t, b.own, "device standin0: device fatal")
	for _, ln := range []line{a, b} {
		waitClosed(t, ln.other, "EOF") // on standin1, which had no error
	}
	again := et.redial()
	et.mustWork(again)
	tellStandIn(t, standInAsync, 1, int64(asyncDeviceFatal), 1)
	waitClosed(t, again.other, "device standin1: device fatal")
	waitClosed(t, again.own, "EOF")
	if got := eventsOf(et.p); got != "device_fatal 2\n" || et.log.lines("event of an RDMA device") != 2 {
		t.Errorf("counted %q, logged\n%s", got, et.log.String())
	}
	et.dialLoop.Stop()
	et.close()
	leaks(t)
}

// tryDialOn dials with a loop of its own. It is for Dials that fail.
func (et *eventTest) tryDialOn(on *fabrictest.Loop) (fabric.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return et.p.Dial(ctx, on, et.l.Addr().String(), fabric.ConnOptions{Sends: 4, Receives: 4}, newRecorder())
}

// TestDeviceRemoval checks that the removal of a device ends its connections, that its listener
// listens again when the device is back, once, and that connections can be made then.
func TestDeviceRemoval(t *testing.T) {
	leaks := watchLeaks()
	et := newEventTest(t, "127.0.0.1:0")
	defer tellStandIn(t, standInAdd, 0, 0)
	listening := et.l.(*listener)
	for round := range 2 {
		a, b := et.dial(), et.dial()
		listening.mu.Lock()
		id := listening.id
		listening.mu.Unlock()
		if round == 1 { // more than one event about the listener
			tellStandIn(t, standInEvent, id, deviceRemoval)
		}
		tellStandIn(t, standInRemove, 0, 0)
		et.mustEnd(a, "device removed")
		et.mustEnd(b, "device removed")
		if ln, err := et.tryDial(); err == nil || !strings.Contains(err.Error(), "no RDMA device reaches it") {
			t.Fatalf("Dial without a device: %v, %v", ln, err)
		}
		et.until("the listener says that its device was removed", func() bool {
			return et.log.lines("the listener's RDMA device was removed") == round+1
		})
		tellStandIn(t, standInAdd, 0, 0)
		et.until("the listener listens again", func() bool { return et.log.lines("listening again") == round+1 })
		ln := et.dial()
		et.mustWork(ln)
		et.hangUp(ln)
	}
	et.close()
	leaks(t)
}

// TestStrayCompletions checks that a completion of work that was not posted, or that completed before,
// ends the connection with an error that says so, and completes nothing else.
func TestStrayCompletions(t *testing.T) {
	const receive = -1 << 63
	for _, tt := range []struct {
		name           string
		number, status int64
		octets         int64
		want           string
	}{
		{"Send that was not posted", 2, 0, 0, "a Work Request that was not posted"},
		{"Send far beyond", 1 << 40, 0, 0, "a Work Request that was not posted"},
		{"Send that completed before", 1, 0, 0, "a Work Request that was not posted"},
		{"Send 0", 0, 0, 0, "a Work Request that was not posted"},
		{"Receive that was not posted", receive + 5, 0, 5, "a Receive that was not posted"},
		{"Receive that completed before", receive + 1, 0, 5, "a Receive that was not posted"},
		{"Receive 0", receive, 0, 5, "a Receive that was not posted"},
		{"Receive out of turn", receive + 3, 0, 5, "a Receive that was not posted"},
		{"Receive longer than its memory", receive + 2, 0, 1 << 31, "a Receive of 2147483648 octets in 64"},
		{"failure of work that was not posted", 1 << 40, 10, 0, "status 10"},
		{"failure of a Receive that was not posted", receive + 9, 4, 0, "status 4"},
		{"status of no verb", 1, 1 << 30, 0, "status 1073741824"},
		{"status that is negative", receive + 2, -1, 0, "status 4294967295"},
		{"flush of work that was not posted", 1 << 40, statusFlushed, 0, errGone.Error()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			leaks := watchLeaks()
			et := newEventTest(t, "127.0.0.1:0")
			a := et.dial()
			et.mustWork(a)      // completes Send 1
			et.loop.Do(func() { // completes Receive 1
				for c := range et.accepted() {
					a.other.post(c, 1)
				}
			})
			if s := <-a.own.gotc; s != "hello" {
				t.Fatalf("got %q", s)
			}
			tellStandIn(t, standInWork, a.c.cq, tt.number, tt.status, 128, tt.octets)
			et.mustEnd(a, tt.want)
			if n := len(a.own.gotc); n != 0 {
				t.Errorf("%d messages were received that nobody sent", n)
			}
			again := et.redial()
			et.mustWork(again)
			et.hangUp(again)
			et.close()
			leaks(t)
		})
	}
}

// accepted returns the connections that the listener has accepted, which are on et.loop.
func (et *eventTest) accepted() map[*conn]struct{} {
	m := make(map[*conn]struct{})
	et.p.mu.Lock()
	e := et.p.engine
	et.p.mu.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, d := range e.domains {
		d.mu.RLock()
		for _, c := range d.conns {
			if c.info.Local.Port() == et.l.Addr().Port() {
				m[c] = struct{}{}
			}
		}
		d.mu.RUnlock()
	}
	return m
}

// TestCloseDuringRequest checks that a listener that is closed while it looks at a request does not take the
// event channel from the request, which is still to be rejected.
func TestCloseDuringRequest(t *testing.T) {
	et := newEventTest(t, "127.0.0.1:0") // its Provider dials
	defer NoObjects(t)
	defer et.close()
	listening, err := New(Options{DialTimeout: patience, AcceptTimeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	p := listening.(*Provider)
	allowc := make(chan func() bool, 1)
	o := fabrictest.NoLimits()
	o.Allow = func(netip.Addr) bool { return (<-allowc)() }
	l, err := p.Listen("127.0.0.1:0", o, func(fabric.Incoming) { t.Error("a connection that is not allowed") })
	if err != nil {
		t.Fatal(err)
	}
	allowc <- func() bool {
		l.Close()
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.engine == nil {
			t.Error("the event channel is gone before the request is rejected")
		}
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err = et.p.Dial(ctx, et.loop, l.Addr().String(), fabric.ConnOptions{Sends: 4, Receives: 4}, newRecorder())
	mustSay(t, err, "rejected")
}
