//go:build lab

package lab

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestLabFaults: the Linux client goes through the faults of rdmabridge-bench server --faults.
//
//	the guest's NFS client -- iWARP --> rdmabridge-bench server -- TCP --> the guest's knfsd
//
// RDMABRIDGE_LAB_FULL=1 injects each fault alone, and logs what the client does; the table in
// docs/fault-server.md has the results.
func TestLabFaults(t *testing.T) {
	needLab(t)
	g := bootGuest(t)
	l := &faultLab{g: g, port: freePorts(t, 1)[0]}
	if labFull() {
		l.each(t)
		return
	}
	// No fault of these may be seen by an application, but for the time that it takes.
	for _, tt := range []struct{ vers, rules string }{
		{"3", `
  - {fault: delay, delay: 300ms, every: 9}
  - {fault: reorder, every: 7}
  - {fault: grant, every: 5}
  - {fault: grant, credits: 4294967295, every: 8}
  - {fault: drop_reply, after: 12, count: 1}
  - {fault: cut, after: 25, count: 1}
  - {fault: refuse, after: 1, count: 1}
  - {fault: close, after: 50, count: 1}`},
		{"4.1", `
  - {fault: reorder, every: 7}
  - {fault: grant, every: 5}
  - {fault: corrupt, after: 33, count: 1}
  - {fault: reset, after: 20, count: 1}
  - {fault: freeze, delay: 1s, after: 45, count: 1}`},
	} {
		t.Run(tt.vers, func(t *testing.T) {
			out, counts := l.run(t, tt.vers, tt.rules, "ROUNDS=3")
			t.Logf("%s%s", out, counts)
			for line := range strings.Lines(counts) {
				if f := strings.Fields(line); len(f) == 5 && f[0] != "RULE" && f[4] == "0" {
					t.Errorf("a fault was not injected: %s", line)
				}
			}
		})
	}
}

// A faultLab runs servers that inject faults, one after the other.
type faultLab struct {
	g    *guest
	port int
}

// run has the client use a server with these rules, and returns what the client says and what the rules
// have done.
func (l *faultLab) run(t *testing.T, vers, rules, env string) (out, counts string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "faults.yaml")
	if err := os.WriteFile(file, []byte("seed: 15\nrules:\n"+rules+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := start(t, benchBinary(t), "server", "--faults", file, "--transport", "rdma", "--listen", fmt.Sprintf("127.0.0.1:%d", l.port),
		"--to", fmt.Sprintf("tcp://127.0.0.1:%d", l.g.nfs))
	waitFor(t, 10*time.Second, "the server with faults", func() bool { return bytes.Contains(p.output(), []byte("seed ")) })
	far := farEnd{nfs: l.port, mount: l.g.mount, env: "PROTO=rdma " + env}
	job := l.g.begin(t, far.script("/lab/faults.sh", vers))
	defer func() {
		if t.Failed() {
			t.Logf("the server with faults:\n%s", tail(p.output(), 40))
		}
	}()
	out = job.wait(t, 4*time.Minute)
	p.end(t, syscall.SIGTERM)
	_, counts, _ = strings.Cut(string(p.output()), "RULE ")
	return out, "RULE " + counts
}

// each injects each fault alone.
func (l *faultLab) each(t *testing.T) {
	only := os.Getenv("RDMABRIDGE_LAB_FAULTS")
	for _, tt := range []struct{ rule, env string }{
		{"delay, delay: 300ms, every: 5", ""},
		{"delay, delay: 8s, after: 20, count: 1", ""},
		{"reorder, every: 3", ""},
		{"drop_call, after: 20, count: 1", ""},
		{"drop_reply, after: 20, count: 1", ""},
		{"duplicate_reply, every: 3", "ERRORS=allowed"},
		{"wrong_xid, after: 20, count: 1", ""},
		{"rpc_error, after: 20, count: 1, match: {operations: [READ]}", "ERRORS=allowed"},
		{"rpc_error, error: AUTH_TOOWEAK, after: 20, count: 1", "ERRORS=allowed"},
		{"short_reply, after: 20, count: 1", "ERRORS=allowed"},
		{"corrupt, after: 20, count: 1", ""},
		{"close, every: 25", ""},
		{"reset, every: 25", ""},
		{"cut, every: 25", ""},
		{"cut, how: close, every: 25", ""},
		{"half_close, after: 20, count: 1", ""},
		{"freeze, delay: 3s, after: 20, count: 1", ""},
		{"freeze, delay: 15s, after: 20, count: 1", ""},
		{"grant, every: 1", ""},
		{"grant, credits: 1, every: 2", ""},
		{"grant, credits: 4294967295, every: 1", ""},
		{"err_chunk, after: 2, count: 1, match: {operations: [READ]}", "ERRORS=allowed"},
		{"err_chunk, after: 2, count: 1, match: {operations: [WRITE]}", "ERRORS=allowed"},
		{"err_vers, after: 20, count: 1", "ERRORS=allowed"},
		{"bad_version, after: 20, count: 1", ""},
		{"bad_procedure, after: 20, count: 1", "ERRORS=allowed"},
		{"short_header, after: 20, count: 1", "ERRORS=allowed"},
		{"chunk_short, after: 2, count: 1, match: {operations: [READ]}", "ERRORS=allowed"},
		{"chunk_long, after: 2, count: 1, match: {operations: [READ]}", "ERRORS=allowed BLOCK=300k"},
		{"chunk_beyond, after: 2, count: 1, match: {operations: [READ]}", "ERRORS=allowed"},
		{"chunk_unwritten, after: 2, count: 1, match: {operations: [READ]}", "ERRORS=allowed"},
		{"chunk_missing, after: 2, count: 1, match: {operations: [READ]}", "ERRORS=allowed"},
		{"chunk_overrun, after: 2, count: 1, match: {operations: [READ]}", "ERRORS=allowed"},
		{"late_write, after: 2, count: 1, match: {operations: [READ]}", "ERRORS=allowed"},
		{"wrong_invalidate, after: 2, count: 1, match: {operations: [READ]}", "ERRORS=allowed"},
		{"refuse, after: 1, count: 2}\n  - {fault: reset, after: 20, count: 1", ""},
		{"hang_connect, delay: 10s, after: 1, count: 1}\n  - {fault: reset, after: 20, count: 1", ""},
	} {
		for _, vers := range []string{"3", "4.1"} {
			if name, _, _ := strings.Cut(tt.rule, ","); only != "" && !strings.Contains(" "+only+" ", " "+name+" ") {
				continue
			}
			t.Run(tt.rule+"/"+vers, func(t *testing.T) {
				out, counts := l.run(t, vers, "  - {fault: "+tt.rule+"}", "ROUNDS=3 "+tt.env)
				t.Logf("%s%s", out, counts)
			})
		}
	}
}
