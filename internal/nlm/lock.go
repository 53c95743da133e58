package nlm

import (
	"context"
	"net/netip"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

// bridgeState is the state of the bridge's status monitor in LOCKs to the server. It never changes, because clients that
// are alive keep their locks when the bridge restarts.
const bridgeState = 1

// plain returns the procedure without _MSG, and reports whether it had that.
func plain(procedure uint32) (uint32, bool) {
	if procedure >= procTestMsg && procedure <= procGrantedMsg {
		return procedure - toMsg, true
	}
	return procedure, false
}

// lock performs a procedure of a client about locks, at the server.
func (s *Server) lock(x *call, r *request) {
	procedure, async := plain(x.Procedure)
	if async {
		x.send(oncrpc.AppendAccepted(nil, x.XID, oncrpc.Success))
	}
	ctx, cancel := context.WithTimeout(s.ctx, serverTimeout)
	defer cancel()
	res, refusal := result{stat: gracePeriod, ours: true}, []byte(nil)
	if x.next(ctx) {
		if procedure == procUnlock || procedure == procCancel {
			s.waitForAnswer(ctx, turn{x.from.Addr(), r.svid, string(r.handle)})
		}
		res, refusal = s.forward(ctx, x, procedure, async, r)
	}
	s.mu.Lock()
	s.pass(x, r)
	s.mu.Unlock()
	s.series.called(procedure, res.stat, refusal != nil)
	switch {
	case res.ours && r.reclaim != 0: // Linux loses a lock that it must reclaim later; without an answer it repeats the Call
	case async:
		p, v := place{x.from.Addr(), x.local}, service{transport: transport(x.udp), program: oncrpc.ProgramNLM, version: x.Version}
		ctx, cancel := context.WithTimeout(s.ctx, clientTimeout)
		defer cancel()
		if _, err := s.callClient(ctx, p, v, x.Procedure+toMsg, res.append(nil, r.cookie, x.Version, procedure), false); err != nil {
			s.unheard(p, "result", err)
		}
	case refusal != nil:
		x.send(refusal)
	default:
		x.send(res.append(oncrpc.AppendAccepted(nil, x.XID, oncrpc.Success), r.cookie, x.Version, procedure))
	}
}

// next waits for the Call's turn. It reports false if ctx ends before.
func (x *call) next(ctx context.Context) bool {
	if x.before == nil {
		return true
	}
	select {
	case <-x.before:
		return true
	case <-ctx.Done():
		return false
	}
}

// forward has the server perform a procedure, and notes what that changes. refusal is the Reply to the client if the
// server has not performed it.
func (s *Server) forward(ctx context.Context, x *call, procedure uint32, async bool, r *request) (res result, refusal []byte) {
	id := identity{client: x.from.Addr(), name: string(r.name), svid: r.svid}
	if procedure == procShare || procedure == procUnshare {
		id.share = string(r.oh)
	}
	if !s.wait(ctx, id.client) {
		return result{stat: gracePeriod, ours: true}, nil
	}
	c := credential{x.Flavor, x.Message[oncrpc.CredentialPos:][:x.CredentialLen]}
	locks := procedure == procLock || procedure == procNMLock || procedure == procShare
	var o *owner
	if locks {
		if o = s.table.begin(id, path{x.local, x.udp, async, x.Version}, r, c); o == nil {
			s.series.refuse(refusedTable)
			return result{stat: noLocks}, nil
		}
	} else {
		o = s.table.lookup(id)
	}
	far := *r
	far.name, far.svid, far.oh, far.state = []byte(s.o.Name), o.number, s.table.far(o, r.oh), bridgeState
	reply, err := s.upstream.call(ctx, x.Version, procedure, c, far.append(nil, x.Version, procedure))
	answered := err == nil
	switch {
	case err != nil:
		res = result{stat: gracePeriod, ours: true} // the client asks again
	case !reply.Succeeded():
		res, refusal = result{stat: noLocks}, refused(x.XID, &reply)
	case !res.parse(reply.Message, reply.Results, x.Version, procedure):
		res, refusal = result{stat: noLocks}, oncrpc.AppendAccepted(nil, x.XID, oncrpc.SystemError)
	}
	switch {
	case locks:
		s.table.settle(o, r, res.stat, answered)
	case procedure == procUnlock && res.stat == granted, procedure == procUnshare && res.stat == granted:
		s.table.released(id, r, true)
	case procedure == procCancel && answered && refusal == nil && res.stat != gracePeriod:
		s.table.released(id, r, false)
	}
	return res, refusal
}

// refused returns a Reply like r, by which the server has refused a Call.
func refused(xid uint32, r *oncrpc.Reply) []byte {
	switch {
	case r.Denied && r.RejectStat == oncrpc.AuthError:
		return oncrpc.AppendAuthError(nil, xid, r.AuthStat)
	case r.Denied:
		return oncrpc.AppendAccepted(nil, xid, oncrpc.SystemError)
	case r.AcceptStat == oncrpc.ProgramMismatch:
		return oncrpc.AppendProgramMismatch(nil, xid, r.Low, r.High)
	}
	return oncrpc.AppendAccepted(nil, xid, r.AcceptStat)
}

// freeAll performs FREE_ALL: a client has no locks any more.
func (s *Server) freeAll(x *call) {
	if s.release(x.from.Addr(), nil) {
		x.send(oncrpc.AppendAccepted(nil, x.XID, oncrpc.Success))
	}
}

// wait waits until no locks of a client are being freed. It reports false if that takes too long.
func (s *Server) wait(ctx context.Context, client netip.Addr) bool {
	for {
		s.mu.Lock()
		done := s.releases[client]
		s.mu.Unlock()
		if done == nil {
			return true
		}
		select {
		case <-done:
		case <-ctx.Done():
			return false
		}
	}
}

// release frees what a client had when it restarted, or all if state is nil, and reports whether that is done. LOCKs of
// the client wait meanwhile.
func (s *Server) release(client netip.Addr, state *uint32) bool {
	ctx, cancel := context.WithTimeout(s.ctx, noticeTimeout)
	defer cancel()
	done := make(chan struct{})
	for {
		if !s.wait(ctx, client) {
			return false
		}
		s.mu.Lock()
		free := s.releases[client] == nil
		if free {
			s.releases[client] = done
		}
		s.mu.Unlock()
		if free {
			break
		}
	}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.releases, client)
		close(done)
	}()
	all, failed := s.table.lost(client, state), 0
	for i := range all {
		if !s.free(ctx, &all[i]) {
			failed++
		}
	}
	s.log.Info().Str("event", "nlm_freed").Stringer("client", client).Int("files", len(all)).Int("failed", failed).Msg("nlm: a client's locks are freed")
	return failed == 0
}

