//go:build lab

package lab

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
)

const (
	programNFS   = 100003
	programMount = 100005
)

// A rawClient is a TCP connection for Calls that a test encodes itself.
type rawClient struct{ net.Conn }

func dialRaw(t *testing.T, port int) *rawClient {
	t.Helper()
	c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &rawClient{c}
}

// dialRawFrom connects from the port of local, as a client that keeps its port does. The connection before has ended
// by reset.
func dialRawFrom(t *testing.T, local string, port int) *rawClient {
	t.Helper()
	at, err := net.ResolveTCPAddr("tcp", local)
	if err != nil {
		t.Fatal(err)
	}
	d := net.Dialer{LocalAddr: at, Control: proxytest.SharePort}
	c, err := d.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	_ = c.(*net.TCPConn).SetLinger(0)
	t.Cleanup(func() { c.Close() })
	return &rawClient{c}
}

func (c *rawClient) send(t *testing.T, calls ...[]byte) {
	t.Helper()
	for _, m := range calls {
		if err := testkit.WriteRecord(c, m); err != nil {
			t.Fatal(err)
		}
	}
}

// receive returns the next Reply.
func (c *rawClient) receive(t *testing.T) []byte {
	t.Helper()
	r, err := c.next()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// next is receive for goroutines other than the test's.
func (c *rawClient) next() ([]byte, error) {
	_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
	return testkit.ReadRecord(c)
}

// call sends m and returns the Reply's result.
func (c *rawClient) call(t *testing.T, m []byte) []byte {
	t.Helper()
	c.send(t, m)
	return result(t, c.receive(t))
}

// lookup returns the file handle, as XDR has it, of name in directory dir.
func (c *rawClient) lookup(t *testing.T, dir []byte, name string) []byte {
	t.Helper()
	return handle(t, c.call(t, appendString(nfsCall(freshXID(), 3, dir), name)))
}

// mountRoot returns the file handle, as XDR has it, of path, from the MOUNT service at port.
func mountRoot(t *testing.T, port int, path string) []byte {
	t.Helper()
	c := dialRaw(t, port)
	defer c.Close()
	return handle(t, c.call(t, appendString(proxytest.CallHeader(nil, freshXID(), programMount, 3, 1), path)))
}

// result returns the results of a Reply with SUCCESS. They begin with the status.
func result(t *testing.T, reply []byte) []byte {
	t.Helper()
	r, err := resultOf(reply)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// resultOf is result for goroutines other than the test's.
func resultOf(reply []byte) ([]byte, error) {
	// XID, REPLY, MSG_ACCEPTED, the verifier of AUTH_NONE, SUCCESS, and the result.
	const header = 24
	if len(reply) < header+4 || [20]byte(reply[4:header]) != [20]byte{3: 1} {
		return nil, fmt.Errorf("a Reply that has no result: % x", reply[:min(len(reply), 64)])
	}
	return reply[header:], nil
}

// handle returns the file handle at the beginning of a result with status OK.
func handle(t *testing.T, result []byte) []byte {
	t.Helper()
	if s := binary.BigEndian.Uint32(result); s != 0 || len(result) < 8 {
		t.Fatalf("status %d, of %d octets", s, len(result))
	}
	n := 8 + int(binary.BigEndian.Uint32(result[4:])+3)&^3
	if n > 8+64 || n > len(result) {
		t.Fatalf("no file handle: % x", result)
	}
	return result[4:n]
}

// nfsCall returns a Call of NFSv3 whose arguments begin with a file handle.
func nfsCall(xid, procedure uint32, handle []byte) []byte {
	return append(proxytest.CallHeader(nil, xid, programNFS, 3, procedure), handle...)
}

func appendString(b []byte, s string) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(s)))
	return append(append(b, s...), make([]byte, -len(s)&3)...)
}

var lastXID = func() *atomic.Uint32 {
	x := new(atomic.Uint32)
	x.Store(rand.Uint32()) // the server remembers the XIDs of an earlier run
	return x
}()

func freshXID() uint32 { return lastXID.Add(1) }

// standStill runs f while the guest is stopped. The guest receives afterwards what f sends.
func (g *guest) standStill(t *testing.T, f func()) {
	t.Helper()
	signal := func(s syscall.Signal) {
		if err := g.qemu.cmd.Process.Signal(s); err != nil {
			t.Errorf("the guest: %v", err)
		}
	}
	signal(syscall.SIGSTOP)
	defer signal(syscall.SIGCONT)
	f()
}
