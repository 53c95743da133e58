package chaos

import (
	"sync"
	"sync/atomic"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
)

// A server executes Calls, whatever transport they came on. Its duplicate request
// cache is keyed as that of Linux is, by XID and a checksum of the arguments; the
// address is always the bridge's.
type server struct {
	book  *book
	cache bool

	taken atomic.Int64 // Calls, probes aside
	kept  kept
	run   sync.RWMutex // held for writing while the server is stopped

	mu   sync.Mutex // guards the fields below
	seen map[request]*execution
	sick bool     // one of its file systems does not answer
	held []func() // the answers to hung Calls
}

// An execution is what the duplicate request cache remembers: whose Call was executed.
type execution struct {
	id       uint32
	answered bool
}

// stop stops the server as SIGSTOP does: Calls at its host wait until goOn.
func (s *server) stop() { s.run.Lock() }
func (s *server) goOn() { s.run.Unlock() }

type request struct{ xid, sum uint32 }

func newServer(b *book, cache bool) *server {
	return &server{book: b, cache: cache, seen: make(map[request]*execution)}
}

// A job is a Call at a server.
type job struct {
	id      uint32
	kind    kind
	session nfs.SessionID // of a SEQUENCE
	kept    bool          // the bridge has its client on a lane
	reply   []byte
	key     request
}

// take executes the Call m, or finds that it was. ok is false when there is
// nothing to answer: it is being executed right now, or is no Call.
func (s *server) take(m []byte) (j job, ok bool) {
	s.run.RLock()
	defer s.run.RUnlock()
	var c oncrpc.Call
	if err := oncrpc.ParseCall(m, &c); err != nil {
		s.book.wrong("the bridge sent octets that are no Call: %v", err)
		return j, false
	}
	if c.Procedure == 0 { // a probe of the bridge's own, or a client's
		return job{reply: oncrpc.AppendAccepted(nil, c.XID, oncrpc.Success)}, true
	}
	k, id, err := look(&c)
	if err != nil {
		s.book.wrong("%v", err)
		return j, false
	}
	s.taken.Add(1)
	s.book.serve(&c, k, id)
	j = job{id: id, kind: k, key: request{c.XID, proxytest.Checksum(m[c.Args:])}}
	j.reply = replyTo(m)
	if k.compound() {
		j.session = sessionOf(&c)
	}
	if !s.cache || !k.harmful() {
		s.book.execute(id, c.XID, false)
		return j, true
	}
	s.mu.Lock()
	was := s.seen[j.key]
	var known execution
	if was == nil {
		s.seen[j.key] = &execution{id: id}
	} else {
		known = *was
	}
	s.mu.Unlock()
	if was == nil {
		s.book.execute(id, c.XID, true)
		return j, true
	}
	if known.id != id {
		s.book.wrong("%s is not executed: the duplicate request cache takes it, under XID %#x, for %s", s.book.name(id), c.XID, s.book.name(known.id))
		j.reply = removeReply(c.XID, known.id, j.key.sum)
	}
	return j, known.answered // as Linux: RC_REPLY, or RC_DROPIT while it is executed
}

// sicken has a file system of the server answer no more, until heal.
func (s *server) sicken() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sick = true
}

// heal ends sicken: all Calls that have come are answered.
func (s *server) heal() {
	s.mu.Lock()
	held := s.held
	s.sick, s.held = false, nil
	s.mu.Unlock()
	for _, answer := range held {
		answer()
	}
}

// hangs reports whether j gets no answer until heal calls answer.
func (s *server) hangs(j *job, answer func()) bool {
	if j.kind != hung && j.kind != hungSequence {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sick {
		s.held = append(s.held, answer)
	}
	return s.sick
}

// finish notes that the Reply to j is about to be sent, or never will be: from now
// on a repetition is answered.
func (s *server) finish(j *job) {
	if !s.cache || !j.kind.harmful() {
		return
	}
	s.mu.Lock()
	s.seen[j.key].answered = true
	s.mu.Unlock()
}
