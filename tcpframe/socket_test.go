package tcpframe

import (
	"bytes"
	"io"
	"testing"
)

// A greedy stream writes msg, in each of its passes until nothing more is taken.
type greedy struct {
	t      *testing.T
	s      Socket
	msg    []byte
	passes int
	most   int // octets in one of them
	ended  chan struct{}
}

func (g *greedy) Attached(s Socket) { g.s = s; g.write() }
func (g *greedy) Received([]byte)   {}
func (g *greedy) Writable()         { g.write() }
func (g *greedy) Flush()            {}
func (g *greedy) Detached(error)    { close(g.ended) }

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
	}
	g.most = max(g.most, pass)
	if len(g.msg) == 0 {
		g.s.Close()
	}
}

// However fast the peer is, its neighbours on the loop have their turns.
func TestPutShare(t *testing.T) {
	e := startEngine(t, EngineOptions{Loops: 1})
	near, far := tcpPair(t)
	near.SetWriteBuffer(16 << 20) // as far as the system lets it
	msg := pattern(16<<20, 3)
	g := &greedy{t: t, msg: msg, ended: make(chan struct{})}
	if err := e.Loops()[0].Attach(near, g); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(far)
	if err != nil || !bytes.Equal(got, msg) {
		t.Fatalf("%d octets of %d, %v", len(got), len(msg), err)
	}
	<-g.ended
	if g.most > putBytes || g.passes < len(msg)/putBytes {
		t.Errorf("%d octets in one of %d passes, want at most %d", g.most, g.passes, putBytes)
	}
}
