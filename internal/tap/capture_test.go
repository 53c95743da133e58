package tap

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	reader "github.com/rdmabridge/rdmabridge/internal/capture"
	"github.com/rdmabridge/rdmabridge/internal/names"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/proxy/observe"
)

// A fakeProxy carries made-up Calls on one loop.
type fakeProxy struct {
	tap       atomic.Pointer[observe.Tap]
	calls     uint64
	conns     uint64
	here, far *observe.TapConn
}

func newFakeProxy() *fakeProxy {
	p := new(fakeProxy)
	p.connect()
	return p
}

// connect makes new connections.
func (p *fakeProxy) connect() {
	ap := netip.MustParseAddrPort
	p.conns += 2
	p.here = &observe.TapConn{ID: p.conns, Leg: observe.TapClients, Name: "nfs", Local: ap("[2001:db8::1]:2049"), Peer: netip.AddrPortFrom(netip.MustParseAddr("2001:db8::7"), uint16(700+p.conns%200))}
	p.far = &observe.TapConn{ID: p.conns + 1, Leg: observe.TapUpstreams, RDMA: true, Name: "storage", Local: ap("192.0.2.1:40000"), Peer: ap("192.0.2.9:20049")}
}

func (p *fakeProxy) SetTap(t observe.Tap) {
	if t == nil {
		p.tap.Store(nil)
		return
	}
	p.tap.Store(&t)
}

func (p *fakeProxy) Loops() int { return 1 }

// disconnect ends the connections.
func (p *fakeProxy) disconnect(err error) {
	if t := p.tap.Load(); t != nil {
		(*t).Ended(p.here, 0, 1<<mostTaps-1, err)
		(*t).Ended(p.far, 0, 1<<mostTaps-1, err)
	}
}

// A fakeCall is a Call of NFSv3, and its Reply.
type fakeCall struct {
	procedure uint32
	operation string
	arguments []byte
	status    uint32
	results   []byte
	data      bool // arguments, or results, are data
	took      time.Duration
	lost      bool // there is no Reply
}

// carry carries a Call.
func (p *fakeProxy) carry(f *fakeCall) {
	t := p.tap.Load()
	if t == nil {
		return
	}
	q := observe.TapCall{Client: p.here.Peer, Listener: "nfs", Upstream: "storage", Program: oncrpc.ProgramNFS, Version: 3, Procedure: f.procedure, Operation: f.operation}
	w := (*t).Wants(&q)
	if w == 0 {
		return
	}
	p.calls++
	head := testkit.Words(uint32(p.calls), 0, 2, oncrpc.ProgramNFS, 3, f.procedure, 0, 0, 0, 0)
	reply := testkit.Words(uint32(p.calls), 1, 0, 0, 0, 0, f.status)
	now := time.Now()
	for i, m := range []observe.TapMessage{
		{Conn: p.here}, {Conn: p.far, Out: true}, {Conn: p.far, Reply: true}, {Conn: p.here, Out: true, Reply: true},
	} {
		if m.Reply && f.lost {
			break
		}
		m.Wanted, m.Call, m.Program, m.Version, m.Procedure, m.Operation = w, p.calls, oncrpc.ProgramNFS, 3, f.procedure, f.operation
		m.At = now.Add(f.took * time.Duration(i) / 3)
		m.Parts = [][]byte{head, f.arguments}
		if m.Reply {
			m.Parts = [][]byte{reply, f.results}
		}
		if f.data {
			m.Data, m.DataLength = len(m.Parts[0]), len(m.Parts[1])
		}
		(*t).Message(&m)
	}
	result := "replied"
	if f.lost {
		result = "abandoned"
	}
	o := observe.TapOver{Wanted: w, Call: p.calls, At: now.Add(f.took), Result: result}
	if !f.lost {
		o.Status = map[uint32]string{0: status.ClassOK, 2: status.ClassNoEnt, 28: status.ClassNoSpace, 70: status.ClassStale}[f.status]
		o.Failed = status.Failure(o.Status)
	}
	(*t).Over(&o)
}

