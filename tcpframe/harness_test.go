package tcpframe

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// lent counts the Buffers that every testMemory has lent.
var lent atomic.Int64

// noDeadline is the deadline of sockets in benchmarks.
var noDeadline time.Time

var errBudget = errors.New("test memory: budget spent")

// A testMemory is Memory with a budget. Its buffers come from a free list, so that it does
// not allocate in steady state.
type testMemory struct {
	limit int64 // octets; 0 is no limit

	mu      sync.Mutex
	used    int64
	peak    int64
	free    map[int][]*testBuffer
	waiting []func()
	waits   int
}

type testBuffer struct {
	m    *testMemory
	b    []byte
	live bool
}

// pageOffset keeps records away from the start of a page. The kernel copies octets from
// there at two thirds of the speed when they are written right behind the four of a
// record mark: loads follow stores four octets ahead of them, modulo the page. A real
// Reply has headers.
const pageOffset = 64

func (m *testMemory) Lease(n int) (Buffer, error) {
	size := class(n)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.limit > 0 && m.used+int64(size) > m.limit {
		return nil, errBudget
	}
	m.used += int64(size)
	m.peak = max(m.peak, m.used)
	lent.Add(1)
	if f := m.free[size]; len(f) > 0 {
		b := f[len(f)-1]
		m.free[size] = f[:len(f)-1]
		b.b, b.live = b.b[:n], true
		return b, nil
	}
	return &testBuffer{m: m, b: make([]byte, pageOffset+size)[pageOffset : pageOffset+n], live: true}, nil
}

func (m *testMemory) Return(b Buffer) { b.Release() }

func (m *testMemory) Wait(n int, f func()) {
	m.mu.Lock()
	m.waits++
	now := m.used+int64(class(n)) <= m.limit
	if !now {
		m.waiting = append(m.waiting, f)
	}
	m.mu.Unlock()
	if now {
		f()
	}
}

func class(n int) int {
	size := 512
	for size < n {
		size *= 4
	}
	return size
}

func (b *testBuffer) Bytes() []byte { return b.b }
func (b *testBuffer) Resize(n int)  { b.b = b.b[:n] }

func (b *testBuffer) Release() {
	m := b.m
	m.mu.Lock()
	if !b.live {
		panic("released twice")
	}
	b.live = false
	lent.Add(-1)
	m.used -= int64(cap(b.b))
	if m.free == nil {
		m.free = make(map[int][]*testBuffer)
	}
	m.free[cap(b.b)] = append(m.free[cap(b.b)], b)
	var next func()
	if len(m.waiting) > 0 {
		next = m.waiting[0]
		m.waiting = m.waiting[1:]
	}
	m.mu.Unlock()
	if next != nil {
		next()
	}
}

func (m *testMemory) Used() int64 { m.mu.Lock(); defer m.mu.Unlock(); return m.used }
func (m *testMemory) Waits() int  { m.mu.Lock(); defer m.mu.Unlock(); return m.waits }
func (m *testMemory) Peak() int64 { m.mu.Lock(); defer m.mu.Unlock(); return m.peak }

// lend makes every loop use m.
func lend(m Memory) func(int) Memory { return func(int) Memory { return m } }

const testMaxRecord = 4<<20 + 64<<10

// bounds returns o with the bounds that tests have unless they say otherwise.
func bounds(o ConnOptions) ConnOptions {
	o.MaxRecord = cmp.Or(o.MaxRecord, testMaxRecord)
	o.MaxOutbound = cmp.Or(o.MaxOutbound, 8<<20)
	o.OutboundLimit = cmp.Or(o.OutboundLimit, 256<<20)
	o.StallTimeout = cmp.Or(o.StallTimeout, 30*time.Second)
	o.SendTimeout = cmp.Or(o.SendTimeout, 2*time.Minute)
	return o
}

// listenBounds is bounds for a listener.
func listenBounds(o ListenOptions) ListenOptions {
	o.MaxConns = cmp.Or(o.MaxConns, 4096)
	o.MaxConnsPerAddr = cmp.Or(o.MaxConnsPerAddr, 512)
	o.Conn = bounds(o.Conn)
	return o
}

// dial is Engine.Dial with the bounds of tests.
func dial(e *Engine, addr string, o DialOptions, h RecordHandler) (*Conn, error) {
	o.Conn = bounds(o.Conn)
	return e.Dial(context.Background(), addr, nil, o, h)
}

// startEngine starts an engine that stops at the end of the test. It logs to the test.
func startEngine(t testing.TB, o EngineOptions) *Engine {
	t.Helper()
	o.Log = zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.WarnLevel)
	if _, ok := t.(*testing.B); ok {
		o.Log = zerolog.Nop()
	}
	return startLogging(t, o)
}

