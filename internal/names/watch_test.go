package names

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/proxy/observe"
)

// A feeder plays a loop: it shows Calls and Replies to a Watch.
type feeder struct {
	w    *Watch
	loop int
	conn *observe.TapConn
	next uint64
	now  int64 // on the loop's clock
}

func newFeeder(w *Watch, loop int, client string) *feeder {
	conn := &observe.TapConn{Leg: observe.TapClients, Name: "nfs", Peer: netip.AddrPortFrom(netip.MustParseAddr(client), 700)}
	return &feeder{w: w, loop: loop, conn: conn, next: uint64(loop) << 32}
}

// call shows a Call of NFSv3, if it is wanted, with its Reply a millisecond later.
func (f *feeder) call(operation string, procedure uint32, args, results items) {
	q := observe.TapCall{Client: f.conn.Peer, Program: oncrpc.ProgramNFS, Version: 3, Procedure: procedure, Operation: operation}
	if f.w.Looks(f.loop, f.now, &ulb.Operation{Program: q.Program, Version: 3, Name: operation}) == 0 || f.w.Wants(&q) == 0 {
		return
	}
	f.next++
	call, reply := message(3, procedure, encode(nil, args), encode(nil, results))
	now := time.Now()
	m := observe.TapMessage{Loop: f.loop, Wanted: 1, Call: f.next, Conn: f.conn, At: now, Parts: [][]byte{call}, Program: q.Program, Version: 3, Procedure: procedure, Operation: operation}
	f.w.Message(&m)
	m.Reply, m.Out, m.At, m.Parts = true, true, now.Add(time.Millisecond), [][]byte{reply[:10], reply[10:]}
	f.w.Message(&m)
	f.w.Over(&observe.TapOver{Loop: f.loop, Wanted: 1, Call: f.next})
}

// read reads n octets of a file.
func (f *feeder) read(handle string, n int) {
	f.call("READ", 6, items{handle, 0, 0, n}, items{0, 0, n, 1})
}

func (f *feeder) lookup(handle, dir, name string) {
	f.call("LOOKUP", 3, items{dir, name}, items{0, handle, 0, 0})
}

func start(t *testing.T, o Options) *Watch {
	if o.Missed == nil {
		o.Missed = func(uint64) {}
	}
	o.Memory = 1 << 20
	w := Start(o)
	t.Cleanup(w.Close)
	return w
}

func row(h status.Hot) string {
	return fmt.Sprintf("%s in %s by %s: %.0f calls, %.0f read, %.1f ms", h.Path, h.Export, h.Client, h.Calls, h.Read, 1000*h.Mean)
}

// TestWatch: from messages on two loops to what is shown.
func TestWatch(t *testing.T) {
	w := start(t, Options{Loops: 2, Sample: 1})
	a, b := newFeeder(w, 0, "192.0.2.1"), newFeeder(w, 1, "192.0.2.2")
	a.lookup("ffff", "dddd", "hot")
	for range 30 {
		a.read("ffff", 1000)
	}
	for range 10 {
		b.read("gggg", 10)
	}
	n := w.Names(Query{Minutes: 1, Rows: 2})
	if len(n.Files) != 2 || len(n.Clients) != 2 || len(n.Exports) != 1 || n.Known != 1 {
		t.Fatalf("%+v", n)
	}
	for _, v := range []struct {
		got  status.Hot
		want string
	}{
		{n.Files[0], ".../hot in unknown by : 30 calls, 30000 read, 1.0 ms"},
		{n.Files[1], "handle ...67676767 in unknown by : 10 calls, 100 read, 1.0 ms"},
		{n.Clients[0], " in unknown by 192.0.2.1: 31 calls, 30000 read, 1.0 ms"},
		{n.Exports[0], " in unknown by : 41 calls, 30100 read, 1.0 ms"},
	} {
		if got := row(v.got); got != v.want {
			t.Errorf("got %s, want %s", got, v.want)
		}
	}
	if n := w.Names(Query{Minutes: 1, Rows: 2, Export: "/other"}); len(n.Files)+len(n.Clients) != 0 {
		t.Errorf("of another export: %+v", n)
	}
}

