package admit

import (
	"sync/atomic"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/crowd"
	"github.com/rdmabridge/rdmabridge/proxy/admit/gates"
	"github.com/rdmabridge/rdmabridge/proxy/admit/gates/gatestest"
)

// A fakeWaiter is a client that sends whenever the bridge reads from it.
type fakeWaiter struct {
	gatestest.Conn
	client Client
	sent   int
	send   func(*fakeWaiter)
	idle   bool

	resumed *int // only counts how often the client may go on; nil for a client that sends
}

func (f *fakeWaiter) run() { f.Do(f.Resume) }

func (f *fakeWaiter) Resume() {
	if f.resumed != nil {
		*f.resumed++
		return
	}
	for f.client.waiter.Shut() == 0 && !f.idle {
		f.sent++
		f.send(f)
	}
}

// n is how many Calls the client has sent.
func (f *fakeWaiter) n() int {
	f.Lock()
	defer f.Unlock()
	return f.sent
}

// hostIDs tells the hosts of tests apart.
var hostIDs atomic.Uint64

// open prepares the client, which is one of h.
func (f *fakeWaiter) open(h *Host) {
	if h.id == 0 {
		h.id = crowd.Host(hostIDs.Add(1))
	}
	f.client.waiter, f.client.host = gates.MakeWaiter(f, h.id), h
}

// TestSlowStartDoesNotAllocate: a Call costs no allocation in an admission.
func TestSlowStartDoesNotAllocate(t *testing.T) {
	a := testAdmission()
	f := &fakeWaiter{}
	f.open(&Host{})
	var c Charge
	if n := testing.AllocsPerRun(1000, func() {
		a.enter(&c, 1, 0, &f.client.starter)
		a.Dropped(&c, 0)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
