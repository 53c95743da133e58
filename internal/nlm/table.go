package nlm

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"slices"
	"sync"
)

// Bounds of the table, in ranges that are held or waited for.
const (
	maxRanges       = 65536
	maxClientRanges = maxRanges / 4
	maxStates       = 16384 // hosts whose monitor's state is remembered
	maxShown        = 10    // clients in a Snapshot
)

// An identity is what makes an owner the same one.
type identity struct {
	client netip.Addr
	name   string // caller_name
	svid   uint32 // the client's number
	share  string // the owner of a SHARE, which has no svid
}

// A path is how the latest LOCK of an owner came, and so how its client is called.
type path struct {
	local   netip.Addr // this host's address
	udp     bool
	async   bool // by LOCK_MSG
	version uint32
}

// An owner is who holds locks: a process of a client. The table's lock guards it.
type owner struct {
	identity
	path
	number     uint32 // the svid that the server has
	oh         []byte // of the latest LOCK, as the client has it
	credential credential
	state      uint32 // of the client's status monitor, by the latest LOCK of any file
	mode       uint32 // of SHARE
	access     uint32
	files      map[string]*file // by handle
}

// A credential is an RPC credential, as the client has it.
type credential struct {
	flavor uint32
	body   []byte
}

func (c *credential) equal(d credential) bool {
	return c.flavor == d.flavor && bytes.Equal(c.body, d.body)
}

// A file is what one owner has of one file.
type file struct {
	held    []span // sorted and apart
	waits   []wait
	pending []span // of LOCKs under way
	asking  []wait // that the client is being asked whether it takes
	state   uint32 // of the client's status monitor, by the latest LOCK
}

// A wait is a LOCK that waits, and what cancels it.
type wait struct {
	span
	exclusive uint32
	asked     bool // whether it takes the lock, without an answer
}

// A count is what one client has.
type count struct{ held, waiting, owners int }

// A monitor is what the latest NOTIFY of a host's status monitor said.
type monitor struct {
	state uint32
	owed  bool // what follows from it is not done yet
}

// A table knows who holds and waits for what. Its file gets each change before the change matters.
type table struct {
	key [32]byte // constant

	mu      sync.Mutex // guards the rest, and the journal; a leaf
	owners  map[identity]*owner
	numbers map[uint32]*owner
	clients map[netip.Addr]*count  // those that have owners
	all     count                  // of all clients
	states  map[netip.Addr]monitor // of clients and server
	journal *journal               // nil for none
}

func newTable(key [32]byte) *table {
	return &table{
		key: key, owners: make(map[identity]*owner), numbers: make(map[uint32]*owner),
		clients: make(map[netip.Addr]*count), states: make(map[netip.Addr]monitor),
	}
}

// unlock ends an operation, whose changes the journal gets together.
func (t *table) unlock() {
	t.journal.flush()
	t.mu.Unlock()
}

// hash returns 31 bits for the server's svid, because some servers take it for a pid_t, and what goes before the owner's
// opaque. The key comes first, and nobody sees enough of the result to continue the hash.
func (id *identity) hash(key [32]byte, attempt uint32) (number uint32, prefix [8]byte) {
	a := id.client.As16()
	m := append(append(key[:len(key):len(key)], "nlm"...), a[:]...)
	m = append(binary.BigEndian.AppendUint32(m, id.svid), id.name...)
	if attempt > 0 || id.share != "" {
		m = append(binary.BigEndian.AppendUint32(append(m, 0), attempt), id.share...)
	}
	sum := sha256.Sum256(m)
	return binary.BigEndian.Uint32(sum[:]) >> 1, [8]byte(sum[4:])
}

// find returns the owner with this identity. One that the table does not have gets a number that no other has, and is not
// in the table. The lock is held.
func (t *table) find(id identity) *owner {
	if o := t.owners[id]; o != nil {
		return o
	}
	o := &owner{identity: id, files: make(map[string]*file)}
	for attempt := uint32(0); ; attempt++ {
		if o.number, _ = id.hash(t.key, attempt); t.numbers[o.number] == nil {
			return o
		}
	}
}

// lookup returns the owner with this identity, which may be in the table or not.
func (t *table) lookup(id identity) *owner {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.find(id)
}

// far returns the owner's opaque as the server has it. What is put before it tells owners of SHARE apart, who have no
// svid, so that an opaque of the greatest length can be cut.
func (t *table) far(o *owner, oh []byte) []byte {
	_, prefix := o.hash(t.key, 0)
	return append(prefix[:], oh[:min(len(oh), maxOwner-len(prefix))]...)
}

