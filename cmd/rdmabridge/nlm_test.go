package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/doctor"
	"github.com/rdmabridge/rdmabridge/internal/rpcbind"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// answersNLM reports whether a lock manager is at the address, on a network.
func answersNLM(network, at string) bool {
	c, err := net.Dial(network, at)
	if err != nil {
		return false
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(testkit.Patience))
	call := nullCall(7, 100021, 4)
	if network == "tcp" {
		call = testkit.Record(call)
	}
	if _, err := c.Write(call); err != nil {
		return false
	}
	reply := make([]byte, 64)
	n, err := c.Read(reply)
	want := []byte{0, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	return err == nil && bytes.HasSuffix(reply[:n], want)
}

// TestNLMServe: the lock manager is off by default, is announced by rpcbind, follows the file, and ends with the bridge.
func TestNLMServe(t *testing.T) {
	x := startReload(t, minimalConfig)
	if x.b.nlmAddr().IsValid() || x.b.locksStatus() != nil {
		t.Error("the lock manager is running although the configuration does not enable it")
	}
	state := t.TempDir() + "/new"
	config := minimalConfig + fmt.Sprintf("rpcbind: {address: '127.0.0.1:0'}\nnlm: {address: '127.0.0.1:0', server: 127.0.0.2, state: %s}\n", state)
	x.reload(config, loaded)
	first := x.b.nlmAddr()
	for _, network := range []string{"tcp", "udp"} {
		if !answersNLM(network, first.String()) {
			t.Errorf("no answer over %s", network)
		}
	}
	for _, p := range [][2]uint32{{100021, 1}, {100021, 3}, {100021, 4}, {100024, 1}} {
		if port, err := rpcbind.Ask(context.Background(), x.b.rpcbind.Addr().String(), p[0], p[1]); err != nil || port != first.Port() {
			t.Errorf("rpcbind says %d for program %d version %d, %v; want %d", port, p[0], p[1], err, first.Port())
		}
	}

	if l := x.b.locksStatus(); l == nil || l.Server != "127.0.0.2" || l.Held != 0 {
		t.Errorf("the status has %+v", l)
	}

	// Other addresses may lock from now on, and the sockets stay.
	config = strings.Replace(config, "server:", "allow: [192.0.2.1], server:", 1)
	x.reload(config, loaded)
	if at := x.b.nlmAddr(); at != first || answersNLM("tcp", at.String()) {
		t.Errorf("at %s, which was %s, an address may lock that is not in allow", at, first)
	}
	// The service starts anew, with the same directory.
	config = strings.Replace(config, "allow: [192.0.2.1], server: 127.0.0.2", "server: 127.0.0.3", 1)
	x.reload(config, loaded)
	if second := x.b.nlmAddr(); second == first || !answersNLM("tcp", second.String()) {
		t.Errorf("another server: at %s, which was %s", second, first)
	}
	last := x.b.nlmAddr().String()
	x.stop()
	if c, err := net.Dial("tcp", last); err == nil {
		c.Close()
		t.Error("the lock manager listens after the end")
	}
}

// TestDoctorLocks: doctor asks the storage's rpcbind for its lock manager, and looks at the directory.
func TestDoctorLocks(t *testing.T) {
	b, signals, wait := startServe(t, minimalConfig+"rpcbind: {address: '127.0.0.1:0'}\nnlm: {address: '127.0.0.1:0', server: 127.0.0.2, state: none}\n")
	storage := int(b.rpcbind.Addr().Port())
	nobody := int(netip.MustParseAddrPort(testkit.FreeAddr(t)).Port())
	file := writeFile(t, "")
	for _, tt := range []struct {
		name    string
		c       configs.NLM
		rpcbind int
		want    string
	}{
		{"all is there", configs.NLM{State: t.TempDir() + "/new/locks"}, storage, "[]"},
		{"none", configs.NLM{Address: "none", State: file}, nobody, "[]"},
		{"a file", configs.NLM{State: file + "/locks"}, storage, "[nlm-state]"},
		{"no rpcbind", configs.NLM{State: "none"}, nobody, "[nlm-server]"},
		{"nobody at the port", configs.NLM{State: "none", ServerPort: nobody}, storage, "[nlm-server]"},
	} {
		tt.c.Server = "127.0.0.1"
		if tt.c.Address == "" {
			tt.c.Address = "127.0.0.1:0"
		}
		var found doctor.Findings
		judgeLocks(t.Context(), &tt.c, tt.rpcbind, &found)
		codes := []string{}
		for _, f := range found {
			codes = append(codes, f.Code)
		}
		if fmt.Sprint(codes) != tt.want {
			t.Errorf("%s: %v, want %s", tt.name, found, tt.want)
		}
	}
	signals <- syscall.SIGTERM
	if err := wait(); err != nil {
		t.Error(err)
	}
}
