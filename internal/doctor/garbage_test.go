package doctor

import (
	"encoding/json"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// report prints everything there is to say of a host.
func report(t testing.TB, h *Host) {
	t.Helper()
	for _, n := range []Need{needNothing, needIWARP, needVerbs} {
		r := NewReport("test", h, nil, h.Judge(n))
		if err := r.Print(io.Discard); err != nil {
			t.Error(err)
		}
		b, err := json.Marshal(r)
		if err != nil {
			t.Error(err)
		}
		if len(b) > 4<<20 {
			t.Errorf("a report of %d octets", len(b))
		}
	}
}

// TestGarbage replaces the contents of each file of recorded hosts with garbage, and then of all at
// once.
func TestGarbage(t *testing.T) {
	garbage := map[string]string{
		"empty": "", "line": "\n", "binary": "\x00\xff\x1b[2J\x00", "long": strings.Repeat("A", 1<<20),
		"colons": strings.Repeat(":", 5000), "number": "99999999999999999999999999", "negative": "-1",
		"lines": strings.Repeat("x hca_handle=1 hca_object=1\n", 20000), "spaces": strings.Repeat(" ", 1000),
		"percent": "%s%n%d", "path": "../../../../etc/passwd",
	}
	for _, name := range []string{"rxe0", "siw0"} {
		files := slices.Sorted(maps.Keys(load(t, name).files))
		for what, text := range garbage {
			f := load(t, name)
			for _, file := range files {
				f.set(file, text)
			}
			report(t, f.examine(t))
			f = load(t, name) // and every file with a chance of a third
			r := rand.New(rand.NewPCG(1, uint64(len(what))))
			for _, file := range files {
				if r.IntN(3) == 0 {
					f.set(file, text)
				}
			}
			report(t, f.examine(t))
		}
		for _, file := range files {
			f := load(t, name)
			f.set(file, garbage["binary"])
			report(t, f.examine(t))
		}
	}
}

// TestGarbageNames: directories may have any names.
func TestGarbageNames(t *testing.T) {
	f := load(t, "rxe0")
	for _, name := range []string{"%s", "a\nb", "\xff", strings.Repeat("n", 200), "-", "..x", "rxe1'; rm -rf /"} {
		f.set("/sys/class/infiniband/"+name+"/node_type", "1: CA\n")
		f.set("/sys/class/infiniband/"+name+"/ports/1/state", "1: DOWN\n")
		f.set("/sys/class/infiniband/rxe0/ports/"+name+"/state", "1: DOWN\n")
		f.set("/sys/class/infiniband/rxe0/ports/1/gids/"+name, "fe80")
		f.set("/sys/class/infiniband_verbs/"+name+"/ibdev", "rxe0\n")
		f.set("/sys/class/net/"+name+"/mtu", "1")
	}
	report(t, f.examine(t))
}

// TestManyEntries: the numbers of devices, ports and GIDs are bounded.
func TestManyEntries(t *testing.T) {
	f := load(t, "rxe0")
	state := rxePort + "state"
	for i := range 300 {
		n := strings.Repeat("x", i%7) + string(rune('a'+i%26)) + strings.Repeat("y", i/26)
		f.set("/sys/class/infiniband/"+n+"/node_type", "1: CA\n")
		f.set(strings.Replace(state, "rxe0", n, 1), "4: ACTIVE\n")
	}
	h := f.examine(t)
	if len(h.Devices) != maxDevices {
		t.Errorf("%d devices, want %d", len(h.Devices), maxDevices)
	}
	report(t, h)
}

// TestTruncated: every prefix of the kernel's answers is understood or refused.
func TestTruncated(t *testing.T) {
	for _, name := range []string{"rxe0", "siw0"} {
		f := load(t, name)
		for _, answers := range []map[string][]byte{f.netlink, f.verbs} {
			for key, whole := range maps.Clone(answers) {
				for i := range whole {
					answers[key] = whole[:i]
					report(t, Host{}.with(f))
				}
				answers[key] = whole
			}
		}
	}
}

// with returns a host that knows only what the kernel answers.
func (h Host) with(f *fixture) *Host {
	s := f.sources()
	if v, err := s.Inventory(); err == nil {
		for _, d := range v.devices {
			h.Devices = append(h.Devices, Device{Name: d.name, InUse: d.resources, File: "uverbs0"})
		}
	}
	for i := range h.Devices {
		h.Devices[i].Limits, h.Devices[i].limitsErr = s.Limits("uverbs0")
	}
	return &h
}

// FuzzNetlink: no answer of netlink panics, and what is taken from it is bounded.
func FuzzNetlink(f *testing.F) {
	for _, name := range []string{"rxe0", "siw0"} {
		for _, b := range load(f, name).netlink {
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		devices, _ := parseNLDevices(b)
		ports, _ := parseNLPorts(b)
		used := parseNLResources(b)
		parseNLShared(b)
		if len(devices) > maxDevices || len(ports) > maxPorts || len(used) > maxResources {
			t.Fatalf("%d devices, %d ports, %d resources", len(devices), len(ports), len(used))
		}
		for _, d := range devices {
			if d.name != printable(d.name) || d.name == "" {
				t.Fatalf("%q", d.name)
			}
		}
	})
}

// FuzzUverbs: no answer of uverbs panics.
func FuzzUverbs(f *testing.F) {
	for _, b := range load(f, "rxe0").verbs {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, ports, err := parseQueryDevice(b); err == nil && (ports < 0 || ports > 255) {
			t.Fatal(ports)
		}
		if p, err := parseQueryPort(1, b); err == nil && (p.mtu > 4096 || p.maxMTU > 4096) {
			t.Fatal(p)
		}
	})
}

// FuzzText: no contents of a file panic a parser.
func FuzzText(f *testing.F) {
	for _, name := range []string{"rxe0", "siw0"} {
		for _, b := range load(f, name).files {
			f.Add(string(b))
		}
	}
	f.Add("4:rdma:/docker/1\n0::/\n")
	f.Add("30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n")
	f.Fuzz(func(t *testing.T, s string) {
		var p Process
		p.parseLimits(s)
		p.parseStatus(s)
		if l := parseCgroup(s); len(l) > maxDevices {
			t.Fatal(len(l))
		}
		for _, d := range rdmaCgroups(s, s) {
			if !strings.HasPrefix(d.path, "/") || !strings.HasPrefix(d.mount, "/") {
				t.Fatalf("%+v", d)
			}
		}
		if a, ok := parseGID(s); ok && !a.Is6() {
			t.Fatal(a)
		}
		if out := printable(s); len(out) > maxText || strings.ContainsAny(out, "\n\x1b\x00") {
			t.Fatalf("%q", out)
		}
		afterNumber(s)
	})
}
