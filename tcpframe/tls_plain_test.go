package tcpframe

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// What follows the probe in plain text is never a Call, and the peer gets no answer to it: RFC 9289 Section 5.1.1.
func TestTLSInjected(t *testing.T) {
	t.Parallel()
	var records atomic.Int32
	y := newTLSTest(t, EngineOptions{}, ListenOptions{}, newTLS(t, serverConfig()), func(h *secureEcho) {
		h.record = func(_ *Conn, b Buffer) { records.Add(1); b.Release() }
	})
	hello := clientHello(t, clientConfig())
	for i, tt := range []struct {
		name   string
		behind []byte
	}{
		{"a Call", fragment(true, pattern(100, 1))},
		{"a part of a mark", []byte{0x80}},
		{"a ClientHello", hello},
		{"megabytes", bytes.Repeat(fragment(true, pattern(100, 1)), 20_000)},
	} {
		p := dialPeer(t, y.l)
		go p.Write(append(fragment(true, probe), tt.behind...))
		if n := p.wantEnd(tt.name); n > 0 {
			t.Errorf("%s: %d octets came back", tt.name, n)
		}
		y.wantFailure(TLSInjected, uint64(i)+1)
	}
	if n := records.Load(); n > 0 {
		t.Errorf("%d records were delivered", n)
	}
	y.wantNone()
}

// What follows a probe whose answer waits is no Call either, wherever it lies when TLS begins.
func TestTLSInjectedMeanwhile(t *testing.T) {
	t.Parallel()
	hello, call := clientHello(t, clientConfig()), fragment(true, pattern(100, 1))
	for _, tt := range []struct {
		name        string
		same, later []byte // in the segment of the probe, and in another one
		reads       bool
	}{
		{name: "a Call", same: call},
		{name: "a part of a Call", same: call[:50]},
		{name: "a part of a mark", same: call[:1]},
		{name: "a ClientHello", same: hello},
		{name: "a Call later", later: call},
		{name: "a ClientHello later", later: hello},
		{name: "a Call, and one later", same: call, later: call},
		{name: "a part of a Call that was read", same: call[:50], reads: true},
		{name: "a part of a mark that was read", same: call[:1], reads: true},
		{name: "nothing"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			answer := make(chan struct{})
			waits := make(chan struct{}, 1)
			var records atomic.Int32
			y := newTLSTest(t, EngineOptions{Loops: 1}, ListenOptions{}, newTLS(t, serverConfig()), func(h *secureEcho) {
				h.answer, h.reads, h.waits = answer, tt.reads, waits
				h.record = func(c *Conn, b Buffer) { records.Add(1); c.Send([][]byte{b.Bytes()}, b) }
			})
			p := dialPeer(t, y.l)
			p.send(append(fragment(true, probe), tt.same...))
			<-waits
			if tt.later != nil {
				p.send(tt.later)
				y.last().arrives(t, markLen+len(probe)+len(tt.same)+len(tt.later))
			}
			close(answer)
			if tt.name == "nothing" {
				if got := p.readRecord(); !bytes.Equal(got, starttls) {
					t.Fatalf("the answer to the probe is %q", got)
				}
				s := p.secure(clientConfig())
				s.served(100)
				s.Close()
				y.wantNone()
				return
			}
			if n := p.wantEnd(tt.name); n > 0 {
				t.Errorf("%d octets came back", n)
			}
			y.wantFailure(TLSInjected, 1)
			if n := records.Load(); n > 0 {
				t.Errorf("%d records were delivered", n)
			}
			y.wantNone()
		})
	}
}

// Octets that come between StartTLS and the Reply to the probe cannot be an answer to it.
func TestTLSInjectedBeforeReply(t *testing.T) {
	t.Parallel()
	hello, call := clientHello(t, clientConfig()), fragment(true, pattern(100, 1))
	for name, b := range map[string][]byte{"a Call": call, "a ClientHello": hello} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			started := make(chan struct{})
			y := newTLSTest(t, EngineOptions{Loops: 1}, ListenOptions{}, newTLS(t, serverConfig()), func(h *secureEcho) {
				h.plain = func(c *Conn) {
					c.Loop().Finish(loop.TaskFunc(func() { // behind StartTLS, before anything is written
						close(started)
						testkit.Eventually(t, "octets wait", c.sock.InputWaits)
					}))
				}
			})
			p := dialPeer(t, y.l)
			p.send(fragment(true, probe))
			<-started
			p.send(b)
			if n := p.wantEnd(name); n > 0 {
				t.Errorf("%d octets came back", n)
			}
			y.wantFailure(TLSInjected, 1)
			y.wantNone()
		})
	}
}

