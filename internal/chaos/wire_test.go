package chaos

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// A wire is a TCP proxy that harms connections as a network, a host that dies or a
// middlebox does.
type wire struct {
	name    string
	seed    seed
	sky     *sky
	target  string
	options wireOptions
	addr    string
	n       atomic.Int64
	wg      sync.WaitGroup

	mu     sync.Mutex // guards the rest
	l      net.Listener
	conns  map[*wired]struct{}
	closed bool
}

// wireOptions say what a wire is.
type wireOptions struct {
	corrupt bool   // octets may change: there are checksums that find it
	from    net.IP // the address that the target sees; nil for any
	slow    bool   // after the first octets of the one who has dialled, they come one by one
}

// A wired is one connection through a wire.
type wired struct {
	w      *wire
	a, b   *net.TCPConn // a dialled us
	gate   sync.RWMutex // held for writing while nothing gets through
	end    chan struct{}
	once   sync.Once
	active atomic.Int32
}

// wires counts the wires of all tests.
var wires atomic.Int32

func newWire(o wireOptions, name string, s seed, sk *sky, target string) (*wire, error) {
	w := &wire{name: name, seed: s, sky: sk, target: target, options: o, conns: make(map[*wired]struct{})}
	// Not 127.0.0.1: while the wire is down, a server of another test could get its port there.
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.6.%d:0", 1+wires.Add(1)%250))
	if err != nil {
		return nil, err
	}
	w.l, w.addr = l, l.Addr().String()
	w.wg.Go(func() { w.accept(l) })
	return w, nil
}

func (w *wire) accept(l net.Listener) {
	for {
		nc, err := l.Accept()
		if err != nil {
			return
		}
		n := int(w.n.Add(1))
		dice := w.seed.dice(w.name, n)
		a := nc.(*net.TCPConn)
		if w.sky.strikes(dice, refuseWire) {
			a.SetLinger(0)
			a.Close()
			continue
		}
		w.wg.Go(func() {
			d := net.Dialer{Timeout: 2 * time.Second, LocalAddr: &net.TCPAddr{IP: w.options.from}}
			to, err := d.Dial("tcp", w.target)
			if err != nil {
				a.SetLinger(0)
				a.Close()
				return
			}
			w.join(a, to.(*net.TCPConn), n)
		})
	}
}

func (w *wire) join(a, b *net.TCPConn, n int) {
	c := &wired{w: w, a: a, b: b, end: make(chan struct{})}
	c.active.Store(2)
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		a.Close()
		b.Close()
		return
	}
	w.conns[c] = struct{}{}
	w.mu.Unlock()
	w.wg.Go(func() { c.copy(a, b, w.seed.dice(w.name+"/there", n)) })
	w.wg.Go(func() { c.copy(b, a, w.seed.dice(w.name+"/back", n)) })
}

// copy carries octets until something happens.
func (c *wired) copy(from, to *net.TCPConn, dice *rand.Rand) {
	w := c.w
	defer func() {
		if c.active.Add(-1) == 0 {
			c.cut(false)
			w.mu.Lock()
			delete(w.conns, c)
			w.mu.Unlock()
		}
	}()
	buf := make([]byte, 16<<10)
	carried := 0
	for {
		n, err := from.Read(buf)
		if n > 0 && !c.carry(buf[:n], from, to, dice, &carried) {
			return
		}
		if err != nil {
			_ = to.CloseWrite()
			return
		}
	}
}

