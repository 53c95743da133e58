package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
)

// A slowServer answers an RPC Call over TCP for each value in answer.
type slowServer struct {
	addr   string
	got    chan struct{} // receives a value for each Call
	answer chan struct{} // the test sends a value for each Reply
}

func startSlowServer(t *testing.T) *slowServer {
	t.Helper()
	s := &slowServer{got: make(chan struct{}, 8), answer: make(chan struct{}, 8)}
	over := make(chan struct{}) // a Call need not be answered
	l, err := proxytest.ListenTCP("127.0.0.1:0", proxytest.Behaviour{Intercept: func(c *oncrpc.Call) ([]byte, bool) {
		s.got <- struct{}{}
		select {
		case <-s.answer:
			return oncrpc.AppendAccepted(nil, c.XID, oncrpc.Success), true
		case <-over:
			return nil, true
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	s.addr = l.Addr()
	t.Cleanup(func() {
		close(over)
		l.Close()
	})
	return s
}

// nullCall returns a Call of procedure 0 with AUTH_NONE.
func nullCall(xid, program, version uint32) []byte {
	var b []byte
	for _, v := range []uint32{xid, 0, 2, program, version, 0, 0, 0, 0, 0} {
		b = binary.BigEndian.AppendUint32(b, v)
	}
	return b
}

// slowConfig returns a configuration with upstream s. It disables probes, which s would
// count as Calls.
func slowConfig(s *slowServer, drain string) string {
	return fmt.Sprintf(`
listeners: [{name: nfs, address: 127.0.0.1:0, upstream: server}]
upstreams: [{name: server, transport: tcp, endpoints: [%q], timeouts: {probe: none}}]
admin: {address: 127.0.0.1:0}
drain: {timeout: %s}
`, s.addr, drain)
}

func callSlow(t *testing.T, addr string, s *slowServer) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(testkit.Patience))
	if _, err := c.Write(testkit.Record(nullCall(7, 100003, 3))); err != nil {
		t.Fatal(err)
	}
	select {
	case <-s.got:
	case <-time.After(testkit.Patience):
		t.Fatal("the Call does not arrive")
	}
	return c
}

// TestDrain: after SIGTERM /readyz fails, no client can connect, and idle connections are
// closed. A Call in flight is answered, then its connection is closed and the bridge ends.
func TestDrain(t *testing.T) {
	s := startSlowServer(t)
	b, signals, wait := startServe(t, slowConfig(s, "1m"))
	addr, url := b.proxy.Addr("nfs"), "http://"+b.admin.Addr()
	idle, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer idle.Close()
	busy := callSlow(t, addr, s)
	if code, body := get(t, url+"/readyz"); code != http.StatusOK {
		t.Errorf("/readyz before: %d %q", code, body)
	}

	signals <- syscall.SIGTERM
	idle.SetReadDeadline(time.Now().Add(testkit.Patience))
	if _, err := idle.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the idle client: %v, want EOF", err)
	}
	idle.Close() // as clients do at the end of a connection
	if code, body := get(t, url+"/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "draining") {
		t.Errorf("/readyz while draining: %d %q", code, body)
	}
	if code, _ := get(t, url+"/livez"); code != http.StatusOK {
		t.Errorf("/livez while draining: %d", code)
	}
	if c, err := net.Dial("tcp", addr); err == nil {
		c.Close()
		t.Error("a client was let in while draining")
	}
	s.answer <- struct{}{}
	if m, err := testkit.ReadRecord(busy); err != nil || binary.BigEndian.Uint32(m) != 7 {
		t.Errorf("the Call in flight: %x, %v; want its Reply", m, err)
	}
	if _, err := busy.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the busy client: %v, want EOF after its Reply", err)
	}
	busy.Close()
	if err := wait(); err != nil {
		t.Errorf("serve: %v", err)
	}
	if n := b.arena.Outstanding(); n != 0 {
		t.Errorf("%d leases outstanding at the end", n)
	}
}

// TestDrainAborted: a Call that is never answered delays the end until drain.timeout or
// until a second signal.
func TestDrainAborted(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, timeout string
		second        bool
		want          string
	}{
		{"second signal", "1h", true, "second signal: interrupt"},
		{"deadline", "100ms", false, "deadline exceeded"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := startSlowServer(t)
			b, signals, wait := startServe(t, slowConfig(s, tc.timeout))
			c := callSlow(t, b.proxy.Addr("nfs"), s)
			signals <- syscall.SIGTERM
			if tc.second {
				signals <- syscall.SIGTERM // an echo of the first
				url := "http://" + b.admin.Addr()
				testkit.Eventually(t, "/readyz says that the bridge drains", func() bool {
					_, body := get(t, url+"/readyz")
					return strings.Contains(body, "draining")
				})
				// The test cannot tell when the drain began, so it repeats the signal.
				over := make(chan struct{})
				defer close(over)
				go func() {
					for {
						select {
						case signals <- syscall.SIGINT:
						case <-over:
							return
						}
						select {
						case <-time.After(signalEcho):
						case <-over:
							return
						}
					}
				}()
			}
			if err := wait(); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("serve: %v, want %s", err, tc.want)
			}
			if _, err := c.Read(make([]byte, 1)); err == nil {
				t.Error("the client got a Reply that the server did not send")
			}
			if n := b.arena.Outstanding(); n != 0 {
				t.Errorf("%d leases outstanding at the end", n)
			}
			close(s.answer)
		})
	}
}

// TestSignalEcho: a signal right behind the first one is its echo. Only one that comes later cuts the drain short.
func TestSignalEcho(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		signals := make(chan os.Signal, 3)
		ctx, cancel := context.WithCancelCause(t.Context())
		go service{signals: signals}.cancelOnSignal(cancel, nil)
		synctest.Wait()
		signals <- syscall.SIGTERM
		time.Sleep(signalEcho - 1)
		signals <- syscall.SIGTERM
		synctest.Wait()
		if ctx.Err() != nil {
			t.Errorf("the echo of a signal ended the drain: %v", context.Cause(ctx))
		}
		time.Sleep(time.Nanosecond)
		signals <- syscall.SIGHUP
		synctest.Wait()
		if ctx.Err() != nil {
			t.Errorf("SIGHUP ended the drain: %v", context.Cause(ctx))
		}
		signals <- syscall.SIGINT
		synctest.Wait()
		if err := context.Cause(ctx); err == nil || err.Error() != "second signal: interrupt" {
			t.Errorf("behind the second signal: %v", err)
		}
	})
}
