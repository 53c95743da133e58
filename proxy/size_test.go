package proxy

import (
	"reflect"
	"testing"
	"unsafe"
)

// Thousands of clients are connected and idle. Each of these structs fills a size class of Go's
// heap, so that a field more costs each client a multiple of its length.
func TestIdleClientSizes(t *testing.T) {
	for _, tt := range []struct {
		name      string
		size, max uintptr
	}{
		{"tcpClient", unsafe.Sizeof(tcpClient{}), 576},
		{"rdmaClient", unsafe.Sizeof(rdmaClient{}), 576},
		{"clientQueue", unsafe.Sizeof(clientQueue{}), 224},
	} {
		if tt.size > tt.max {
			t.Errorf("%s has %d octets, more than %d", tt.name, tt.size, tt.max)
		}
	}
}

// heapHeader is what Go's heap has in front of an object of more than 512 octets with pointers.
const heapHeader = 8

// TestCallSize: a call has no more octets than its size class.
func TestCallSize(t *testing.T) {
	if n := unsafe.Sizeof(call{}) + heapHeader; n > 1024 {
		t.Errorf("a call has %d octets, more than 1024", n)
	}
}

// TestCallReset: what reset leaves of a call is its place and scratch.
func TestCallReset(t *testing.T) {
	c := new(call)
	c.slot = 7
	for range 2 { // also a call that was reset
		c.usesSeldom = true
		c.gss.Owner, c.retry.bigReply, c.next = c, true, c
		c.progress.Status, c.progress.Replays, c.reply.memory, c.charge.Ordered, c.queue = 1, 1, 1, true, &clientQueue{}
		c.h.Args, c.rdma.XID, c.rdma.Message, c.rdma.Analysis.Known, c.rdma.Shape.Call = 1, 1, []byte{1}, true, 1
		c.reset()
		want := call{scratch: scratch{slot: 7}, h: c.h}
		want.entry.Owner, want.rdma.Owner = c, c
		if !reflect.DeepEqual(c, &want) {
			t.Errorf("after reset: %+v", c)
		}
	}
}

// lineOf is the number of the cache line of c that p points into. Its lines begin where those of the heap do.
func lineOf(c *call, p unsafe.Pointer) uintptr {
	return (uintptr(p) - uintptr(unsafe.Pointer(c)) + heapHeader) / cacheLine
}

var heapCall *call // on the heap

// TestCallLines: a Call that needs neither seldom nor a Reply in parts touches ten cache lines of its call.
func TestCallLines(t *testing.T) {
	heapCall = new(call)
	if at := uintptr(unsafe.Pointer(heapCall)) % cacheLine; at != heapHeader && !raceEnabled {
		t.Errorf("a call begins at octet %d of a cache line, want %d", at, heapHeader)
	}
	tail := 3 * unsafe.Sizeof([]byte(nil)) // of rdma.Reply
	if n := unsafe.Offsetof(call{}.seldom) - tail + heapHeader; n > 10*cacheLine {
		t.Errorf("%d octets before what few Calls need, more than ten lines", n)
	}
}