// TestWatchSample: names are learned of all Calls, and uses counted in a sample are scaled, within the error that is shown.
func TestWatchSample(t *testing.T) {
	w := start(t, Options{Loops: 1, Sample: 0.1})
	f := newFeeder(w, 0, "192.0.2.1")
	f.lookup("ffff", "dddd", "hot")
	for range 5000 {
		f.read("ffff", 100)
	}
	h := w.Names(Query{Minutes: 1, Rows: 1}).Files[0]
	// Four times the standard deviation: one run in 16,000 is farther away.
	if h.Path != ".../hot" || h.Error < 300 || h.Error > 600 || h.Calls < 5000-2*h.Error || h.Calls > 5000+2*h.Error {
		t.Errorf("%s, %v +- %v", h.Path, h.Calls, h.Error)
	}
}

// TestHide: a name that fits a pattern is not shown, and no filter finds it out.
func TestHide(t *testing.T) {
	for _, hash := range []bool{false, true} {
		w := start(t, Options{Loops: 1, Sample: 1, Hash: hash, Hide: Hidden{"secret-*", "*.key"}})
		f := newFeeder(w, 0, "192.0.2.1")
		f.lookup("dddd", "rrrr", "secret-dir")
		f.lookup("ffff", "dddd", "x.key.old")
		f.lookup("gggg", "ffff", "x.key")
		f.read("gggg", 1)
		want := ".../***/x.key.old/***"
		n := w.Names(Query{Minutes: 1, Rows: 9})
		if !slices.ContainsFunc(n.Files, func(h status.Hot) bool { return h.Path == want }) != hash {
			t.Errorf("hash %v: %+v", hash, n.Files)
		}
		call, _ := message(3, 6, encode(nil, items{"gggg", 0, 0, 1}), nil)
		p := w.Where([]Exchange{{Listener: "nfs", Call: call}})[0]
		for pattern, found := range map[string]Verdict{".../secret-dir/**/x.key": Unknown, ".../[*][*][*]": In} {
			filter, err := NewFilter(nil, []string{pattern})
			if err != nil {
				t.Fatal(err)
			}
			if v := filter.Judge(&p); v != found {
				t.Errorf("hash %v: %s of %s: %d, want %d", hash, pattern, p.Path, v, found)
			}
		}
	}
}

// TestHidePath: only names are hidden.
func TestHidePath(t *testing.T) {
	for p, want := range map[string]string{"/": "/", "/a/bc": "/***/bc", ".../a": ".../***", "": "", "a": "***"} {
		if got := (Hidden{"?"}).Path(p); got != want {
			t.Errorf("%q is shown as %q, want %q", p, got, want)
		}
	}
	if got := (Hidden{"*"}).Path(".../a/b"); got != ".../***/***" {
		t.Errorf("all names of a path are shown as %q", got)
	}
}

// TestHash: what is shown has no names, and the same ones look the same.
func TestHash(t *testing.T) {
	w := start(t, Options{Loops: 1, Sample: 1, Hash: true})
	f := newFeeder(w, 0, "192.0.2.1")
	f.lookup("ffff", "dddd", "secret")
	f.lookup("gggg", "ffff", "secret")
	f.read("gggg", 1)
	n := w.Names(Query{Minutes: 1, Rows: 9})
	for _, h := range n.Files {
		if strings.Contains(h.Path, "secret") {
			t.Errorf("shows %s", h.Path)
		}
		if p := strings.Split(h.Path, "/"); len(p) == 3 && (p[1] != p[2] || len(p[1]) != 8 || p[0] != "...") {
			t.Errorf("shows %s", h.Path)
		}
	}
}