// Plain text behind a ClientHello whose handshake waits for its turn is no Call, and ends the handshake.
func TestTLSInjectedInQueue(t *testing.T) {
	t.Parallel()
	var records atomic.Int32
	y := newTLSTest(t, EngineOptions{Handshakes: 1, Loops: 1}, ListenOptions{}, newTLS(t, serverConfig()), func(h *secureEcho) {
		h.record = func(_ *Conn, b Buffer) { records.Add(1); b.Release() }
	})
	q := y.e.servers
	q.SetPatience(time.Hour)
	hello, call := clientHello(t, clientConfig()), fragment(true, pattern(100, 1))
	first, second := y.ask(), y.ask()
	first.send(hello)
	testkit.Eventually(t, "a handshake has the goroutine", func() bool { running, _ := q.Counts(); return running == 1 })
	second.send(append(bytes.Clone(hello), call...))
	testkit.Eventually(t, "another one waits", func() bool { _, waiting := q.Counts(); return waiting == 1 })
	second.send(call)
	first.Close()
	second.wantEnd("plain text behind the ClientHello")
	y.wantFailure(TLSGarbage, 1)
	if n := records.Load(); n > 0 {
		t.Errorf("%d records were delivered", n)
	}
	y.wantNone()
}

// What a server sends behind its STARTTLS in plain text is no record, whenever it comes.
func TestTLSInjectedByServer(t *testing.T) {
	t.Parallel()
	reply := fragment(true, pattern(100, 1))
	for _, tt := range []struct {
		name        string
		same, later []byte // in the segment of the Reply to the probe, and in another one
		queued      bool   // the handshake waits for its turn
	}{
		{name: "a Reply", same: reply},
		{name: "a part of a mark", same: reply[:1]},
		{name: "a Reply in the queue", later: reply, queued: true},
		{name: "an octet in the queue", later: reply[:1], queued: true},
		{name: "an alert in the queue", later: []byte{21, 3, 3, 0, 2, 1, 0}, queued: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			y := newTLSTest(t, EngineOptions{Handshakes: 1, Loops: 1}, ListenOptions{}, newTLS(t, serverConfig()), nil)
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			q := y.e.clients
			if tt.queued {
				q.Limit(-1, 10) // no handshake begins
			}
			h := &secureEcho{recorder: newRecorder(), tls: newTLS(t, clientConfig())}
			h.opened = func(c *Conn) { c.Send([][]byte{probe}, nil) }
			var records atomic.Int32
			h.record = func(c *Conn, b Buffer) {
				defer b.Release()
				if records.Add(1) == 1 && bytes.Equal(b.Bytes(), starttls) {
					c.StartTLS(h.tls)
				}
			}
			h.secured = func(*Conn, *tls.ConnectionState) { t.Error("the Conn is secured") }
			if _, err := y.e.Dial(context.Background(), l.Addr().String(), nil, DialOptions{Name: "up", Conn: bounds(ConnOptions{Memory: lend(y.mem)})}, recordOf{h}); err != nil {
				t.Fatal(err)
			}
			nc, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			p := &peer{t, nc.(*net.TCPConn)}
			if got := p.readRecord(); !bytes.Equal(got, probe) {
				t.Fatalf("the probe is %q", got)
			}
			p.send(append(fragment(true, starttls), tt.same...))
			if tt.queued {
				testkit.Eventually(t, "the handshake waits", func() bool { _, waiting := q.Counts(); return waiting == 1 })
				p.send(tt.later)
			}
			e, _ := errors.AsType[*TLSError](h.wait(t, "the Conn ends"))
			if e == nil || e.Reason != TLSInjected {
				t.Errorf("Closed(%v)", e)
			}
			if n := records.Load(); n != 1 {
				t.Errorf("%d records were delivered", n)
			}
			if n := p.wantEnd("plain text behind STARTTLS"); n > 0 {
				t.Errorf("the server has got %d octets", n)
			}
			y.wantNone()
		})
	}
}
