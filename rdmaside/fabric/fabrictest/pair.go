package fabrictest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// A pair is a connection with both its ends.
type pair struct {
	f           *Fixture
	listener    fabric.Listener
	dial, other *endpoint // other accepted
}

// pairOptions say how to connect a pair.
type pairOptions struct {
	dial, accept fabric.ConnOptions
	listen       fabric.ListenOptions
	open         func(incoming func(fabric.Incoming)) fabric.Listener // nil calls Listen
	prepare      func(dial, other *endpoint)
	quiet        bool // no first message
	acceptLoop   loop.Loop
}

// defaultConn has the options that tests of the suite connect with by default.
var defaultConn = fabric.ConnOptions{ORD: 8, IRD: 8}

// connect dials and accepts one connection. Then the dialling side sends the first
// message, because MPA lets the accepting side send nothing before.
func (f *Fixture) connect(t *testing.T, o pairOptions) *pair {
	t.Helper()
	if o.dial.ORD == 0 {
		o.dial.ORD, o.dial.IRD = defaultConn.ORD, defaultConn.IRD
	}
	if o.accept.ORD == 0 {
		o.accept.ORD, o.accept.IRD = defaultConn.ORD, defaultConn.IRD
	}
	if o.acceptLoop == nil {
		o.acceptLoop = f.AcceptLoop
	}
	p, err := f.try(t, &o)
	for n := 0; n < retries && o.open == nil && o.prepare == nil && f.passes(err); n++ {
		t.Logf("connected again after: %v", err)
		p, err = f.try(t, &o)
	}
	if err != nil {
		t.Fatal(err)
	}
	if !o.quiet {
		first := p.dial.send([]byte("first"))
		p.other.waitMessages(1)
		p.dial.waitDone(first)
		p.other.mu.Lock()
		p.other.messages = nil
		p.other.mu.Unlock()
	}
	return p
}

// try makes one attempt to connect.
func (f *Fixture) try(t *testing.T, o *pairOptions) (*pair, error) {
	t.Helper()
	p := &pair{
		f: f, dial: newEndpoint(t, "dialled", f.DialLoop), other: newEndpoint(t, "accepted", o.acceptLoop),
	}
	p.dial.peer, p.other.peer = p.other, p.dial
	if o.prepare != nil {
		o.prepare(p.dial, p.other)
	}
	accepted := make(chan error, 1)
	incoming := func(in fabric.Incoming) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_, err := in.Accept(ctx, o.acceptLoop, o.accept, p.other)
		accepted <- err
	}
	if o.open == nil {
		p.listener = f.listen(t, o.listen, incoming)
	} else {
		p.listener = o.open(incoming)
		t.Cleanup(func() { _ = p.listener.Close() })
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := f.Dialer.Dial(ctx, f.DialLoop, p.listener.Addr().String(), o.dial, p.dial)
	if err != nil {
		err = fmt.Errorf("Dial: %w", err)
		select {
		case refused := <-accepted: // the listening side knows why
			err = errors.Join(err, refused)
		case <-time.After(50 * time.Millisecond):
		}
		return nil, err
	}
	if err := <-accepted; err != nil {
		return nil, fmt.Errorf("Accept: %w", err)
	}
	if c != p.dial.conn {
		t.Errorf("Dial returned %v, Setup was given %v", c, p.dial.conn)
	}
	t.Cleanup(func() { p.end() })
	return p, nil
}

// end closes both sides, if the test has not.
func (p *pair) end() {
	for _, e := range []*endpoint{p.dial, p.other} {
		if e.conn == nil {
			continue
		}
		e.do(func() { e.conn.Close(errTestOver) })
		_ = e.waitClosed()
	}
}

var errTestOver = errors.New("test over")

// sides returns the side that posts and the other one. The accepting side posts if
// accepted is set.
func (p *pair) sides(accepted bool) (from, to *endpoint) {
	if accepted {
		return p.other, p.dial
	}
	return p.dial, p.other
}

// exchange sends one message each way.
func (p *pair) exchange() {
	for _, e := range []struct{ from, to *endpoint }{{p.dial, p.other}, {p.other, p.dial}} {
		e.to.mu.Lock()
		n := len(e.to.messages)
		e.to.mu.Unlock()
		e.from.send([]byte("message"))
		e.to.waitMessages(n + 1)
	}
}
