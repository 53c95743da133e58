//go:build lab

package lab

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// testWire captures both sides of a short run through a new bridge, so that the capture has
// every connection from its first octet. tshark decodes the capture.
func testWire(t *testing.T, g *guest) {
	pcap := filepath.Join(t.TempDir(), "wire.pcap")
	b := newBridgeProcess(t, g)
	last := freePorts(t, 1)[0]
	// -B: a burst of loopback frames must not be lost; -Z: the file is in a directory of ours.
	capture := start(t, "tcpdump", "-i", "lo", "-Z", "root", "-B", "65536", "-s", "0", "-U", "-w", pcap,
		fmt.Sprintf("tcp port %d or tcp port %d or tcp port %d or tcp port %d", b.port, g.rdma, g.mount, last))
	waitFor(t, 20*time.Second, "tcpdump", func() bool {
		st, err := os.Stat(pcap)
		return err == nil && st.Size() > 0
	})
	b.start(t)
	for _, v := range someVersions("3", "4.0", "4.2") {
		g.job(t, 2*time.Minute, farEnd{nfs: b.port, mount: b.port}.script("LOCKS=no NAMES=300 SIZES='0 1 3 4095 4096 65537 300001' /lab/files.sh", v))
	}
	b.stop(t)
	b.wantQuiet(t)
	end := sendLast(t, last)
	// tcpdump writes packets in their order, and some time after they came.
	waitFor(t, time.Minute, "the last packet in the capture", func() bool {
		text, err := os.ReadFile(pcap)
		return err == nil && bytes.Contains(text, end)
	})
	capture.end(t, syscall.SIGINT)

	// Loopback segments come again, late and out of order, when the host is busy.
	tshark := func(args ...string) []byte {
		return command(t, 5*time.Minute, "tshark", append([]string{
			"-r", pcap, "-o", "tcp.reassemble_out_of_order:TRUE", "-d", fmt.Sprintf("tcp.port==%d,rpc", b.port),
		}, args...)...)
	}
	expected := []string{
		fmt.Sprintf("nfs && tcp.port == %d", b.port),
		fmt.Sprintf("mount && tcp.port == %d", b.port),
		fmt.Sprintf("nfs && rpcordma && tcp.port == %d", g.rdma),
		"rpcordma.reads_count > 0",
		"rpcordma.writes_count > 0",
		"rpcordma.reply_count > 0",
		"iwarp_mpa.req",
		"iwarp_mpa.rep",
	}
	unexpected := []string{
		// tshark 4.0 calls a READ Reply malformed when its data went into a Write chunk.
		"_ws.malformed && !(rpcordma.writes_count > 0)",
		"rpcordma.msg_type == 4 || iwarp_rdma.opcode == 7", // RDMA_ERROR or Terminate
	}
	counts := countFrames(t, tshark, append(slices.Clone(expected), unexpected...))
	for i, filter := range expected {
		if counts[i] == 0 {
			t.Errorf("tshark: no frame for %q", filter)
		}
		t.Logf("%6d frames: %s", counts[i], filter)
	}
	for i, filter := range unexpected {
		if counts[len(expected)+i] > 0 {
			t.Errorf("%s:\n%s", filter, head(tshark("-Y", filter), 20))
		}
	}
	details := tshark("-Y", "iwarp_mpa", "-O", "iwarp_mpa")
	good, bad := bytes.Count(details, []byte("(Good CRC32)")), bytes.Count(details, []byte("(Bad CRC32"))
	if good == 0 || bad > 0 {
		t.Errorf("CRCs: %d good, %d bad", good, bad)
	}
	t.Logf("%6d FPDUs with a good CRC", good)
}

// sendLast sends a text to a port of the lab's network, and returns the text.
func sendLast(t *testing.T, port int) []byte {
	t.Helper()
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	text := []byte("the last packet of the capture")
	if _, err := c.Write(text); err != nil {
		t.Fatal(err)
	}
	return text
}

// countFrames returns how many frames match each filter. tshark reads the capture once.
func countFrames(t *testing.T, tshark func(...string) []byte, filters []string) []int {
	t.Helper()
	out := tshark("-q", "-z", "io,stat,0,"+strings.Join(filters, ","))
	// One line has the only interval, and frames and octets for each filter.
	for line := range strings.Lines(string(out)) {
		if !strings.Contains(line, "<>") {
			continue
		}
		columns := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(columns) != 1+2*len(filters) {
			break
		}
		counts := make([]int, len(filters))
		for i := range counts {
			n, err := strconv.Atoi(strings.TrimSpace(columns[1+2*i]))
			if err != nil {
				t.Fatalf("%v in\n%s", err, out)
			}
			counts[i] = n
		}
		return counts
	}
	t.Fatalf("tshark counted otherwise:\n%s", out)
	return nil
}
