//go:build lab

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// testWire captures both sides of a short run through a new bridge, so that the capture has
// every connection from its first octet. tshark decodes the capture.
func testWire(t *testing.T, g *guest) {
	pcap := filepath.Join(t.TempDir(), "wire.pcap")
	b := newBridgeProcess(t, g)
	// -B: a burst of loopback frames must not be lost; -Z: the file is in a directory of ours.
	capture := start(t, "tcpdump", "-i", "lo", "-Z", "root", "-B", "65536", "-s", "0", "-U", "-w", pcap,
		fmt.Sprintf("tcp port %d or tcp port %d or tcp port %d", b.port, g.rdma, g.mount))
	waitFor(t, 20*time.Second, "tcpdump", func() bool {
		st, err := os.Stat(pcap)
		return err == nil && st.Size() > 0
	})
	b.start(t)
	for _, v := range kernelVersions {
		g.job(t, 2*time.Minute, farEnd{nfs: b.port, mount: b.port}.script("LOCKS=no SIZES='0 1 3 4095 4096 65537 300001' /lab/files.sh", v))
	}
	b.stop(t)
	b.wantQuiet(t)
	time.Sleep(time.Second) // for the packets that tcpdump has buffered
	capture.end(t, syscall.SIGINT)

	// Loopback segments come again, late and out of order, when the host is busy.
	tshark := func(args ...string) []byte {
		return run(t, 5*time.Minute, "tshark", append([]string{
			"-r", pcap, "-o", "tcp.reassemble_out_of_order:TRUE", "-d", fmt.Sprintf("tcp.port==%d,rpc", b.port),
		}, args...)...)
	}
	count := func(filter string) int {
		return bytes.Count(tshark("-Y", filter, "-T", "fields", "-e", "frame.number"), []byte("\n"))
	}
	for _, filter := range []string{
		fmt.Sprintf("nfs && tcp.port == %d", b.port),
		fmt.Sprintf("mount && tcp.port == %d", b.port),
		fmt.Sprintf("nfs && rpcordma && tcp.port == %d", g.rdma),
		"rpcordma.reads_count > 0",
		"rpcordma.writes_count > 0",
		"rpcordma.reply_count > 0",
		"iwarp_mpa.req",
		"iwarp_mpa.rep",
	} {
		if n := count(filter); n == 0 {
			t.Errorf("tshark: no frame for %q", filter)
		} else {
			t.Logf("%6d frames: %s", n, filter)
		}
	}
	// tshark 4.0 calls a READ Reply malformed when its data went into a Write chunk.
	if bad := tshark("-Y", "_ws.malformed && !(rpcordma.writes_count > 0)"); len(bad) > 0 {
		t.Errorf("malformed frames:\n%s", head(bad, 20))
	}
	if bad := tshark("-Y", "rpcordma.msg_type == 4 || iwarp_rdma.opcode == 7"); len(bad) > 0 {
		t.Errorf("RDMA_ERROR or Terminate:\n%s", head(bad, 20))
	}
	verbose := tshark("-Y", "iwarp_mpa", "-V")
	good, bad := bytes.Count(verbose, []byte("(Good CRC32)")), bytes.Count(verbose, []byte("(Bad CRC32"))
	if good == 0 || bad > 0 {
		t.Errorf("CRCs: %d good, %d bad", good, bad)
	}
	t.Logf("%6d FPDUs with a good CRC", good)
}
