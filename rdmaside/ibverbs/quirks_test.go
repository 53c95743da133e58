package ibverbs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestQuirks(t *testing.T) {
	seen := make(map[string]bool)
	for _, q := range quirks {
		if q.Driver == "" || seen[q.Driver] || q.Source == "" {
			t.Errorf("row %+v: no driver, a driver that has a row, or no source", q)
		}
		seen[q.Driver] = true
		if got, known := QuirksOf(q.Driver); !known || got != q {
			t.Errorf("QuirksOf(%s) = %+v, %v", q.Driver, got, known)
		}
		if run := strings.HasPrefix(q.Source, "run on"); q.Proved != run {
			t.Errorf("%s: proved %v, source %q", q.Driver, q.Proved, q.Source)
		}
	}
	q, known := QuirksOf("new_driver")
	if known || q.Driver != "new_driver" || q.Refused != "" || q.Windows != WindowsAsked || q.Source == "" {
		t.Errorf("QuirksOf(new_driver) = %+v, %v", q, known)
	}
	if q, _ := QuirksOf("efa"); q.Refused == "" {
		t.Error("efa is not refused")
	}
}

func TestDriverOf(t *testing.T) {
	class := t.TempDir()
	for device, driver := range map[string]string{"mlx5_0": "mlx5_core", "mlx5_1": "mlx5_core.sf", "irdma0": "ice", "rocep1": "i40e", "bnxt_re0": "bnxt_en"} {
		target := filepath.Join(class, "drivers", driver)
		if err := os.MkdirAll(target, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Join(class, device, "device"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, filepath.Join(class, device, "device", "driver")); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		device string
		iwarp  bool
		want   string
	}{
		{"mlx5_0", false, "mlx5_core"},
		{"mlx5_1", false, "mlx5_core"},
		{"irdma0", false, "irdma"},
		{"rocep1", true, "irdma"},
		{"bnxt_re0", false, "bnxt_en"},
		{"rxe0", false, "rxe"},
		{"storage", true, "siw"},
	} {
		if got := DriverOf(class, tt.device, tt.iwarp); got != tt.want {
			t.Errorf("DriverOf(%s, %v) = %s, want %s", tt.device, tt.iwarp, got, tt.want)
		}
	}
}
