//go:build lab

package lab

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestLabDoctor runs doctor in a guest with siw and rxe on one network interface and with knfsd, and
// on this host with knfsd as its upstream.
func TestLabDoctor(t *testing.T) {
	needLab(t)
	g := bootGuest(t)
	g.put(t, bridgeBinary(t), "rdmabridge")
	d := &labDoctor{g}
	t.Run("siw", d.testSIW)
	t.Run("endpoints", d.testEndpoints)
	t.Run("user", d.testUser)
	t.Run("host", d.testHost)
	t.Run("rxe", d.testRXE)
	t.Run("cgroup", d.testCgroup)
	t.Run("down", d.testDown)
}

// Exit codes of doctor.
const (
	doctorDone   = 0 // nothing worse than a note
	doctorFailed = 1 // an error
	doctorWarned = 3 // a warning, and no error
)

// A doctorJSON is what the lab reads of the JSON of doctor.
type doctorJSON struct {
	Endpoints []struct {
		Provider    string
		Connected   bool
		Answers     []struct{ Answer, Name string }
		PrivateData *struct{ Hex string } `json:"private_data"`
		Credits     int
		CallInline  int `json:"call_inline"`
	}
	Findings []struct{ Code, Severity, Subject, Text string }
	Host     struct {
		Devices []struct {
			Name, Protocol, Driver string
			Limits                 map[string]any
			Ports                  []struct {
				State  string
				Choice *struct {
					Index int
					Why   string
				}
				GIDs   []struct{ GID, Type string }
				Netdev *struct{ Name string }
			}
		}
	}
}

// has reports whether there is a finding with a severity, a code and a part of its subject.
func (r *doctorJSON) has(severity, code, subject string) bool {
	for _, f := range r.Findings {
		if f.Severity == severity && f.Code == code && strings.Contains(f.Subject, subject) {
			return true
		}
	}
	return false
}

// A labDoctor runs doctor in a guest.
type labDoctor struct {
	g *guest
}

// run runs a script in the guest that ends with doctor --json, and compares its exit code.
func (d *labDoctor) run(t *testing.T, code int, script string) (r doctorJSON) {
	t.Helper()
	out := d.g.job(t, time.Minute, fmt.Sprintf("%s > /tmp/out 2> /tmp/err; rc=$?; cat /tmp/out; [ $rc = %d ] || { echo status $rc; cat /tmp/err; exit 1; }", script, code))
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return r
}

// config writes a configuration that knfsd of the guest serves, at an address of the guest.
func (d *labDoctor) config(t *testing.T, name, host string, rdma, mount int) {
	t.Helper()
	text := fmt.Sprintf(`
listeners:
  - {name: nfs, address: "127.0.0.1:12049", upstream: storage, privileged: any, limits: {connections: 64}, routes: [{program: mount, upstream: mountd}]}
upstreams:
  - {name: storage, transport: rdma, endpoints: ["%s:%d"]}
  - {name: mountd, transport: tcp, endpoints: ["%s:%d"], source: {ports: reserved}, pool: {mode: shared}}
memory: {budget: 64MiB}
`, host, rdma, host, mount)
	file := filepath.Join(d.g.dir, name)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	command(t, 10*time.Second, bridgeBinary(t), "check", file)
}

func (d *labDoctor) testSIW(t *testing.T) {
	r := d.run(t, doctorDone, "/host/rdmabridge doctor --json")
	if len(r.Host.Devices) != 1 || !r.has("note", "locked-memory", "") || len(r.Findings) != 1 {
		t.Fatalf("%+v", r)
	}
	x := r.Host.Devices[0]
	if x.Name != "siw0" || x.Protocol != "iWARP" || x.Driver != "siw" || x.Limits["max_sge"] != 6.0 || x.Limits["max_mw"] != 0.0 {
		t.Errorf("%+v", x)
	}
	if p := x.Ports[0]; p.State != "ACTIVE" || p.Choice != nil || p.Netdev == nil || p.Netdev.Name != "eth0" {
		t.Errorf("%+v", p)
	}
}

// testEndpoints: from the guest itself, knfsd answers over RDMA and mountd from a reserved port.
func (d *labDoctor) testEndpoints(t *testing.T) {
	d.config(t, "guest.yaml", "10.0.2.15", 20049, 20048)
	checkEndpoints(t, d.run(t, doctorDone, "/host/rdmabridge doctor --json -c /host/guest.yaml"))
}

