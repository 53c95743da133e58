//go:build !nodemo

package main

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/demo/demotest"
	"github.com/rdmabridge/rdmabridge/internal/faults"
)

// TestServerFaults: a client of the files in memory goes through faults that no client may notice, and
// the server counts them.
func TestServerFaults(t *testing.T) {
	file := filepath.Join(t.TempDir(), "faults.yaml")
	if err := os.WriteFile(file, []byte(`
seed: 3
rules:
  - {name: late, fault: delay, delay: 3ms, jitter: 2ms, every: 7}
  - {name: once more, fault: delay, delay: 1ms, probability: 0.5, match: {operations: [WRITE, READ]}}
  - {name: never, fault: grant}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	r, w := io.Pipe()
	f := faultFlags{file: file, json: true}
	go func() {
		err := f.serve(ctx, faults.Options{Budget: 64 << 20}, "127.0.0.1:0", "tcp", w, io.Discard)
		w.CloseWithError(err)
		ended <- err
	}()
	read := func(want string) string {
		t.Helper()
		var line []byte
		for b := make([]byte, 1); ; {
			if _, err := r.Read(b); err != nil {
				t.Fatalf("after %q: %v", line, err)
			}
			if b[0] == '\n' {
				break
			}
			line = append(line, b[0])
		}
		rest, ok := strings.CutPrefix(string(line), want)
		if !ok {
			t.Fatalf("it prints %q, want %q", line, want)
		}
		return rest
	}
	addr := read("listening tcp ")
	if seed := read("seed "); seed != "3" {
		t.Errorf("seed %s, want that of the file", seed)
	}
	demotest.GoClient(t, addr, 20)
	stop()
	var counts []faults.Count
	if err := json.Unmarshal([]byte(read("")), &counts); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if len(counts) != 3 || counts[0].Injected < 10 || counts[1].Injected < 10 || counts[2].Matched != 0 {
		t.Errorf("counts: %+v", counts)
	}
}
