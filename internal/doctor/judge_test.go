package doctor

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// The needs of the tests: with no configuration, with one for iwarp, and with one for verbs.
var (
	needNothing = Need{Memory: 4 << 20}
	needIWARP   = Need{Memory: 4 << 20, Configured: true}
	needVerbs   = Need{Memory: 4 << 20, Configured: true, Verbs: true, Connections: 2}
)

const (
	rxePort = "/sys/class/infiniband/rxe0/ports/1/"
	siwPort = "/sys/class/infiniband/siw0/ports/1/"
)

// TestFindings breaks recorded hosts in many ways and compares all findings that are worse than
// notes, and with "note" also those.
func TestFindings(t *testing.T) {
	user := func(t *testing.T, f *fixture) {
		f.replace(t, "/proc/self/status", "CapEff:\t000001ffffffffff", "CapEff:\t0000000000000000")
	}
	memlock := func(t *testing.T, f *fixture, limit string) {
		f.replace(t, "/proc/self/limits", "Max locked memory         8388608              8388608", "Max locked memory         "+limit+" "+limit)
	}
	down := func(t *testing.T, f *fixture, dir string) {
		f.replace(t, dir+"state", "4: ACTIVE", "1: DOWN")
		f.replace(t, dir+"phys_state", "5: LinkUp", "3: Disabled")
		f.replace(t, "/sys/class/net/eth0/operstate", "up", "down")
	}
	ib := func(t *testing.T, f *fixture) { // as mlx5 on InfiniBand
		f.replace(t, rxePort+"link_layer", "Ethernet", "InfiniBand")
		f.remove(t, "/sys/class/infiniband/rxe0/parent")
		f.remove(t, rxePort+"gids/1")
		f.remove(t, rxePort+"gids/2")
	}
	for _, tc := range []struct {
		name   string
		host   string
		broken func(t *testing.T, f *fixture)
		need   Need
		want   []string // severity, code and subject of each
		says   string   // in the text or in what to type of the first
	}{
		{"rxe", "rxe0", nil, needVerbs, []string{"warning cgroup-rdma /sys/fs/cgroup/box/rdma.max"}, "hca_object is 20"},
		{"rxe, no configuration", "rxe0", nil, needNothing, nil, ""},
		{"siw", "siw0", nil, needVerbs, nil, ""},
		{
			"port down", "rxe0", func(t *testing.T, f *fixture) { down(t, f, rxePort) }, needNothing,
			[]string{"warning no-active-port RDMA devices", "warning port-down rxe0 port 1"},
			"",
		},
		{
			"port down, and needed", "siw0", func(t *testing.T, f *fixture) { down(t, f, siwPort) }, needVerbs,
			[]string{"error no-active-port RDMA devices", "warning port-down siw0 port 1"},
			"",
		},
		{"port down, not needed", "siw0", func(t *testing.T, f *fixture) { down(t, f, siwPort) }, needIWARP, nil, ""},
		{"InfiniBand", "rxe0", ib, needNothing, nil, ""},
		{"no subnet manager", "rxe0", func(t *testing.T, f *fixture) {
			ib(t, f)
			f.replace(t, rxePort+"state", "4: ACTIVE", "2: INIT")
		}, needNothing, []string{"warning no-active-port RDMA devices", "warning port-not-managed rxe0 port 1"}, ""},
		{"no address", "rxe0", func(t *testing.T, f *fixture) {
			f.remove(t, rxePort+"gids/1")
			f.remove(t, rxePort+"gids/2")
		}, needVerbs, []string{"error gid-none rxe0 port 1", "warning cgroup-rdma /sys/fs/cgroup/box/rdma.max"}, "ip addr add ADDRESS/PREFIX dev eth0"},
		{"RoCE v1 only", "rxe0", func(t *testing.T, f *fixture) {
			for _, i := range []string{"0", "1", "2"} {
				f.replace(t, rxePort+"gid_attrs/types/"+i, gidRoCE2, gidRoCE1)
			}
		}, needNothing, []string{"warning gid-roce-v1 rxe0 port 1"}, "echo 'RoCE v2' > /sys/kernel/config/rdma_cm/rxe0/ports/1/default_roce_mode"},
		{"RoCE v1 by default", "rxe0", func(t *testing.T, f *fixture) {
			f.set(rxePort+"gids/3", string(f.files[rxePort+"gids/1"]))
			f.set(rxePort+"gid_attrs/types/3", gidRoCE1+"\n")
			f.set("/sys/kernel/config/rdma_cm/rxe0/ports/1/default_roce_mode", gidRoCE1+"\n")
		}, needNothing, []string{"warning gid-roce-v1 rxe0 port 1"}, "would use GID 3"},
		{
			"no modules", "siw0", func(t *testing.T, f *fixture) {
				f.remove(t, "/sys/module/ib_uverbs")
				f.remove(t, "/sys/module/rdma_ucm")
			}, needVerbs,
			[]string{"error module ib_uverbs", "error module rdma_ucm"},
			"modprobe ib_uverbs",
		},
		{"built in", "siw0", func(t *testing.T, f *fixture) {
			f.remove(t, "/sys/module/")
			f.set("/lib/modules/6.1.0-56-amd64/modules.builtin", "kernel/x/ib-core.ko\nkernel/x/ib_uverbs.ko\nkernel/x/rdma_cm.ko\nkernel/x/rdma_ucm.ko")
		}, needVerbs, nil, ""},
		{"no devices", "siw0", func(t *testing.T, f *fixture) { f.remove(t, "/sys/class/infiniband/") }, needVerbs, []string{"error no-device RDMA devices"}, "modprobe"},
		{"no devices, none needed", "siw0", func(t *testing.T, f *fixture) { f.remove(t, "/sys/class/infiniband/"); f.remove(t, "/sys/module/") }, needIWARP, nil, ""},
		{"nothing at all", "", nil, needVerbs, []string{
			"error module ib_core", "error module ib_uverbs", "error module rdma_cm", "error module rdma_ucm", "error no-device RDMA devices",
		}, ""},
		{"locked memory, siw as root", "siw0", func(t *testing.T, f *fixture) { memlock(t, f, "65536") }, needVerbs, []string{"error locked-memory RLIMIT_MEMLOCK"}, "siw exempts nobody"},
		{
			"locked memory, rxe as root", "rxe0", func(t *testing.T, f *fixture) { memlock(t, f, "65536"); f.remove(t, "/sys/fs/cgroup/") }, needVerbs,
			[]string{"warning locked-memory-capability RLIMIT_MEMLOCK"},
			"LimitMEMLOCK=4194304",
		},
		{
			"locked memory, rxe as a user", "rxe0", func(t *testing.T, f *fixture) { memlock(t, f, "65536"); user(t, f); f.remove(t, "/sys/fs/cgroup/") }, needVerbs,
			[]string{"error locked-memory RLIMIT_MEMLOCK"},
			"no CAP_IPC_LOCK",
		},
		{"locked memory, root of a user namespace", "rxe0", func(t *testing.T, f *fixture) {
			memlock(t, f, "65536")
			f.set("/proc/self/uid_map", "         0       1000          1\n")
			f.remove(t, "/sys/fs/cgroup/")
		}, needVerbs, []string{"error locked-memory RLIMIT_MEMLOCK"}, "in a user namespace only"},
		{"locked memory, root of the first user namespace", "rxe0", func(t *testing.T, f *fixture) {
			memlock(t, f, "65536")
			f.set("/proc/self/uid_map", "         0          0 4294967295\n")
			f.remove(t, "/sys/fs/cgroup/")
		}, needVerbs, []string{"warning locked-memory-capability RLIMIT_MEMLOCK"}, ""},
		{"locked memory is enough", "rxe0", func(t *testing.T, f *fixture) { memlock(t, f, "4194304"); user(t, f); f.remove(t, "/sys/fs/cgroup/") }, needVerbs, nil, ""},
		{"locked memory without limit", "siw0", func(t *testing.T, f *fixture) { memlock(t, f, "unlimited"); user(t, f) }, needVerbs, nil, ""},
		{"cgroup", "rxe0", func(t *testing.T, f *fixture) {
			f.replace(t, "/sys/fs/cgroup/box/rdma.max", "hca_handle=2", "hca_handle=0")
			f.err = syscall.EAGAIN
		}, needVerbs, []string{"error cgroup-rdma /sys/fs/cgroup/box/rdma.max", "error cgroup-rdma rxe0"}, "leaves nothing of"},
		{"cgroup used up", "rxe0", func(t *testing.T, f *fixture) {
			f.set("/sys/fs/cgroup/box/rdma.current", "rxe0 hca_handle=2 hca_object=7\n")
		}, needVerbs, []string{"error cgroup-rdma /sys/fs/cgroup/box/rdma.max"}, "hca_handle is 2 (2 in use)"},
		{"cgroup above", "rxe0", func(t *testing.T, f *fixture) {
			f.replace(t, "/proc/self/cgroup", "0::/box", "0::/box/inner/most")
			f.replace(t, "/sys/fs/cgroup/box/rdma.max", "hca_handle=2", "hca_handle=0")
		}, needVerbs, []string{"error cgroup-rdma /sys/fs/cgroup/box/rdma.max"}, ""},
		{"cgroup of version 1", "siw0", func(t *testing.T, f *fixture) {
			f.set("/proc/self/cgroup", "12:cpu,cpuacct:/a\n4:rdma:/docker/abc\n1:name=systemd:/x\n0::/\n")
			f.set("/proc/self/mountinfo", "30 23 0:26 /docker /sys/fs/cgroup/rdma rw - cgroup cgroup rw,rdma\n")
			f.set("/sys/fs/cgroup/rdma/abc/rdma.max", "siw0 hca_handle=0 hca_object=max\n")
		}, needVerbs, []string{"error cgroup-rdma /sys/fs/cgroup/rdma/abc/rdma.max"}, "hca_object is unlimited"},
		{"device files missing", "siw0", func(t *testing.T, f *fixture) {
			f.remove(t, "/dev/infiniband/")
			f.err = &os.PathError{Op: "open", Path: "/dev/infiniband/uverbs0", Err: syscall.ENOENT}
		}, needVerbs, []string{"error device-file /dev/infiniband/rdma_cm", "error device-file siw0"}, "--device"},
		{"device file forbidden", "siw0", func(_ *testing.T, f *fixture) { f.err = syscall.EACCES }, needVerbs, []string{"error device-file siw0"}, "ls -l /dev/infiniband"},
		{"no uverbs device", "siw0", func(t *testing.T, f *fixture) { f.remove(t, "/sys/class/infiniband_verbs/") }, needVerbs, []string{"error device-file siw0"}, "modprobe ib_uverbs"},
		{"adapter without device", "", func(_ *testing.T, f *fixture) {
			f.links["/sys/class/net/ens1/device/driver"] = "../../../../bus/pci/drivers/mlx5_core"
			f.set("/sys/class/net/ens1/operstate", "up")
			for _, m := range modules {
				f.set("/sys/module/"+m.Name+"/initstate", "live")
			}
		}, needVerbs, []string{"error no-device RDMA devices", "warning adapter-without-device ens1"}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := empty()
			if tc.host != "" {
				f = load(t, tc.host)
			}
			if tc.broken != nil {
				tc.broken(t, f)
			}
			var got []string
			var first *Finding
			fs := f.examine(t).Judge(tc.need)
			for i, x := range fs {
				if x.Severity == Note {
					continue
				}
				got = append(got, x.Severity.String()+" "+x.Code+" "+x.Subject)
				if len(tc.want) > 0 && got[len(got)-1] == tc.want[0] {
					first = &fs[i]
				}
			}
			slices.Sort(got)
			if !slices.Equal(got, tc.want) {
				t.Fatalf("findings\n%s\nwant\n%s\n%+v", strings.Join(got, "\n"), strings.Join(tc.want, "\n"), fs)
			}
			if first != nil && !strings.Contains(first.Text+strings.Join(first.Fix, "\n"), tc.says) {
				t.Errorf("%q and %q do not say %q", first.Text, first.Fix, tc.says)
			}
		})
	}
}