// near undoes far.
func (t *table) near(o *owner, oh []byte) []byte {
	_, prefix := o.hash(t.key, 0)
	if rest, ok := bytes.CutPrefix(oh, prefix[:]); ok && len(oh) < maxOwner {
		return rest
	}
	return o.oh
}

// begin notes that a LOCK goes to the server, and returns its owner. It returns nil if there is no room.
func (t *table) begin(id identity, p path, r *request, c credential) *owner {
	t.mu.Lock()
	defer t.unlock()
	n := t.clients[id.client]
	if n == nil {
		n = new(count)
	}
	o := t.find(id)
	f := o.files[string(r.handle)]
	repeats := f != nil && (len(without(r.span(), f.held)) == 0 || f.waiting(r.span()) >= 0)
	if !repeats && (t.all.held+t.all.waiting >= maxRanges || n.held+n.waiting >= maxClientRanges) {
		return nil
	}
	fresh := t.owners[id] == nil
	if fresh {
		t.add(o)
	}
	if f == nil {
		f = new(file)
		o.files[string(r.handle)] = f
	}
	f.pending, f.state = append(f.pending, r.span()), r.state
	if fresh || o.path != p || !bytes.Equal(o.oh, r.oh) || !o.credential.equal(c) || o.state != r.state || o.mode != r.mode || o.access != r.access {
		o.path, o.oh, o.credential = p, bytes.Clone(r.oh), credential{c.flavor, bytes.Clone(c.body)}
		o.state, o.mode, o.access = r.state, r.mode, r.access
		t.journal.owner(o)
	}
	if r.block == 0 {
		t.journal.mark("hold", o, string(r.handle), wait{span: r.span()})
	} else {
		t.unwait(o, f, r.span())
		t.await(o, string(r.handle), f, wait{r.span(), r.exclusive, false})
	}
	t.journal.tidy(t)
	return o
}

// add puts an owner into the table.
func (t *table) add(o *owner) {
	t.owners[o.identity], t.numbers[o.number] = o, o
	n := t.clients[o.client]
	if n == nil {
		n = new(count)
		t.clients[o.client] = n
	}
	n.owners++
}

// settle notes the server's answer to a LOCK, stat; answered is false if there was none.
func (t *table) settle(o *owner, r *request, stat uint32, answered bool) {
	t.mu.Lock()
	defer t.unlock()
	f := o.files[string(r.handle)]
	if i := slices.Index(f.pending, r.span()); i >= 0 {
		f.pending = slices.Delete(f.pending, i, i+1)
	}
	switch {
	case answered && stat == granted, !answered && r.block == 0: // the server may have it
		t.unwait(o, f, r.span())
		t.hold(o, f, r.span())
		if r.block != 0 {
			t.journal.mark("hold", o, string(r.handle), wait{span: r.span()})
		}
	case answered && stat != blocked:
		t.unwait(o, f, r.span())
		t.unmark(o, r, f)
	}
	t.sweep(o, string(r.handle), f)
}

// released notes that the server has unlocked or cancelled a range of the owner.
func (t *table) released(id identity, r *request, unlocked bool) {
	t.mu.Lock()
	defer t.unlock()
	o := t.owners[id]
	if o == nil || o.files[string(r.handle)] == nil {
		return
	}
	f := o.files[string(r.handle)]
	t.unwait(o, f, r.span())
	if unlocked {
		t.unask(o, string(r.handle), f, r.span())
		t.unhold(o, string(r.handle), f, r.span())
	}
	t.unmark(o, r, f)
	t.sweep(o, string(r.handle), f)
}

// A grant is what becomes of a GRANTED.
type grant uint8

const (
	grantUnknown grant = iota // no owner has this number
	grantAsk                  // the client must be asked
	grantHeld                 // the client has taken it before
	grantBusy                 // the client is being asked
)

