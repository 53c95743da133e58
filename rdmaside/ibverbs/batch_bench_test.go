//go:build ibverbs

package ibverbs

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkBatch is the cost of a Work Request when each has a cgo call of its own, and when one call is
// for many: to post Receives, to post Sends, and to poll the completions of the Receives. It passes by
// the connections and uses their queues.
func BenchmarkBatch(b *testing.B) {
	const messages = 64
	for _, batch := range []int{1, 4, 16, 64} {
		b.Run(fmt.Sprint("batch=", batch), func(b *testing.B) {
			x := newCallPair(b, messages, 1, Options{})
			defer x.close()
			x.run(messages, false)
			x.loops[0].Do(func() { benchmarkBatch(b, x, messages, batch) })
		})
	}
}

// benchmarkBatch runs on the loop of both connections, so that these do not poll.
func benchmarkBatch(b *testing.B, x *callPair, messages, batch int) {
	from, to := x.client.c.(*conn), x.server.c.(*conn)
	// The Receives that the server has posted come before those of this benchmark.
	sends := make([]workRequest, messages)
	ids := make([]uint64, messages)
	var out, in []element
	for i := range messages {
		o, _, err := from.d.element(x.client.out[i][0])
		if err != nil {
			b.Fatal(err)
		}
		r, _, err := to.d.element(x.server.in[i])
		if err != nil {
			b.Fatal(err)
		}
		out, in = append(out, o), append(in, r)
		sends[i] = workRequest{op: opSend, first: uint32(i), count: 1}
		ids[i] = receiveBit
	}
	sends[messages-1].flags = flagSignaled // the device has carried out all of them
	wcs := make([]workCompletion, batch)
	var receive, send, poll time.Duration
	var rounds int
	for b.Loop() {
		rounds++
		at := time.Now()
		for i := 0; i < messages; i += batch {
			n, err := from.poster.send(from.qp, sends[i:i+batch], out)
			if err != nil || n != batch {
				b.Fatal("post Sends: ", n, err)
			}
		}
		send += time.Since(at)
		for {
			n, err := pollCQ(from.cq, from.wcs, 0)
			if err != nil {
				b.Fatal(err)
			}
			if n > 0 {
				break
			}
		}
		at = time.Now()
		for got := 0; got < messages; {
			n, err := pollCQ(to.cq, wcs, 0)
			if err != nil {
				b.Fatal(err)
			}
			for i := range wcs[:n] {
				if wcs[i].status != 0 {
					b.Fatal("status ", wcs[i].status)
				}
			}
			got += n
		}
		poll += time.Since(at)
		at = time.Now()
		for i := 0; i < messages; i += batch {
			n, err := to.poster.receive(to.qp, in[i:i+batch], ids[i:i+batch])
			if err != nil || n != batch {
				b.Fatal("post Receives: ", n, err)
			}
		}
		receive += time.Since(at)
	}
	for name, d := range map[string]time.Duration{"ns/receive": receive, "ns/send": send, "ns/completion": poll} {
		b.ReportMetric(float64(d.Nanoseconds())/float64(rounds*messages), name)
	}
}
