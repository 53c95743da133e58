package nfsmount

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestParse: what a source and options become: the bridge, and what mount(2) is given.
func TestParse(t *testing.T) {
	for _, tc := range []struct {
		source, options string
		unit            string // of the bridge, without rdmabridge-mount-
		to              string
		flags           uintptr
		versions, data  string // data of the first version
		retry           time.Duration
	}{
		{"10.1.0.5:/export", "", "10.1.0.5", "rdma://10.1.0.5:20049", 0, "4.2 4.1 4.0 3", "vers=4.2", 2 * time.Minute},
		{"Storage-1.example:/", "rw,vers=4", "storage-1.example", "rdma://Storage-1.example:20049", 0, "4.2 4.1 4.0", "vers=4.2", 2 * time.Minute},
		{"[fd00::5]:/a:/b", "ro,nosuid,soft,_netdev,noauto,x-systemd.requires=a.service,nofail,defaults", "fd00__5", "rdma://[fd00::5]:20049", unix.MS_RDONLY | unix.MS_NOSUID, "4.2 4.1 4.0 3", "vers=4.2,soft", 2 * time.Minute},
		{"h:/e", "vers=4.0,port=20050,provider=ibverbs,retry=0", "h_20050-ibverbs", "rdma://h:20050", 0, "4.0", "vers=4.0,clientaddr=0.0.0.0", 0},
		{"h:/e", "ro,rw,v4.1,proto=rdma,rdma,rsize=65536", "h", "rdma://h:20049", 0, "4.1", "vers=4.1,rsize=65536", 2 * time.Minute},
		{"h:/e", `nfsvers=3,context="a:b:c0,c1",retry=1`, "h", "rdma://h:20049", 0, "3", `vers=3,nolock,context="a:b:c0,c1",mountvers=3,mountproto=tcp,mountaddr=10.1.0.5,mountport=892`, time.Minute},
		{strings.Repeat("long.", 20) + "example:/e", "vers=4.2", strings.Repeat("long.", 10) + "l-aa3bec07", "", 0, "4.2", "vers=4.2", 2 * time.Minute},
	} {
		r, err := Parse(tc.source, "/mnt", tc.options, 20049, []string{"iwarp", "ibverbs"})
		if err != nil {
			t.Errorf("%s %s: %v", tc.source, tc.options, err)
			continue
		}
		data := r.kernelOptions(r.versions[0], 20123, netip.MustParseAddrPort("10.1.0.5:892"))
		if want := tc.data + ",proto=tcp,addr=127.0.0.1,port=20123"; data != want {
			t.Errorf("%s %s: data %s, want %s", tc.source, tc.options, data, want)
		}
		if want := "rdmabridge-mount-" + tc.unit + ".service"; r.Bridge.Unit() != want || tc.to != "" && r.Bridge.to != tc.to {
			t.Errorf("%s %s: %s to %s, want %s to %s", tc.source, tc.options, r.Bridge.Unit(), r.Bridge.to, want, tc.to)
		}
		if got := strings.Join(r.versions, " "); got != tc.versions || r.flags != tc.flags || r.retry != tc.retry {
			t.Errorf("%s %s: versions %s, flags %#x, retry %v", tc.source, tc.options, got, r.flags, r.retry)
		}
	}
	r, err := Parse("[fd00::5]:/e", "/mnt", "vers=3,mountport=892", 20049, []string{"iwarp", "ibverbs"})
	if err != nil || !strings.Contains(r.kernelOptions("3", 1, netip.MustParseAddrPort("[fd00::5]:892")), "mountproto=tcp6,mountaddr=fd00::5,mountport=892") {
		t.Errorf("MOUNT over IPv6: %v, %v", r, err)
	}
}

// TestParseMistakes: each mistake has an error that shows what is right.
func TestParseMistakes(t *testing.T) {
	for line, want := range map[string]string{
		"10.1.0.5":             `"10.1.0.5" is not an export of a storage; write one such as 10.1.0.5:/export`,
		"10.1.0.5:export":      `"10.1.0.5:export" is not an export`,
		":/export":             `":/export" is not an export`,
		"fd00::5:/export":      `"fd00::5:/export" has an IPv6 address without brackets; write one such as [fd00::5]:/export`,
		"[fd00:/export":        `"[fd00:/export" is not an export`,
		"[storage]:/export":    `"[storage]:/export" is not an export`,
		"/dev/sda":             `"/dev/sda" is not an export`,
		"h,soft:/e":            `"h,soft:/e" is not an export`,
		"h:/e vers=2":          "the option vers=2 is not possible; write vers=4.2, 4.1, 4.0 or 3",
		"h:/e v5":              "the option v5 is not possible",
		"h:/e proto=tcp":       "the option proto=tcp is not possible with rdmabridge, which reaches the storage over RDMA",
		"h:/e udp":             "the option udp is not possible",
		"h:/e addr=10.1.0.5":   "the option addr=10.1.0.5 is not possible",
		"h:/e bg":              "the option bg is not possible with rdmabridge, which reaches the storage over RDMA; write x-systemd.automount or nofail",
		"h:/e port=nfs":        "the option port=nfs is not possible; write a number from 1 to 65535",
		"h:/e mountport=99999": "the option mountport=99999 is not possible",
		"h:/e retry=soon":      "the option retry=soon is not possible; write a number of minutes",
		"h:/e provider=roce":   "the option provider=roce is not possible: this program has iwarp and ibverbs",
	} {
		source, options, _ := strings.Cut(line, " ")
		_, err := Parse(source, "/mnt", options, 20049, []string{"iwarp", "ibverbs"})
		var e *Error
		if !errors.As(err, &e) || e.Code != Usage || !strings.HasPrefix(e.Text, want) {
			t.Errorf("%s: %v, want %s", line, err, want)
		}
	}
}

func TestFstab(t *testing.T) {
	r := Request{Source: "h:/a b", Dir: "/mnt/c d", options: []string{"vers=3", "_netdev", "ro"}}
	if got, want := r.Fstab(), `h:/a\040b /mnt/c\040d rdmabridge _netdev,vers=3,ro 0 0`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// mountTable is /proc/self/mountinfo with three mounts from bridges of this host, and others.
const mountTable = `22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
36 22 0:30 / /mnt/a\040b rw,relatime shared:7 - nfs 10.1.0.5:/export\040x rw,vers=3,proto=tcp,port=20200,mountport=20048,addr=127.0.0.1
37 22 0:31 / /mnt2 rw,relatime - nfs4 10.1.0.5:/ rw,vers=4.2,proto=tcp,port=20200,clientaddr=127.0.0.1,local_lock=none,addr=127.0.0.1
38 22 0:32 / /mnt3 rw,relatime - nfs4 [fd00::5]:/ rw,vers=4.2,proto=tcp,port=20201,addr=127.0.0.1
39 22 0:33 / /mnt4 rw,relatime - nfs4 10.1.0.5:/ rw,vers=4.2,proto=tcp,port=20200,addr=10.1.0.5
40 22 0:34 / /mnt5 rw,relatime - nfs4 127.0.0.1:/ rw,vers=4.2,proto=tcp,addr=127.0.0.1
`

func TestMounts(t *testing.T) {
	want := []Mounted{{"10.1.0.5:/export x", "/mnt/a b", 20200}, {"10.1.0.5:/", "/mnt2", 20200}, {"[fd00::5]:/", "/mnt3", 20201}}
	if got := Mounts(mountTable); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
