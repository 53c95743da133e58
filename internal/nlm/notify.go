package nlm

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

const (
	noticeTimeout = 5 * time.Minute  // for which a client is told again, or its locks are freed
	noticePause   = time.Second      // after the first attempt; each further one takes twice as long
	longestPause  = 30 * time.Second // between two attempts
	maxNotices    = 256              // at the same time
)

// notified performs NOTIFY: the host that sends it has restarted, and its status monitor now has this state. Monitors
// repeat it until they are answered, and for each name of the host, so a state that is known does nothing. mon_name is
// what the host calls itself, and the address says which host it is.
func (s *Server) notified(from netip.Addr, state uint32) {
	server, client := s.upstream.is(from), s.table.has(from)
	switch {
	case !server && !client:
		s.series.notices[noticeStranger].Inc()
	case !s.table.restarted(from, state):
		s.series.notices[noticeRepeated].Inc()
	default:
		if server {
			s.series.notices[noticeServer].Inc()
		}
		if client {
			s.series.notices[noticeClient].Inc()
		}
		s.work.Go(func() { s.follow(from, state) })
	}
}

// follow does what follows from the restart of a host. The file of locks says until then that it must be done, because
// the host does not tell it again.
func (s *Server) follow(host netip.Addr, state uint32) {
	if s.upstream.is(host) {
		s.tell(state)
	}
	if (!s.table.has(host) || s.release(host, &state)) && s.ctx.Err() == nil {
		s.table.done(host, state)
	}
}

// tell tells all clients that have locks that the server has restarted, as its status monitor would.
func (s *Server) tell(state uint32) {
	places := s.table.places()
	s.log.Warn().Str("event", "nlm_server_restarted").Uint32("state", state).Int("clients", len(places)).
		Msg("nlm: the server has restarted, and the clients that have locks are told")
	var all sync.WaitGroup
	for p := range places {
		s.mu.Lock()
		s.told[p] = state
		s.mu.Unlock()
		all.Go(func() { s.tellClient(p, state) })
	}
	all.Wait()
}

// tellClient tells one client until its status monitor has answered, or the server has another state. It names the bridge
// in two ways, because monitors compare the name with the one that the client's lock manager knows.
func (s *Server) tellClient(p place, state uint32) {
	ctx, cancel := context.WithTimeout(s.ctx, noticeTimeout)
	defer cancel()
	latest := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.told[p] == state
	}
	for wait := noticePause; latest(); wait = min(2*wait, longestPause) {
		err := s.tellOnce(ctx, p, state)
		if err == nil {
			s.series.notices[noticeTold].Inc()
			break
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			s.series.notices[noticeUntold].Inc()
			s.unheard(p, "restart of the server", err)
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.told[p] == state {
		delete(s.told, p)
	}
}

func (s *Server) tellOnce(ctx context.Context, p place, state uint32) (err error) {
	select {
	case s.telling <- struct{}{}:
		defer func() { <-s.telling }()
	case <-ctx.Done():
		return ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, clientTimeout)
	defer cancel()
	for _, name := range []string{s.o.Name, p.local.String()} {
		args := xdr.AppendUint32(xdr.AppendOpaque(nil, []byte(name)), state)
		for _, transport := range []string{"udp", "tcp"} {
			if _, err = s.callClient(ctx, p, service{transport: transport, program: oncrpc.ProgramNSM, version: 1}, procNotify, args, true); err == nil {
				break
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// monitor answers the other procedures of NSM, which only the lock manager of the same host may use. The Server is that
// itself, and fails them as a status monitor fails those of strangers.
func (s *Server) monitor(x *call) []byte {
	b := oncrpc.AppendAccepted(nil, x.XID, oncrpc.Success)
	switch x.Procedure {
	case procStat, procMon:
		return xdr.AppendWords(b, 1, bridgeState) // STAT_FAIL
	case procUnmon, procUnmonAll:
		return xdr.AppendUint32(b, bridgeState)
	}
	return b
}
