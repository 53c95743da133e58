package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/cli"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/browser"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
)

// TestOutage: the cable to a server is out for some seconds while Calls are under way. The kernel sends them again later and
// later. The log and the problems name the network. So do the page, the JSON, stats and doctor afterwards, and none of them
// blames the server, which is fast.
func TestOutage(t *testing.T) {
	t.Parallel()
	inNetwork(t, testOutage, "iproute2", "ip")
}

func testOutage(t *testing.T) {
	mustRunCommand(t, "ip", "link", "set", "lo", "up")
	there := anotherNetwork(t)
	mustRunCommand(t, "ip", "addr", "add", "192.0.2.1/24", "dev", "cable")
	mustRunCommand(t, "ip", "link", "set", "cable", "up")
	ipThere := func(args ...string) {
		there(func() error {
			out, err := runCommand(t, "ip", args...)
			if err != nil {
				err = fmt.Errorf("%w\n%s", err, out)
			}
			return err
		})
	}
	ipThere("addr", "add", "192.0.2.2/24", "dev", "socket")
	ipThere("link", "set", "socket", "up")
	var server *proxytest.TCPServer
	there(func() (err error) {
		server, err = proxytest.ListenTCP("192.0.2.2:2049", proxytest.Behaviour{})
		return err
	})
	t.Cleanup(server.Close)

	// The connection of one upstream outlasts the outage. That of the other one is made again.
	upstreams := []string{"patient", "usual"}
	x := startReload(t, `
listeners:
  - {name: to-patient, address: "127.0.0.1:0", upstream: patient}
  - {name: to-usual, address: "127.0.0.1:0", upstream: usual}
upstreams:
  - {name: patient, transport: tcp, endpoints: ["192.0.2.2:2049"], timeouts: {connect: 1s, silent: none, probe: 1s}}
  - {name: usual, transport: tcp, endpoints: ["192.0.2.2:2049"], timeouts: {connect: 1s}}
admin: {address: "127.0.0.1:0"}
control: {path: `+t.TempDir()+`/c.sock}
memory: {budget: 256MiB}
`)
	defer x.stop()
	url := "http://" + x.b.admin.Addr()
	clients := make(map[string]*proxytest.Client)
	call := func(upstream string) []<-chan []byte {
		var calls [][]byte
		for xid := range uint32(40) { // more than enough for a mean
			calls = append(calls, nullCall(xid, 100003, 3))
		}
		replies, err := clients[upstream].GoAll(calls...)
		must(t, err)
		return replies
	}
	answered := func(replies []<-chan []byte) {
		t.Helper()
		for _, r := range replies {
			if <-r == nil {
				t.Fatal("a client's connection has ended")
			}
		}
	}
	for _, name := range upstreams {
		c, err := proxytest.DialClient(x.b.proxy.Addr("to-" + name))
		must(t, err)
		defer c.Close()
		clients[name] = c
		answered(call(name))
	}

	ipThere("link", "set", "socket", "down")
	usual := call("usual")
	report := runDoctor(t, cli.ExitFailed, "-c", x.path)
	for _, name := range upstreams {
		if !report.has("error", "endpoint-unreachable", name+", ") {
			t.Errorf("doctor does not say that %s cannot be reached: %+v", name, report.Findings)
		}
	}
	patient := call("patient")
	testkit.Eventually(t, "the log says that the host is away", func() bool {
		return strings.Contains(x.log.String(), "and its host acknowledges nothing: the network or the host is away")
	})
	read := func(what string, into any) {
		_, body := get(t, url+what)
		if err := json.Unmarshal([]byte(body), into); err != nil {
			t.Fatalf("%v: %s", err, body)
		}
	}
	testkit.Eventually(t, "the bridge has a problem with the upstream whose connection is still there", func() bool {
		var problems []status.Problem
		read("/api/v1/problems", &problems)
		of := slices.DeleteFunc(problems, func(p status.Problem) bool { return p.Subject != "patient" })
		if len(of) == 0 {
			return false
		}
		if of[0].Code != status.CodeWireLossy || !strings.Contains(of[0].Text, "has not answered 4") || len(of) > 1 {
			t.Errorf("in the outage the problem is %+v, want the network and nothing else", of)
		}
		return true
	})
	ipThere("link", "set", "socket", "up")
	answered(patient)
	answered(usual)
	if strings.Contains(x.log.String(), "its host is there") {
		t.Error("the log says that the host was there")
	}

	var problems []status.Problem
	testkit.Eventually(t, "the bridge names the network", func() bool {
		problems = nil
		read("/api/v1/problems", &problems)
		found := false
		for _, p := range problems {
			if p.Code == status.CodeServerSlow || strings.Contains(p.Text, "network is fine") {
				t.Fatalf("the server is blamed: %+v", p)
			}
			found = found || p.Code == status.CodeWireLossy && p.Subject == "patient"
		}
		return found
	})
	_, out, errOut := run("stats", "-c", x.path, "--over", "0")
	_, inJSON, _ := run("stats", "-c", x.path, "--json")
	shown := map[string]string{"stats": out + errOut, "stats --json": inJSON}
	if _, out, _ := run("doctor", "-c", x.path, "--json"); strings.Contains(out, `"code": "endpoint-`) {
		t.Errorf("doctor accuses a server that can be reached again: %s", out)
	}
	t.Run("page", func(t *testing.T) {
		p := browser.Start(t).Open(t, url, browser.Look{Width: 1280, Height: 900})
		p.Until("the page has the problem", "document.querySelector('#problems li') !== null")
		shown["page"] = browser.Eval[string](p, "document.querySelector('#problems').textContent")
	})
	for where, text := range shown {
		if !strings.Contains(text, "The network to upstream patient") || where != "stats" && !strings.Contains(text, status.CodeWireLossy) {
			t.Errorf("%s does not name the network: %s", where, text)
		}
		if strings.Contains(text, status.CodeServerSlow) || strings.Contains(text, "network is fine") {
			t.Errorf("%s blames the server: %s", where, text)
		}
	}
}

// anotherNetwork makes a network namespace, and a cable to it: "cable" is the device here, and "socket" the one there. It
// returns what runs a function there.
func anotherNetwork(t *testing.T) (there func(func() error)) {
	t.Helper()
	work, done := make(chan func() error), make(chan error)
	go func() {
		runtime.LockOSThread() // for ever: the thread ends with the goroutine, and its namespace with both
		for f := range work {
			done <- f()
		}
	}()
	t.Cleanup(func() { close(work) })
	there = func(f func() error) {
		t.Helper()
		work <- f
		must(t, <-done)
	}
	var thread int
	there(func() error {
		thread = syscall.Gettid()
		return syscall.Unshare(syscall.CLONE_NEWNET)
	})
	mustRunCommand(t, "ip", "link", "add", "cable", "type", "veth", "peer", "name", "socket", "netns", fmt.Sprint(thread))
	return there
}