// TestMissed: what does not fit is missed and counted, and the loop does not wait. Memory that long messages took is freed.
func TestMissed(t *testing.T) {
	var missed uint64
	w := start(t, Options{Loops: 1, Sample: 1, Missed: func(n uint64) { missed += n }})
	blocked, goOn := make(chan bool), make(chan bool)
	done := make(chan bool)
	go func() {
		w.inside(func() { close(blocked); <-goOn })
		close(done)
	}()
	<-blocked
	f := newFeeder(w, 0, "192.0.2.1")
	const extra = 100
	for range queueLen + extra {
		f.read("ffff", 1)
	}
	close(goOn)
	<-done
	n := w.Names(Query{Minutes: 1, Rows: 1})
	if missed != extra || n.Missed != extra || n.Files[0].Calls != queueLen {
		t.Errorf("missed %d, says %d; counted %v", missed, n.Missed, n.Files[0].Calls)
	}
	q := w.queues[0]
	if got := q.queued.Load(); got != 0 || len(q.open) != 0 {
		t.Errorf("%d octets queued, %d Calls open", got, len(q.open))
	}
	long := strings.Repeat("x", 1<<20)
	for range 2 * mostQueued / mostCopied {
		f.call("READDIRPLUS", 17, items{"dddd"}, items{0, long})
	}
	if w.Names(Query{Minutes: 1, Rows: 1}); q.queued.Load() != 0 {
		t.Errorf("%d octets queued", q.queued.Load())
	}
	for _, r := range q.slots {
		if r != nil && cap(r.call)+cap(r.reply) > mostKept {
			t.Fatalf("a record keeps %d octets", cap(r.reply))
		}
	}
}

// TestWakes: what nobody asks for is read after a tick, and a queue that is half full, by its records or by their octets, is
// read at once.
func TestWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, Options{Loops: 1, Sample: 1})
		f := newFeeder(w, 0, "192.0.2.1")
		q := w.queues[0]
		waits := func() uint64 {
			synctest.Wait()
			return q.posted.Load() - q.taken.Load()
		}
		for i := range queueLen/2 + 1 {
			if f.read("ffff", 1); i < queueLen/2 {
				if got := waits(); got != uint64(i)+1 {
					t.Fatalf("%d wait after %d Calls", got, i+1)
				}
			}
		}
		if got := waits(); got != 0 {
			t.Errorf("%d wait after half a queue", got)
		}
		long := strings.Repeat("x", mostCopied)
		for range mostQueued / mostCopied / 2 { // the last one is the first that is too much, with its Call
			f.call("READDIRPLUS", 17, items{"dddd"}, items{0, long})
		}
		if got := waits(); got != 0 {
			t.Errorf("%d long ones wait", got)
		}
		f.read("ffff", 1)
		if time.Sleep(tick); waits() != 0 {
			t.Error("one waits after a tick")
		}
	})
}

// TestLoops: two loops put while the goroutine takes and others ask. Nothing is lost that is not counted.
func TestLoops(t *testing.T) {
	w := start(t, Options{Loops: 2, Sample: 1})
	var wg sync.WaitGroup
	const calls = 5000
	for loop := range 2 {
		wg.Go(func() {
			f := newFeeder(w, loop, "192.0.2.1")
			for range calls {
				f.read("ffff", 1)
			}
		})
	}
	wg.Go(func() {
		for range 20 {
			w.Names(Query{Minutes: 1, Rows: 10})
		}
	})
	wg.Wait()
	n := w.Names(Query{Minutes: 1, Rows: 1})
	if got := uint64(n.Files[0].Calls) + n.Missed; got != 2*calls {
		t.Errorf("counted and missed %d of %d", got, 2*calls)
	}
}

// TestLoopAllocs: once a loop has its records, it allocates nothing for a Call.
func TestLoopAllocs(t *testing.T) {
	q := newQueue(1, nil)
	conn := newFeeder(nil, 0, "192.0.2.1").conn
	call := make([]byte, 200)
	m := observe.TapMessage{Call: 1, Conn: conn, Program: oncrpc.ProgramNFS, Operation: "READ"}
	parts := [][]byte{call}
	one := func() {
		m.Reply, m.Out, m.Parts = false, false, parts
		q.message(&m)
		m.Reply, m.Out = true, true
		q.message(&m)
		q.over(1)
		if q.peek() != nil {
			q.pop()
		}
	}
	for range 2 * queueLen {
		one()
	}
	if n := testing.AllocsPerRun(100, one); n != 0 && !testkit.RaceEnabled {
		t.Errorf("%v allocations", n)
	}
}

