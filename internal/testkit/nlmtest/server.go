package nlmtest

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A Server is the lock manager and the status monitor of a file server. It tells owners apart by the address of the
// host that calls and by svid, as Linux does. Its methods are safe for concurrent use.
type Server struct {
	*Host
	Name string

	// Synchronous makes the Server call GRANTED and not GRANTED_MSG. It is set before the first Call.
	Synchronous bool
	// Frees makes the Server give up a lock whose GRANTED was denied, as Linux does from version 6.3 on.
	Frees bool

	// Reclaims counts LOCKs with reclaim that were denied because of another lock. Freed counts hosts whose locks went
	// with FREE_ALL or SM_NOTIFY. Foreign counts grants that were denied. Malformed counts Calls whose arguments cannot
	// be read.
	Reclaims, Freed, Foreign, Malformed atomic.Int64

	cookies atomic.Uint64

	mu        sync.Mutex // guards the fields below; a leaf
	state     uint32
	grace     bool
	files     map[string]*file
	monitored map[netip.Addr]bool
	answers   map[string]chan Stat // GRANTED_MSG that wait for GRANTED_RES, by cookie
	calls     map[uint32]int       // by procedure
	ctx       context.Context
	cancel    context.CancelFunc
	work      *sync.WaitGroup
}

type file struct {
	locks   []Held
	waiters []*waiter
	shares  []share
}

// Held is a lock of the Server. Last is the last octet; math.MaxUint64 is the end of every file.
type Held struct {
	Host        netip.Addr
	SVID        uint32
	Exclusive   bool
	First, Last uint64
}

func (h *Held) sameOwner(o *Held) bool { return h.Host == o.Host && h.SVID == o.SVID }

func (h *Held) conflicts(o *Held) bool {
	return !h.sameOwner(o) && (h.Exclusive || o.Exclusive) && h.First <= o.Last && o.First <= h.Last
}

// A waiter is a LOCK that was answered with LCK_BLOCKED.
type waiter struct {
	Held
	args    Args
	version uint32
	network string
	granted bool
	cancel  context.CancelFunc // ends the repeats of GRANTED
}

type share struct {
	host         netip.Addr
	oh           string
	mode, access uint32
}

// repeatGrant is after how long a GRANTED without an answer is repeated. Linux waits 10 s.
const repeatGrant = 300 * time.Millisecond

// NewServer starts a Server that is not in a grace period.
func NewServer(addr netip.Addr, rpcbind uint16, name string) (*Server, error) {
	s := &Server{Name: name, state: 1, monitored: make(map[netip.Addr]bool)}
	s.Host = newHost(addr, rpcbind, s.answer)
	s.begin()
	return s, s.Host.Start()
}

// begin makes the Server one without locks.
func (s *Server) begin() {
	s.files = make(map[string]*file)
	s.answers = make(map[string]chan Stat)
	s.calls = make(map[uint32]int)
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.work = new(sync.WaitGroup)
}

// Stop ends the Server.
func (s *Server) Stop() {
	s.mu.Lock()
	s.cancel()
	work := s.work
	s.mu.Unlock()
	work.Wait()
	s.Host.Stop()
}

// Restart ends the Server and starts it again, without locks, in its grace period, and at other ports. It notifies
// the hosts that had locks.
func (s *Server) Restart() error {
	s.Stop()
	s.mu.Lock()
	s.begin()
	s.state += 2
	s.grace = true
	hosts := s.monitored
	s.monitored = make(map[netip.Addr]bool)
	s.mu.Unlock()
	if err := s.Host.Start(); err != nil {
		return err
	}
	for h := range hosts {
		s.Notify(h)
	}
	return nil
}

// Notify sends SM_NOTIFY to a host until it is answered.
func (s *Server) Notify(host netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, n := s.ctx, Notice{s.Name, s.state}
	s.work.Go(func() { s.notify(ctx, host, n) })
}

// notify sends a notice until it is answered or ctx ends.
func (h *Host) notify(ctx context.Context, host netip.Addr, n Notice) {
	for ctx.Err() == nil {
		if to, err := h.Ask(ctx, host, "udp", ProgramNSM, 1); err == nil {
			try, cancel := context.WithTimeout(ctx, time.Second)
			_, err = h.Call(try, "udp", to, ProgramNSM, 1, SMNotify, n.Append(nil))
			cancel()
			if err == nil {
				return
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(resend):
		}
	}
}

// EndGrace ends the grace period.
func (s *Server) EndGrace() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.grace = false
}

// Held returns the locks of a file in the order of their owners and octets, and how many LOCKs wait.
func (s *Server) Held(fh string) (held []Held, waiting int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.files[fh]; f != nil {
		held = slices.Clone(f.locks)
		for _, w := range f.waiters {
			if !w.granted {
				waiting++
			}
		}
	}
	slices.SortFunc(held, func(a, b Held) int {
		if a.First != b.First {
			return int(min(a.First, 1<<30)) - int(min(b.First, 1<<30))
		}
		return int(int32(a.SVID - b.SVID))
	})
	return held, waiting
}

