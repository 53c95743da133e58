package demo

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/demo/demotest"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// serve starts a server for the length of the test and returns its address.
func serve(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = Serve(l, Options{}) // returns an error when l is closed
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	return l.Addr().String()
}

// TestDemoNFS tests the server without a bridge, so that a failure of the demo can be told
// from one of the server.
func TestDemoNFS(t *testing.T) {
	addr := serve(t)
	t.Run("go", func(t *testing.T) { demotest.GoClient(t, addr, 300) })
	t.Run("libnfs", func(t *testing.T) { demotest.Libnfs(t, addr, 16<<20) })
}

// A rawClient sends Calls with AUTH_NONE, with XID 1.
type rawClient struct {
	t *testing.T
	net.Conn
}

// call returns the Reply to m.
func (c rawClient) call(m []byte) []byte {
	c.t.Helper()
	if err := testkit.WriteRecord(c, m); err != nil {
		c.t.Fatal(err)
	}
	r, err := testkit.ReadRecord(c)
	if err != nil {
		c.t.Fatal(err)
	}
	return r
}

// ok returns the results of m behind the status.
func (c rawClient) ok(m []byte) []byte {
	c.t.Helper()
	r := c.call(m)
	if len(r) < 28 || !bytes.Equal(r[:28], testkit.Words(1, 1, 0, 0, 0, 0, 0)) {
		c.t.Fatalf("%x is answered with %x", m, r)
	}
	return r[28:]
}

// mount connects and mounts the root, whose handle it returns.
func mount(t *testing.T, addr string) (c rawClient, root []byte) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(testkit.Patience))
	c = rawClient{t, conn}
	r := c.ok(testkit.AppendOpaque(header(mountProgram, 3, 1), []byte("/")))
	return c, r[4:][:binary.BigEndian.Uint32(r)]
}

// TestRefusals: Calls that the server does not serve are refused between the long Replies to others, on one connection.
func TestRefusals(t *testing.T) {
	c, root := mount(t, serve(t))
	create := testkit.AppendOpaque(testkit.AppendOpaque(header(nfsProgram, 3, 8), root), []byte("f"))
	r := c.ok(testkit.AppendWords(create, 0, 0, 0, 0, 0, 0, 0)) // UNCHECKED, no attributes
	file := r[8:][:binary.BigEndian.Uint32(r[4:])]
	const size = 200_000
	data := testkit.Pattern(size, 1)
	c.ok(testkit.AppendOpaque(testkit.AppendWords(testkit.AppendOpaque(header(nfsProgram, 3, 7), file), 0, 0, size, 2), data))

	read := testkit.AppendWords(testkit.AppendOpaque(header(nfsProgram, 3, 6), file), 0, 0, size)
	unavailable, gss := header(nfsProgram, 3, 22), header(nfsProgram, 3, 0)
	gss[3], gss[27] = 3, 6
	unavailable[3] = 2
	const rounds = 50
	go func() {
		for range rounds {
			for _, m := range [][]byte{read, unavailable, gss} {
				if testkit.WriteRecord(c, m) != nil {
					return // the reader says why
				}
			}
		}
	}()
	got := make(map[string]int)
	for range 3 * rounds {
		r, err := testkit.ReadRecord(c)
		switch {
		case err != nil:
			t.Fatalf("%v after %v", err, got)
		case bytes.HasSuffix(r, data):
			got["READ"]++
		default:
			got[fmt.Sprintf("%x", r[3:])]++
		}
	}
	for _, want := range []string{"READ", fmt.Sprintf("%x", testkit.Words(2, 1, 0, 0, 0, 3)[3:]), fmt.Sprintf("%x", testkit.Words(3, 1, 1, 1, 1)[3:])} {
		if got[want] != rounds {
			t.Errorf("%d times %s, want %d; all: %v", got[want], want, rounds, got)
		}
	}
}

// TestReadDirPages: a client that asks for 512 octets of a directory at a time gets all of it, and no page is longer.
func TestReadDirPages(t *testing.T) {
	c, root := mount(t, serve(t))
	const dirs = 5
	for i := range dirs {
		name := bytes.Repeat([]byte{'a' + byte(i)}, maxName)
		m := testkit.AppendOpaque(testkit.AppendOpaque(header(nfsProgram, 3, 9), root), name)
		c.ok(testkit.AppendWords(m, 0, 0, 0, 0, 0, 0))
	}
	cookie, verifier := uint64(0), make([]byte, 8)
	seen := make(map[byte]int)
	for page := 0; ; page++ {
		if page > dirs {
			t.Fatal("the directory has no end")
		}
		m := binary.BigEndian.AppendUint64(testkit.AppendOpaque(header(nfsProgram, 3, 16), root), cookie)
		r := c.ok(testkit.AppendWords(append(m, verifier...), 512))
		if len(r) > 512 {
			t.Errorf("page %d has %d octets", page, len(r))
		}
		r = r[88:] // attributes
		verifier, r = r[:8], r[8:]
		for binary.BigEndian.Uint32(r) == 1 {
			n := binary.BigEndian.Uint32(r[12:])
			name := r[16:][:n]
			r = r[16+(n+3)&^3:]
			cookie, r = binary.BigEndian.Uint64(r), r[8:]
			if n == maxName {
				seen[name[0]]++
			}
		}
		if binary.BigEndian.Uint32(r[4:]) == 1 {
			break
		}
	}
	if len(seen) != dirs {
		t.Errorf("listed %v, want %d names", seen, dirs)
	}
	for name, n := range seen {
		if n != 1 {
			t.Errorf("%c is listed %d times", name, n)
		}
	}
}
