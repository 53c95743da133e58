package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/cli"
	"github.com/rdmabridge/rdmabridge/internal/cli/clitest"
)

// TestSize: what size prints is a configuration that check accepts.
func TestSize(t *testing.T) {
	for _, c := range []struct {
		args string
		code int
		want []string
	}{
		{"--clients 4000 --calls 200000 --bridges 4 --spare 1 --threads 64", cli.ExitDone, []string{"connections: 1683", "{connections: 3, credits: 64}", "loops: 2"}},
		{"--clients 1 --calls 1", cli.ExitDone, []string{"{connections: 2, credits: 64}", "budget: 160MiB", "loops: 1"}},
		{"--clients 64 --bytes 5GiB --latency 3ms --transport tcp --storage fd00::5", cli.ExitDone, []string{`"[fd00::5]:2049"`, "loops: 7"}},
		{"--clients 1000000 --calls 5e6 --bridges 1000 --latency 2ms --credits 128 --connections 4000", cli.ExitDone, []string{"connections: 1266"}},
		{"--clients 10 --calls 1e6 --latency 1s", cli.ExitFailed, []string{"connections of one bridge, of at most 64"}},
		{"--clients 10 --calls 1000 --bridges 100 --threads 8", cli.ExitFailed, []string{"400 connections at the storage, which takes 220"}},
		{"--clients 10", cli.ExitUsage, []string{"--calls or --bytes is missing"}},
		{"--clients 10 --calls 1 --bridges 2 --spare 2", cli.ExitUsage, []string{"--spare 2 is out of range; write a number below --bridges, which is 2"}},
		{"--clients 10 --calls NaN", cli.ExitUsage, []string{": write how much the clients do in a second"}},
		{"--clients 10 --calls 1 --transport ib", cli.ExitUsage, []string{`--transport: "ib" is not possible here; write rdma or tcp`}},
	} {
		t.Run(c.args, func(t *testing.T) {
			var out, errs bytes.Buffer
			if code := execute(append([]string{"size"}, strings.Fields(c.args)...), &out, &errs); code != c.code {
				t.Fatalf("exit code %d, want %d\n%s%s", code, c.code, &out, &errs)
			}
			for _, w := range c.want {
				if !strings.Contains(out.String()+errs.String(), w) {
					t.Errorf("no %q in\n%s%s", w, &out, &errs)
				}
			}
			if c.code == cli.ExitUsage {
				clitest.Helps(t, strings.Fields(c.args), errs.String())
				return
			}
			file := filepath.Join(t.TempDir(), "rdmabridge.yaml")
			if err := os.WriteFile(file, out.Bytes(), 0o600); err != nil {
				t.Fatal(err)
			}
			var good bytes.Buffer
			if code := execute([]string{"check", file}, &good, &good); code != cli.ExitDone {
				t.Errorf("check: %s\n%s", &good, &out)
			}
		})
	}
}