// Locks returns how many locks all files have, and how many LOCKs wait.
func (s *Server) Locks() (held, waiting int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.files {
		held += len(f.locks)
		for _, w := range f.waiters {
			if !w.granted {
				waiting++
			}
		}
	}
	return held, waiting
}

// Calls returns how many Calls of a procedure the Server has got since its start.
func (s *Server) Calls(procedure uint32) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[procedure]
}

// answer executes a Call.
func (s *Server) answer(c *Call) ([]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.Program == ProgramNSM {
		if _, ok := ParseNotice(c.Args); !ok || c.Procedure != SMNotify {
			return nil, false
		}
		s.free(c.From)
		return []byte{}, true
	}
	if c.Program != ProgramNLM {
		return nil, false
	}
	s.calls[c.Procedure]++
	switch {
	case c.Procedure > Granted+ToMsg && c.Procedure < Granted+ToRes:
		return []byte{}, true // it asks nothing that these answer
	case c.Procedure == Granted+ToRes:
		if r, ok := ParseResults(c.Args, c.Version, Granted); ok {
			if answer := s.answers[string(r.Cookie)]; answer != nil {
				select {
				case answer <- r.Stat:
				default:
				}
			}
		}
		return []byte{}, true
	}
	a, ok := ParseArgs(c.Args, c.Version, c.Procedure)
	if !ok {
		s.Malformed.Add(1)
		return nil, false
	}
	r := Results{Cookie: a.Cookie}
	f := s.files[string(a.FH)]
	if f == nil {
		f = new(file)
		s.files[string(a.FH)] = f
	}
	reclaims := c.Procedure == Lock || c.Procedure == NMLock || c.Procedure == Share
	h := Held{c.From, a.SVID, a.Exclusive, a.Offset, last(&a, c.Version)}
	switch {
	case c.Procedure == FreeAll:
		s.free(c.From)
		return []byte{}, true
	case s.grace != (reclaims && a.Reclaim):
		r.Stat = StatGrace
	case c.Procedure == Test:
		if i := slices.IndexFunc(f.locks, h.blockedBy()); i >= 0 {
			o := f.locks[i]
			r.Stat, r.Holder = StatDenied, &Holder{Exclusive: o.Exclusive, SVID: o.SVID, Offset: o.First}
			if o.Last != math.MaxUint64 {
				r.Holder.Length = o.Last - o.First + 1
			}
		}
	case c.Procedure == Lock || c.Procedure == NMLock:
		if c.Procedure == Lock {
			s.monitored[c.From] = true
		}
		r.Stat = s.lock(f, &waiter{Held: h, args: a, version: c.Version, network: c.network()})
	case c.Procedure == Cancel:
		if i := slices.IndexFunc(f.waiters, func(w *waiter) bool { return w.Held == h }); i >= 0 {
			if f.waiters[i].granted {
				r.Stat = StatDenied // it has the lock
			}
			f.dropWaiter(i)
			s.settle(f)
		}
	case c.Procedure == Unlock:
		for i := len(f.waiters) - 1; i >= 0; i-- {
			if w := f.waiters[i]; w.sameOwner(&h) && w.First == h.First && w.Last == h.Last {
				f.dropWaiter(i)
			}
		}
		f.unlock(h)
		s.settle(f)
	case c.Procedure == Share:
		r.Stat = f.share(share{c.From, string(a.OH), a.Mode, a.Access})
	case c.Procedure == Unshare:
		f.shares = slices.DeleteFunc(f.shares, func(o share) bool { return o.host == c.From && o.oh == string(a.OH) })
	default:
		return nil, false
	}
	return r.Append(nil, c.Version, c.Procedure), true
}

// last returns the last octet of a range.
func last(a *Args, version uint32) uint64 {
	if a.Length == 0 || a.Offset+a.Length-1 < a.Offset || version < 4 && a.Offset+a.Length > math.MaxUint32 {
		return math.MaxUint64
	}
	return a.Offset + a.Length - 1
}

// blockedBy returns a function that reports whether a lock is in the way of h.
func (h *Held) blockedBy() func(Held) bool { return func(o Held) bool { return o.conflicts(h) } }

// free drops all that a host has.
func (s *Server) free(host netip.Addr) {
	s.Freed.Add(1)
	for _, f := range s.files {
		f.locks = slices.DeleteFunc(f.locks, func(h Held) bool { return h.Host == host })
		f.shares = slices.DeleteFunc(f.shares, func(o share) bool { return o.host == host })
		for i := len(f.waiters) - 1; i >= 0; i-- {
			if f.waiters[i].Host == host {
				f.dropWaiter(i)
			}
		}
	}
	for _, f := range s.files {
		s.settle(f)
	}
}

func (f *file) dropWaiter(i int) {
	if w := f.waiters[i]; w.cancel != nil {
		w.cancel()
	}
	f.waiters = slices.Delete(f.waiters, i, i+1)
}

