//go:build lab

package main

// Tests against the Linux kernel's NFS client and server, in the guest of deploy/lab:
//
//	the guest's NFS client -- TCP --> rdmabridge on this host -- iWARP --> the guest's knfsd
//	                                      '---- MOUNT over TCP ---> the guest's mountd
//
// One guest serves every test. RDMABRIDGE_LAB=1 promises that deploy/lab/install.sh was
// run; without it the tests skip. With RDMABRIDGE_LAB_DIRECT=1 the client mounts the
// guest's own server over plain TCP: what fails then is not the bridge's doing.

import (
	"os"
	"testing"
	"time"
)

// kernelVersions are the NFS versions that the Linux client mounts.
var kernelVersions = []string{"3", "4.0", "4.1", "4.2"}

func TestLab(t *testing.T) {
	if os.Getenv("RDMABRIDGE_LAB") != "1" {
		t.Skip("needs the packages and the kernel of deploy/lab/install.sh: set RDMABRIDGE_LAB=1")
	}
	g := bootGuest(t)
	direct := os.Getenv("RDMABRIDGE_LAB_DIRECT") == "1"
	far := farEnd{nfs: g.nfs, mount: g.mount}
	var b *bridgeProcess
	if !direct {
		b = startBridge(t, g)
		far = farEnd{nfs: b.port, mount: b.port}
	}

	t.Run("siw", func(t *testing.T) { testSIW(t, g) })
	for _, v := range kernelVersions {
		t.Run("files/"+v, func(t *testing.T) {
			g.job(t, 6*time.Minute, far.script("/lab/files.sh", v))
			b.wantQuiet(t)
		})
	}
	for _, v := range kernelVersions {
		t.Run("fio/"+v, func(t *testing.T) {
			g.job(t, 5*time.Minute, far.script("SIZE=2m /lab/fio.sh", v))
			b.wantQuiet(t)
		})
	}
	t.Run("libnfs", func(t *testing.T) {
		testLibNFS(t, g, far)
		b.wantQuiet(t)
	})
	t.Run("wire", func(t *testing.T) {
		if direct {
			t.Skip("no bridge, nothing on the wire")
		}
		testWire(t, g)
	})
	t.Run("copies", func(t *testing.T) {
		if direct {
			t.Skip("no bridge, no counters")
		}
		testCopies(t, g, b, far)
		b.wantQuiet(t)
	})
	t.Run("kerberos", func(t *testing.T) { testKerberos(t, g, b, far) })
	for _, v := range []string{"4.1", "4.2"} {
		t.Run("recall/"+v, func(t *testing.T) {
			if direct {
				t.Skip("no bridge, no counters")
			}
			testRecall(t, g, b, far, v)
			b.wantQuiet(t)
		})
	}
	for _, v := range []string{"3", "4.1"} {
		t.Run("restart/"+v, func(t *testing.T) {
			g.job(t, 6*time.Minute, far.script("RESTART=1 SIZE=8m /lab/fio.sh", v))
			b.wantNoErrors(t)
		})
	}
	t.Run("stop", func(t *testing.T) { b.stop(t) })
}

// testCopies: on the way from knfsd to the client the data of a READ are copied at
// most once in user space, which is what copied_bytes_total counts.
func testCopies(t *testing.T, g *guest, b *bridgeProcess, far farEnd) {
	const payload, reads = 32 << 20, 32
	count := func() (copied, carried, inChunks float64) {
		return b.metric(t, `copied_bytes_total{`), b.metric(t, `tcp_sent_bytes_total{listener="nfs"}`),
			b.metric(t, `requester_calls_total{call="inline",reply="write_chunk"`)
	}
	copied, carried, inChunks := count()
	g.job(t, 3*time.Minute, far.script("/lab/read.sh", "3"))
	copied2, carried2, inChunks2 := count()
	copied, carried, inChunks = copied2-copied, carried2-carried, inChunks2-inChunks
	t.Logf("%.0f octets sent, %.0f copied, %.0f Replies in Write chunks", carried, copied, inChunks)
	if inChunks < reads || carried < payload {
		t.Errorf("%.0f Replies in Write chunks and %.0f octets sent, want %d READs of 1 MiB", inChunks, carried, reads)
	}
	// A hundredth more is for the small messages: they are copied twice.
	if copied > carried*1.01 {
		t.Errorf("%.0f octets copied to send %.0f", copied, carried)
	}
}
