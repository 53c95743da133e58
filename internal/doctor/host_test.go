package doctor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
)

// TestRXE compares what is known of rxe0 with what rdma-core's tools said in the same guest.
func TestRXE(t *testing.T) {
	h := load(t, "rxe0").examine(t)
	if len(h.Devices) != 1 || len(h.Devices[0].Ports) != 1 {
		t.Fatalf("%+v", h)
	}
	d := h.Devices[0]
	if d.Name != "rxe0" || d.Protocol != ProtocolRoCE || d.Driver != "rxe" || d.File != "uverbs0" || d.GUID != "5054:00ff:fe12:3456" {
		t.Errorf("%+v", d)
	}
	want := Limits{
		QueuePairs: 1048560, WorkRequests: 1048576, Completions: 32767, CompletionQueues: 1048576, Parts: 32, ReadParts: 32,
		Regions: 524287, RegionSize: noLimit, Windows: 524287, ReadsIn: 128, ReadsOut: 128, ports: []portLimits{{1, 1024, 4096}},
	}
	if d.Limits == nil || !reflect.DeepEqual(*d.Limits, want) {
		t.Errorf("limits %+v, want %+v", d.Limits, want)
	}
	if d.InUse["cm_id"] != 2 || d.InUse["qp"] != 1 || len(d.InUse) != 7 {
		t.Errorf("in use: %v", d.InUse)
	}
	p := d.Ports[0]
	if !p.Active() || p.State != "ACTIVE" || p.Physical != "LinkUp" || p.LinkLayer != "Ethernet" || p.MTU != 1024 || p.MaxMTU != 4096 {
		t.Errorf("%+v", p)
	}
	if p.Netdev == nil || *p.Netdev != (Netdev{"eth0", "up", 1500}) {
		t.Errorf("network interface %+v", p.Netdev)
	}
	if len(p.GIDs) != 3 || p.GIDs[1].IP().String() != "10.0.2.15" || p.GIDs[1].Type != gidRoCE2 || p.GIDs[1].Netdev != "eth0" {
		t.Errorf("GIDs %+v", p.GIDs)
	}
	if p.Choice == nil || p.Choice.Index != 1 || !strings.Contains(p.Choice.Why, "10.0.2.15") {
		t.Errorf("choice %+v", p.Choice)
	}
	if len(h.Cgroups) != 1 || h.Cgroups[0] != (CgroupLimit{"/sys/fs/cgroup/box/rdma.max", "rxe0", 2, 20, 0, 0}) {
		t.Errorf("cgroups %+v", h.Cgroups)
	}
	if !h.inventory || h.unshared || !h.cmFile || len(h.found) != 0 {
		t.Errorf("%+v", h)
	}
	if l := h.Process.LockedMemory; l.Soft != 8<<20 || l.Hard != 8<<20 || !h.Process.can(capIPCLock) || h.Process.User != 0 {
		t.Errorf("%+v", h.Process)
	}
}

// TestSIW: netlink knows the network interface of siw, and sysfs does not.
func TestSIW(t *testing.T) {
	f := load(t, "siw0")
	h := f.examine(t)
	d := h.Devices[0]
	if d.Protocol != ProtocolIWARP || d.Driver != "siw" || d.Limits == nil || d.Limits.Parts != 6 || d.Limits.ReadParts != 1 || d.Limits.Windows != 0 {
		t.Errorf("%+v %+v", d, d.Limits)
	}
	if p := d.Ports[0]; p.Netdev == nil || p.Netdev.Name != "eth0" || p.Choice != nil || !p.Active() {
		t.Errorf("%+v", p)
	}
	f.netlink = nil
	if p := f.examine(t).Devices[0].Ports[0]; p.Netdev != nil {
		t.Errorf("sysfs alone: %+v", p.Netdev)
	}
}

