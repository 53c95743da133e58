package measure

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/sizing"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// TestSizeModel compares the formulas of docs/scaling.md with measurements at a real bridge, at four points: when
// credits bound the rate, when clients do, what a Call costs in processor time, and what clients cost in memory.
// `make size-check` sets RDMABRIDGE_SIZE_CHECK.
func TestSizeModel(t *testing.T) {
	if os.Getenv("RDMABRIDGE_SIZE_CHECK") == "" {
		t.Skip("measures for half a minute: make size-check")
	}
	bridge, bench := build(t, "rdmabridge"), build(t, "rdmabridge-bench")
	run := func(args ...string) []byte {
		t.Helper()
		var out, errs bytes.Buffer
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Run(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, &errs)
		}
		return out.Bytes()
	}
	background := func(binary string, args ...string) int {
		ctx, cancel := context.WithCancel(context.Background())
		cmd := exec.CommandContext(ctx, binary, args...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cancel(); _ = cmd.Wait() })
		return cmd.Process.Pid
	}
	front, back, admin := testkit.FreeAddr(t), testkit.FreeAddr(t), testkit.FreeAddr(t)
	config := filepath.Join(t.TempDir(), "rdmabridge.yaml")
	// One connection of 32 credits: a twentieth of what a measurement can have under way.
	text := fmt.Sprintf(`
listeners: [{name: nfs, address: %q, upstream: storage}]
upstreams: [{name: storage, transport: rdma, endpoints: [%q], pool: {connections: 1, credits: 32}}]
chunks: {io: 64KiB, reply: 72KiB}
memory: {budget: 48MiB}
admin: {address: %q}
control: {path: none}
`, front, back, admin)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	background(bench, "server", "--listen", back, "--transport", "rdma", "--credits", "32")
	pid := background(bridge, "serve", "-c", config)
	testkit.Eventually(t, "the bridge is ready", func() bool {
		res, err := http.Get("http://" + admin + "/readyz")
		if err != nil {
			return false
		}
		res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
	load := func(args ...string) (rate, cpu, octets float64) {
		t.Helper()
		out := run(append([]string{bench, "load", "--target", front, "--pid", strconv.Itoa(pid), "--json", "--timeout", "60s", "--warmup", "2s", "--duration", "4s"}, args...)...)
		var r struct {
			Rate float64 `json:"calls_per_second"`
			CPU  struct {
				PerCall float64 `json:"per_call_us"`
			} `json:"cpu"`
			Octets float64 `json:"gb_per_second"`
		}
		if err := json.Unmarshal(out, &r); err != nil || r.Rate == 0 {
			t.Fatalf("%v\n%s", err, out)
		}
		return r.Rate, r.CPU.PerCall * 1e-6, r.Octets * 1e9
	}
	compare := func(what string, formula, measured float64, unit string, least, most float64) {
		t.Helper()
		off := measured / formula
		t.Logf("%s: the formula says %.3g %s, measured %.3g (%+.0f %%)", what, formula, unit, measured, (off-1)*100)
		if off < least || off > most {
			t.Errorf("%s: beyond %.1f to %.1f of the formula", what, least, most)
		}
	}

	const latency = 200 * time.Millisecond
	rate, _, _ := load("--conns", "32", "--depth", "4", "--delay", latency.String())
	compare("rate that 32 credits allow", sizing.CreditRate(32, latency), rate, "Calls/s", 0.8, 1.2)
	rate, _, _ = load("--conns", "4", "--depth", "4", "--delay", latency.String())
	compare("rate of 16 Calls under way", sizing.ClientRate(16, latency), rate, "Calls/s", 0.8, 1.2)
	// The fewer processors are free, the more Calls does one pass of a loop serve, and the less does each cost.
	rate, cpu, octets := load("--conns", "16", "--depth", "4", "--mix", "nfs3:read=30,write=20,getattr=50", "--size", "32KiB")
	compare("processor time", sizing.CPU(rate, octets)/rate*1e6, cpu*1e6, "us for a Call", 0.5, 1.2)

	before := resident(t, pid)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	idle := exec.CommandContext(ctx, bench, "load", "--target", front, "--conns", "1", "--idle", "4000", "--timeout", "60s", "--duration", "20s")
	if err := idle.Start(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the clients are connected", func() bool {
		res, err := http.Get("http://" + admin + "/metrics")
		if err != nil {
			return false
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		return err == nil && bytes.Contains(b, []byte("rdmabridge_listener_clients{listener=\"nfs\"} 4001\n"))
	})
	// The garbage collector may not have looked at as much again: the formula of the process counts it.
	compare("memory", sizing.ClientMemory(4000), float64(resident(t, pid)-before), "octets for 4000 clients", 0.8, 2)
	cancel()
	_ = idle.Wait()
}
