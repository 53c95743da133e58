package capture

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp/wire"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// allocated returns how many octets f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// worst bounds the octets that Read and Messages allocate for each octet of a capture. The
// worst capture has only packets without payload, each of another connection.
const worst = 64

func checkBounds(t *testing.T, file []byte) {
	t.Helper()
	var all []Message
	n := allocated(func() {
		c, err := Read(file)
		if err != nil {
			return
		}
		all = c.Messages()
		for i := range all {
			all[i].Payload()
		}
	})
	if most := uint64(worst*len(file) + 1<<20); n > most {
		t.Errorf("a capture of %d octets made %d be allocated", len(file), n)
	}
	checkMessages(t, all)
}

func checkMessages(t *testing.T, all []Message) {
	t.Helper()
	for i := range all {
		m := &all[i]
		if b, whole := m.Payload(); whole && m.RDMA == nil && int64(len(b)) != m.Length {
			t.Fatalf("message %d has a payload of %d octets: %+v", i, len(b), m)
		}
		if m.Missing < 0 || m.Length < 0 || m.Missing > m.Length || int64(len(m.Data)) > m.Length || m.First < 1 || m.Last < m.First {
			t.Fatalf("message %d of %d: %+v", i, len(all), m)
		}
		if m.Missing == 0 && m.Wrong == "" && int64(len(m.Data)) != m.Length {
			t.Fatalf("message %d is whole, with %d octets of %d", i, len(m.Data), m.Length)
		}
	}
}

// Random wrong numbers in a capture cause no panic, and no more allocation than the length
// of the capture allows.
func TestBounds(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	b := newBuilder()
	client, server := b.iwarp(wire.FlagCRC)
	b.exchange(client, server, 500)
	files := [][]byte{
		readFile(t, "testdata/tcp.pcap"), readFile(t, "testdata/iwarp.pcap"), b.file(), b.pcapng(binary.BigEndian, blockEnhanced, 9),
	}
	for i := range 2000 {
		file := bytes.Clone(files[i%len(files)])
		for range 1 + rng.IntN(20) {
			at := rng.IntN(len(file)-4) &^ 3
			if rng.IntN(2) == 0 {
				at += 2
			}
			v := [...]uint32{0, 0xffffffff, 0x7fffffff, 0x80000000, 0xfffffff0, 1 << 24, rng.Uint32()}[rng.IntN(7)]
			binary.BigEndian.PutUint32(file[at:], v)
		}
		checkBounds(t, file)
	}
}

// The time for many small items in one file is proportional to their number.
func TestManySmall(t *testing.T) {
	b := newBuilder()
	rng := rand.New(rand.NewPCG(7, 8))
	client, server := b.iwarp(wire.FlagCRC)
	for range 20000 {
		client.f.seq += 1 // a hole before each FPDU
		b.send(client.f, flagACK, client.message(wire.OpSend, 0, []byte{1}))
		b.send(server.f, flagACK, server.fpdu(nil, wire.AppendReadRequest(nil, 1, wire.Read{SrcSTag: rng.Uint32(), Size: 1 << 30}), nil))
		b.send(server.f, flagACK, server.tagged(wire.OpReadResponse, rng.Uint32(), 0, []byte{1}))
	}
	checkBounds(t, b.file())

	b = newBuilder()
	other, _ := b.handshake(false)
	marks := bytes.Repeat([]byte{0x80, 0x10, 0, 0, 9, 9, 9, 9, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 1000)
	for range 30 {
		b.stream(other, marks, 1000)
		other.seq++
	}
	checkBounds(t, b.file())
}

// Seeds are short, because go test spends its time on minimising long ones.
func FuzzMessages(f *testing.F) {
	f.Add(readFile(f, "testdata/tcp.pcap")[:900])
	f.Add(readFile(f, "testdata/iwarp.pcap")[:1300])
	le, be := binary.LittleEndian, binary.BigEndian
	b := newBuilder()
	client, _ := b.iwarp(wire.FlagCRC | wire.FlagMarkers)
	b.packs = b.packs[3:]
	b.send(client.f, flagACK, client.message(wire.OpSend, 0, append(rpcrdma.AppendPlain(nil, 1, 1), call(1, 8)...)))
	f.Add(b.pcapng(be, blockPacket, 0x80|10))
	b = newBuilder()
	b.link = linkSLL2
	b.wrap = func(ip []byte, _ bool) []byte { return append(append([]byte{0x86, 0xdd}, make([]byte, 18)...), ip...) }
	one, _ := b.handshake(true)
	b.send(one, flagACK, testkit.Record(call(1, 8)))
	f.Add(b.pcapng(le, blockSimple, 0))
	f.Fuzz(func(t *testing.T, file []byte) {
		c, err := Read(file)
		if err != nil {
			return
		}
		checkMessages(t, c.Messages())
	})
}