// TestWithoutKernel: the files alone tell enough for most findings.
func TestWithoutKernel(t *testing.T) {
	h, err := Examine(t.Context(), load(t, "rxe0").write(t), Sources{})
	if err != nil {
		t.Fatal(err)
	}
	if d := h.Devices[0]; d.Limits != nil || d.Ports[0].MTU != 1024 || d.Ports[0].Netdev.Name != "eth0" {
		t.Errorf("%+v", d)
	}
}

// TestHang: a driver that does not answer is named, and is not waited for.
func TestHang(t *testing.T) {
	for _, cause := range []error{context.DeadlineExceeded, context.Canceled} {
		ctx, cancel := context.WithCancelCause(t.Context())
		answer, ended := make(chan struct{}), make(chan struct{})
		s := load(t, "siw0").sources()
		s.Limits = func(string) (*Limits, error) {
			defer close(ended)
			cancel(cause)
			<-answer
			return nil, errors.ErrUnsupported
		}
		h, err := Examine(ctx, load(t, "siw0").write(t), s)
		if cause == context.Canceled {
			if !errors.Is(err, cause) {
				t.Errorf("%v, want %v", err, cause)
			}
		} else {
			fs := h.Judge(Need{Verbs: true})
			if err != nil || len(fs) != 1 || fs[0].Code != "slow" || fs[0].Severity != Error || fs[0].Subject != "/dev/infiniband/uverbs0" {
				t.Errorf("%+v, %v", fs, err)
			}
		}
		close(answer)
		<-ended
	}
}

// TestTree: a tree neither waits for a pipe nor leaves its root, and bounds what it reads.
func TestTree(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(
		syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o644),
		os.Symlink("/etc/passwd", filepath.Join(dir, "out")),
		os.Symlink("../../../../../../../etc/passwd", filepath.Join(dir, "up")),
		os.WriteFile(filepath.Join(dir, "long"), make([]byte, 2*maxFile), 0o644),
		os.WriteFile(filepath.Join(dir, "odd"), []byte("\n a\x1b[31m\xff\xc3\xa9b \nsecond"), 0o644),
	); err != nil {
		t.Fatal(err)
	}
	tr, err := openTree(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.close()
	for _, name := range []string{"/pipe", "/out", "/up", "/not", "/"} {
		if b, err := tr.read(name); err == nil {
			t.Errorf("%s: %q", name, b)
		}
	}
	if b, err := tr.read("/long"); err != nil || len(b) != maxFile {
		t.Errorf("%d octets, %v; want %d", len(b), err, maxFile)
	}
	if s := tr.text("/odd"); s != "a?[31m??b" {
		t.Errorf("%q", s)
	}
	if l := tr.list("/"); len(l) != 5 || l[0] != "long" {
		t.Errorf("%q", l)
	}
}

// TestRoCEMTU: the payload and 96 octets of headers fit in the interface's MTU.
func TestRoCEMTU(t *testing.T) {
	for mtu, want := range map[int]int{0: 0, 351: 0, 352: 256, 1119: 512, 1120: 1024, 1500: 1024, 4191: 2048, 4192: 4096, 9000: 4096} {
		if got := roceMTU(mtu); got != want {
			t.Errorf("MTU %d: %d, want %d", mtu, got, want)
		}
	}
}

// TestCgroupBelow: a mount may show a part of all cgroups.
func TestCgroupBelow(t *testing.T) {
	for _, tc := range []struct{ root, cgroup, want string }{
		{"/", "/a/b", "/a/b"},
		{"/", "/", "/"},
		{"/docker/1", "/docker/1/x", "x"},
		{"/docker/1", "/docker/1", ""},
		{"/docker/1", "/docker/12/x", ""},
		{"/docker/1", "/../2", ""},
		{"/", "/../2", "/2"},
	} {
		if got := (mountPoint{root: tc.root}).below(tc.cgroup); got != tc.want {
			t.Errorf("%s below %s: %q, want %q", tc.cgroup, tc.root, got, tc.want)
		}
	}
}
