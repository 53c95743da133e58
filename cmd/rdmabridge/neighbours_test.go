package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/bench"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
)

// A neighbourhood is a server, the bridge before it, and the bench's loads, each a
// process.
type neighbourhood struct {
	t      *testing.T
	bin    string
	bridge string // where clients connect
	other  string // a server that only shares the machine
}

func (n *neighbourhood) start(args ...string) *exec.Cmd {
	n.t.Helper()
	cmd := exec.Command(n.bin, args...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { kill(cmd) })
	if args[1] == "server" {
		if !bufio.NewScanner(out).Scan() {
			n.t.Fatal("the server says nothing")
		}
	}
	return cmd
}

func kill(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// small is the p99, in microseconds, of 31 clients with small Calls, every Reply
// checked.
func (n *neighbourhood) small() float64 {
	n.t.Helper()
	cmd := exec.Command(n.bin, "bench", "load", "--target", n.bridge, "--conns", "31", "--loops", "1", "--duration", "1s", "--json")
	cmd.Stderr = os.Stderr
	b, err := cmd.Output()
	if err != nil {
		n.t.Fatal(err)
	}
	var r struct {
		Latency struct {
			P99 float64 `json:"p99_us"`
		} `json:"latency"`
	}
	if err := json.Unmarshal(b, &r); err != nil || r.Latency.P99 <= 0 {
		n.t.Fatalf("%v in %s", err, b)
	}
	return r.Latency.P99
}

// hog writes 64 times 1 MiB at once to target, until it is stopped.
func (n *neighbourhood) hog(target string) (stop func()) {
	cmd := n.start("bench", "load", "--target", target, "--depth", "64", "--mix", "nfs3:write=1", "--size", "1MiB", "--loops", "1", "--duration", "1h")
	return func() { kill(cmd) }
}

// spoil has f spoil connections to target, one after the other, until it is stopped.
func spoil(target string, f func(net.Conn, <-chan struct{})) (stop func()) {
	over, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-over:
				return
			case <-time.After(2 * time.Millisecond):
			}
			c, err := net.DialTimeout("tcp", target, time.Second)
			if err != nil {
				continue
			}
			f(c, over)
			c.Close()
		}
	}()
	return func() { close(over); <-done }
}

// echoRecord is a Call of the bench's echo program for a Reply with n octets.
func echoRecord(xid uint32, n int) []byte {
	m := proxytest.CallHeader(nil, xid, bench.EchoProgram, bench.EchoVersion, bench.EchoProc)
	m = binary.BigEndian.AppendUint32(m, 0)         // tag
	m = binary.BigEndian.AppendUint32(m, uint32(n)) // length
	m = binary.BigEndian.AppendUint32(m, 0)         // delay
	m = binary.BigEndian.AppendUint32(m, 0)         // no data
	return append(binary.BigEndian.AppendUint32(nil, 1<<31|uint32(len(m))), m...)
}

// unread asks for a MiB after the other and never reads.
func unread(c net.Conn, over <-chan struct{}) {
	_ = c.(*net.TCPConn).SetReadBuffer(4 << 10)
	for xid := uint32(0); ; {
		select {
		case <-over:
			return
		default:
		}
		_ = c.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
		switch _, err := c.Write(echoRecord(xid, 1<<20)); {
		case err == nil:
			xid++
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return
		}
	}
}

// trickle sends an octet every 10 ms.
func trickle(c net.Conn, over <-chan struct{}) {
	for _, o := range echoRecord(1, 0) {
		select {
		case <-over:
			return
		case <-time.After(10 * time.Millisecond):
		}
		if _, err := c.Write([]byte{o}); err != nil {
			return
		}
	}
}

// half sends half a record of a MiB.
func half(c net.Conn, _ <-chan struct{}) {
	m := make([]byte, 4+512<<10)
	binary.BigEndian.PutUint32(m, 1<<31|1<<20)
	_, _ = c.Write(m)
}

// TestNeighbours measures what one bad client costs 31 good ones: their p99 with it,
// divided by their p99 without it right before, RDMABRIDGE_NEIGHBOURS times. It
// asserts no time, for what else the machine does is in it too: "beside" is the same
// with the bad client at a server of its own, so that it shares the machine alone.
func TestNeighbours(t *testing.T) {
	rounds, _ := strconv.Atoi(os.Getenv("RDMABRIDGE_NEIGHBOURS"))
	if rounds <= 0 {
		t.Skip("RDMABRIDGE_NEIGHBOURS=9 measures")
	}
	bin := filepath.Join(t.TempDir(), "rdmabridge")
	if out, err := exec.Command("go", "build", "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, upstream := range []string{"rdma", "tcp"} {
		t.Run(upstream, func(t *testing.T) {
			server := testkit.FreeAddr(t)
			n := &neighbourhood{t: t, bin: bin, bridge: testkit.FreeAddr(t), other: testkit.FreeAddr(t)}
			n.start("bench", "server", "--listen", server, "--transport", upstream)
			n.start("bench", "server", "--listen", n.other, "--transport", "tcp")
			file := filepath.Join(t.TempDir(), "bridge.yaml")
			config := fmt.Sprintf("listeners: [{name: nfs, address: %q, upstream: s}]\n"+
				"upstreams: [{name: s, transport: %s, endpoints: [%q]}]\n"+
				"memory: {budget: 512MiB}\nadmin: {address: none}\n", n.bridge, upstream, server)
			if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
				t.Fatal(err)
			}
			n.start("serve", "-c", file)
			n.await()
			for _, bad := range []struct {
				name  string
				begin func(target string) (stop func())
			}{
				{"hog", n.hog},
				{"never reads", func(to string) func() { return spoil(to, unread) }},
				{"trickles", func(to string) func() { return spoil(to, trickle) }},
				{"half records", func(to string) func() { return spoil(to, half) }},
			} {
				var with, beside []float64
				for range rounds {
					with = append(with, n.cost(func() func() { return bad.begin(n.bridge) }))
					beside = append(beside, n.cost(func() func() { return bad.begin(n.other) }))
				}
				t.Logf("%-12s x %s, beside x %s", bad.name, quartiles(with), quartiles(beside))
			}
		})
	}
}

// cost is the good clients' p99 with the bad one divided by what it was right before.
func (n *neighbourhood) cost(begin func() (stop func())) float64 {
	n.t.Helper()
	alone := n.small()
	stop := begin()
	time.Sleep(300 * time.Millisecond)
	with := n.small()
	stop()
	time.Sleep(100 * time.Millisecond)
	return with / alone
}

func quartiles(v []float64) string {
	slices.Sort(v)
	return fmt.Sprintf("%.2f [%.2f-%.2f]", v[len(v)/2], v[len(v)/4], v[len(v)*3/4])
}

// await waits until the bridge listens.
func (n *neighbourhood) await() {
	n.t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		c, err := net.Dial("tcp", n.bridge)
		if err == nil {
			c.Close()
			return
		}
		if time.Now().After(end) {
			n.t.Fatal(err)
		}
	}
}
