package measure

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

// build compiles one of the programs, rdmabridge or rdmabridge-bench, and returns its file.
func build(t testing.TB, name string) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), name)
	if out, err := exec.Command("go", "build", "-o", bin, "../../cmd/"+name).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return bin
}

// A neighbourhood is a server, the bridge in front of it, and loads. Each is a process.
type neighbourhood struct {
	t      *testing.T
	bench  string // the program of servers and loads
	bridge string // where clients connect
	other  string // a server that only shares the machine
}

func (n *neighbourhood) start(bin string, args ...string) *exec.Cmd {
	n.t.Helper()
	cmd := exec.Command(bin, args...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { kill(cmd) })
	if args[0] == "server" {
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

// small returns the p99, in microseconds, of 31 clients with small Calls. It checks every
// Reply.
func (n *neighbourhood) small() float64 {
	n.t.Helper()
	cmd := exec.Command(n.bench, "load", "--target", n.bridge, "--conns", "31", "--loops", "1", "--duration", "1s", "--json")
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
	cmd := n.start(n.bench, "load", "--target", target, "--depth", "64", "--mix", "nfs3:write=1", "--size", "1MiB", "--loops", "1", "--duration", "1h")
	return func() { kill(cmd) }
}

// spoil calls f with one connection to target after the other until it is stopped.
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

// echoRecord returns a Call of the echo program that asks for a Reply of n octets.
func echoRecord(xid uint32, n int) []byte {
	m := proxytest.CallHeader(nil, xid, bench.EchoProgram, bench.EchoVersion, bench.EchoProc)
	return testkit.Record(testkit.AppendWords(m, 0, uint32(n), 0, 0)) // tag, length, delay, no data
}

// unread asks for Replies of 1 MiB and never reads.
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

// trickle sends one octet every 10 ms.
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

// half sends half of a record of 1 MiB.
func half(c net.Conn, _ <-chan struct{}) {
	m := make([]byte, 4+512<<10)
	binary.BigEndian.PutUint32(m, 1<<31|1<<20)
	_, _ = c.Write(m)
}

// TestNeighbours measures how one bad client affects 31 good ones: it divides their p99
// with the bad client by their p99 right before, RDMABRIDGE_NEIGHBOURS times. It asserts no
// time, because other work on the machine affects both. "beside" is the same with the bad
// client at another server, where it shares only the machine.
func TestNeighbours(t *testing.T) {
	rounds, _ := strconv.Atoi(os.Getenv("RDMABRIDGE_NEIGHBOURS"))
	if rounds <= 0 {
		t.Skip("RDMABRIDGE_NEIGHBOURS=9 measures")
	}
	bridge, bench := build(t, "rdmabridge"), build(t, "rdmabridge-bench")
	for _, upstream := range []string{"rdma", "tcp"} {
		t.Run(upstream, func(t *testing.T) {
			server := testkit.FreeAddr(t)
			n := &neighbourhood{t: t, bench: bench, bridge: testkit.FreeAddr(t), other: testkit.FreeAddr(t)}
			n.start(n.bench, "server", "--listen", server, "--transport", upstream)
			n.start(n.bench, "server", "--listen", n.other, "--transport", "tcp")
			file := filepath.Join(t.TempDir(), "bridge.yaml")
			config := fmt.Sprintf("listeners: [{name: nfs, address: %q, upstream: s}]\n"+
				"upstreams: [{name: s, transport: %s, endpoints: [%q]}]\n"+
				"memory: {budget: 512MiB}\nadmin: {address: none}\n", n.bridge, upstream, server)
			if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
				t.Fatal(err)
			}
			n.start(bridge, "serve", "-c", file)
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

// cost returns the p99 of the good clients with the bad one, divided by their p99 right
// before.
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
	testkit.Eventually(n.t, "the bridge listens", func() bool { return listens(n.bridge) })
}

// listens reports whether addr can be connected to.
func listens(addr string) bool {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return false
	}
	c.Close()
	return true
}
