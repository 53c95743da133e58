package nlm_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/nlmtest"
)

// The model has so many octets of each file one by one. Its last cell is the rest of the file.
const (
	cells = 25
	svids = 3
	files = 3
)

// A who is an owner, as its client knows it.
type who struct{ client, svid int }

// A pending is a LOCK that waits.
type pending struct {
	who
	first, last int
	exclusive   bool
	args        nlmtest.Args
	granted     <-chan struct{}
}

// A modelFile says for each octet who has it, and whether exclusively.
type modelFile struct {
	cells [cells]map[who]bool
	waits []*pending
}

func (f *modelFile) free(p *pending) bool {
	for _, c := range f.cells[p.first : p.last+1] {
		for o, exclusive := range c {
			if o != p.who && (exclusive || p.exclusive) {
				return false
			}
		}
	}
	return true
}

func (f *modelFile) lock(p *pending) {
	for _, c := range f.cells[p.first : p.last+1] {
		c[p.who] = p.exclusive
	}
}

func (f *modelFile) unlock(p *pending) {
	for _, c := range f.cells[p.first : p.last+1] {
		delete(c, p.who)
	}
}

// take gives those LOCKs what they want that wait no longer. It reports whether all others must wait.
func (f *modelFile) take() (settled bool) {
	granted := func(p *pending) bool {
		select {
		case <-p.granted:
			return true
		default:
			return false
		}
	}
	for taken := true; taken; {
		taken = false
		f.waits = slices.DeleteFunc(f.waits, func(p *pending) bool {
			if !granted(p) || !f.free(p) {
				return false
			}
			f.lock(p)
			taken = true // it may be less than the owner had, and let others in
			return true
		})
	}
	return !slices.ContainsFunc(f.waits, func(p *pending) bool { return granted(p) || f.free(p) })
}

// A model is what clients have, and the world that must have the same.
type model struct {
	*world
	rng     *rand.Rand
	files   [files]*modelFile
	crashes int64 // of clients that have mounted the server itself
	script  []string
}

func (m *model) note(format string, a ...any) { m.script = append(m.script, fmt.Sprintf(format, a...)) }

func (m *model) fail(format string, a ...any) {
	m.t.Helper()
	last := m.script[max(0, len(m.script)-40):]
	m.t.Fatalf("%s\nafter operation %d of\n%s", fmt.Sprintf(format, a...), len(m.script), strings.Join(last, "\n"))
}

func handle(file int) []byte { return []byte{0xfe, 0xed, 0, byte(file)} }

// base is the octet at which cell 0 of a file is. NLM before version 4 has 32 bits for it.
func base(file int) uint64 {
	if file == files-1 {
		return 1 << 40
	}
	return 1000
}

// pick returns a random owner, file and range.
func (m *model) pick() (p *pending, file int) {
	p = &pending{who: who{m.rng.IntN(len(m.clients)), m.rng.IntN(svids)}, exclusive: m.rng.IntN(2) == 0}
	p.first = m.rng.IntN(cells - 1)
	p.last = min(p.first+m.rng.IntN(8), cells-1)
	if m.rng.IntN(8) == 0 {
		p.last = cells - 1
	}
	file = m.rng.IntN(files)
	if m.clients[p.client].Style.Version < 4 {
		file = m.rng.IntN(files - 1)
	}
	p.args = m.args(p, file)
	return p, file
}

func (m *model) args(p *pending, file int) nlmtest.Args {
	a := nlmtest.Args{FH: handle(file), SVID: uint32(p.svid), Exclusive: p.exclusive, Offset: base(file) + uint64(p.first)}
	if p.last < cells-1 {
		a.Length = uint64(p.last - p.first + 1)
	}
	return a
}

// call calls a procedure. For one in some Calls it restarts the bridge meanwhile.
func (m *model) call(p *pending, procedure uint32, a nlmtest.Args) nlmtest.Stat {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	var r nlmtest.Results
	var err error
	op := func() { r, err = m.clients[p.client].Do(ctx, procedure, a) }
	if m.rng.IntN(30) == 0 {
		pause := time.Duration(m.rng.IntN(1500)) * time.Microsecond
		m.note("  the bridge restarts meanwhile, after %v", pause)
		during(op, func() {
			time.Sleep(pause)
			m.restartBridge()
		})
	} else {
		op()
	}
	if err != nil {
		m.fail("%v", err)
	}
	return r.Stat
}

func (m *model) want(got, want nlmtest.Stat) {
	m.t.Helper()
	if got != want {
		m.fail("status %d, want %d", got, want)
	}
}

