package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/cli"
	"github.com/rdmabridge/rdmabridge/internal/doctor"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
)

// A doctorReport is what tests read of the JSON of doctor.
type doctorReport struct {
	Format    int
	Endpoints []struct {
		Connected bool
		Answers   []struct{ Name string }
	}
	Findings []doctorFinding
}

type doctorFinding struct {
	Code, Severity, Subject, Text string
}

// has reports whether there is a finding with a severity, a code and a part of its subject.
func (r *doctorReport) has(severity, code, subject string) bool {
	for _, f := range r.Findings {
		if f.Severity == severity && f.Code == code && strings.Contains(f.Subject, subject) {
			return true
		}
	}
	return false
}

// runDoctor runs doctor --json and compares the exit code.
func runDoctor(t *testing.T, code int, args ...string) (r doctorReport) {
	t.Helper()
	var out, errOut bytes.Buffer
	if got := execute(append([]string{"doctor", "--json"}, args...), &out, &errOut); got != code {
		t.Errorf("exit code %d, want %d; %s%s", got, code, errOut.String(), out.String())
	}
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatalf("%v\n%s", err, out.Bytes())
	}
	if r.Format != 1 {
		t.Errorf("format %d", r.Format)
	}
	return r
}

// TestDoctorEndpoints: one endpoint answers, one has no listener, and one has a provider that this
// build lacks.
func TestDoctorEndpoints(t *testing.T) {
	s, err := proxytest.ListenTCP("127.0.0.1:0", proxytest.Behaviour{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	dead := testkit.DeadAddr(t)
	text := fmt.Sprintf(`
listeners: [{name: nfs, address: 127.0.0.1:0, upstream: good, routes: [{program: mount, upstream: good}, {program: nlm, upstream: dead}]}]
upstreams:
  - {name: good, transport: tcp, endpoints: ["%s"]}
  - {name: dead, transport: rdma, endpoints: ["%s"]}
memory: {budget: 64MiB}
`, s.Addr(), dead)
	r := runDoctor(t, cli.ExitFailed, "-c", writeFile(t, text))
	if len(r.Endpoints) != 2 || !r.Endpoints[0].Connected || len(r.Endpoints[0].Answers) != 2 || r.Endpoints[0].Answers[1].Name != "mount" || r.Endpoints[1].Connected {
		t.Errorf("%+v", r.Endpoints)
	}
	if !r.has("error", "endpoint-refused", "dead, "+dead) || r.has("error", "endpoint-refused", "good") {
		t.Errorf("%+v", r.Findings)
	}
	if slices.Contains(known.Providers, configs.ProviderIBVerbs) {
		t.Skip("this build has every provider")
	}
	text = strings.Replace(text, "transport: rdma", "transport: rdma, provider: ibverbs", 1)
	r = runDoctor(t, cli.ExitFailed, "-c", writeFile(t, text))
	if !r.has("error", "provider-missing", "upstream dead") || !r.has("error", "endpoint-not-asked", dead) || len(r.Endpoints) != 1 {
		t.Errorf("%+v", r)
	}
}

// TestDoctorConfig: the problems of a file are findings, and a file that cannot be read is none.
func TestDoctorConfig(t *testing.T) {
	r := runDoctor(t, cli.ExitFailed, "-c", writeFile(t, "listeners: []\nfoo: 1\n"))
	if !r.has("error", "config", "rdmabridge.yaml") || !slices.ContainsFunc(r.Findings, func(f doctorFinding) bool { return strings.HasPrefix(f.Text, "line 2: foo: unknown setting") }) {
		t.Errorf("%+v", r.Findings)
	}
	var out, errOut bytes.Buffer
	if code := execute([]string{"doctor", "-c", "/not/there"}, &out, &errOut); code != cli.ExitUsage || out.Len() > 0 {
		t.Errorf("exit code %d, want %d: %s", code, cli.ExitUsage, out.String())
	}
}

// TestDoctorExit: the exit code says how bad the worst finding is.
func TestDoctorExit(t *testing.T) {
	var fs doctor.Findings
	for _, tc := range []struct {
		severity doctor.Severity
		code     int
	}{{doctor.Note, cli.ExitDone}, {doctor.Warning, exitWarned}, {doctor.Error, cli.ExitFailed}, {doctor.Note, cli.ExitFailed}} {
		fs.Add("mtu", tc.severity, "", "")
		code := cli.ExitDone
		if err := worstExit(fs); err != nil {
			code = err.(*cli.ExitError).Code
		}
		if code != tc.code {
			t.Errorf("exit code %d after %v, want %d", code, tc.severity, tc.code)
		}
	}
}

// TestDoctorJudgesConfig: descriptors, ports and memory are compared with the configuration.
func TestDoctorJudgesConfig(t *testing.T) {
	c, err := configs.LoadFile(writeFile(t, `
listeners:
  - {name: nfs, address: "127.0.0.1:600", upstream: storage, privileged: any, limits: {connections: 5000}}
upstreams:
  - {name: storage, transport: tcp, endpoints: ["127.0.0.1:1"], source: {ports: 700-709}, pool: {connections: 4, mode: pinned, pinned: 100}}
rpcbind: {address: "127.0.0.1:111"}
nlm: {address: "127.0.0.1:700", server: 127.0.0.1}
memory: {budget: 1000000GiB}
`), known)
	if err != nil {
		t.Fatal(err)
	}
	host := func(capabilities uint64, descriptors doctor.Amount) *doctor.Process {
		p := &doctor.Process{Capabilities: capabilities, Descriptors: doctor.Limit{Soft: descriptors, Hard: descriptors}, Unprivileged: 1024}
		return p
	}
	for _, tc := range []struct {
		name    string
		process *doctor.Process
		want    []string
	}{
		{"root", host(1<<10, 100_000), []string{"warning memory", "warning source-ports"}},
		{"a user", host(0, 100_000), []string{"error privileged-port", "error privileged-port", "error privileged-port", "warning memory", "warning source-ports"}},
		{"few descriptors", host(1<<10, 1000), []string{"warning descriptors", "warning memory", "warning source-ports"}},
		{"too few descriptors", host(1<<10, 100), []string{"error descriptors", "warning memory", "warning source-ports"}},
	} {
		var fs doctor.Findings
		judgeConfig(c, tc.process, &fs)
		var got []string
		for _, f := range fs {
			got = append(got, f.Severity.String()+" "+f.Code)
		}
		slices.Sort(got)
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: %q, want %q: %+v", tc.name, got, tc.want, fs)
		}
	}
}