// offer notes that the server grants r to the owner with its svid, and that the client is asked. It returns a copy of the
// owner. The lock is noted before the client answers, because the client may unlock it before its answer is here. asked
// says that the client was asked before and that no answer has come: it may have taken the lock then, and would refuse
// it now. end notes what has become of it.
func (t *table) offer(r *request) (g grant, o owner, asked bool, end func(grantEnd)) {
	t.mu.Lock()
	defer t.unlock()
	p := t.numbers[r.svid]
	if p == nil || p.share != "" {
		return grantUnknown, o, false, nil
	}
	handle, s := string(r.handle), r.span()
	f := p.files[handle]
	if f == nil { // an UNLOCK or a CANCEL has crossed it
		return grantAsk, *p, false, func(grantEnd) {}
	}
	parts, at := without(s, f.held), f.waiting(s)
	switch {
	case f.isAsked(s) >= 0:
		return grantBusy, *p, false, nil
	case at < 0 && len(parts) == 0:
		return grantHeld, *p, false, nil
	}
	w := wait{s, r.exclusive, true}
	if at >= 0 {
		asked = f.waits[at].asked
		t.unwait(p, f, s)
	}
	t.journal.mark("wait", p, handle, w)
	t.hold(p, f, s)
	f.asking = append(f.asking, w)
	return grantAsk, *p, asked, func(e grantEnd) {
		t.mu.Lock()
		defer t.unlock()
		i := f.isAsked(s)
		if i < 0 {
			return // it was unlocked meanwhile
		}
		f.asking = slices.Delete(f.asking, i, i+1)
		if e != grantTaken {
			for _, part := range parts {
				t.unhold(p, handle, f, part)
			}
		}
		t.unmark(p, r, f)
		if w.asked = e == grantUnanswered; e >= grantLater && at >= 0 && f.waiting(s) < 0 {
			t.await(p, handle, f, w)
		}
		t.sweep(p, handle, f)
	}
}

// A grantEnd is what has become of a GRANTED that the client was asked about.
type grantEnd uint8

const (
	grantTaken      grantEnd = iota
	grantRefused             // the client does not wait
	grantLater               // the client waits, and must be asked again
	grantUnanswered          // the client has perhaps taken it
)

// unask forgets what the client is being asked about in s, which is unlocked.
func (t *table) unask(o *owner, handle string, f *file, s span) {
	f.asking = slices.DeleteFunc(f.asking, func(w wait) bool {
		if w.Start < s.Start || w.End > s.End {
			return false
		}
		t.journal.mark("free", o, handle, w)
		return true
	})
}

// isAsked returns the index of what the client is being asked about for s, or -1.
func (f *file) isAsked(s span) int {
	return slices.IndexFunc(f.asking, func(w wait) bool { return w.span == s })
}

// waiting returns the index of the wait for s, or -1.
func (f *file) waiting(s span) int {
	return slices.IndexFunc(f.waits, func(w wait) bool { return w.span == s })
}

func (t *table) await(o *owner, handle string, f *file, w wait) {
	f.waits = append(f.waits, w)
	t.count(o, 0, 1)
	t.journal.mark("wait", o, handle, w)
}

func (t *table) unwait(o *owner, f *file, s span) {
	if i := f.waiting(s); i >= 0 {
		f.waits = slices.Delete(f.waits, i, i+1)
		t.count(o, 0, -1)
	}
}

func (t *table) hold(o *owner, f *file, s span) {
	n := len(f.held)
	f.held = with(f.held, s)
	t.count(o, len(f.held)-n, 0)
}

// unhold takes s from what the owner holds. If that leaves more ranges than the table may have, it remembers too much: that
// does no harm, because a client's locks are freed by file.
func (t *table) unhold(o *owner, handle string, f *file, s span) {
	rest := minus(f.held, s)
	if more := len(rest) - len(f.held); more > 0 && t.all.held+t.all.waiting >= maxRanges {
		return
	}
	t.count(o, len(rest)-len(f.held), 0)
	f.held = rest
	t.journal.mark("free", o, handle, wait{span: s})
}

// unmark takes r's range from the journal, where begin has put it, except for the parts that are held.
func (t *table) unmark(o *owner, r *request, f *file) {
	handle, s := string(r.handle), r.span()
	t.journal.mark("free", o, handle, wait{span: s})
	for _, x := range f.held {
		if x = (span{max(x.Start, s.Start), min(x.End, s.End)}); x.Start < x.End {
			t.journal.mark("hold", o, handle, wait{span: x})
		}
	}
}

// count adds to what is held and waited for.
func (t *table) count(o *owner, held, waiting int) {
	n := t.clients[o.client]
	n.held, n.waiting = n.held+held, n.waiting+waiting
	t.all.held, t.all.waiting = t.all.held+held, t.all.waiting+waiting
}

