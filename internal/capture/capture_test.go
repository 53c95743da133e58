package capture

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"
)

// testdata/tcp.pcap and iwarp.pcap hold the vectors of internal/rpc/ulb/nfs as captures.
// tshark finds the same messages in them. The XIDs in tcp.pcap differ, so that Calls and
// Replies pair.

type vector struct {
	ID      string
	Call    hexBytes
	Replies []struct {
		Reply        hexBytes
		ReplyReduced hexBytes `json:"reply_reduced"`
	}
}

type hexBytes []byte

func (b *hexBytes) UnmarshalText(text []byte) (err error) {
	*b, err = hex.AppendDecode(nil, text)
	return err
}

func vectors(t testing.TB) []vector {
	t.Helper()
	var f struct{ Vectors []vector }
	if err := json.Unmarshal(readFile(t, "../rpc/ulb/nfs/testdata/vectors.json"), &f); err != nil {
		t.Fatal(err)
	}
	return f.Vectors
}

func readFile(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func readMessages(t testing.TB, b []byte) (*Capture, []Message) {
	t.Helper()
	c, err := Read(b)
	if err != nil {
		t.Fatal(err)
	}
	return c, c.Messages()
}

func TestTCPVectors(t *testing.T) {
	c, got := readMessages(t, readFile(t, "testdata/tcp.pcap"))
	if c.Packets != 256 || len(c.Conns) != 48 || c.Err != nil {
		t.Errorf("%d packets, %d connections, error %v; want 256, 48 and none", c.Packets, len(c.Conns), c.Err)
	}
	want := func(i int, name string, m []byte) {
		t.Helper()
		if i >= len(got) {
			t.Fatalf("%d messages, %s is missing", len(got), name)
		}
		b, whole := got[i].Payload()
		if !whole || !bytes.Equal(b[4:], m[4:]) {
			t.Errorf("%s: message %d, packet %d, is %x, want %x", name, i, got[i].First, b, m)
		}
	}
	i := 0
	for _, v := range vectors(t) {
		for _, r := range v.Replies {
			want(i, v.ID, v.Call)
			want(i+1, v.ID+" reply", r.Reply)
			i += 2
		}
	}
	if len(got) != i {
		t.Errorf("%d messages, want %d", len(got), i)
	}
}

func TestIWARPVectors(t *testing.T) {
	_, got := readMessages(t, readFile(t, "testdata/iwarp.pcap"))
	if len(got) != 20 {
		t.Fatalf("%d messages, want 20", len(got))
	}
	all := vectors(t)
	for i := range got {
		m := &got[i]
		if m.RDMA == nil || m.RDMA.Err != nil || m.BadCRC || m.Missing > 0 {
			t.Fatalf("packet %d: %+v", m.First, m)
		}
		b, whole := m.Payload()
		// One Reply has its second item inline, unlike every vector.
		found := m.First == 54 && len(b) == 156
		for _, v := range all {
			switch {
			case m.RDMA.Call:
				found = found || bytes.Equal(b, v.Call)
			default:
				for _, r := range v.Replies {
					found = found || bytes.Equal(b, r.ReplyReduced) || bytes.Equal(b, r.Reply)
				}
			}
		}
		if !whole || !found {
			t.Errorf("packet %d: call %v, whole %v, is no vector: %x", m.First, m.RDMA.Call, whole, b)
		}
		for j := range m.RDMA.Writes {
			if w := &m.RDMA.Writes[j]; !m.RDMA.Call && !w.whole() {
				t.Errorf("packet %d: Write chunk of %d octets has %d", m.First, w.Length, len(w.Data))
			}
		}
	}
}
