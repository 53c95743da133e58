package iwarp

import (
	"bytes"
	"errors"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp/wire"
)

// sender returns a qp that has a pool of its own, and may send.
func sender(pool *batchPool) *qp {
	q := newQP(qpConfig{crc: true, receives: 8, sends: 64, handlesN: 4, pool: pool})
	q.start()
	return q
}

// octetsOf returns the output of q in one piece, as if the kernel took all of it.
func octetsOf(q *qp) []byte {
	b := bytes.Join(q.output(), nil)
	q.wrote(len(b))
	return b
}

// Short Sends are built when they are posted, those behind a long message or a Write later, and the peer
// gets all in the order of the posts.
func TestShortSendOrder(t *testing.T) {
	q := sender(&batchPool{})
	var want [][]byte
	send := func(n int) {
		b := testkit.Pattern(n, byte(len(want)))
		want = append(want, b)
		if err := q.post(uint64(len(want)), wire.OpSend, [][]byte{b[:n/3], b[n/3:]}, 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range []int{0, 1, 100, 101, copyBelow - 1} {
		if send(n); q.built != len(want) {
			t.Fatalf("a Send of %d octets was not built at once", n)
		}
	}
	for _, n := range []int{copyBelow, 7, 100 << 10, 8} {
		if send(n); q.built != 5 {
			t.Fatalf("a Send of %d octets was built before what is ahead of it", n)
		}
	}
	b := octetsOf(q)
	if send(9); q.built != 1 {
		t.Fatal("a Send was not built although all before it is written")
	}
	b = append(b, octetsOf(q)...)
	if n := len(q.take()); n != len(want) {
		t.Errorf("%d Sends have completed, want %d", n, len(want))
	}

	// Whole, and in pieces, which is another way through input.
	for _, piece := range []int{len(b), 3} {
		peer, _ := bareQP(qpConfig{crc: true, receives: int32(len(want)), sends: 4, handlesN: 4})
		got := make([][]byte, len(want))
		for i := range want {
			got[i] = make([]byte, 100<<10)
			if err := peer.postReceive(uint64(i)+1, got[i]); err != nil {
				t.Fatal(err)
			}
		}
		for in := b; len(in) > 0; {
			n := min(piece, len(in))
			if rest := peer.input(in[:n]); len(rest) > 0 {
				t.Fatal("input waits")
			}
			in = in[n:]
		}
		cs := peer.take()
		if len(cs) != len(want) {
			t.Fatalf("%d messages arrived of %d: %v", len(cs), len(want), peer.err)
		}
		for i, c := range cs {
			if c.ID != uint64(i)+1 || !bytes.Equal(got[i][:c.Bytes], want[i]) {
				t.Errorf("message %d of %d octets is not what was sent", i, c.Bytes)
			}
		}
	}
}

// However many connections post in one pass, few hold a batch: the others build theirs in turn.
func TestOpenBatches(t *testing.T) {
	pool := &batchPool{}
	var all []*qp
	for i := range 4 * batchesOpen {
		q := sender(pool)
		if err := q.post(1, wire.OpSend, [][]byte{{byte(i)}}, 0, 0); err != nil {
			t.Fatal(err)
		}
		all = append(all, q)
	}
	if pool.open != batchesOpen {
		t.Errorf("%d batches are open, want %d", pool.open, batchesOpen)
	}
	for i, q := range all {
		switch {
		case i%2 == 0: // written
			if b := octetsOf(q); len(b) != wire.FPDULen(wire.UntaggedLen-2+1) || b[wire.UntaggedLen] != byte(i) {
				t.Errorf("qp %d sends % x", i, b)
			}
		case i%4 == 1: // lost
			q.abort(errors.New("lost"))
		default: // terminated: only the Terminate goes out
			q.terminate(wire.CodeLocal, nil, nil)
			if b := octetsOf(q); wire.Control(b).Opcode() != wire.OpTerminate {
				t.Errorf("qp %d sends % x", i, b)
			}
		}
		cs := q.take()
		if len(cs) != 1 || (cs[0].Err == nil) != (i%2 == 0) || cs[0].Err != nil && !errors.Is(cs[0].Err, fabric.ErrFlushed) {
			t.Errorf("qp %d: completions %+v", i, cs)
		}
	}
	if pool.open != 0 || len(pool.free) > batchesKept {
		t.Errorf("%d batches are open and %d free", pool.open, len(pool.free))
	}
}

// TestOpenBatchesBlocked: connections whose peers do not read do not keep others from building their Sends at once.
func TestOpenBatchesBlocked(t *testing.T) {
	pool := &batchPool{}
	var blocked []*qp
	for range batchesOpen {
		q := sender(pool)
		if err := q.post(1, wire.OpSend, [][]byte{{1}}, 0, 0); err != nil {
			t.Fatal(err)
		}
		q.output()
		q.wrote(1)
		blocked = append(blocked, q)
	}
	if pool.open != 0 {
		t.Errorf("%d batches that are being written are open", pool.open)
	}
	q := sender(pool)
	if err := q.post(1, wire.OpSend, [][]byte{{1}}, 0, 0); err != nil {
		t.Fatal(err)
	}
	if !q.tx.open {
		t.Error("a Send was not built when it was posted")
	}
	for _, q := range append(blocked, q) {
		octetsOf(q)
	}
	if pool.open != 0 {
		t.Errorf("%d batches are open after all are written", pool.open)
	}
}

// TestManyBlocked: when many peers do not read, each connection keeps what is still to be written, and no room for
// more. The octets are the same.
func TestManyBlocked(t *testing.T) {
	short, long := testkit.Pattern(100, 1), testkit.Pattern(100<<10, 2)
	post := func(q *qp) {
		for i, b := range [][]byte{short, long, short} {
			if err := q.post(uint64(i+1), wire.OpSend, [][]byte{b}, 0, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	alone := sender(&batchPool{})
	post(alone)
	want := octetsOf(alone)

	pool := &batchPool{}
	const most = 3 * batchesLent
	var all []*qp
	var got [most][]byte
	room := 0
	for i := range most {
		q := sender(pool)
		post(q)
		n := 1 + i*(len(want)-2)/most
		got[i] = bytes.Join(q.output(), nil)[:n]
		q.wrote(n)
		room += cap(q.tx.batch.lin)
		for _, b := range q.tx.batch.rest() {
			if !spanOf(b).overlaps(spanOf(long)) {
				room += cap(b) // a copy, or a part of lin once more
			}
		}
		all = append(all, q)
	}
	if limit := batchesLent*batchLin + most*1<<10; room > limit {
		t.Errorf("%d connections whose peers do not read keep room for %d octets, want at most %d", most, room, limit)
	}
	for i, q := range all {
		if i%8 == 0 { // the FPDU that is half written goes on, and then the Terminate
			q.terminate(wire.CodeLocal, nil, nil)
			got[i] = append(got[i], octetsOf(q)...)
			if n := len(got[i]); n >= len(want) || !bytes.HasPrefix(want, got[i]) {
				t.Errorf("qp %d: %d octets before the Terminate are not the first of what it was to send", i, n)
			}
			if b := octetsOf(q); len(b) == 0 || wire.Control(b).Opcode() != wire.OpTerminate {
				t.Errorf("qp %d sends % x", i, b)
			}
			continue
		}
		for { // in pieces, too
			bufs := q.output()
			if len(bufs) == 0 {
				break
			}
			b := bytes.Join(bufs, nil)
			b = b[:min(len(b), 30_000)]
			got[i] = append(got[i], b...)
			q.wrote(len(b))
		}
		if !bytes.Equal(got[i], want) {
			t.Errorf("qp %d: %d octets are not the %d of a connection alone", i, len(got[i]), len(want))
		}
		if cs := q.take(); len(cs) != 3 {
			t.Errorf("qp %d: %d Sends have completed, want 3", i, len(cs))
		}
	}
	if pool.lent != 0 || pool.open != 0 {
		t.Errorf("%d batches are lent at the end, and %d open", pool.lent, pool.open)
	}
}
