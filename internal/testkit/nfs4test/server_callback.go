package nfs4test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// A channelState is what the server knows of a host's back channel.
type channelState uint8

const (
	channelDown  channelState = iota // no connection carries it: SEQ4_STATUS_CB_PATH_DOWN
	channelUp                        // a connection carries it
	channelFault                     // a callback failed: SEQ4_STATUS_BACKCHANNEL_FAULT
)

// flags returns the flags of a SEQUENCE of h.
func (h *host) flags() uint32 {
	switch h.channel {
	case channelUp:
		return 0
	case channelFault:
		return flagBackChannelFault
	}
	return flagCallbackPathDown
}

// probe looks again for a connection that carries h's back channel.
func (h *host) probe() {
	h.channel = channelDown
	if c, _ := h.back(); c != nil {
		h.channel = channelUp
	}
	h.next()
}

// back returns the connection that carries h's back channel, and the session that it is bound to:
// the first that there is.
func (h *host) back() (*conn, *session) {
	for _, v := range h.sessions {
		for _, c := range v.conns {
			if c.bound[v] {
				return c, v
			}
		}
	}
	return nil, nil
}

// A Recall is a CB_RECALL. Its fields are constant once it is done.
type Recall struct {
	Owner string // co_ownerid of the client
	Token uint64 // in the stateid

	Session SessionID     // that it was last sent for
	Sent    int           // how often it was sent
	Delays  int           // how often the client answered NFS4ERR_DELAY
	Took    time.Duration // from Server.Recall to the end
	Status  Status        // of CB_RECALL
	Err     error         // why there is no status

	done  chan struct{}
	began time.Time
	host  *host
	v     *session
	c     *conn // that it was sent on
	xid   uint32
	timer *time.Timer
}

// Done is closed when the Recall has come to an end.
func (r *Recall) Done() <-chan struct{} { return r.done }

// Errors of a Recall.
var (
	errNoBackChannel = errors.New("nfs4test: the client has no back channel")
	errUnanswered    = errors.New("nfs4test: the callback was not answered")
	errNoHost        = errors.New("nfs4test: no such client")
)

// Recall calls the client back that has the given co_ownerid. A client has one callback at a time.
func (s *Server) Recall(owner string, token uint64) *Recall {
	r := &Recall{Owner: owner, Token: token, done: make(chan struct{}), began: time.Now()}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.host = s.owners[owner]; r.host == nil {
		r.end(errNoHost)
		return r
	}
	r.host.queue = append(r.host.queue, r)
	r.host.next()
	return r
}

func (r *Recall) end(err error) {
	if r.timer != nil {
		r.timer.Stop()
	}
	r.Err, r.Took = err, time.Since(r.began)
	close(r.done)
}

// next sends the next callback of h. nfsd gives a callback up that has no back channel.
func (h *host) next() {
	for h.recall == nil && len(h.queue) > 0 {
		h.recall = h.queue[0]
		h.queue = h.queue[1:]
		h.recall.send()
	}
}

// fail ends all callbacks of h.
func (h *host) fail(err error) {
	all := h.queue
	if h.recall != nil {
		all = append(all, h.recall)
	}
	h.queue, h.recall = nil, nil
	for _, r := range all {
		r.leave()
		r.end(err)
	}
}

// finish ends the callback of h that is under way.
func (r *Recall) finish(err error) {
	r.leave()
	r.host.recall = nil
	r.end(err)
	r.host.next()
}

// fault ends r, which failed so that the server gives up the back channel.
func (r *Recall) fault(err error) {
	r.host.s.Faults.Add(1)
	r.host.channel = channelFault
	r.finish(err)
}

// leave makes r wait for nothing on its connection.
func (r *Recall) leave() {
	c := r.c
	if c == nil {
		return
	}
	r.c = nil
	if c.calls[r.xid] == r {
		delete(c.calls, r.xid)
	}
	c.waiting = slices.DeleteFunc(c.waiting, func(x *Recall) bool { return x == r })
	c.pull()
}

// send sends r, or ends it.
func (r *Recall) send() {
	c, v := r.host.back()
	if c == nil {
		r.host.recall = nil
		r.end(errNoBackChannel)
		return
	}
	r.c, r.v = c, v
	c.waiting = append(c.waiting, r)
	r.timer = time.AfterFunc(r.host.s.o.CallbackTimeout, r.overdue)
	c.pull()
}

// overdue is called when r was not answered in time.
func (r *Recall) overdue() {
	s := r.host.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.host.recall == r && r.c != nil {
		r.fault(errUnanswered)
	}
}

