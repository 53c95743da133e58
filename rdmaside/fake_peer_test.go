package rdmaside

import (
	"bytes"
	"errors"
	"sync"
	"testing/synctest"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// A fakePeer is the other end of a connection. It does what the test says.
type fakePeer struct {
	bed      *bed
	conn     fabric.Conn
	receives int

	mu          sync.Mutex // guards the rest; a leaf
	bufs        map[uint64][]byte
	messages    []fakeMessage
	history     [][]byte // octets of all messages, including those that next has removed
	completions []fabric.Completion
	closed      bool
	closedErr   error
}

type fakeMessage struct {
	octets      []byte
	invalidated fabric.Handle
}

func (p *fakePeer) Setup(c fabric.Conn) error {
	p.conn = c
	p.bufs = make(map[uint64][]byte)
	for i := range p.receives {
		id := uint64(i) + 1
		p.bufs[id] = make([]byte, 16<<10)
		if err := c.PostReceive(id, p.bufs[id]); err != nil {
			return err
		}
	}
	return nil
}

func (p *fakePeer) Completed(cs []fabric.Completion) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range cs {
		if c.Op != fabric.OpReceive {
			p.completions = append(p.completions, c)
			continue
		}
		if c.Err != nil {
			continue
		}
		m := fakeMessage{bytes.Clone(p.bufs[c.ID][:c.Bytes]), c.Invalidated}
		p.messages = append(p.messages, m)
		p.history = append(p.history, m.octets)
		_ = p.conn.PostReceive(c.ID, p.bufs[c.ID])
	}
}

func (p *fakePeer) Closed(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed, p.closedErr = true, err
}

// send sends one message and waits until nothing happens any more.
func (p *fakePeer) send(invalidate fabric.Handle, parts ...[]byte) {
	p.bed.t.Helper()
	fabrictest.Do(p.bed.peerLoop, func() {
		if err := p.conn.PostSend(1<<20, fabric.Send{Parts: parts, Invalidate: invalidate}); err != nil && !errors.Is(err, fabric.ErrClosed) {
			p.bed.t.Errorf("peer: %v", err)
		}
	})
	synctest.Wait()
}

// write writes data into s by RDMA Write.
func (p *fakePeer) write(s rpcrdma.Segment, data []byte) {
	p.bed.t.Helper()
	fabrictest.Do(p.bed.peerLoop, func() {
		to := fabric.Region{Handle: fabric.Handle(s.Handle), Offset: s.Offset, Length: s.Length}
		if err := p.conn.PostWrite(0, fabric.Write{Parts: [][]byte{data}, To: to}); err != nil {
			p.bed.t.Errorf("peer: %v", err)
		}
	})
	synctest.Wait()
}

// read returns the octets of s, which it reads by RDMA Read.
func (p *fakePeer) read(s rpcrdma.Segment) []byte {
	p.bed.t.Helper()
	into := make([]byte, s.Length)
	fabrictest.Do(p.bed.peerLoop, func() {
		from := fabric.Region{Handle: fabric.Handle(s.Handle), Offset: s.Offset, Length: s.Length}
		if err := p.conn.PostRead(0, fabric.Read{Into: into, From: from}); err != nil {
			p.bed.t.Errorf("peer: %v", err)
		}
	})
	synctest.Wait()
	return into
}

// next removes the oldest message and returns it.
func (p *fakePeer) next() (m fakeMessage, ok bool) {
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.messages) == 0 {
		return fakeMessage{}, false
	}
	m = p.messages[0]
	p.messages = p.messages[1:]
	return m, true
}

func (p *fakePeer) ended() (bool, error) {
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed, p.closedErr
}

// wantSend removes the next message of the side under test and decodes it.
func (p *fakePeer) wantSend(why string) *wantedSend {
	t := p.bed.t
	t.Helper()
	m, ok := p.next()
	if !ok {
		t.Fatalf("nothing was sent; want: %s", why)
	}
	s := &wantedSend{octets: m.octets, invalidated: m.invalidated}
	n, err := s.Decode(m.octets)
	if err != nil {
		t.Fatalf("%s: %v in %x", why, err, m.octets)
	}
	s.payload = m.octets[n:]
	return s
}

// wantIdle asserts that the side under test sends nothing.
func (p *fakePeer) wantIdle(why string) {
	p.bed.t.Helper()
	if m, ok := p.next(); ok {
		p.bed.t.Fatalf("sent %x; want silence: %s", m.octets, why)
	}
}

// A wantedSend is a message of the side under test, decoded.
type wantedSend struct {
	rpcrdma.Header
	octets      []byte
	payload     []byte
	invalidated fabric.Handle
}