// checkEndpoints compares the endpoints with what knfsd of Linux 6.1 has.
func checkEndpoints(t *testing.T, r doctorJSON) {
	t.Helper()
	if len(r.Endpoints) != 2 {
		t.Fatalf("%+v", r)
	}
	e := r.Endpoints[0]
	if !e.Connected || e.Provider != "iwarp" || e.Credits != 64 || e.CallInline != 4096 || e.PrivateData == nil || e.PrivateData.Hex != "f6ab0e1801000303" {
		t.Errorf("%+v", e)
	}
	if e := r.Endpoints[1]; !e.Connected || len(e.Answers) != 1 || e.Answers[0].Name != "mount" || e.Answers[0].Answer != "success" {
		t.Errorf("%+v", e)
	}
}

// testUser: an ordinary user may use the device, has no reserved ports, and may lock less memory.
func (d *labDoctor) testUser(t *testing.T) {
	r := d.run(t, doctorFailed, "su -s /bin/sh alice -c 'ulimit -l 64; /host/rdmabridge doctor --json -c /host/guest.yaml'")
	if !r.has("error", "privileged-port", "mountd") || !r.has("note", "locked-memory", "") || !r.Endpoints[0].Connected || r.Host.Devices[0].Limits == nil {
		t.Errorf("%+v", r)
	}
}

// testHost: this host has no RDMA device, and reaches the guest's all the same.
func (d *labDoctor) testHost(t *testing.T) {
	d.config(t, "host.yaml", "127.0.0.1", d.g.rdma, d.g.mount)
	var out strings.Builder
	cmd := exec.CommandContext(t.Context(), bridgeBinary(t), "doctor", "--json", "-c", filepath.Join(d.g.dir, "host.yaml"))
	cmd.Stdout = &out
	err := cmd.Run() // the exit code depends on this host
	var r doctorJSON
	if err2 := json.Unmarshal([]byte(out.String()), &r); err2 != nil {
		t.Fatalf("%v, %v\n%s", err, err2, out.String())
	}
	checkEndpoints(t, r)
}

// testRXE: rxe has RoCE v2 with the interface's addresses, and no iWARP to connect to.
func (d *labDoctor) testRXE(t *testing.T) {
	d.g.becomeRXE(t)
	r := d.run(t, doctorFailed, "/host/rdmabridge doctor --json -c /host/guest.yaml")
	if len(r.Host.Devices) != 1 || !r.has("error", "endpoint-refused", "storage") {
		t.Fatalf("%+v", r)
	}
	x := r.Host.Devices[0]
	if x.Name != "rxe0" || x.Protocol != "RoCE" || x.Driver != "rxe" || x.Limits["max_sge"] != 32.0 || !r.has("note", "mtu", "rxe0 port 1") {
		t.Errorf("%+v", x)
	}
	p := x.Ports[0]
	if p.Choice == nil || !strings.Contains(p.Choice.Why, "from 10.0.2.15") || p.GIDs[p.Choice.Index].GID != "::ffff:10.0.2.15" || p.GIDs[p.Choice.Index].Type != "RoCE v2" {
		t.Errorf("%+v", p)
	}
}

// testCgroup: a cgroup that allows no device keeps the driver from making a context.
func (d *labDoctor) testCgroup(t *testing.T) {
	const box = "/sys/fs/cgroup/box"
	r := d.run(t, doctorWarned, "mount -t cgroup2 none /sys/fs/cgroup; echo +rdma > /sys/fs/cgroup/cgroup.subtree_control; mkdir "+box+
		"; echo 'rxe0 hca_handle=0 hca_object=max' > "+box+"/rdma.max; echo $$ > "+box+"/cgroup.procs; /host/rdmabridge doctor --json")
	if !r.has("warning", "cgroup-rdma", box+"/rdma.max") || !r.has("warning", "cgroup-rdma", "rxe0") || r.Host.Devices[0].Limits != nil {
		t.Errorf("%+v", r)
	}
}

// testDown comes last: the guest has no network afterwards.
func (d *labDoctor) testDown(t *testing.T) {
	r := d.run(t, doctorWarned, "ip link set eth0 down; /host/rdmabridge doctor --json")
	if !r.has("warning", "port-down", "rxe0 port 1") || !r.has("warning", "no-active-port", "") {
		t.Errorf("%+v", r)
	}
}
