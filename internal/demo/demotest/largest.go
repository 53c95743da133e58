package demotest

import (
	"bytes"
	"encoding/binary"
	"net"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// Largest writes and reads 4 MiB at once, which the bridge carries with its defaults, through a bridge to the
// server. The server offers more, and answers READs of more in full; the bridge does not let clients ask for more.
func Largest(t *testing.T, addr string) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(testkit.Patience))
	c := rawClient{t: t, conn: conn}

	const largest, longest = 4 << 20, 4<<20 + 56<<10 // of a READ, and of a WRITE in a record of limits.record
	root := opaque(c.call(100005, 1, testkit.AppendOpaque(nil, []byte("/"))))
	info := c.call(100003, 19, testkit.AppendOpaque(nil, root))
	numbers := info[len(info)-48:] // rtmax, rtpref, rtmult, wtmax, wtpref, wtmult, dtpref
	if rtmax, wtmax := binary.BigEndian.Uint32(numbers), binary.BigEndian.Uint32(numbers[12:]); rtmax != largest || wtmax != longest {
		t.Errorf("rtmax %d, wtmax %d, want %d and %d", rtmax, wtmax, largest, longest)
	}
	create := testkit.AppendOpaque(testkit.AppendOpaque(nil, root), []byte("largest"))
	file := testkit.AppendOpaque(nil, opaque(c.call(100003, 8, testkit.AppendWords(create, 0, 0, 0, 0, 0, 0, 0))[4:]))
	data := testkit.Pattern(2*largest, 5)
	for _, at := range []uint32{0, largest} {
		args := testkit.AppendWords(bytes.Clone(file), 0, at, largest, 2)
		if r := c.call(100003, 7, testkit.AppendOpaque(args, data[at:at+largest])); binary.BigEndian.Uint32(r[len(r)-16:]) != largest {
			t.Fatalf("WRITE at %d: %x", at, r)
		}
	}
	for at := uint32(0); at < 2*largest; at += largest {
		r := c.call(100003, 6, testkit.AppendWords(bytes.Clone(file), 0, at, 2*largest-at))
		if len(r) < largest || !bytes.Equal(r[len(r)-largest:], data[at:at+largest]) {
			t.Fatalf("READ of %d at %d: %d octets of results", 2*largest-at, at, len(r))
		}
	}
}

// opaque returns the opaque at the beginning of b.
func opaque(b []byte) []byte { return b[4:][:binary.BigEndian.Uint32(b)] }

// A rawClient sends NFSv3 and MOUNT Calls of AUTH_NONE.
type rawClient struct {
	t    *testing.T
	conn net.Conn
	xid  uint32
}

// call makes a Call of version 3 and returns the results behind the status, which must be good.
func (c *rawClient) call(program, procedure uint32, args []byte) []byte {
	c.t.Helper()
	c.xid++
	if err := testkit.WriteRecord(c.conn, append(testkit.Words(c.xid, 0, 2, program, 3, procedure, 0, 0, 0, 0), args...)); err != nil {
		c.t.Fatal(err)
	}
	m, err := testkit.ReadRecord(c.conn)
	if err != nil {
		c.t.Fatalf("procedure %d: %v", procedure, err)
	}
	if want := testkit.Words(c.xid, 1, 0, 0, 0, 0, 0); !bytes.HasPrefix(m, want) {
		c.t.Fatalf("procedure %d: %x", procedure, m[:min(len(m), 64)])
	}
	return m[28:]
}