// captured carries what a test says while a capture runs, and returns its messages.
func captured(t *testing.T, p *fakeProxy, o Options, carry func()) ([]reader.Message, *reader.Capture, Summary) {
	t.Helper()
	h := NewHub(p, noNames)
	var out bytes.Buffer
	ctx, cancel := context.WithCancel(t.Context())
	type result struct {
		s   Summary
		err error
	}
	done := make(chan result, 1)
	go func() {
		s, err := h.Capture(ctx, o, &out, nil)
		done <- result{s, err}
	}()
	testkit.Eventually(t, "the capture runs", func() bool { return h.Running() == 1 })
	carry()
	cancel()
	r := <-done
	if r.err != nil {
		t.Fatal(r.err)
	}
	if p.tap.Load() != nil {
		t.Error("the proxy has a Tap after the last capture")
	}
	c, err := reader.Read(out.Bytes())
	if err != nil || c.Err != nil {
		t.Fatal(err, c.Err)
	}
	return c.Messages(), c, r.s
}

// TestCapture checks that messages of all lengths are in a capture as they were.
func TestCapture(t *testing.T) {
	p := newFakeProxy()
	var want [][]byte
	all, c, s := captured(t, p, Options{Payload: true}, func() {
		for i, n := range []int{0, 4, 100, mostSegment - 44, mostSegment - 40, 200_000, 1 << 20} {
			arguments, results := testkit.Pattern(n, byte(i)), testkit.Pattern(n, byte(i+100))
			p.carry(&fakeCall{procedure: 7, operation: "WRITE", arguments: arguments, results: results, data: true})
			want = append(want, arguments, arguments, results, results)
		}
		p.disconnect(nil)
		p.connect()
		p.carry(&fakeCall{procedure: 1, operation: "GETATTR"})
		want = append(want, nil, nil, nil, nil)
	})
	if len(all) != len(want) || s.Messages != len(want) || s.Calls != 8 || s.Dropped != 0 {
		t.Fatalf("%d messages, want %d; %+v", len(all), len(want), s)
	}
	if len(c.Conns) != 4 {
		t.Errorf("%d connections, want 4", len(c.Conns))
	}
	// The messages of both legs have other orders in the file; sort out which is which by connection.
	rest := map[string]int{}
	for _, w := range want {
		rest[string(w)]++
	}
	for _, m := range all {
		head := 40
		if binary.BigEndian.Uint32(m.Data[4:]) == 1 {
			head = 28
		}
		rest[string(m.Data[head:])]--
		if m.Missing != 0 || m.Wrong != "" {
			t.Errorf("message with %d octets missing: %s", m.Missing, m.Wrong)
		}
	}
	for w, n := range rest {
		if n != 0 {
			t.Errorf("%d messages of %d octets too few", n, len(w))
		}
	}
}

// TestCut checks that data are cut, and that the target of a symbolic link is not.
func TestCut(t *testing.T) {
	p := newFakeProxy()
	secret := []byte(strings.Repeat("secret!!", 100))
	all, _, _ := captured(t, p, Options{}, func() {
		p.carry(&fakeCall{procedure: 7, operation: "WRITE", arguments: secret, results: secret, data: true})
		p.carry(&fakeCall{procedure: 5, operation: "READLINK", results: []byte("/a/target"), data: true})
		p.carry(&fakeCall{procedure: 17, operation: "READDIRPLUS", results: make([]byte, 100_000)})
	})
	if len(all) != 12 {
		t.Fatalf("%d messages", len(all))
	}
	targets, long := 0, 0
	for _, m := range all {
		if bytes.Contains(m.Data, []byte("secret")) {
			t.Errorf("data are captured: %.80q", m.Data)
		}
		if bytes.Contains(m.Data, []byte("/a/target")) {
			targets++
		}
		if m.Length > 100_000 {
			long++
			if len(m.Data) != DefaultSnap {
				t.Errorf("%d octets are captured of a message of %d", len(m.Data), m.Length)
			}
		}
	}
	if targets != 2 || long != 2 {
		t.Errorf("%d targets of links, %d long messages", targets, long)
	}
}

