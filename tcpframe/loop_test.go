package tcpframe

import (
	"bytes"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

func TestStartRaisesGOMAXPROCS(t *testing.T) {
	e := startEngine(t, EngineOptions{Loops: 2})
	if n := runtime.GOMAXPROCS(0); n < 3 {
		t.Errorf("GOMAXPROCS is %d with 2 loops: no P is left for the runtime's poller", n)
	}
	if len(e.Loops()) != 2 || e.Loops()[1].Index() != 1 {
		t.Errorf("loops %v", e.Loops())
	}
}

// A task that posts itself alternates with the sockets.
func TestSelfPostIsFair(t *testing.T) {
	e := startEngine(t, EngineOptions{Loops: 1})
	l := listen(t, e, ListenOptions{}, func(*Conn) RecordHandler { return echo() })
	var stop atomic.Bool
	ended := make(chan struct{})
	var again loop.TaskFunc
	again = func() {
		if stop.Load() {
			close(ended)
			return
		}
		e.Loops()[0].Post(again)
	}
	e.Loops()[0].Post(again)
	p := dialPeer(t, l)
	for range 100 {
		p.send(fragment(true, pattern(100, 0)))
		p.readRecord()
	}
	stop.Store(true)
	<-ended
}

// Sockets that close each other inside callbacks never get each other's events, although
// new sockets get their descriptor numbers at once.
func TestCloseEachOther(t *testing.T) {
	e := startEngine(t, EngineOptions{Loops: 1})
	var mu sync.Mutex
	var socks []*Conn
	var ended atomic.Int32
	l := listen(t, e, ListenOptions{}, func(*Conn) RecordHandler {
		r := newRecorder()
		r.opened = func(c *Conn) { mu.Lock(); socks = append(socks, c); mu.Unlock() }
		r.record = func(c *Conn, b Buffer) {
			c.Send([][]byte{b.Bytes()}, b)
			mu.Lock()
			all := socks
			socks = nil
			mu.Unlock()
			for _, o := range all {
				if o != c {
					o.Abort(nil)
				}
			}
			mu.Lock()
			socks = append(socks, c)
			mu.Unlock()
		}
		r.closed = func(*Conn, error) { ended.Add(1) }
		return r
	})
	const clients = 300
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range clients / 4 {
				c, err := net.Dial("tcp", l.Addr().String())
				if isReset(err) {
					continue // aborted before connect returned
				} else if err != nil {
					t.Error(err)
					return
				}
				c.SetDeadline(time.Now().Add(peerLasts))
				c.Write(fragment(true, pattern(100, 0)))
				if b, err := readRecord(c, nil); err == nil && !bytes.Equal(b, pattern(100, 0)) {
					t.Error("octets of another connection")
				} else if ne, ok := err.(net.Error); ok && ne.Timeout() {
					t.Error("a connection hangs")
				}
				c.Close()
			}
		})
	}
	wg.Wait()
	testkit.Eventually(t, "every connection ends once", func() bool { return ended.Load() == clients })
}
