package loop_test

import (
	"net"
	"strconv"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/loop"
)

// TestListen: an IPv4 address listens on IPv4 alone, every address of it included; [::] and no host on both families.
func TestListen(t *testing.T) {
	if l, err := net.Listen("tcp", "[::1]:0"); err != nil {
		t.Skip("no IPv6 here: ", err)
	} else {
		l.Close()
	}
	for address, six := range map[string]bool{"0.0.0.0:0": false, "127.0.0.1:0": false, "[::]:0": true, ":0": true} {
		l, err := loop.Listen(address)
		if err != nil {
			t.Errorf("%s: %v", address, err)
			continue
		}
		port := strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
		for host, want := range map[string]bool{"127.0.0.1": true, "::1": six} {
			c, err := net.Dial("tcp", net.JoinHostPort(host, port))
			if err == nil {
				c.Close()
			}
			if (err == nil) != want {
				t.Errorf("%s, connecting to %s: %v, want it to be possible: %v", address, host, err, want)
			}
		}
		l.Close()
	}
}