// lock sends a LOCK.
func (m *model) lock(p *pending, file int, block bool) {
	f := m.files[file]
	if slices.ContainsFunc(f.waits, func(o *pending) bool { return o.who == p.who && o.first <= p.last && p.first <= o.last }) {
		return // which of them is the last would be left to chance
	}
	m.note("lock file %d %+v cells %d to %d exclusive %v block %v", file, p.who, p.first, p.last, p.exclusive, block)
	p.args.Block = block
	m.send(p, f, block)
}

func (m *model) send(p *pending, f *modelFile, block bool) {
	c := m.clients[p.client]
	if block {
		p.granted = c.Expect(p.args)
	}
	got := m.call(p, nlmtest.Lock, p.args)
	switch {
	case f.free(p):
		m.want(got, nlmtest.StatGranted)
		c.Forget(p.args)
		f.lock(p)
	case block:
		m.want(got, nlmtest.StatBlocked)
		f.waits = append(f.waits, p)
	default:
		m.want(got, nlmtest.StatDenied)
	}
}

// unlock sends an UNLOCK, which also ends the LOCK that waits for just this range.
func (m *model) unlock(p *pending, file int) {
	m.note("unlock file %d %+v cells %d to %d", file, p.who, p.first, p.last)
	f := m.files[file]
	m.want(m.call(p, nlmtest.Unlock, p.args), nlmtest.StatGranted)
	f.unlock(p)
	f.waits = slices.DeleteFunc(f.waits, func(o *pending) bool {
		if o.who != p.who || o.args.Offset != p.args.Offset || o.args.Length != p.args.Length {
			return false
		}
		m.clients[p.client].Forget(o.args)
		return true
	})
}

func (m *model) test(p *pending, file int) {
	m.note("test file %d %+v cells %d to %d exclusive %v", file, p.who, p.first, p.last, p.exclusive)
	got := m.call(p, nlmtest.Test, p.args)
	if m.files[file].free(p) {
		m.want(got, nlmtest.StatGranted)
	} else {
		m.want(got, nlmtest.StatDenied)
	}
}

// cancel ends a LOCK that waits, as Linux does: by CANCEL, and an UNLOCK in case that a grant has crossed it.
func (m *model) cancel(file int) {
	f := m.files[file]
	if len(f.waits) == 0 {
		return
	}
	i := m.rng.IntN(len(f.waits))
	p := f.waits[i]
	m.note("cancel file %d %+v cells %d to %d", file, p.who, p.first, p.last)
	f.waits = slices.Delete(f.waits, i, i+1)
	m.clients[p.client].Forget(p.args)
	m.want(m.call(p, nlmtest.Cancel, p.args), nlmtest.StatGranted)
	m.want(m.call(p, nlmtest.Unlock, p.args), nlmtest.StatGranted)
	f.unlock(p)
}

// beside reports whether a client has mounted the server itself.
func (m *model) beside(client int) bool { return m.clients[client].Server == serverAddr }

// stop ends a client, and all that it has.
func (m *model) stop(client int) {
	m.clients[client].Stop()
	if m.beside(client) {
		m.crashes++
	}
	for _, f := range m.files {
		for _, c := range f.cells {
			maps.DeleteFunc(c, func(o who, _ bool) bool { return o.client == client })
		}
		f.waits = slices.DeleteFunc(f.waits, func(p *pending) bool { return p.client == client })
	}
}

// crash ends a client and starts it again. It may lock at once what it had before.
func (m *model) crash(client int) {
	m.note("client %d crashes", client)
	m.stop(client)
	if m.rng.IntN(3) == 0 {
		m.note("  the bridge restarts before the client does")
		m.restartBridge()
	}
	m.restartClient(m.clients[client])
	p, file := m.pick()
	p.who.client = client
	if m.rng.IntN(2) == 0 && len(m.files[file].waits) == 0 && m.files[file].free(p) &&
		(m.clients[client].Style.Version == 4 || file < files-1) {
		p.args = m.args(p, file)
		m.lock(p, file, false)
	}
}

// runs returns what an owner has of a file, in ranges.
func (m *model) runs(o who, file int) (all []*pending) {
	var p *pending
	for i, c := range m.files[file].cells {
		exclusive, has := c[o]
		if p != nil && has && p.exclusive == exclusive {
			p.last = i
			continue
		}
		p = nil
		if has {
			p = &pending{who: o, first: i, last: i, exclusive: exclusive}
			all = append(all, p)
		}
	}
	for _, p := range all {
		p.args = m.args(p, file)
	}
	return all
}

// has reports whether a client holds a lock or waits for one.
func (m *model) has(client int) bool {
	for _, f := range m.files {
		for _, c := range f.cells {
			for o := range c {
				if o.client == client {
					return true
				}
			}
		}
		if slices.ContainsFunc(f.waits, func(p *pending) bool { return p.client == client }) {
			return true
		}
	}
	return false
}