// TestCanBind: ports from ip_unprivileged_port_start on are for all, and those below for some.
func TestCanBind(t *testing.T) {
	f := load(t, "rxe0")
	f.set("/proc/sys/net/ipv4/ip_unprivileged_port_start", "600\n")
	root := f.examine(t).Process
	f.replace(t, "/proc/self/status", "CapEff:\t000001ffffffffff", "CapEff:\t0000000000000000")
	user := f.examine(t).Process
	for port, all := range map[uint16]bool{111: false, 599: false, 600: true, 2049: true} {
		if !root.CanBind(port) || user.CanBind(port) != all {
			t.Errorf("port %d: root %v, user %v", port, root.CanBind(port), user.CanBind(port))
		}
	}
}

// TestManyFindings: their number is bounded.
func TestManyFindings(t *testing.T) {
	var fs Findings
	for range 2 * maxFindings {
		fs.Add("mtu", Note, "", "")
	}
	if len(fs) != maxFindings {
		t.Errorf("%d findings, want %d", len(fs), maxFindings)
	}
}

// TestLimitsUnknown: drivers that give contexts to their own library only are no problem.
func TestLimitsUnknown(t *testing.T) {
	for _, err := range []error{syscall.EINVAL, errors.New("odd")} {
		f := load(t, "siw0")
		f.err = err
		fs := f.examine(t).Judge(needVerbs)
		if len(fs) != 1 || fs[0].Severity != Note || fs[0].Code != "limits-unknown" {
			t.Errorf("%v: %+v", err, fs)
		}
	}
}

