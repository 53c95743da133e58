package eventloop

import (
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// A restless stream asks for another Flush at every Flush.
type restless struct {
	*testkit.EchoStream
}

func (r *restless) Attached(s loop.Socket) { r.Socket = s; s.FlushLate() }
func (r *restless) Flush()                 { r.Socket.FlushLate() }

// TestYieldWhileLate: a connection that always has more to do does not keep gnet from opening others.
func TestYieldWhileLate(t *testing.T) {
	t.Parallel()
	grp := startLoops(t, 1)
	for range 3 {
		a, b := testkit.TCPPair(t)
		defer b.Close()
		s := &restless{testkit.NewEchoStream(t)}
		attached := make(chan error, 1)
		go func() { attached <- grp.Loops()[0].Attach(a, s) }()
		select {
		case err := <-attached:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(testkit.Patience):
			t.Fatal("the loop opens no more connections")
		}
	}
}

// A lateFlusher is a stream that asks for a late Flush as soon as it is attached.
type lateFlusher struct {
	*testkit.EchoStream
	flushed chan struct{}
}

func (f *lateFlusher) Attached(s loop.Socket) { f.Socket = s; s.FlushLate() }
func (f *lateFlusher) Flush()                 { f.flushed <- struct{}{} }

// TestFlushLateInOpening: a late Flush that is asked for while gnet opens a connection comes, although nothing else
// happens on the loop.
func TestFlushLateInOpening(t *testing.T) {
	t.Parallel()
	grp := startLoops(t, 1)
	a, b := testkit.TCPPair(t)
	defer b.Close()
	s := &lateFlusher{testkit.NewEchoStream(t), make(chan struct{}, 1)}
	if err := grp.Loops()[0].Attach(a, s); err != nil {
		t.Fatal(err)
	}
	select {
	case <-s.flushed:
	case <-time.After(testkit.Patience):
		t.Fatal("no Flush")
	}
}