// TestFates checks the filters that need the Reply.
func TestFates(t *testing.T) {
	for _, tc := range []struct {
		query string
		want  int // Calls
	}{
		{"status=error", 3}, // a file that is not there is no failure
		{"status=noent", 1},
		{"status=stale", 1},
		{"status=NFS3ERR_STALE,no_reply", 2},
		{"status=70", 1},
		{"status=ok", 2},
		{"slower=100ms", 1},
		{"slower=1h", 0},
		{"status=error&count=2", 2},
	} {
		t.Run(tc.query, func(t *testing.T) {
			t.Parallel()
			p := newFakeProxy()
			all, _, s := captured(t, p, parse(t, tc.query), func() {
				p.carry(&fakeCall{procedure: 1, operation: "GETATTR"})
				p.carry(&fakeCall{procedure: 1, operation: "GETATTR", status: 70})
				p.carry(&fakeCall{procedure: 3, operation: "LOOKUP", status: 2})
				p.carry(&fakeCall{procedure: 7, operation: "WRITE", took: 200 * time.Millisecond})
				p.carry(&fakeCall{procedure: 7, operation: "WRITE", status: 28})
				p.carry(&fakeCall{procedure: 8, operation: "CREATE", lost: true})
			})
			calls := 0
			for _, m := range all {
				if binary.BigEndian.Uint32(m.Data[4:]) == 0 {
					calls++
				}
			}
			if calls != 2*tc.want || s.Calls != tc.want {
				t.Errorf("%d Calls on two legs, want %d; %+v", calls, 2*tc.want, s)
			}
		})
	}
}

// TestTrigger checks that what came before is written, and not what came long before.
func TestTrigger(t *testing.T) {
	p := newFakeProxy()
	for _, tc := range []struct {
		query string
		want  int
	}{
		{"trigger=status=stale&before=1h", 5},
		{"trigger=status=stale&before=1h&after=forever", 7},
		{"trigger=slower=1s&before=1h", 0},
		{"trigger=disconnect&before=1h&after=forever", 7},
		{"trigger=status=stale&before=1ns", 1},
	} {
		all, _, s := captured(t, p, parse(t, tc.query), func() {
			for range 4 {
				p.carry(&fakeCall{procedure: 1, operation: "GETATTR"})
			}
			p.carry(&fakeCall{procedure: 1, operation: "GETATTR", status: 70})
			if strings.Contains(tc.query, "after") {
				p.carry(&fakeCall{procedure: 1, operation: "GETATTR"})
				p.carry(&fakeCall{procedure: 1, operation: "GETATTR"})
				p.disconnect(errors.New("the cable was cut"))
			}
		})
		if len(all) > 4*tc.want || len(all) < 4*tc.want-3 && tc.want > 1 || tc.want > 0 && len(all) == 0 {
			t.Errorf("%s: %d messages, want those of %d Calls; %+v", tc.query, len(all), tc.want, s)
		}
		p.connect()
	}
}

// TestDropped checks that a reader that does not read costs the loop nothing but messages, and that the
// capture says how many.
func TestDropped(t *testing.T) {
	p := newFakeProxy()
	h := NewHub(p, noNames)
	r, w := io.Pipe()
	done := make(chan Summary, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		s, err := h.Capture(ctx, Options{Payload: true, Buffer: LeastBuffer}, w, nil)
		if err != nil {
			t.Error(err)
		}
		w.Close()
		done <- s
	}()
	testkit.Eventually(t, "the capture runs", func() bool { return h.Running() == 1 })
	data := make([]byte, 100_000)
	for range 200 {
		p.carry(&fakeCall{procedure: 7, operation: "WRITE", arguments: data, data: true})
	}
	cancel()
	file, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	s := <-done
	c, err := reader.Read(file)
	if err != nil || c.Err != nil {
		t.Fatal(err, c.Err)
	}
	if n := len(c.Messages()); s.Dropped == 0 || s.Messages != n || uint64(n)+s.Dropped > 800 {
		t.Errorf("%+v, and %d messages in the file", s, n)
	}
	if !strings.Contains(s.String(), "are missing") {
		t.Errorf("the summary says %q", s)
	}
}

