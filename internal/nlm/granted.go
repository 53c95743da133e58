package nlm

import (
	"context"
	"errors"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

const (
	clientTimeout = 8 * time.Second // for a Call to a client. Servers repeat GRANTED_MSG every ten seconds
	offerTimeout  = time.Second     // for which an UNLOCK waits for the answer to a GRANTED
)

// An answer is where the stat of a GRANTED_RES goes.
type answer struct {
	place
	stat chan uint32
}

// grant passes GRANTED and GRANTED_MSG on to the client that waits. Only the server may send them. If the client does
// not answer, the server is asked to try again, or hears nothing, which is the same.
func (s *Server) grant(x *call, r *request) {
	_, async := plain(x.Procedure)
	if async {
		x.send(oncrpc.AppendAccepted(nil, x.XID, oncrpc.Success))
	}
	ctx, cancel := context.WithTimeout(s.ctx, clientTimeout)
	defer cancel()
	stat, ok := uint32(denied), !async
	if s.upstream.is(x.from.Addr()) {
		var answered func()
		stat, ok, answered = s.offer(ctx, r)
		defer answered()
	} else {
		s.series.refuse(refusedStranger)
	}
	switch {
	case !async && !ok:
		stat = gracePeriod
		fallthrough
	case !async:
		x.send((&result{stat: stat}).append(oncrpc.AppendAccepted(nil, x.XID, oncrpc.Success), r.cookie, x.Version, procGranted))
	case ok:
		ctx, cancel := context.WithTimeout(s.ctx, clientTimeout)
		defer cancel()
		res := result{stat: stat}
		_, _ = s.upstream.call(ctx, x.Version, procGrantedRes, s.root(), res.append(nil, r.cookie, x.Version, procGranted)) // the server repeats its Call
	}
}

// offer asks the client whether it takes the lock, and returns its answer; ok is false if it gave none. The caller calls
// answered when the server has the answer.
func (s *Server) offer(ctx context.Context, r *request) (stat uint32, ok bool, answered func()) {
	g, o, asked, end := s.table.offer(r)
	switch g {
	case grantUnknown:
		s.series.grants[grantedUnknown].Inc()
		return denied, true, func() {}
	case grantHeld:
		s.series.grants[grantedAgain].Inc()
		return granted, true, func() {}
	case grantBusy:
		return 0, false, func() {}
	}
	answered = s.offering(turn{o.client, o.identity.svid, string(r.handle)})
	near := *r
	near.name, near.svid, near.oh = []byte(s.o.Name), o.svid, s.table.near(&o, r.oh)
	stat, err := s.askClient(ctx, &o, &near)
	if err == nil && stat == denied && asked {
		stat = granted // the client has taken it before: what it does not want it unlocks
	}
	switch {
	case err != nil:
		end(grantUnanswered)
		s.series.grants[grantedUnanswered].Inc()
		s.unheard(place{o.client, o.local}, "grant", err)
		return 0, false, answered
	case stat == granted:
		end(grantTaken)
		s.series.grants[grantedTaken].Inc()
	case stat == gracePeriod:
		end(grantLater)
		s.series.grants[grantedUnanswered].Inc()
	default:
		end(grantRefused)
		s.series.grants[grantedRefused].Inc()
	}
	return stat, true, answered
}

// offering notes that a client is asked, until answered is called.
func (s *Server) offering(k turn) (answered func()) {
	done := make(chan struct{})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.offers[k] = done
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.offers[k] == done {
			delete(s.offers, k)
		}
		close(done)
	}
}

// waitForAnswer waits until the server has the answer to a GRANTED under way, so that it gets what the owner does then
// after that: nfs-ganesha, which gets an UNLOCK before, grants nothing to anybody for 5 s. It does not wait long, because
// the answer may be lost.
func (s *Server) waitForAnswer(ctx context.Context, k turn) {
	s.mu.Lock()
	done := s.offers[k]
	s.mu.Unlock()
	if done == nil {
		return
	}
	select {
	case <-done:
	case <-time.After(offerTimeout):
	case <-ctx.Done():
	}
}

// askClient calls GRANTED at a client, or GRANTED_MSG if it locks by LOCK_MSG, and returns the stat of its answer.
func (s *Server) askClient(ctx context.Context, o *owner, r *request) (stat uint32, err error) {
	p, v := place{o.client, o.local}, service{transport: transport(o.udp), program: oncrpc.ProgramNLM, version: o.version}
	r.cookie = s.newCookie()
	args := r.append(nil, o.version, procGranted)
	if !o.async {
		reply, err := s.callClient(ctx, p, v, procGranted, args, true)
		if err != nil {
			return 0, err
		}
		var res result
		if !res.parse(reply.Message, reply.Results, o.version, procGranted) {
			return 0, errors.New("the client's answer to GRANTED cannot be read")
		}
		return res.stat, nil
	}
	a := answer{p, make(chan uint32, 1)}
	s.mu.Lock()
	s.answers[string(r.cookie)] = a
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.answers, string(r.cookie))
	}()
	for {
		call, cancel := context.WithCancel(ctx)
		sent := make(chan struct{})
		var err error // set before sent is closed
		go func() {
			defer close(sent)
			_, err = s.callClient(call, p, v, procGrantedMsg, args, false)
		}()
		select {
		case stat := <-a.stat: // the Reply may come later, or not at all
			cancel()
			<-sent
			return stat, nil
		case <-sent:
			cancel()
			if err != nil {
				return 0, err
			}
		}
		select {
		case stat := <-a.stat:
			return stat, nil
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(voidTimeout): // a datagram may have been lost
		}
	}
}

// grantedRes takes a client's answer to GRANTED_MSG.
func (s *Server) grantedRes(x *call) bool {
	r := result{}
	if !r.parse(x.Message, x.Args, x.Version, procGranted) {
		return false
	}
	at := xdr.NewCursor(x.Message, x.Args)
	c := opaque(&at, x.Message, maxCookie)
	s.mu.Lock()
	a, ok := s.answers[string(c)]
	s.mu.Unlock()
	if !ok || a.client != x.from.Addr() {
		s.series.refuse(refusedStranger)
		return true
	}
	select {
	case a.stat <- r.stat:
	default: // twice
	}
	return true
}
