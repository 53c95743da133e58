package exports

import (
	"bytes"
	"context"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
)

// A server answers rpcbind and MOUNT at one port.
type server struct {
	t    *testing.T
	port uint16

	mu      sync.Mutex
	roots   map[string][]byte
	hidden  []string // that the list does not have
	mounted []string
	refuses bool       // everything
	from    netip.Addr // of the latest Call
	calls   int
}

func newServer(t *testing.T, roots map[string][]byte, hidden ...string) *server {
	s := &server{t: t, roots: roots, hidden: hidden}
	l, err := proxytest.ListenTCP("127.0.0.1:0", proxytest.Behaviour{InterceptTCP: func(h *oncrpc.Call, c *proxytest.TCPConn) ([]byte, bool) {
		s.mu.Lock()
		s.from = netip.MustParseAddrPort(c.RemoteAddr().String()).Addr()
		s.mu.Unlock()
		return append(oncrpc.AppendAccepted(nil, h.XID, oncrpc.Success), s.answer(h)...), true
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	s.port = netip.MustParseAddrPort(l.Addr()).Port()
	return s
}

func (s *server) answer(h *oncrpc.Call) (b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	if h.Program == oncrpc.ProgramRPCBind {
		if s.refuses {
			return xdr.AppendUint32(nil, 0)
		}
		return xdr.AppendUint32(nil, uint32(s.port))
	}
	x := xdr.NewCursor(h.Message, h.Args)
	switch h.Procedure {
	case procExport:
		for p := range s.roots {
			if !slices.Contains(s.hidden, p) {
				b = xdr.AppendOpaque(xdr.AppendUint32(b, 1), []byte(p))
				b = xdr.AppendUint32(xdr.AppendOpaque(xdr.AppendUint32(b, 1), []byte("everybody")), 0)
			}
		}
		return xdr.AppendUint32(b, 0)
	case procMount:
		pos, n := x.Opaque()
		path := string(h.Message[pos : pos+n])
		root := s.roots[path]
		if root == nil {
			return xdr.AppendUint32(nil, 13)
		}
		s.mounted = append(s.mounted, path)
		return xdr.AppendWords(xdr.AppendOpaque(xdr.AppendUint32(nil, 0), root), 1, oncrpc.FlavorSys)
	case procUnmount:
		pos, n := x.Opaque()
		i := slices.Index(s.mounted, string(h.Message[pos:pos+n]))
		if i < 0 {
			s.t.Error("what is not mounted is given back")
			return nil
		}
		s.mounted = slices.Delete(s.mounted, i, i+1)
	}
	return nil
}

// root is the handle of an export's root, with a key that is a number.
func root(number byte) []byte { return []byte{1, 0, 1, 0, number, 0, 0, 0} }

// at returns what x says of a Call with this handle.
func at(t *testing.T, x *nfs.Exports, handle []byte) nfs.Touched {
	m := xdr.AppendOpaque(xdr.AppendWords(nil, 1, 0, 2, oncrpc.ProgramNFS, 3, 1, 0, 0, 0, 0), handle)
	var h oncrpc.Call
	if err := oncrpc.ParseCall(m, &h); err != nil {
		t.Fatal(err)
	}
	return x.Touched(&h, false)
}

// watch returns a Watch of the servers, whose log goes to the buffer.
func watch(x *nfs.Exports, log *bytes.Buffer, storage ...Storage) *Watch {
	return New(x, storage, zerolog.New(log))
}

// TestAsk: what the list has, what rules name and what the settings name is asked for, and no mount stays. MOUNT may be at a port that rpcbind
// knows, or at one that the settings say.
func TestAsk(t *testing.T) {
	for _, byRPCBind := range []bool{true, false} {
		s := newServer(t, map[string][]byte{"/home": root(1), "/data": root(2), "/data/below": root(3), "/hidden": root(4)}, "/data/below", "/hidden")
		x := nfs.NewExports([]string{"/data/below", "/home"})
		var log bytes.Buffer
		// The first host is not there: RFC 6761 Section 6.4.
		storage := Storage{Name: "storage", From: netip.MustParseAddr("127.0.0.7"), Hosts: []string{"no.host.invalid", "127.0.0.1"}, Port: s.port, Paths: []string{"/hidden"}}
		w := watch(x, &log, storage)
		if byRPCBind {
			w.storage[0].Port, w.storage[0].bind = 0, s.port
		}
		if w.round(t.Context()) {
			t.Error("something is missing:", log.String())
		}
		for number, want := range map[byte]uint64{1: 2, 2: nfs.Elsewhere, 3: 1, 4: nfs.Elsewhere} {
			if got := at(t, x, root(number)); got != (nfs.Touched{May: want}) {
				t.Errorf("handle %d: %+v, want %b", number, got, want)
			}
		}
		if s.from != storage.From {
			t.Error("asked from", s.from)
		}
		if len(s.mounted) > 0 {
			t.Error("still mounted:", s.mounted)
		}
		if !strings.Contains(log.String(), `"event":"exports_known"`) || !strings.Contains(log.String(), `"known":4`) {
			t.Error(log.String())
		}
	}
}

// TestMissing: the log says once what is wrong, and what is known counts until the storage says something else.
func TestMissing(t *testing.T) {
	s := newServer(t, map[string][]byte{"/home": root(1)})
	x := nfs.NewExports([]string{"/home", "/nowhere"})
	var log bytes.Buffer
	w := watch(x, &log, Storage{Name: "storage", Hosts: []string{"127.0.0.1"}})
	w.storage[0].bind = s.port
	says := func(event string, times int) {
		t.Helper()
		if n := strings.Count(log.String(), `"event":"`+event+`"`); n != times {
			t.Errorf("%s is %d times in the log: %s", event, n, log.String())
		}
	}
	for range 2 {
		if !w.round(t.Context()) {
			t.Error("nothing is missing")
		}
	}
	says("exports_missing", 1)
	s.mu.Lock()
	s.refuses = true
	s.mu.Unlock()
	if !w.round(t.Context()) {
		t.Error("a storage without MOUNT has answered")
	}
	says("exports_unknown", 1)
	if got := at(t, x, root(1)); got.May != 1 {
		t.Errorf("what was known is forgotten: %+v", got)
	}
	s.mu.Lock()
	s.refuses, s.roots = false, map[string][]byte{"/home": []byte("a handle of somebody else"), "/nowhere": root(1)}
	s.mu.Unlock()
	if w.round(t.Context()) {
		t.Error("something is missing")
	}
	says("exports_formless", 1)
	if got := at(t, x, root(1)); got.May != 2 {
		t.Errorf("what the storage has said is not known: %+v", got)
	}
}

// TestStrangeHandle: a handle that nobody knows makes the Watch ask again, before its time.
func TestStrangeHandle(t *testing.T) {
	uuid := append([]byte{1, 0, 6, 0}, make([]byte, 16)...)
	s := newServer(t, map[string][]byte{"/home": root(1)})
	x := nfs.NewExports([]string{"/home"})
	var log bytes.Buffer
	w := watch(x, &log, Storage{Name: "storage", Hosts: []string{"localhost"}, Port: s.port})
	w.soonest = time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w.Start(ctx)
	defer w.Close()
	if got := at(t, x, uuid); !got.Unsure {
		t.Errorf("a handle that is not known: %+v", got)
	}
	s.mu.Lock()
	s.roots["/new"] = uuid
	s.mu.Unlock()
	for at(t, x, uuid) != (nfs.Touched{May: nfs.Elsewhere}) {
		select {
		case <-ctx.Done():
			t.Fatal("the new export is not known after " + strconv.Itoa(s.calls) + " questions")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// TestClose: a Watch that is asking ends at once, also one that was never started.
func TestClose(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // answers nothing
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var log bytes.Buffer
	w := watch(nfs.NewExports([]string{"/home"}), &log, Storage{Name: "storage", Hosts: []string{"127.0.0.1"}, Port: uint16(l.Addr().(*net.TCPAddr).Port)})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w.Start(ctx)
	w.Close()
	watch(nfs.NewExports([]string{"/home"}), &log).Close()
}
