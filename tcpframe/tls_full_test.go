package tcpframe

import (
	"net"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// TestFullHandshakes: a host that has all places in the line of handshakes keeps no other host out of it.
func TestFullHandshakes(t *testing.T) {
	t.Parallel()
	y := newTLSTest(t, EngineOptions{Handshakes: 1, HandshakeQueue: 2, Loops: 1, tick: time.Hour}, ListenOptions{}, newTLS(t, serverConfig()), nil)
	q := y.e.servers
	q.SetPatience(time.Hour)
	hello := clientHello(t, clientConfig())
	var all []*peer
	begin := func(from string) *peer {
		t.Helper()
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		c, err := d.Dial("tcp", y.l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(peerLasts))
		p := &peer{t, c.(*net.TCPConn)}
		p.ask()
		p.send(hello)
		all = append(all, p)
		return p
	}
	state := func(what string, waiting int) {
		t.Helper()
		testkit.Eventually(t, what, func() bool {
			r, w := q.Counts()
			return r == 1 && w == waiting
		})
	}
	for i := range 3 {
		begin("127.0.0.1")
		state("the first host has all places", i)
	}
	begin("127.0.0.1").wantEnd("its own line is full")
	begin("127.0.0.2")
	state("another host waits, too", 3)
	begin("127.0.0.2").wantEnd("it has its share of the line")
	begin("127.0.0.3")
	state("a third host waits, too", 4)
	begin("127.0.0.4").wantEnd("twice as many wait as may")
	for _, p := range all {
		p.Close()
	}
	y.wantNone()
}