// TestBusy checks that there are no more captures than there may be.
func TestBusy(t *testing.T) {
	h := NewHub(newFakeProxy(), noNames)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, mostTaps)
	for range mostTaps {
		go func() {
			_, err := h.Capture(ctx, Options{}, io.Discard, nil)
			ended <- err
		}()
	}
	testkit.Eventually(t, "all captures run", func() bool { return h.Running() == mostTaps })
	if _, err := h.Capture(ctx, Options{}, io.Discard, nil); !errors.Is(err, ErrBusy) {
		t.Errorf("another capture: %v, want ErrBusy", err)
	}
	cancel()
	for range mostTaps {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// TestGrowth opens and closes captures of all kinds while Calls pass, and compares the memory.
// RDMABRIDGE_CAPTURES=500 opens as many as scripts may in a day, with 100,000 Calls.
func TestGrowth(t *testing.T) {
	p := newFakeProxy()
	h := NewHub(p, noNames)
	queries := []string{"", "status=error", "slower=1s", "trigger=status=stale", "payload=true&snaplen=300", "leg=clients&operation=READ", "trigger=disconnect&before=1s"}
	rounds, calls := 60, 200
	if n, _ := strconv.Atoi(os.Getenv("RDMABRIDGE_CAPTURES")); n > 0 {
		rounds = n
	}
	read := &fakeCall{procedure: 6, operation: "READ", results: make([]byte, 3000), data: true}
	stale := &fakeCall{procedure: 1, operation: "GETATTR", status: 70}
	lost := &fakeCall{procedure: 7, operation: "WRITE", lost: true}
	round := func(i int) {
		o := parse(t, queries[i%len(queries)])
		o.Buffer = LeastBuffer
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := h.Capture(ctx, o, io.Discard, nil)
			ended <- err
		}()
		for h.Running() == 0 {
			runtime.Gosched()
		}
		for range calls {
			p.carry(read)
			for c := h.taps[0].Load(); c != nil && c.Tap.(*capture).rings[0].full(); { // what it drops, it need not hold
				runtime.Gosched()
			}
		}
		p.carry(stale)
		p.carry(lost)
		p.disconnect(io.ErrUnexpectedEOF)
		p.connect()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	memory := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	for i := range 20 {
		round(i)
	}
	before, goroutines := memory(), runtime.NumGoroutine()
	for i := range rounds {
		round(i)
	}
	if after := memory(); after > before+256<<10 {
		t.Errorf("the heap has grown from %d to %d octets", before, after)
	}
	if n := runtime.NumGoroutine(); n > goroutines {
		t.Errorf("%d goroutines, %d before", n, goroutines)
	}
	t.Logf("%d captures, %d Calls", rounds, p.calls)
}

// TestLoopAllocs checks that a loop does not allocate for a Call while there is a capture.
func TestLoopAllocs(t *testing.T) {
	p := newFakeProxy()
	c, err := newCapture(Options{}, 1, noNames, io.Discard, nil)
	if err != nil {
		t.Fatal(err)
	}
	h := NewHub(p, noNames)
	if _, err := h.Add(c); err != nil {
		t.Fatal(err)
	}
	m := observe.TapMessage{Wanted: 1, Call: 1, Conn: p.here, Parts: [][]byte{make([]byte, 100), make([]byte, 1000)}, At: time.Now(), Operation: "READ"}
	o := observe.TapOver{Wanted: 1, Call: 1, At: time.Now()}
	q := observe.TapCall{Operation: "READ"}
	if n := testing.AllocsPerRun(1000, func() {
		if h.Wants(&q) != 1 {
			panic("not wanted")
		}
		h.Message(&m)
		h.Over(&o)
		for c.rings[0].peek() != nil {
			c.rings[0].pop()
		}
	}); n != 0 {
		t.Errorf("%v allocations for each Call", n)
	}
	h.remove(0)
}

// BenchmarkCarry measures what a Call costs its loop while there is a capture: four messages.
func BenchmarkCarry(b *testing.B) {
	for _, n := range []int{200, 1 << 20} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			p := newFakeProxy()
			h := NewHub(p, noNames)
			ctx, cancel := context.WithCancel(b.Context())
			ended := make(chan error, 1)
			go func() {
				_, err := h.Capture(ctx, Options{}, io.Discard, nil)
				ended <- err
			}()
			for h.Running() == 0 {
				runtime.Gosched()
			}
			f := &fakeCall{procedure: 6, operation: "READ", results: make([]byte, n), data: true}
			for b.Loop() {
				p.carry(f)
			}
			cancel()
			<-ended
		})
	}
}