// TestCopied: the data of a READ stay where they are, as does what is encrypted.
func TestCopied(t *testing.T) {
	parts := [][]byte{make([]byte, 150), make([]byte, 1<<20)}
	for _, v := range []struct {
		m    observe.TapMessage
		want int
	}{
		{observe.TapMessage{Operation: "READ", Data: 150, DataLength: 1 << 20}, 150},
		{observe.TapMessage{Operation: "WRITE", Data: 200, DataLength: 1000}, 200},
		{observe.TapMessage{Operation: "READ"}, mostHeader},
		{observe.TapMessage{Operation: "COMPOUND"}, mostHeader},
		{observe.TapMessage{Operation: "CREATE", Data: 150, DataLength: 10}, mostCopied}, // a link, whose name follows
		{observe.TapMessage{Operation: "READDIRPLUS"}, mostCopied},
	} {
		v.m.Parts = parts
		if got := len(copied(nil, &v.m)); got != v.want {
			t.Errorf("%s with data of %d octets at %d: %d octets, want %d", v.m.Operation, v.m.DataLength, v.m.Data, got, v.want)
		}
	}
}

// BenchmarkRead is what a READ costs the loop, and the goroutine after it.
func BenchmarkRead(b *testing.B) {
	for _, sample := range []float64{1, 0.1} {
		w := &Watch{opts: Options{Sample: sample, Missed: func(uint64) {}}, queues: []*queue{newQueue(sample, nil)}, book: book{newTable(1 << 20), newExports()}}
		f := newFeeder(w, 0, "192.0.2.1")
		handles := make([]string, 1000)
		for i := range handles {
			handles[i] = fmt.Sprintf("a handle of some 28 octets%04d", i)
		}
		call, reply := message(3, 6, encode(nil, items{handles[0], 0, 0, 4096}), encode(nil, items{0, 0, 4096, 1}))
		q := observe.TapCall{Client: f.conn.Peer, Program: oncrpc.ProgramNFS, Version: 3, Procedure: 6, Operation: "READ"}
		o := &ulb.Operation{Program: q.Program, Version: 3, Name: "READ"}
		loop := func(n uint64) {
			if w.Looks(0, 0, o) == 0 || w.Wants(&q) == 0 {
				return
			}
			m := observe.TapMessage{Wanted: 1, Call: n, Conn: f.conn, At: time.Now(), Parts: [][]byte{call}, Program: q.Program, Operation: "READ", Data: 100, DataLength: 10}
			copy(call[44:], handles[n%1000])
			w.Message(&m)
			m.Reply, m.Out, m.Parts = true, true, [][]byte{reply}
			w.Message(&m)
			w.Over(&observe.TapOver{Wanted: 1, Call: n})
		}
		b.Run(fmt.Sprintf("loop/%v", sample), func(b *testing.B) {
			b.ReportAllocs()
			for n := uint64(0); b.Loop(); n++ {
				if loop(n); w.queues[0].peek() != nil {
					w.queues[0].pop()
				}
			}
		})
		b.Run(fmt.Sprintf("both/%v", sample), func(b *testing.B) {
			b.ReportAllocs()
			for n := uint64(0); b.Loop(); n++ {
				loop(n)
				w.drain()
			}
		})
	}
}

// An asker is told a path.
type asker struct {
	handle string
	told   []string
}

func (a *asker) Learned(path func(listener, handle string) string) {
	a.told = append(a.told, path("nfs", a.handle))
}

// TestAsk: an Asker is told the path as it was when it asked. What has asked before Close is told, and what asks later is not
// taken; neither is what there is no room for.
func TestAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := Start(Options{Loops: 1, Sample: 1, Memory: 1 << 20, Missed: func(uint64) {}})
		f := newFeeder(w, 0, "192.0.2.1")
		a := &asker{handle: "ffff"}
		ask := func() {
			t.Helper()
			if !w.Ask(0, time.Now(), a) {
				t.Error("nobody listens")
			}
		}
		ask()
		f.lookup("ffff", "dddd", "a")
		ask()
		f.call("RENAME", 14, items{"dddd", "a", "dddd", "b"}, items{0, 0, 0, 0, 0})
		ask()
		if len(a.told) > 0 {
			t.Errorf("told at once: %q", a.told)
		}
		w.Settle()
		if want := []string{"", ".../a", ".../b"}; !slices.Equal(a.told, want) {
			t.Errorf("told %q, want %q", a.told, want)
		}
		asked := 0
		w.inside(func() { // so that nothing is read
			for w.Ask(0, time.Now(), a) {
				asked++
			}
		})
		w.Close()
		if len(a.told) != 3+asked || asked != queueLen {
			t.Errorf("%d were told of %d", len(a.told)-3, asked)
		}
		if w.Ask(0, time.Now(), a) {
			t.Error("taken after Close")
		}
	})
}