// carry passes b on, or not, and reports whether to go on.
func (c *wired) carry(b []byte, from, to *net.TCPConn, dice *rand.Rand, carried *int) bool {
	sky := c.w.sky
	if c.w.options.slow && from == c.a && *carried >= slowAfter {
		return c.trickle(b, to)
	}
	switch {
	case sky.strikes(dice, resetWire):
		_, _ = to.Write(b[:dice.IntN(len(b)+1)])
		c.cut(true)
		return false
	case sky.strikes(dice, finWire):
		_, _ = to.Write(b[:dice.IntN(len(b)+1)])
		c.cut(false)
		return false
	case sky.strikes(dice, halfClose):
		_, _ = to.Write(b[:dice.IntN(len(b)+1)])
		_ = to.CloseWrite()
		c.swallow(from)
		return false
	case sky.strikes(dice, blackhole):
		_, _ = to.Write(b[:dice.IntN(len(b)+1)])
		c.gate.Lock() // neither direction, and no FIN either: the host comes back much later
		c.pause(between(dice, 10*time.Second, 30*time.Second))
		c.gate.Unlock()
		c.cut(true)
		return false
	case sky.strikes(dice, stallWire):
		at := dice.IntN(len(b) + 1)
		_, _ = to.Write(b[:at])
		b = b[at:]
		*carried += at
		c.gate.Lock()
		c.pause(between(dice, 10*time.Millisecond, 1500*time.Millisecond))
		c.gate.Unlock()
	case sky.strikes(dice, delayWire):
		c.pause(between(dice, time.Millisecond, 20*time.Millisecond))
	case sky.strikes(dice, trickleWire):
		for i := 0; i < len(b) && i < 300; i++ {
			if _, err := to.Write(b[i : i+1]); err != nil {
				c.cut(false)
				return false
			}
		}
		*carried += min(len(b), 300)
		b = b[min(len(b), 300):]
	}
	// The set-up of MPA has no CRC.
	if len(b) > 0 && c.w.options.corrupt && *carried >= 512 && sky.strikes(dice, corruptWire) {
		b[dice.IntN(len(b))] ^= 1 << dice.IntN(8)
	}
	*carried += len(b)
	c.gate.RLock()
	_, err := to.Write(b)
	c.gate.RUnlock()
	if err != nil {
		c.cut(false)
		return false
	}
	return true
}

// slowAfter is after how many octets a slow wire is slow: the set-up and a Call get through.
const slowAfter = 2048

// trickle passes b on at 200 octets a second.
func (c *wired) trickle(b []byte, to *net.TCPConn) bool {
	for i := range b {
		if _, err := to.Write(b[i : i+1]); err != nil {
			c.cut(false)
			return false
		}
		c.pause(5 * time.Millisecond)
	}
	return true
}

// swallow reads and discards until the end.
func (c *wired) swallow(from *net.TCPConn) {
	buf := make([]byte, 16<<10)
	for {
		if _, err := from.Read(buf); err != nil {
			return
		}
	}
}

func (c *wired) pause(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-c.end:
	}
}

// cut ends both sides, with RST or FIN.
func (c *wired) cut(reset bool) {
	c.once.Do(func() {
		if reset {
			c.a.SetLinger(0)
			c.b.SetLinger(0)
		}
		c.a.Close()
		c.b.Close()
		close(c.end)
	})
}

// shut is down, and up after d.
func (w *wire) shut(d time.Duration) {
	w.sky.counts[shutWire].Add(1)
	w.down()
	time.Sleep(d)
	w.up()
}

// down stops listening and cuts all connections. The kernel refuses new ones.
func (w *wire) down() {
	w.mu.Lock()
	l := w.l
	w.mu.Unlock()
	l.Close()
	w.cutAll(true)
}

// up ends down.
func (w *wire) up() {
	var l net.Listener
	if !testkit.Settles(patience, func() (ok bool) {
		var err error
		l, err = net.Listen("tcp", w.addr)
		return err == nil
	}) {
		panic("chaos: the wire's address is taken")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		l.Close()
		return
	}
	w.l = l
	w.wg.Go(func() { w.accept(l) })
}

// cutAll ends every connection.
func (w *wire) cutAll(reset bool) {
	w.mu.Lock()
	all := make([]*wired, 0, len(w.conns))
	for c := range w.conns {
		all = append(all, c)
	}
	w.mu.Unlock()
	for _, c := range all {
		c.cut(reset)
	}
}

func (w *wire) close() {
	w.mu.Lock()
	w.closed = true
	l := w.l
	w.mu.Unlock()
	l.Close()
	w.cutAll(false)
	w.wg.Wait()
}