// pull sends the callbacks for which the window of c has room.
func (c *conn) pull() {
	for !c.over && len(c.waiting) > 0 && len(c.calls) < c.window {
		r := c.waiting[0]
		c.waiting = c.waiting[1:]
		if c.xid == 0 {
			c.xid = rand.Uint32()
		}
		c.xid++
		r.xid, r.Session = c.xid, r.v.id
		r.Sent++
		c.calls[r.xid] = r
		c.t.reverseCall(r.message())
	}
}

// message is CB_COMPOUND with CB_SEQUENCE and CB_RECALL. RFC 8881 Sections 20.9 and 20.2.
func (r *Recall) message() []byte {
	b := testkit.AppendWords(callHeader(r.xid, r.v.program, 1, 1), 0, 1, 0, 2)
	b = append(testkit.AppendWords(b, cbSequence), r.v.id[:]...)
	b = testkit.AppendWords(b, r.v.callback, 0, 0, 0, 0)
	b = append(testkit.AppendWords(b, cbRecall), tokenState(r.Token)...)
	return testkit.AppendOpaque(testkit.AppendWords(b, 0), []byte("a file handle"))
}

// reverseReply takes the Reply m to a callback.
func (c *conn) reverseReply(xid uint32, m []byte) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	r := c.calls[xid]
	if r == nil {
		return // late
	}
	r.timer.Stop()
	v := r.v
	status, result, err := parseCallback(m, v.id, v.callback)
	switch {
	case err != nil:
		r.fault(err)
	case status == errDelay:
		r.Delays++
		r.leave()
		r.again(c.s.o.CallbackDelay)
	case status == errSeqMisordered && v.callback != 1:
		v.callback = 1
		r.leave()
		r.again(0)
	case status != OK:
		r.fault(fmt.Errorf("nfs4test: CB_SEQUENCE was answered %d", status))
	default:
		v.callback++
		r.Status = result
		r.finish(nil)
	}
}

// again sends r once more after d.
func (r *Recall) again(d time.Duration) {
	r.timer = time.AfterFunc(d, func() {
		s := r.host.s
		s.mu.Lock()
		defer s.mu.Unlock()
		if r.host.recall == r {
			r.send()
			r.host.next()
		}
	})
}

// reverseFailed is called when the callback xid cannot be answered.
func (c *conn) reverseFailed(xid uint32, err error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if r := c.calls[xid]; r != nil {
		r.fault(err)
	}
}

// dropCalls sends the callbacks of c, which has ended, on another connection.
func (c *conn) dropCalls() {
	all := c.waiting
	for _, r := range c.calls {
		all = append(all, r)
	}
	c.waiting, c.calls = nil, nil
	for _, r := range all {
		r.timer.Stop()
		r.c = nil
		r.send()
		r.host.next()
	}
}

// parseCallback returns the statuses of CB_SEQUENCE and CB_RECALL.
func parseCallback(m []byte, id SessionID, sequence uint32) (seq, recall Status, err error) {
	var h oncrpc.Reply
	if err := oncrpc.ParseReply(m, &h); err != nil {
		return 0, 0, err
	}
	if !h.Succeeded() {
		return 0, 0, fmt.Errorf("nfs4test: callback answered with accept_stat %d", h.AcceptStat)
	}
	x := xdr.NewCursor(m, h.Results)
	status := Status(x.Uint32())
	x.Opaque()
	count := x.Uint32()
	if count == 0 || x.Uint32() != cbSequence {
		return 0, 0, fmt.Errorf("nfs4test: callback answered %d without CB_SEQUENCE", status)
	}
	if seq = Status(x.Uint32()); seq != OK {
		return seq, 0, x.Err()
	}
	at := x.Pos()
	x.Skip(16)
	if x.OK() && !bytes.Equal(m[at:at+16], id[:]) {
		return 0, 0, errors.New("nfs4test: CB_SEQUENCE answered for another session")
	}
	if n, slot := x.Uint32(), x.Uint32(); n != sequence || slot != 0 {
		return 0, 0, fmt.Errorf("nfs4test: CB_SEQUENCE answered for slot %d, sequence %d, not for %d", slot, n, sequence)
	}
	x.Skip(8)
	if count != 2 || x.Uint32() != cbRecall {
		return 0, 0, errors.New("nfs4test: callback answered without CB_RECALL")
	}
	recall = Status(x.Uint32())
	if !x.OK() || x.Len() != 0 {
		return 0, 0, errors.New("nfs4test: callback answered with a malformed Reply")
	}
	return seq, recall, nil
}

// tokenOf is the token in a stateid.
func tokenOf(state []byte) uint64 { return binary.BigEndian.Uint64(state[4:]) }
