package eventloop

import (
	"bytes"
	"io"
	"net"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// A greedy stream writes msg. In each pass it writes until Writev takes no more.
type greedy struct {
	t      *testing.T
	s      loop.Socket
	msg    []byte
	passes int
	most   int // octets in the largest pass
	ended  chan struct{}
	// between is called between two calls of Writev in the same pass, unless it is nil.
	between func()
}

func (g *greedy) Attached(s loop.Socket) { g.s = s; g.write() }
func (g *greedy) Received([]byte)        {}
func (g *greedy) Writable()              { g.write() }
func (g *greedy) Flush()                 {}
func (g *greedy) Detached(error)         { close(g.ended) }

func (g *greedy) write() {
	g.passes++
	pass := 0
	for len(g.msg) > 0 {
		half := len(g.msg) / 2
		n, err := g.s.Writev([][]byte{g.msg[:half], nil, g.msg[half:]})
		if err != nil {
			g.t.Errorf("Writev: %v", err)
			return
		}
		if n == 0 {
			break
		}
		g.msg = g.msg[n:]
		pass += n
		if g.between != nil {
			g.between()
		}
	}
	g.most = max(g.most, pass)
	if len(g.msg) == 0 {
		g.s.Close()
	}
}

// run attaches g to l, and returns when its peer has got all of msg and g has ended.
func (g *greedy) run(l *Loop) {
	g.t.Helper()
	near, far := testkit.TCPPair(g.t)
	near.SetWriteBuffer(16 << 20) // the kernel may limit it
	msg := g.msg
	if err := l.Attach(near, g); err != nil {
		g.t.Fatal(err)
	}
	got, err := io.ReadAll(far)
	if err != nil || !bytes.Equal(got, msg) {
		g.t.Fatalf("%d octets of %d, %v", len(got), len(msg), err)
	}
	<-g.ended
}

// A connection writes no more than its share in one pass, however fast its peer reads.
func TestPutShare(t *testing.T) {
	t.Parallel()
	for _, sh := range []share{few, many} {
		grp := startLoops(t, 1)
		l := grp.Loops()[0]
		l.Post(loop.TaskFunc(func() { l.share = sh }))
		msg := testkit.Pattern(16<<20, 3)
		g := &greedy{t: t, msg: msg, ended: make(chan struct{})}
		g.run(l)
		if g.most > sh.put || g.passes < len(msg)/sh.put {
			t.Errorf("%d octets in one of %d passes, want at most %d", g.most, g.passes, sh.put)
		}
	}
}

// TestPutShareShrinks: in one pass a connection writes its share, the share becomes smaller because others have become
// busy, and the connection writes again. It writes nothing more in this pass, and the rest in later ones.
func TestPutShareShrinks(t *testing.T) {
	grp := startLoops(t, 1)
	l := grp.Loops()[0]
	g := &greedy{t: t, msg: testkit.Pattern(1<<20, 3), ended: make(chan struct{}), between: func() { l.share = many }}
	g.run(l)
	if g.most <= many.put || g.passes < 2 {
		t.Errorf("%d octets in one of %d passes: the first share was not larger than the second one", g.most, g.passes)
	}
}

// TestApportion: shares are small while more than crowded sockets are busy.
func TestApportion(t *testing.T) {
	l := startLoops(t, 1).Loops()[0]
	ends := make([]*net.TCPConn, crowded+1)
	for i := range ends {
		near, far := testkit.TCPPair(t)
		if err := l.Attach(near, testkit.NewEchoStream(t)); err != nil {
			t.Fatal(err)
		}
		ends[i] = far
	}
	shares := make(chan share)
	msg := testkit.Pattern(100, 0)
	for _, tt := range []struct {
		busy        int
		want, after share // the share before the next sweep, and after it
	}{{crowded + 1, many, many}, {crowded, many, few}, {crowded, few, few}, {crowded + 1, many, many}, {0, many, few}} {
		for _, c := range ends[:tt.busy] {
			c.Write(msg)
			if _, err := io.ReadFull(c, make([]byte, len(msg))); err != nil {
				t.Fatal(err)
			}
		}
		l.Post(loop.TaskFunc(func() {
			shares <- l.share
			l.Sweep()
			shares <- l.share
		}))
		if got, after := <-shares, <-shares; got != tt.want || after != tt.after {
			t.Errorf("%d busy sockets: %+v, then %+v, want %+v, %+v", tt.busy, got, after, tt.want, tt.after)
		}
	}
}
