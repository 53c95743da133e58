package main

import (
	"slices"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
)

// TestMountWatch: a bridge is needed by mounts from its port and by clients, for a while before the first mount, and for a
// moment after the last.
func TestMountWatch(t *testing.T) {
	const (
		none  = "22 1 254:0 / / rw - ext4 /dev/vda rw\n"
		other = none + "36 22 0:30 / /mnt rw - nfs4 h:/e rw,vers=4.2,port=20124,addr=127.0.0.1\n"
		mount = none + "36 22 0:30 / /mnt rw - nfs4 h:/e rw,vers=4.2,port=20123,addr=127.0.0.1\n"
	)
	type look struct {
		at      time.Duration // since the bridge started
		table   string
		clients int
		needed  bool
	}
	for name, looks := range map[string][]look{
		"never mounted":         {{0, none, 0, true}, {119 * time.Second, other, 0, true}, {120 * time.Second, other, 0, false}},
		"mounted":               {{time.Second, mount, 0, true}, {time.Hour, mount, 0, true}, {time.Hour + 2*time.Second, none, 0, true}, {time.Hour + 3*time.Second, other, 0, false}},
		"restarted":             {{time.Second, mount, 0, true}, {4 * time.Second, none, 0, false}},
		"being mounted":         {{119 * time.Second, none, 1, true}, {121 * time.Second, mount, 1, true}, {124 * time.Second, none, 0, false}},
		"umount -l":             {{time.Second, mount, 1, true}, {time.Hour, none, 1, true}, {time.Hour + 3*time.Second, none, 0, false}},
		"mounted somewhere new": {{time.Second, mount, 0, true}, {3 * time.Second, none, 0, true}, {5 * time.Second, mount, 0, true}, {7 * time.Second, none, 0, true}},
	} {
		begin := time.Unix(1e9, 0)
		w := mountWatch{port: 20123, used: begin, first: 2 * time.Minute, last: 3 * time.Second}
		for _, l := range looks {
			if got := w.needed(begin.Add(l.at), l.table, func() int { return l.clients }); got != l.needed {
				t.Errorf("%s, after %v: needed is %t", name, l.at, got)
			}
		}
	}
}

// TestUntilUnmounted: a bridge for mounts serves ports below 1024 alone.
func TestUntilUnmounted(t *testing.T) {
	text, c, _, err := lineConfig(t, "111", "--from", "tcp://127.0.0.1:20123", "--to", "rdma://10.1.0.5", "--mount", "none", "--until-unmounted")
	if err != nil {
		t.Fatal(err)
	}
	if l := c.Listeners[0]; l.Privileged != "required" || l.Limits.Connections != 64 || len(c.Warnings()) > 0 {
		t.Errorf("privileged %s, %v, %v\n%s", l.Privileged, l.Limits, c.Warnings(), text)
	}
}

// TestEndsUnneeded: a bridge drains and ends when its last client has gone and nothing is mounted. This test cannot mount.
func TestEndsUnneeded(t *testing.T) {
	s, err := proxytest.ListenTCP("127.0.0.1:0", proxytest.Behaviour{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	text, _, _, err := lineConfig(t, "111", "--from", "tcp://127.0.0.1:0", "--to", "tcp://"+s.Addr(), "--mount", "none", "--admin-address", "none")
	if err != nil {
		t.Fatal(err)
	}
	b, _, wait := startServe(t, text+"memory: {budget: 256MiB}\n")
	client, err := proxytest.DialClient(b.proxy.Addr("nfs"))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Call(nullCall(7, 100003, 3)); err != nil {
		t.Fatal(err)
	}
	b.endUnneeded(mountWatch{port: 1, proven: true}, time.Millisecond)
	time.Sleep(50 * time.Millisecond)
	if b.draining.Load() {
		t.Error("the bridge drains although it has a client")
	}
	client.Close()
	if err := wait(); err != nil {
		t.Error(err)
	}
}

// TestHelperArgs: the program is a helper of mount(8) by its name, also if the helper is a copy that runs a bridge.
func TestHelperArgs(t *testing.T) {
	for _, tc := range []struct{ in, want []string }{
		{[]string{"/usr/bin/rdmabridge", "stats"}, []string{"stats"}},
		{[]string{"/sbin/mount.rdmabridge", "h:/e", "/mnt", "-o", "rw"}, []string{"mount", "--helper", "h:/e", "/mnt", "-o", "rw"}},
		{[]string{"umount.rdmabridge", "/mnt"}, []string{"umount", "--helper", "/mnt"}},
		{[]string{"/sbin/mount.rdmabridge"}, []string{"mount", "--helper"}},
		{[]string{"/sbin/mount.rdmabridge", "serve", "--from", "x"}, []string{"serve", "--from", "x"}},
	} {
		if got := helperArgs(tc.in); !slices.Equal(got, tc.want) {
			t.Errorf("%q: %q, want %q", tc.in, got, tc.want)
		}
	}
}
