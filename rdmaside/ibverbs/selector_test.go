package ibverbs

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// writeClass makes a directory like /sys/class/infiniband, with the GIDs of each port.
func writeClass(t *testing.T, ports map[string][]string) string {
	t.Helper()
	class := t.TempDir()
	for port, gids := range ports {
		device, number, _ := strings.Cut(port, "/")
		dir := filepath.Join(class, device, "ports", number, "gids")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for i, g := range gids {
			if err := os.WriteFile(filepath.Join(dir, string(rune('0'+i))), []byte(g+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	return class
}

const zeroGID = "0000:0000:0000:0000:0000:0000:0000:0000"

func TestSelectorCheck(t *testing.T) {
	class := writeClass(t, map[string][]string{
		"mlx5_0/1": {"fe80:0000:0000:0000:0ac0:ebff:fe00:0001", "0000:0000:0000:0000:0000:ffff:0a01:0005", zeroGID},
		"mlx5_1/1": {"fe80:0000:0000:0000:0ac0:ebff:fe00:0002"},
		"mlx5_1/2": {zeroGID},
	})
	ip := netip.MustParseAddr
	for _, tt := range []struct {
		s    Selector
		want string // in the error; "" if there is none
	}{
		{Selector{}, ""},
		{Selector{Device: "mlx5_1"}, ""},
		{Selector{Device: "mlx5_1", Port: 2}, ""},
		{Selector{Port: 2}, ""},
		{Selector{GID: ip("fe80::ac0:ebff:fe00:2")}, ""},
		{Selector{GID: ip("::ffff:10.1.0.5")}, ""},
		{Selector{GID: ip("10.1.0.5")}, ""},
		{Selector{Device: "mlx5_0", Port: 1, GID: ip("::ffff:10.1.0.5")}, ""},
		{Selector{Device: "mlx5_9"}, "there is no RDMA device mlx5_9; this host has mlx5_0, mlx5_1"},
		{Selector{Device: "mlx5_0", Port: 2}, "there is no port 2; device mlx5_0 has port 1"},
		{Selector{Device: "mlx5_1", Port: 3}, "there is no port 3; device mlx5_1 has port 1, 2"},
		{Selector{Port: 3}, "there is no port 3; this host has port 1, 2"},
		{Selector{GID: ip("fe80::1")}, "no port has the GID fe80::1; this host has ::ffff:10.1.0.5, fe80::ac0:ebff:fe00:1, fe80::ac0:ebff:fe00:2"},
		{Selector{Device: "mlx5_1", GID: ip("10.1.0.5")}, "no port has the GID ::ffff:10.1.0.5; device mlx5_1 has fe80::ac0:ebff:fe00:2"},
		{Selector{Device: "mlx5_1", Port: 2, GID: ip("10.1.0.5")}, "no port has a GID"},
		{Selector{GID: ip("::")}, "no port has the GID ::"},
	} {
		err := tt.s.check(class)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%+v: %v, want %q", tt.s, err, tt.want)
		}
	}
	if err := (Selector{Device: "mlx5_0"}).check(filepath.Join(class, "missing")); err == nil || !strings.Contains(err.Error(), "no RDMA device") {
		t.Errorf("a kernel without RDMA: %v", err)
	}
	if err := (Selector{}).check(filepath.Join(class, "missing")); err != nil {
		t.Errorf("nothing selected: %v", err)
	}
}

func TestSelectorMatches(t *testing.T) {
	gid := netip.MustParseAddr("::ffff:10.1.0.5")
	for s, want := range map[Selector]bool{
		{}:                             true,
		{Device: "mlx5_0"}:             true,
		{Device: "mlx5_1"}:             false,
		{Port: 1}:                      true,
		{Port: 2}:                      false,
		{GID: gid}:                     true,
		{GID: gid.Unmap()}:             true,
		{GID: netip.IPv6Unspecified()}: false,
		{Device: "mlx5_0", Port: 2}:    false,
		{Device: "mlx5_0", GID: gid}:   true,
		{Port: 1, Device: "mlx5_1"}:    false,
		{Port: 1, GID: gid.Next()}:     false,
		{"mlx5_0", 1, gid}:             true,
		{"mlx5_0", 1, gid.Next()}:      false,
	} {
		if got := s.matches("mlx5_0", 1, gid); got != want {
			t.Errorf("%q matches: %v", s, got)
		}
	}
}