// restartServer ends the server and starts it again. Clients reclaim their locks when they are told, and then
// lock again what they waited for.
func (m *model) restartServer() {
	m.note("the server restarts")
	for _, c := range m.clients {
		for len(c.Notices()) > 0 {
			<-c.Notices()
		}
	}
	if err := m.server.Restart(); err != nil {
		m.fail("%v", err)
	}
	if m.rng.IntN(3) == 0 {
		pause := time.Duration(m.rng.IntN(3000)) * time.Microsecond
		m.note("  the bridge restarts, too, after %v", pause)
		time.Sleep(pause)
		m.restartBridge()
	}
	if client := m.rng.IntN(20); client < len(m.clients) {
		m.note("  and client %d crashes", client)
		m.stop(client)
		m.restartClient(m.clients[client])
	}
	for i, c := range m.clients {
		if !m.has(i) {
			continue
		}
		select {
		case <-c.Notices():
		case <-time.After(testkit.Patience):
			m.fail("client %d is not told of the server's restart", i)
		}
		for svid := range svids {
			for file := range files {
				for _, p := range m.runs(who{i, svid}, file) {
					m.note("  reclaim file %d %+v cells %d to %d exclusive %v", file, p.who, p.first, p.last, p.exclusive)
					p.args.Reclaim = true
					m.want(m.call(p, nlmtest.Lock, p.args), nlmtest.StatGranted)
				}
			}
		}
	}
	var waits [files][]*pending
	for i, f := range m.files {
		waits[i], f.waits = f.waits, nil
	}
	m.compare()
	m.server.EndGrace()
	for i, f := range m.files {
		for _, p := range waits[i] {
			m.note("  wait again %+v cells %d to %d", p.who, p.first, p.last)
			m.send(p, f, true)
		}
	}
}

// grantAll waits for the grants of what waits no longer. Their order is the server's matter, also because the bridge frees
// what a client had by one UNLOCK after the other.
func (m *model) grantAll() {
	for file, f := range m.files {
		if !testkit.Settles(testkit.Patience, f.take) {
			m.fail("file %d: the LOCKs that are granted are not those that need not wait; %s", file, m.difference())
		}
	}
}

// owned is what one owner has, as text.
type owned [files][cells]byte

func (o *owned) set(file, cell int, exclusive bool) {
	o[file][cell] = 'r'
	if exclusive {
		o[file][cell] = 'w'
	}
}

// sorted returns what each owner has. Only the owners of clients beside the bridge have a name that is known.
func sorted[K comparable](all map[K]*owned, name func(K) string) (s []string) {
	for k, o := range all {
		line := name(k)
		for _, f := range o {
			line += " " + strings.ReplaceAll(string(f[:]), "\x00", ".")
		}
		s = append(s, line)
	}
	slices.Sort(s)
	return s
}

// wanted returns what the server should have.
func (m *model) wanted() (all []string, waiting int) {
	want := make(map[who]*owned)
	for file, f := range m.files {
		waiting += len(f.waits)
		for i, c := range f.cells {
			for o, exclusive := range c {
				if want[o] == nil {
					want[o] = new(owned)
				}
				want[o].set(file, i, exclusive)
			}
		}
	}
	return sorted(want, func(o who) string {
		if m.beside(o.client) {
			return fmt.Sprint(m.clients[o.client].Addr, o.svid)
		}
		return "bridge"
	}), waiting
}

// difference says what the server has, and what it should have.
func (m *model) difference() string {
	got, waits := m.locks()
	want, waiting := m.wanted()
	return fmt.Sprintf("the server has, with %d that wait,\n%s\nwant, with %d that wait,\n%s", waits, strings.Join(got, "\n"), waiting, strings.Join(want, "\n"))
}

// compare waits until the server has the locks of the model.
func (m *model) compare() {
	m.t.Helper()
	want, waiting := m.wanted()
	if !testkit.Settles(testkit.Patience, func() bool {
		got, waits := m.locks()
		return slices.Equal(got, want) && waits == waiting
	}) {
		m.fail("%s", m.difference())
	}
}

// remembered waits until the bridge knows who waits. It may know more of what is held than there is: a LOCK that it has
// sent when it ended may have been granted.
func (m *model) remembered() {
	m.t.Helper()
	if m.processes {
		return
	}
	waiting := 0
	for _, f := range m.files {
		for _, p := range f.waits {
			if !m.beside(p.client) {
				waiting++
			}
		}
	}
	if !testkit.Settles(testkit.Patience, func() bool { return m.bridge.Snapshot().Waiting == waiting }) {
		m.fail("%d LOCKs wait; the bridge has %+v", waiting, m.bridge.Snapshot())
	}
}

