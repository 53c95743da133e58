package chaos

import (
	"sync"
	"sync/atomic"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
)

// A server executes Calls, whatever transport they came on. Its duplicate request
// cache is keyed as that of Linux is, by XID and a checksum of the arguments; the
// address is always the bridge's.
type server struct {
	book  *book
	cache bool

	taken   atomic.Int64  // Calls, probes aside
	reverse atomic.Uint32 // XID of its latest own
	run     sync.RWMutex  // held for writing while the server is stopped

	mu   sync.Mutex // guards seen
	seen map[request]bool
}

// stop stops the server as SIGSTOP does: Calls at its host wait until goOn.
func (s *server) stop() { s.run.Lock() }
func (s *server) goOn() { s.run.Unlock() }

type request struct{ xid, sum uint32 }

func newServer(b *book, cache bool) *server {
	return &server{book: b, cache: cache, seen: make(map[request]bool)}
}

// A job is a Call at a server.
type job struct {
	id    uint32
	kind  kind
	reply []byte
	key   request
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
	j.reply = proxytest.Expected(m)
	if !s.cache || !k.harmful() {
		s.book.execute(id, c.XID, false)
		return j, true
	}
	s.mu.Lock()
	done, known := s.seen[j.key]
	if !known {
		s.seen[j.key] = false
	}
	s.mu.Unlock()
	if !known {
		s.book.execute(id, c.XID, true)
		return j, true
	}
	return j, done // as Linux: RC_REPLY, or RC_DROPIT while it is executed
}

// finish notes that the Reply to j is about to be sent, or never will be: from now
// on a repetition is answered.
func (s *server) finish(j *job) {
	if !s.cache || !j.kind.harmful() {
		return
	}
	s.mu.Lock()
	s.seen[j.key] = true
	s.mu.Unlock()
}
