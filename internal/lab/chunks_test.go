//go:build lab

package lab

import (
	"fmt"
	"testing"
	"time"
)

// testChunks: data of 8 KiB and more travel in chunks only, those of a WRITE in a Read
// chunk and those of a READ in a Write chunk. The client's counts of its WRITEs and READs say
// how many chunks there should be.
func testChunks(t *testing.T, g *guest, b *bridgeProcess, far farEnd, vers string) {
	const payload = 64*8<<10 + 16*64<<10 + 4<<20 // each way
	const received = `upstream_rdma_received_bytes_total{upstream="storage"}`
	before, sends := b.shapes(t), b.metric(t, received)
	var writes, reads float64
	out := g.job(t, 2*time.Minute, far.script("/lab/chunks.sh", vers))
	if _, err := fmt.Sscanf(out, "WRITE %f READ %f", &writes, &reads); err != nil || writes < 84 || reads < 84 {
		t.Fatalf("%v: %.0f WRITEs and %.0f READs in %q", err, writes, reads, out)
	}
	got := b.shapes(t).since(before)
	sends = b.metric(t, received) - sends
	t.Logf("%.0f WRITEs, %.0f READs: %+v, %.0f octets in Sends from the server", writes, reads, got, sends)
	if got.readChunks != writes || got.writeChunks != reads || got.longCalls != 0 {
		t.Errorf("%.0f WRITEs and %.0f READs made %+v", writes, reads, got)
	}
	if sends > payload/10 {
		t.Errorf("%.0f octets came in Sends, though %d are data for Write chunks", sends, payload)
	}
}

// testCopies: on the way from knfsd to the client the data of a READ are copied at most once
// in user space. Two counters have these copies.
func testCopies(t *testing.T, g *guest, b *bridgeProcess, far farEnd) {
	const payload, reads = 32 << 20, 32
	count := func() (copied, carried, inChunks float64) {
		return b.metric(t, `listener_copied_bytes_total{`) + b.metric(t, `upstream_copied_bytes_total{`), b.metric(t, `listener_tcp_sent_bytes_total{listener="nfs"}`),
			b.metric(t, `upstream_rdma_calls_total{call="inline",reply="write_chunk"`)
	}
	copied, carried, inChunks := count()
	g.job(t, 3*time.Minute, far.script("/lab/read.sh", "3"))
	copied2, carried2, inChunks2 := count()
	copied, carried, inChunks = copied2-copied, carried2-carried, inChunks2-inChunks
	t.Logf("%.0f octets sent, %.0f copied, %.0f Replies in Write chunks", carried, copied, inChunks)
	if inChunks < reads || carried < payload {
		t.Errorf("%.0f Replies in Write chunks and %.0f octets sent, want %d READs of 1 MiB", inChunks, carried, reads)
	}
	// Small messages are copied twice; a hundredth more covers them.
	if copied > carried*1.01 {
		t.Errorf("%.0f octets copied to send %.0f", copied, carried)
	}
}
