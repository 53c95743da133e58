package charttest

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
)

const compose = "../../deploy/compose/"

// loadCompose reads compose.yaml as docker compose does, with the schema of Compose and its rules.
func loadCompose(t *testing.T) *types.Project {
	t.Helper()
	text, err := os.ReadFile(compose + "compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := filepath.Abs(compose)
	if err != nil {
		t.Fatal(err)
	}
	p, err := loader.LoadWithContext(t.Context(), types.ConfigDetails{
		WorkingDir: dir, ConfigFiles: []types.ConfigFile{{Filename: filepath.Join(dir, "compose.yaml"), Content: text}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestCompose: compose.yaml is valid, what it mounts and builds exists, and no two services have one port of the host, which
// is open to this host alone. testCompose runs its commands.
func TestCompose(t *testing.T) {
	p := loadCompose(t)
	ports := make(map[string]string)
	for name, s := range p.Services {
		for _, v := range s.Volumes {
			if info, err := os.Stat(v.Source); err != nil || !info.Mode().IsRegular() {
				t.Errorf("%s mounts %s: %v", name, v.Source, err)
			}
		}
		if b := s.Build; b != nil {
			if _, err := os.Stat(filepath.Join(b.Context, b.Dockerfile)); err != nil {
				t.Error(err)
			}
		}
		for _, port := range s.Ports {
			if other := ports[port.Published]; other != "" || port.HostIP != "127.0.0.1" {
				t.Errorf("%s has %s:%s, and %q, too", name, port.HostIP, port.Published, other)
			}
			ports[port.Published] = name
		}
	}
	if len(ports) < 5 {
		t.Errorf("ports %v", ports)
	}

	promtool := "/var/cache/rdmabridge-lab/promtool" // deploy/lab/install.sh puts it there
	if _, err := os.Stat(promtool); err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	for _, v := range p.Services["prometheus"].Volumes {
		text, err := os.ReadFile(v.Source)
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, filepath.Base(v.Target)), string(text))
	}
	if out, err := exec.CommandContext(t.Context(), promtool, "check", "config", filepath.Join(dir, "prometheus.yml")).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// testCompose runs the demo and the load of compose.yaml, with their command lines, in the network of TestPod. A service's
// name is 127.0.0.1 there.
func testCompose(t *testing.T, programs string) {
	p := loadCompose(t)
	demo := launch(t, exec.CommandContext(t.Context(), filepath.Join(programs, "rdmabridge"), p.Services["demo"].Command...), func() error { return nil })
	demo.log.wait(t, "nfs-cp")
	scrape, err := os.ReadFile(compose + "prometheus.yml")
	if err != nil || !strings.Contains(string(scrape), `"demo:9090"`) {
		t.Errorf("Prometheus does not scrape the demo: %v", err)
	}
	r, err := http.Get("http://127.0.0.1:9090/metrics")
	if err != nil || r.StatusCode != http.StatusOK {
		t.Fatal(r, err)
	}
	if err := r.Body.Close(); err != nil {
		t.Error(err)
	}
	load := p.Services["load"]
	args := slices.Concat(load.Entrypoint[1:], load.Command)
	for i, a := range args {
		args[i] = strings.NewReplacer("demo:", "127.0.0.1:", "24h", "1s").Replace(a)
	}
	if out, err := exec.CommandContext(t.Context(), filepath.Join(programs, load.Entrypoint[0]), args...).CombinedOutput(); err != nil {
		t.Errorf("%v: %v\n%s", args, err, out)
	}
	demo.stop(t)
}
