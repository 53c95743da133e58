package faults

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
)

const (
	maxRecord    = 4<<20 + 64<<10 // octets of the longest message
	maxFragments = 4096           // of one record
	maxQueued    = 256 << 20      // octets of Calls that wait for the server to read them
	maxParked    = 64             // connections to the server without a client
	parkedFor    = 5 * time.Minute
	lastFragment = 1 << 31
)

// errShort is the error of a record that is too short for a message.
var errShort = errors.New("faults: record too short")

// An upstream is a connection to the server behind. It belongs to one session at a time. When the
// client's connection ends, the next one from the same address gets it: so the server's duplicate
// request cache and its NFSv4.1 sessions see one client whatever happens to its connections.
type upstream struct {
	server *Server
	host   netip.Addr

	mu     sync.Mutex // guards the rest; a leaf
	owner  *session   // nil while it is parked
	parked time.Time
	ready  sync.Cond
	queue  [][]byte
	queued int
	conn   net.Conn
	ended  bool
}

// upstreamFor returns a connection for s, perhaps one that is still being made.
func (s *Server) upstreamFor(of *session) *upstream {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := len(s.parked) - 1; i >= 0; i-- {
		u := s.parked[i]
		if u.host == of.peer && u.claim(of) {
			s.parked = slices.Delete(s.parked, i, i+1)
			return u
		}
	}
	u := &upstream{server: s, host: of.peer, owner: of}
	u.ready.L = &u.mu
	if s.closed {
		u.ended = true
		return u
	}
	s.upstreams[u] = struct{}{}
	s.running.Go(u.run)
	return u
}

// park keeps u, whose client has gone, for the next one.
func (s *Server) park(u *upstream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u.mu.Lock()
	u.owner, u.parked = nil, time.Now()
	u.mu.Unlock()
	s.parked = slices.DeleteFunc(append(s.parked, u), func(u *upstream) bool {
		old := len(s.parked) >= maxParked && u == s.parked[0] || time.Since(u.parked) > parkedFor
		if old {
			u.close()
		}
		return old
	})
}

// claim makes s the owner of u, which is parked.
func (u *upstream) claim(s *session) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.ended || u.owner != nil {
		return false
	}
	u.owner = s
	return true
}

// write queues a copy of m. It reports false if too much waits.
func (u *upstream) write(m []byte) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.ended || u.queued+4+len(m) > maxQueued {
		return false
	}
	b := binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(m)), lastFragment|uint32(len(m)))
	u.queue = append(u.queue, append(b, m...))
	u.queued += 4 + len(m)
	u.ready.Signal()
	return true
}

func (u *upstream) close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.ended = true
	if u.conn != nil {
		u.conn.Close()
	}
	u.ready.Signal()
}

// run dials, and reads and writes until the connection ends.
func (u *upstream) run() {
	ctx, cancel := context.WithTimeout(u.server.ctx, 10*time.Second)
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", u.server.to)
	cancel()
	if err == nil {
		u.mu.Lock()
		u.conn = conn
		if u.ended {
			conn.Close()
		}
		u.mu.Unlock()
		u.server.running.Go(func() { u.writeAll(conn) })
		err = u.readAll(conn)
	}
	u.close()
	u.mu.Lock()
	owner := u.owner
	u.mu.Unlock()
	s := u.server
	s.mu.Lock()
	delete(s.upstreams, u)
	s.parked = slices.DeleteFunc(s.parked, func(v *upstream) bool { return v == u })
	s.mu.Unlock()
	if owner != nil {
		if s.ctx.Err() == nil {
			s.log.Warn().Err(err).Str("server", s.to).Stringer("client", u.host).Msg("connection to the server ended; the client's connection ends, too")
		}
		owner.front.exclusive(func() { owner.front.close(fmt.Errorf("faults: server: %w", err)) })
	}
}

func (u *upstream) writeAll(conn net.Conn) {
	for {
		u.mu.Lock()
		for len(u.queue) == 0 && !u.ended {
			u.ready.Wait()
		}
		if u.ended {
			u.mu.Unlock()
			return
		}
		b := net.Buffers(u.queue)
		u.queue = nil
		u.mu.Unlock()
		n, err := b.WriteTo(conn)
		if err != nil {
			conn.Close()
			return
		}
		u.mu.Lock()
		u.queued -= int(n)
		u.mu.Unlock()
	}
}

func (u *upstream) readAll(conn net.Conn) error {
	for {
		m, err := u.server.readRecord(conn)
		if err != nil {
			return err
		}
		u.mu.Lock()
		owner := u.owner
		u.mu.Unlock()
		if owner == nil {
			m.Release()
			continue
		}
		u.server.inFlight.Add(1)
		owner.front.exclusive(func() {
			owner.answered(m)
			u.server.inFlight.Add(-1)
		})
	}
}

// readRecord reads a record into memory of the arena.
func (s *Server) readRecord(r io.Reader) (*regmem.Lease, error) {
	var m *regmem.Lease
	have := 0
	fail := func(err error) (*regmem.Lease, error) {
		if m != nil {
			m.Release()
		}
		return nil, err
	}
	for range maxFragments {
		var mark [4]byte
		if _, err := io.ReadFull(r, mark[:]); err != nil {
			return fail(err)
		}
		v := binary.BigEndian.Uint32(mark[:])
		n := int(v &^ lastFragment)
		if n > maxRecord-have {
			return fail(fmt.Errorf("faults: record of more than %d octets", maxRecord))
		}
		l, err := s.lease(max(have+n, 8))
		if err != nil {
			return fail(err)
		}
		if m != nil {
			copy(l.Bytes(), m.Bytes()[:have])
			m.Release()
		}
		m = l
		if _, err := io.ReadFull(r, m.Bytes()[have:have+n]); err != nil {
			return fail(err)
		}
		if have += n; v&lastFragment == 0 {
			continue
		}
		m.Resize(have)
		if _, _, ok := oncrpc.MessageType(m.Bytes()); !ok {
			return fail(errShort)
		}
		return m, nil
	}
	return fail(fmt.Errorf("faults: record of more than %d fragments", maxFragments))
}

// lease lends n octets, and waits for them.
func (s *Server) lease(n int) (*regmem.Lease, error) {
	for {
		l, err := s.memory.Lease(n)
		if !errors.Is(err, regmem.ErrBudget) {
			return l, err
		}
		again := make(chan struct{})
		s.memory.Wait(n, sync.OnceFunc(func() { close(again) }))
		select {
		case <-again:
		case <-s.ctx.Done():
			return nil, s.ctx.Err()
		}
	}
}