// free has the server cancel and unlock what one owner had of one file. It reports whether the server has done so.
func (s *Server) free(ctx context.Context, l *loss) bool {
	r := request{name: []byte(s.o.Name), handle: []byte(l.handle), svid: l.number, mode: l.mode, access: l.access}
	r.oh = s.table.far(&l.owner, l.oh)
	do := func(procedure uint32) bool {
		for {
			reply, err := s.upstream.call(ctx, l.version, procedure, l.credential, r.append(nil, l.version, procedure))
			var res result
			if err != nil || !reply.Succeeded() || !res.parse(reply.Message, reply.Results, l.version, procedure) {
				return false
			}
			if res.stat != gracePeriod {
				return true
			}
			select { // the client may have reclaimed its locks before it crashed
			case <-time.After(retryPause):
			case <-ctx.Done():
				return false
			}
		}
	}
	r.block = 1
	for _, w := range l.waits {
		r.exclusive, r.start, r.length = w.exclusive, w.Start, 0
		if w.End != endless {
			r.length = w.End - w.Start
		}
		do(procCancel) // the UNLOCK says whether the server answers
	}
	procedure := uint32(procUnlock)
	if l.share != "" {
		procedure = procUnshare
	}
	r.start, r.length = 0, 0
	if !do(procedure) {
		return false
	}
	s.table.freed(l)
	return true
}

// later is the answer to a Call that there is no room for.
func later(x *call, r *request) []byte {
	procedure, async := plain(x.Procedure)
	b := oncrpc.AppendAccepted(nil, x.XID, oncrpc.Success)
	if async {
		return b
	}
	return (&result{stat: gracePeriod}).append(b, r.cookie, x.Version, procedure)
}

// newCookie returns a cookie that no other Call of the Server has.
func (s *Server) newCookie() []byte { return xdr.AppendWords(nil, s.xid.Add(1), s.xid.Add(1)) }
