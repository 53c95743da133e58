//go:build lab

package doctor

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// recorded are the files that the doctor reads, as patterns of package filepath. Tables of GIDs
// have up to a thousand entries, of which a recording has the first eight.
var recorded = []string{
	"/sys/class/infiniband/*/fw_ver", "/sys/class/infiniband/*/node_guid", "/sys/class/infiniband/*/node_type",
	"/sys/class/infiniband/*/parent", "/sys/class/infiniband/*/device/driver",
	"/sys/class/infiniband/*/ports/*/state", "/sys/class/infiniband/*/ports/*/phys_state", "/sys/class/infiniband/*/ports/*/link_layer",
	"/sys/class/infiniband/*/ports/*/rate", "/sys/class/infiniband/*/ports/*/lid", "/sys/class/infiniband/*/ports/*/gids/[0-7]",
	"/sys/class/infiniband/*/ports/*/gid_attrs/types/[0-7]", "/sys/class/infiniband/*/ports/*/gid_attrs/ndevs/[0-7]",
	"/sys/class/infiniband_verbs/*/ibdev", "/sys/class/net/*/operstate", "/sys/class/net/*/mtu", "/sys/class/net/*/device/driver",
	"/sys/kernel/config/rdma_cm/*/ports/*/default_roce_mode",
	"/sys/module/ib_core/initstate", "/sys/module/ib_uverbs/initstate", "/sys/module/rdma_cm/initstate", "/sys/module/rdma_ucm/initstate",
	"/sys/fs/cgroup/rdma.max", "/sys/fs/cgroup/*/rdma.max", "/sys/fs/cgroup/*/rdma.current",
	"/proc/self/limits", "/proc/self/status", "/proc/self/cgroup", "/proc/self/mountinfo",
	"/proc/sys/kernel/osrelease", "/proc/sys/net/ipv4/ip_unprivileged_port_start", "/dev/infiniband/*",
}

// TestRecord records this host in the file that RDMABRIDGE_DOCTOR_RECORD names, in the format of
// testdata: run it on a host with another adapter, as
//
//	RDMABRIDGE_DOCTOR_RECORD=testdata/mlx5.txt go test -tags lab -count=1 -run TestRecord ./internal/doctor
func TestRecord(t *testing.T) {
	file := os.Getenv("RDMABRIDGE_DOCTOR_RECORD")
	if file == "" {
		t.Skip("records a host: set RDMABRIDGE_DOCTOR_RECORD to the name of the recording")
	}
	var b bytes.Buffer
	for _, pattern := range recorded {
		for _, name := range names(t, pattern) {
			recordFile(t, &b, name)
		}
	}
	recordNetlink(t, &b)
	for _, file := range names(t, filesDir+"/uverbs*") {
		recordVerbs(t, &b, filepath.Base(file))
	}
	if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

func names(t *testing.T, pattern string) []string {
	t.Helper()
	l, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func recordFile(t *testing.T, b *bytes.Buffer, name string) {
	t.Helper()
	st, err := os.Lstat(name)
	if err != nil {
		t.Fatal(err)
	}
	if st.Mode()&os.ModeSymlink != 0 {
		to, err := os.Readlink(name)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(b, "== %s -> %s\n", name, to)
		return
	}
	text := []byte{}
	if st.Mode().IsRegular() {
		if text, err = os.ReadFile(name); err != nil {
			return // entries of GID tables that are not in use
		}
	}
	fmt.Fprintf(b, "== %s\n%s", name, text)
	if !bytes.HasSuffix(text, []byte("\n")) && len(text) > 0 {
		fmt.Fprintln(b)
	}
}

func recordNetlink(t *testing.T, b *bytes.Buffer) {
	t.Helper()
	fd, err := netlinkSocket()
	if err != nil {
		t.Log(err)
		return
	}
	defer os.NewFile(uintptr(fd), "netlink").Close()
	_, err = takeInventory(func(request []byte) ([]byte, error) {
		answer, err := askNetlink(fd, request)
		fmt.Fprintf(b, "== netlink %x\n%s", request, dump(answer))
		return answer, err
	})
	if err != nil {
		t.Log(err)
	}
}

func recordVerbs(t *testing.T, b *bytes.Buffer, file string) {
	t.Helper()
	_, err := withContext(file, func(command uint32, rest, answer []byte, err error) {
		if err == nil && command != uverbsGetContext {
			fmt.Fprintf(b, "== uverbs %s %d %x\n%s", file, command, rest, dump(answer))
		}
	})
	if err != nil {
		t.Log(err)
	}
}

func dump(b []byte) string {
	var s strings.Builder
	for line := range slices.Chunk(b, 32) {
		fmt.Fprintln(&s, hex.EncodeToString(line))
	}
	return s.String()
}