// sweep forgets what is no more.
func (t *table) sweep(o *owner, handle string, f *file) {
	if len(f.held)+len(f.waits)+len(f.pending)+len(f.asking) > 0 {
		return
	}
	delete(o.files, handle)
	if len(o.files) > 0 {
		return
	}
	t.remove(o)
	t.journal.tidy(t)
}

// remove takes an owner from the table.
func (t *table) remove(o *owner) {
	delete(t.owners, o.identity)
	delete(t.numbers, o.number)
	n := t.clients[o.client]
	if n.owners--; n.owners == 0 {
		delete(t.clients, o.client)
	}
}

// counts returns how much is held and waited for, and by how many clients.
func (t *table) counts() count {
	t.mu.Lock()
	defer t.mu.Unlock()
	return count{t.all.held, t.all.waiting, len(t.clients)}
}

// snapshot returns the counts with those of the clients that have the most.
func (t *table) snapshot() (x Snapshot) {
	t.mu.Lock()
	defer t.mu.Unlock()
	x.Held, x.Waiting = t.all.held, t.all.waiting
	for a, n := range t.clients {
		if n.held+n.waiting > 0 {
			x.Most = append(x.Most, ClientLocks{a, n.held, n.waiting})
		}
	}
	x.Clients = len(x.Most)
	slices.SortFunc(x.Most, func(a, b ClientLocks) int {
		return cmp.Or(cmp.Compare(b.Held+b.Waiting, a.Held+a.Waiting), a.Client.Compare(b.Client))
	})
	x.Most = x.Most[:min(len(x.Most), maxShown)]
	return x
}

// A loss is what one owner had of one file before its client restarted.
type loss struct {
	owner
	handle string
	waits  []wait
}

// lost returns what a client had that has restarted, but not of those files of an owner of which it has locked something
// since with this state of its monitor: it may have the same numbers for its processes as before. A nil state is all.
func (t *table) lost(client netip.Addr, state *uint32) (all []loss) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, o := range t.owners {
		if id.client != client {
			continue
		}
		for handle, f := range o.files {
			if state != nil && *state == f.state {
				continue
			}
			all = append(all, loss{*o, handle, slices.Concat(f.waits, f.asking)})
		}
	}
	return all
}

// freed notes that the server has freed all that was lost.
func (t *table) freed(l *loss) {
	t.mu.Lock()
	defer t.unlock()
	o := t.owners[l.identity]
	if o == nil || o.files[l.handle] == nil {
		return
	}
	f := o.files[l.handle]
	for _, w := range slices.Clone(f.waits) {
		t.unwait(o, f, w.span)
		t.journal.mark("free", o, l.handle, w)
	}
	t.unask(o, l.handle, f, everything)
	t.unhold(o, l.handle, f, everything)
	t.sweep(o, l.handle, f)
}

// restarted notes the state that a status monitor has told, and reports whether it is a new one. It forgets
// another host's when there are too many.
func (t *table) restarted(host netip.Addr, state uint32) bool {
	t.mu.Lock()
	defer t.unlock()
	if old, ok := t.states[host]; ok && old.state == state {
		return false
	}
	if len(t.states) >= maxStates {
		for other := range t.states {
			delete(t.states, other)
			break
		}
	}
	t.states[host] = monitor{state, true}
	t.journal.monitor(host, t.states[host])
	return true
}

// done notes that what follows from a host's state is done.
func (t *table) done(host netip.Addr, state uint32) {
	t.mu.Lock()
	defer t.unlock()
	if m := t.states[host]; m.state == state && m.owed {
		t.states[host] = monitor{state, false}
		t.journal.monitor(host, t.states[host])
		t.journal.tidy(t)
	}
}

// owed returns the states from which more follows.
func (t *table) owed() map[netip.Addr]uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make(map[netip.Addr]uint32)
	for host, m := range t.states {
		if m.owed {
			all[host] = m.state
		}
	}
	return all
}

// A place is where a client is, and the address that it knows the bridge by.
type place struct{ client, local netip.Addr }

// places returns all places that locks came from.
func (t *table) places() map[place]bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make(map[place]bool)
	for _, o := range t.owners {
		all[place{o.client, o.local}] = true
	}
	return all
}

// has reports whether a client has locks or waits for some.
func (t *table) has(client netip.Addr) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.clients[client] != nil
}

// close ends the journal.
func (t *table) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.journal.close()
	t.journal = nil
}