// TestPath: the source address decides which device and GID an endpoint is reached through.
func TestPath(t *testing.T) {
	for _, tc := range []struct {
		host, source string
		down         bool
		severity     Severity
		says         string
	}{
		{"rxe0", "10.0.2.15", false, Note, "through rxe0 port 1 with GID 1 (RoCE v2)"},
		{"rxe0", "fec0::5054:ff:fe12:3456", false, Note, "GID 2"},
		{"rxe0", "10.0.2.16", false, Error, "no RDMA device has this address"},
		{"rxe0", "10.0.2.15", true, Error, "not active"},
		{"siw0", "10.0.2.15", false, Note, "iWARP needs no GID"},
	} {
		f := load(t, tc.host)
		if tc.down {
			f.replace(t, rxePort+"state", "4: ACTIVE", "1: DOWN")
		}
		netdev := ""
		if tc.source == "10.0.2.15" {
			netdev = "eth0"
		}
		var fs Findings
		f.examine(t).judgePath(&Target{Upstream: "u", Address: "a:1"}, netip.MustParseAddr(tc.source), netdev, &fs)
		if len(fs) != 1 || fs[0].Severity != tc.severity || fs[0].Code != "endpoint-path" || !strings.Contains(fs[0].Text, tc.says) {
			t.Errorf("%s from %s: %+v", tc.host, tc.source, fs)
		}
	}
}