func (s *Server) lock(f *file, w *waiter) Stat {
	free := !slices.ContainsFunc(f.locks, w.blockedBy())
	at := slices.IndexFunc(f.waiters, func(o *waiter) bool { return o.Held == w.Held })
	switch {
	case at >= 0 && f.waiters[at].granted:
		f.dropWaiter(at)
		return StatGranted
	case free:
		if at >= 0 {
			f.dropWaiter(at)
		}
		f.insert(w.Held)
		s.settle(f) // it may be less than the owner had
		return StatGranted
	case w.args.Reclaim:
		s.Reclaims.Add(1)
		return StatDenied
	case !w.args.Block:
		return StatDenied
	case at >= 0:
		f.waiters[at] = w
	default:
		f.waiters = append(f.waiters, w)
	}
	return StatBlocked
}

// unlock removes the octets of h from what its owner has.
func (f *file) unlock(h Held) {
	var rest []Held
	for _, o := range f.locks {
		if !o.sameOwner(&h) || o.Last < h.First || h.Last < o.First {
			rest = append(rest, o)
			continue
		}
		if o.First < h.First {
			left := o
			left.Last = h.First - 1
			rest = append(rest, left)
		}
		if o.Last > h.Last {
			right := o
			right.First = h.Last + 1
			rest = append(rest, right)
		}
	}
	f.locks = rest
}

// insert gives h to its owner, in place of what it has there, and merges it with neighbours of the same kind.
func (f *file) insert(h Held) {
	f.unlock(h)
	f.locks = slices.DeleteFunc(f.locks, func(o Held) bool {
		if !o.sameOwner(&h) || o.Exclusive != h.Exclusive {
			return false
		}
		switch {
		case o.Last+1 == h.First && o.Last != math.MaxUint64:
			h.First = o.First
			return true
		case h.Last != math.MaxUint64 && h.Last+1 == o.First:
			h.Last = o.Last
			return true
		}
		return false
	})
	f.locks = append(f.locks, h)
}

// settle grants what waits and can be granted, in the order of the LOCKs.
func (s *Server) settle(f *file) {
	for again := true; again; {
		again = false
		for _, w := range f.waiters {
			if w.granted || slices.ContainsFunc(f.locks, w.blockedBy()) {
				continue
			}
			f.insert(w.Held)
			w.granted = true
			var ctx context.Context
			ctx, w.cancel = context.WithCancel(s.ctx)
			s.work.Go(func() { s.grant(ctx, f, w) })
			again = true // of what its owner had there, less may be left
		}
	}
}

// grant tells the host of w that it has the lock until the host answers.
func (s *Server) grant(ctx context.Context, f *file, w *waiter) {
	defer w.cancel()
	// The repeats have the cookie of the first, so that a late answer counts, too.
	cookie := binary.BigEndian.AppendUint64(nil, s.cookies.Add(1))
	answer := make(chan Stat, 1)
	s.mu.Lock()
	s.answers[string(cookie)] = answer
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.answers, string(cookie))
		s.mu.Unlock()
	}()
	for ctx.Err() == nil {
		stat, ok := s.callGranted(ctx, w, cookie, answer)
		if !ok || stat == StatGrace {
			select {
			case <-ctx.Done():
			case <-time.After(repeatGrant):
			}
			continue
		}
		s.granted(f, w, stat)
		return
	}
}

// granted takes the answer to a GRANTED.
func (s *Server) granted(f *file, w *waiter, stat Stat) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(f.waiters, w)
	if i < 0 {
		return // unlocked or repeated meanwhile
	}
	f.dropWaiter(i)
	if stat != StatGranted {
		s.Foreign.Add(1)
		if s.Frees {
			f.unlock(w.Held)
			s.settle(f)
		}
	}
}

func (s *Server) callGranted(ctx context.Context, w *waiter, cookie []byte, answer <-chan Stat) (stat Stat, ok bool) {
	patience := repeatGrant
	if s.Synchronous {
		patience = time.Minute
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	to, err := s.Ask(ctx, w.Host, w.network, ProgramNLM, w.version)
	if err != nil {
		return 0, false
	}
	a := w.args
	a.Cookie = cookie
	a.Caller = s.Name
	if s.Synchronous {
		b, err := s.Call(ctx, w.network, to, ProgramNLM, w.version, Granted, a.Append(nil, w.version, Granted))
		r, parsed := ParseResults(b, w.version, Granted)
		return r.Stat, err == nil && parsed && bytes.Equal(r.Cookie, a.Cookie)
	}
	if _, err := s.Call(ctx, w.network, to, ProgramNLM, w.version, Granted+ToMsg, a.Append(nil, w.version, Granted)); err != nil {
		return 0, false
	}
	select {
	case stat = <-answer:
		return stat, true
	case <-ctx.Done():
		return 0, false
	}
}

// share executes SHARE: access is 1 for reading and 2 for writing, and mode is what others may not do.
func (f *file) share(n share) Stat {
	own := -1
	for i, o := range f.shares {
		switch {
		case o.host == n.host && o.oh == n.oh:
			own = i
		case o.access&n.mode != 0 || n.access&o.mode != 0:
			return StatDenied
		}
	}
	if own >= 0 {
		f.shares[own] = n
	} else {
		f.shares = append(f.shares, n)
	}
	return StatGranted
}
