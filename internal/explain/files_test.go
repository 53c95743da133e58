package explain

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/capture"
	"github.com/rdmabridge/rdmabridge/internal/names"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

// A talk is a capture of one connection that is made up message by message.
type talk struct {
	conn capture.Conn
	all  []capture.Message
}

func (c *talk) message(stream int, b []byte) {
	c.all = append(c.all, capture.Message{First: 1 + len(c.all), Conn: &c.conn, Stream: &c.conn.Streams[stream], Data: b, Length: int64(len(b))})
}

// call adds a Call of NFSv3, or of MOUNT if procedure is 0.
func (c *talk) call(xid, procedure uint32, args ...string) {
	program := uint32(oncrpc.ProgramNFS)
	if procedure == 0 {
		program, procedure = oncrpc.ProgramMount, 1
	}
	b := xdr.AppendWords(nil, xid, 0, 2, program, 3, procedure, 0, 0, 0, 0)
	for _, a := range args {
		b = xdr.AppendOpaque(b, []byte(a))
	}
	c.message(0, xdr.AppendWords(b, 0, 0, 0))
}

// reply adds a Reply with status 0 and a handle, if that is not "".
func (c *talk) reply(xid uint32, handle string) {
	b := xdr.AppendWords(nil, xid, 1, 0, 0, 0, 0, 0)
	if handle != "" {
		b = xdr.AppendOpaque(b, []byte(handle))
	}
	c.message(1, xdr.AppendWords(b, 0, 0))
}

// TestFiles: the Calls about a file and their Replies are chosen, by the path that it has when the Call is over. So are Calls
// without a Reply and those that are repeated. Calls about files without a name are counted.
func TestFiles(t *testing.T) {
	const lookup, read, rename = 3, 6, 14
	a, z := netip.MustParseAddrPort("192.0.2.1:700"), netip.MustParseAddrPort("192.0.2.2:2049")
	c := talk{conn: capture.Conn{Streams: [2]capture.Stream{{From: a, To: z}, {From: z, To: a}}}}
	c.call(1, 0, "/home")
	c.reply(1, "rrrr")
	c.call(2, lookup, "rrrr", "a")
	c.call(3, lookup, "rrrr", "b") // answered before the other
	c.reply(3, "bbbb")
	c.reply(2, "aaaa")
	c.call(4, read, "aaaa") // 6
	c.call(4, read, "aaaa")
	c.call(5, read, "bbbb")
	c.reply(5, "")
	c.reply(4, "") // 10
	c.call(6, read, "cccc")
	c.reply(6, "")
	c.call(7, rename, "rrrr", "a", "rrrr", "c")
	c.reply(7, "")
	c.call(8, read, "aaaa") // it is c now
	c.reply(8, "")
	c.call(9, read, "bbbb") // 17, without a Reply
	for _, v := range []struct {
		export, path string
		want         []int
		unknown      int
	}{
		{"", "/home/a", []int{6, 7, 10}, 1},
		{"", "/home/b", []int{8, 9, 17}, 1},
		{"", "**/c", []int{15, 16}, 1},
		{"", "/other", nil, 1},
		{"/home", "/home/b", []int{8, 9, 17}, 1},
		{"/other", "/home/b", nil, 1},
	} {
		var exports []string
		if v.export != "" {
			exports = []string{v.export}
		}
		f, err := names.NewFilter(exports, []string{v.path})
		if err != nil {
			t.Fatal(err)
		}
		found, unknown := findFiles(c.all, &f)
		if got := slices.Sorted(maps.Keys(found)); !slices.Equal(got, v.want) || unknown != v.unknown {
			t.Errorf("%s %s: messages %v and %d Calls that nobody knows, want %v and %d", v.export, v.path, got, unknown, v.want, v.unknown)
		}
	}
}

// TestFilesOfNoCapture: one message does not tell.
func TestFilesOfNoCapture(t *testing.T) {
	in, err := Read(bytes.NewReader(xdr.AppendWords(nil, 1, 0, 2, 100003, 3, 1, 0, 0, 0, 0, 0)))
	if err != nil {
		t.Fatal(err)
	}
	o := options
	if o.Files, err = names.NewFilter(nil, []string{"/a"}); err != nil {
		t.Fatal(err)
	}
	if err := Run(io.Discard, in, o); !errors.Is(err, errNoCapture) {
		t.Errorf("Run: %v", err)
	}
}