// A pickyTap looks at READs only, and wants whatever it is asked about.
type pickyTap struct{ aloneTap }

func (pickyTap) Looks(_ int, _ int64, o *ulb.Operation) uint32 {
	if o.Name == "READ" {
		return 1
	}
	return 0
}

// TestSampler: a Tap that does not look at a Call is not asked, whoever else is.
func TestSampler(t *testing.T) {
	h := NewHub(newFakeProxy(), noNames)
	if _, err := h.Add(pickyTap{}); err != nil {
		t.Fatal(err)
	}
	asks := func(operation string) uint32 {
		l := h.Looks(0, 0, &ulb.Operation{Name: operation})
		if l == 0 {
			return 0
		}
		return h.Wants(&observe.TapCall{Lookers: l}) &^ observe.TapClientsAlone
	}
	if read, write := asks("READ"), asks("WRITE"); read != 1 || write != 0 {
		t.Errorf("%#x want a READ, %#x a WRITE", read, write)
	}
	if _, err := h.Add(aloneTap{}); err != nil {
		t.Fatal(err)
	}
	if read, write := asks("READ"), asks("WRITE"); read != 3 || write != 2 {
		t.Errorf("with another Tap %#x want a READ, %#x a WRITE", read, write)
	}
}

// An aloneTap wants messages between clients and the proxy alone.
type aloneTap struct{ observe.Tap }

func (aloneTap) Wants(*observe.TapCall) uint32 { return 1 | observe.TapClientsAlone }

// TestClientsAlone: a Tap that needs only the messages of clients saves the others, unless a capture needs them.
func TestClientsAlone(t *testing.T) {
	h := NewHub(newFakeProxy(), noNames)
	if got := h.Wants(&observe.TapCall{}); got != 0 {
		t.Errorf("no Tap wants %#x", got)
	}
	if _, err := h.Add(aloneTap{}); err != nil {
		t.Fatal(err)
	}
	if got := h.Wants(&observe.TapCall{}); got != 1|observe.TapClientsAlone {
		t.Errorf("one Tap wants %#x", got)
	}
	c, err := newCapture(Options{}, 1, noNames, io.Discard, nil)
	if err != nil {
		t.Fatal(err)
	}
	remove, err := h.Add(c)
	if err != nil {
		t.Fatal(err)
	}
	if got := h.Wants(&observe.TapCall{}); got != 3 {
		t.Errorf("with a capture it is %#x", got)
	}
	remove()
	if got := h.Wants(&observe.TapCall{}); got != 1|observe.TapClientsAlone {
		t.Errorf("after it, %#x", got)
	}
}

func noNames() *names.Watch { return nil }