// locks returns what the server has.
func (m *model) locks() (all []string, waiting int) {
	type owner struct {
		host netip.Addr
		svid uint32
	}
	has := make(map[owner]*owned)
	for file := range files {
		held, n := m.server.Held(string(handle(file)))
		waiting += n
		for _, h := range held {
			o := owner{h.Host, h.SVID}
			if has[o] == nil {
				has[o] = new(owned)
			}
			last := cells - 1
			if h.Last != math.MaxUint64 {
				last = int(h.Last - base(file))
			}
			for i := int(h.First - base(file)); i <= last; i++ {
				has[o].set(file, i, h.Exclusive)
			}
		}
	}
	return sorted(has, func(o owner) string {
		if o.host != bridgeAddr {
			return fmt.Sprint(o.host, o.svid)
		}
		return "bridge"
	}), waiting
}

func (m *model) step() {
	p, file := m.pick()
	switch n := m.rng.IntN(1000); {
	case n < 420:
		m.lock(p, file, n < 240)
	case n < 800:
		m.unlock(p, file)
	case n < 900:
		m.test(p, file)
	case n < 960:
		m.cancel(file)
	case n < 980:
		m.crash(p.client)
	case n < 990:
		m.restartServer()
	default:
		m.note("the bridge restarts")
		m.restartBridge()
	}
	m.grantAll()
	m.compare()
	m.remembered()
}

// TestModel does random operations by five clients behind the bridge and one beside it, restarts each of the hosts now
// and then, and compares what the server has with a model after each operation. RDMABRIDGE_LOCKS=10000 does so many
// operations; RDMABRIDGE_LOCKS=10000,7 does those of seed 7. With an odd seed, the server frees a lock whose grant is denied.
func TestModel(t *testing.T) { testModel(t, false, 300) }

// TestModelOfKills is TestModel with bridges that are killed.
func TestModelOfKills(t *testing.T) { testModel(t, true, 100) }

func testModel(t *testing.T, processes bool, operations int) {
	seed := uint64(time.Now().UnixNano())
	if v := os.Getenv("RDMABRIDGE_LOCKS"); v != "" {
		n, s, seeded := strings.Cut(v, ",")
		var err, err2 error
		if operations, err = strconv.Atoi(n); seeded {
			seed, err2 = strconv.ParseUint(s, 10, 64)
		}
		if cmp.Or(err, err2) != nil {
			t.Fatalf("RDMABRIDGE_LOCKS is %q, want operations, or operations,seed", v)
		}
	}
	t.Logf("seed %d", seed)
	old, macTCP := nlmtest.Linux, nlmtest.MacOS
	old.Version, old.Network = 1, "udp"
	macTCP.Network, macTCP.Version = "tcp", 3
	w := makeWorld(t, processes, nlmtest.Linux, nlmtest.FreeBSD, nlmtest.MacOS, macTCP, old, nlmtest.Linux)
	w.clients[5].Server = serverAddr
	w.server.Frees = seed%2 == 1
	runModel(w, operations, seed)
}

// TestModelWithoutBridge finds mistakes in the model and in the hosts that it runs with.
func TestModelWithoutBridge(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	old := nlmtest.Linux
	old.Version, old.Network = 3, "udp"
	w := newWorld(t, nlmtest.Linux, nlmtest.FreeBSD, old)
	for _, c := range w.clients {
		c.Server = serverAddr
	}
	runModel(w, 200, seed)
}

func runModel(w *world, operations int, seed uint64) {
	m := &model{world: w, rng: rand.New(rand.NewPCG(seed, 0))}
	for i := range m.files {
		m.files[i] = new(modelFile)
		for j := range m.files[i].cells {
			m.files[i].cells[j] = make(map[who]bool)
		}
	}
	for range operations {
		m.step()
	}
	m.end()
}

// end unlocks all, and looks for what is left.
func (m *model) end() {
	for file := range files {
		for len(m.files[file].waits) > 0 {
			m.cancel(file)
			m.grantAll()
		}
		for client := range m.clients {
			if m.clients[client].Style.Version < 4 && file == files-1 {
				continue
			}
			for svid := range svids {
				p := &pending{who: who{client, svid}, last: cells - 1}
				p.args = m.args(p, file)
				m.unlock(p, file)
			}
		}
	}
	m.compare()
	m.idle()
	if n := m.server.Freed.Load(); n != m.crashes {
		m.fail("the locks of a host were dropped %d times, want %d", n, m.crashes)
	}
	if n := m.server.Reclaims.Load(); n != 0 {
		m.fail("%d locks were not reclaimed because somebody else had them", n)
	}
}