// TestJSON: the fields that docs/doctor.md promises are there, lists are never null, and the worst
// finding comes first.
func TestJSON(t *testing.T) {
	f := load(t, "rxe0")
	h := f.examine(t)
	fs := Findings{{"mtu", Note, "a", "b", []string{}}}
	fs.Add("no-device", Error, "c", "d", "e")
	var b bytes.Buffer
	if err := NewReport("test", h, nil, append(fs, h.Judge(needVerbs)...)).JSON(&b); err != nil {
		t.Fatal(err)
	}
	var r struct {
		Format    int
		Worst     string
		Endpoints []any
		Findings  []struct {
			Code, Severity, Subject, Text string
			Fix                           []string
		}
		Process map[string]any
		Host    struct {
			Kernel  string
			Devices []struct {
				Name, Protocol string
				Limits         map[string]any
				Ports          []struct {
					State  string
					GIDs   []struct{ GID, Type string }
					Choice struct {
						Index int
						Why   string
					}
				}
			}
		}
	}
	if err := json.Unmarshal(b.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	if r.Format != 1 || r.Worst != "error" || r.Endpoints == nil || r.Findings[0].Code != "no-device" || r.Findings[0].Severity != "error" || r.Findings[len(r.Findings)-1].Severity != "note" {
		t.Errorf("%s", b.Bytes())
	}
	d := r.Host.Devices[0]
	if d.Limits["max_mr_size"] != nil || d.Limits["max_sge"] != 32.0 || d.Ports[0].Choice.Index != 1 || d.Ports[0].GIDs[1].GID != "::ffff:10.0.2.15" {
		t.Errorf("%s", b.Bytes())
	}
	if r.Process["locked_memory"] != float64(8<<20) || r.Process["cap_ipc_lock"] != true {
		t.Errorf("%v", r.Process)
	}
}

// TestCodes: docs/doctor.md has the table Codes, and each code is used.
func TestCodes(t *testing.T) {
	text, err := os.ReadFile("../../docs/doctor.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]string{}
	_, table, _ := strings.Cut(string(text), "## Findings")
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z0-9-]+)` \\| (.*) \\|$").FindAllStringSubmatch(table, -1) {
		documented[m[1]] = m[2]
	}
	var source []byte
	for _, pattern := range []string{"*.go", "../../cmd/rdmabridge/doctor*.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if b, err := os.ReadFile(f); err == nil && f != "code.go" && !strings.HasSuffix(f, "_test.go") {
				source = append(source, b...)
			}
		}
	}
	for code, means := range Codes {
		if documented[code] != means {
			t.Errorf("docs/doctor.md says %q of %s, want %q", documented[code], code, means)
		}
		if !bytes.Contains(source, []byte(`"`+code+`"`)) {
			t.Errorf("no finding has the code %s", code)
		}
		delete(documented, code)
	}
	for code := range documented {
		t.Errorf("docs/doctor.md has %s, which is no code", code)
	}
}