// startLogging is startEngine with the log that o has.
func startLogging(t testing.TB, o EngineOptions) *Engine {
	t.Helper()
	if o.tick == 0 {
		o.tick = 10 * time.Millisecond
	}
	if o.Loops == 0 {
		o.Loops = 2
	}
	e, err := Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Stop)
	return e
}

// A recorder is a RecordHandler made of functions.
type recorder struct {
	opened func(*Conn)
	record func(*Conn, Buffer)
	closed func(*Conn, error)
	done   chan error // receives the error of Closed
}

func newRecorder() *recorder { return &recorder{done: make(chan error, 1)} }

func (r *recorder) Opened(c *Conn) {
	if r.opened != nil {
		r.opened(c)
	}
}

func (r *recorder) Record(c *Conn, b Buffer) {
	if r.record != nil {
		r.record(c, b)
		return
	}
	b.Release()
}

func (r *recorder) Closed(c *Conn, err error) {
	if r.closed != nil {
		r.closed(c, err)
	}
	r.done <- err
}

func (r *recorder) wait(t testing.TB, why string) error {
	t.Helper()
	select {
	case err := <-r.done:
		return err
	case <-time.After(testkit.Patience):
		t.Fatalf("no Closed: %s", why)
		return nil
	}
}

// echo returns a handler that sends each record back from its Buffer.
func echo() *recorder {
	r := newRecorder()
	r.record = func(c *Conn, b Buffer) { c.Send([][]byte{b.Bytes()}, b) }
	return r
}

func listen(t testing.TB, e *Engine, o ListenOptions, h func(*Conn) RecordHandler) *Listener {
	t.Helper()
	o.Address = "127.0.0.1:0"
	o.Name = t.Name()
	l, err := e.Listen(listenBounds(o), h)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// connsOf returns how many connections l has.
func connsOf(l *Listener) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.clients.All()
}

// peerLasts is the deadline of all that a peer does, from when it connects. It ends a test that hangs, on a busy machine too.
const peerLasts = 5 * testkit.Patience

// A peer is the other end of a connection: a plain blocking socket.
type peer struct {
	t testing.TB
	*net.TCPConn
}

func dialPeer(t testing.TB, l *Listener) *peer {
	t.Helper()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(peerLasts))
	return &peer{t, c.(*net.TCPConn)}
}

func (p *peer) send(b []byte) {
	p.t.Helper()
	if _, err := p.Write(b); err != nil {
		p.t.Fatalf("write: %v", err)
	}
}

// readRecord reads one record of one fragment.
func (p *peer) readRecord() []byte {
	p.t.Helper()
	b, err := readRecord(p, nil)
	if err != nil {
		p.t.Fatalf("read record: %v", err)
	}
	return b
}

func readRecord(r io.Reader, buf []byte) ([]byte, error) {
	var mark [4]byte
	if _, err := io.ReadFull(r, mark[:]); err != nil {
		return nil, err
	}
	v := binary.BigEndian.Uint32(mark[:])
	if v&lastFragment == 0 {
		return nil, errors.New("not a last fragment")
	}
	n := int(v & maxFragment)
	if cap(buf) < n {
		buf = make([]byte, n)
	}
	_, err := io.ReadFull(r, buf[:n])
	return buf[:n], err
}

// wantEnd reads to the end of the stream and returns how many octets it has read.
func (p *peer) wantEnd(why string) int64 {
	p.t.Helper()
	p.SetReadDeadline(time.Now().Add(testkit.Patience))
	n, err := io.Copy(io.Discard, p.TCPConn)
	var ne net.Error
	if errors.As(err, &ne) && ne.Timeout() {
		p.t.Fatalf("the connection stays open: %s", why)
	}
	return n
}

// fragment returns a record fragment that holds b.
func fragment(last bool, b []byte) []byte {
	v := uint32(len(b))
	if last {
		v |= lastFragment
	}
	return append(binary.BigEndian.AppendUint32(nil, v), b...)
}

// pattern returns n octets that depend on seed and position.
func pattern(n int, seed byte) []byte { return testkit.Pattern(n, uint32(seed)) }

// withoutDescriptors lets the process open no descriptor until restore, or until the test ends. The test must not run in
// parallel with others.
func withoutDescriptors(t *testing.T) (restore func()) {
	t.Helper()
	var old syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	none := old
	none.Cur = 3
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none); err != nil {
		t.Skip(err)
	}
	restore = func() { syscall.Setrlimit(syscall.RLIMIT_NOFILE, &old) }
	t.Cleanup(restore)
	return restore
}