// TestWarmLines: the fields that warm reads lie in the cache lines that sending a Call reads: those of the entry, of
// the state, of the connection and of rdma, apart from the Reply. What is needed only while a Call is read, and only
// when its Reply comes, lies in others. Those that warmAnswered reads have all that the Reply needs.
func TestWarmLines(t *testing.T) {
	var c call
	line := func(p unsafe.Pointer) uintptr { return lineOf(&c, p) }
	warmed := map[uintptr]bool{}
	for _, p := range []unsafe.Pointer{
		unsafe.Pointer(&c.entry.Owner), unsafe.Pointer(&c.conn), unsafe.Pointer(&c.state),
		unsafe.Pointer(&c.rdma.XID), unsafe.Pointer(&c.rdma.Analysis.Class), unsafe.Pointer(&c.rdma.Binding),
	} {
		warmed[line(p)] = true
	}
	for name, p := range map[string]unsafe.Pointer{
		"entry.Owner": unsafe.Pointer(&c.entry.Owner), "entry.Cost": unsafe.Pointer(&c.entry.Cost), "state": unsafe.Pointer(&c.state),
		"times": unsafe.Pointer(&c.progress.Times), "conn": unsafe.Pointer(&c.conn), "rdma.XID": unsafe.Pointer(&c.rdma.XID),
		"rdma.Message": unsafe.Pointer(&c.rdma.Message), "rdma.Spare": unsafe.Pointer(&c.rdma.Spare), "rdma.Binding": unsafe.Pointer(&c.rdma.Binding),
		"rdma.Analysis": unsafe.Pointer(&c.rdma.Analysis), "the end of rdma.Analysis": unsafe.Pointer(&c.rdma.Analysis.Procedure),
		"rdma.Owner": unsafe.Pointer(&c.rdma.Owner), "rdma.Shape": unsafe.Pointer(&c.rdma.Shape),
	} {
		if !warmed[line(p)] {
			t.Errorf("%s is in line %d, which warm does not read", name, line(p))
		}
	}
	for name, p := range map[string]unsafe.Pointer{
		"h.Message": unsafe.Pointer(&c.h.Message), "h.GSS": unsafe.Pointer(&c.h.GSS), "h.VerifierLen": unsafe.Pointer(&c.h.VerifierLen),
		"reply.parts": unsafe.Pointer(&c.reply.parts), "reply.err": unsafe.Pointer(&c.reply.err),
	} {
		if warmed[line(p)] || line(p) == line(unsafe.Pointer(&c.h.Program)) {
			t.Errorf("%s is in line %d, with what is needed at other times", name, line(p))
		}
	}
	warmed = map[uintptr]bool{}
	for _, p := range []unsafe.Pointer{ // by warmAnswered
		unsafe.Pointer(&c.conn), unsafe.Pointer(&c.state), unsafe.Pointer(&c.progress.Status), unsafe.Pointer(&c.charge.Expected), unsafe.Pointer(&c.reply.memory),
		unsafe.Pointer(&c.rdma.Analysis.Class), unsafe.Pointer(&c.entry.Owner), unsafe.Pointer(&c.rdma.Binding), unsafe.Pointer(&c.rdma.Message),
	} {
		warmed[line(p)] = true
	}
	for name, p := range map[string]unsafe.Pointer{
		"entry.Flow": unsafe.Pointer(&c.entry.Flow), "result": unsafe.Pointer(&c.progress.Result), "conn": unsafe.Pointer(&c.conn), "progress": unsafe.Pointer(&c.progress),
		"clientXID": unsafe.Pointer(&c.progress.ClientXID), "octets": unsafe.Pointer(&c.progress.Octets), "buf": unsafe.Pointer(&c.buf), "owner": unsafe.Pointer(&c.owner),
		"the end of charge": unsafe.Add(unsafe.Pointer(&c.charge), unsafe.Sizeof(c.charge)-1), "queue": unsafe.Pointer(&c.queue), "reply.parts": unsafe.Pointer(&c.reply.parts),
		"reply.lease": unsafe.Pointer(&c.reply.lease), "rdma.XID": unsafe.Pointer(&c.rdma.XID), "rdma.Owner": unsafe.Pointer(&c.rdma.Owner),
		"rdma.Spare": unsafe.Pointer(&c.rdma.Spare), "rdma.Analysis": unsafe.Pointer(&c.rdma.Analysis), "rdma.Reply": unsafe.Pointer(&c.rdma.Reply),
	} {
		if !warmed[line(p)] {
			t.Errorf("%s is in line %d, which warmAnswered does not read", name, line(p))
		}
	}
	if a, b := line(unsafe.Pointer(&c.rdma.Binding)), line(unsafe.Pointer(&c.rdma.Reply.Parts()[:1][0])); a != b {
		t.Errorf("rdma.Binding is in line %d, and the first part of the Reply in line %d", a, b)
	}
}

// TestCopiesWait: a client for which copied Replies wait is not idle, and is not closed while it drains.
func TestCopiesWait(t *testing.T) {
	s := &tcpClient{front: front{draining: true}, copies: 1}
	s.client = s
	if s.idle() {
		t.Error("the client counts as idle")
	}
	s.closeIfIdle() // would panic, since there is no connection
	if s.copies = 0; !s.idle() {
		t.Error("the client has its Replies, and does not count as idle")
	}
}
