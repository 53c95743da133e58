//go:build !ibverbs

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/cli"
)

// TestNotBuilt: a configuration that asks for ibverbs gets one line that names the build.
func TestNotBuilt(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	text := `
listeners:
  - {name: nfs, address: "127.0.0.1:0", transport: tcp, upstream: storage}
upstreams:
  - {name: storage, transport: rdma, provider: ibverbs, endpoints: ["127.0.0.1:20049"]}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	// Serve says it in the format of the log.
	for verb, where := range map[string]string{"check": "config.yaml:5: upstreams[0].provider: ", "serve": `config.yaml","line":5,"setting":"upstreams[0].provider"`} {
		var out, errOut bytes.Buffer
		code := execute([]string{verb, "-c", file}, &out, &errOut)
		said := out.String() + errOut.String()
		if code != cli.ExitFailed || strings.Count(said, "use rdmabridge-ibverbs") != 1 || !strings.Contains(said, where) {
			t.Errorf("%s: exit code %d\n%s", verb, code, said)
		}
	}
}
