package nfsmount

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/status"
)

// A fakeHost is a host with bridges that do as they are told.
type fakeHost struct {
	Host
	bridge   *status.Document // nil for none
	starts   status.Document  // the bridge that a start makes
	changes  func()           // is called before the bridge is looked at
	commands []string         // that started one
	mounts   []string
	failures []error // of mount(2), one after the other
	refusal  string  // of systemd-run
	stopped  []string
	table    string
	taken    []uint16 // ports of others
}

func newFakeHost(systemd bool) *fakeHost {
	h := &fakeHost{starts: document(status.Ready, ""), changes: func() {}}
	start := func(command []string) {
		h.commands = append(h.commands, strings.Join(command, " "))
		d := h.starts
		h.bridge = &d
	}
	h.Host = Host{
		Systemd: systemd, Program: "/usr/bin/rdmabridge",
		Run: func(_ context.Context, command ...string) (string, error) {
			if command[0] == "systemctl" {
				h.stopped = append(h.stopped, strings.Join(command[1:], " "))
				return "", nil
			}
			if h.refusal != "" {
				return h.refusal, errors.New("exit status 1")
			}
			start(command)
			return "", nil
		},
		Spawn: func(_ context.Context, _ *Bridge, command []string) error {
			start(command)
			return nil
		},
		Document: func(context.Context, *Bridge) (*status.Document, error) {
			h.changes()
			if h.bridge == nil {
				return nil, errors.New("nobody listens")
			}
			return h.bridge, nil
		},
		MountTable: func() (string, error) { return h.table, nil },
		PortIsFree: func(port uint16) bool { return !slices.Contains(h.taken, port) },
		Lookup: func(_ context.Context, host string) ([]netip.Addr, error) {
			if host == "storage.example" {
				return []netip.Addr{netip.MustParseAddr("::ffff:10.1.0.5")}, nil
			}
			return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: host != "later.example"}
		},
		MountPort: func(_ context.Context, a netip.Addr) (uint16, error) {
			switch a.String() {
			case "10.1.0.5":
				return 892, nil
			case "10.1.0.6":
				return 0, nil
			}
			return 0, syscall.ECONNREFUSED
		},
		Mount: func(source, dir, kind string, flags uintptr, data string) error {
			h.mounts = append(h.mounts, fmt.Sprintf("%s %s %s %x %s", source, dir, kind, flags, data))
			if len(h.failures) == 0 {
				return nil
			}
			err := h.failures[0]
			h.failures = h.failures[1:]
			return err
		},
		Lock: func() (func(), error) { return func() {}, nil },
	}
	return h
}

func document(state status.State, lastError string) status.Document {
	return status.Document{
		State: state, NotReady: "upstream storage has no usable connection",
		Listeners: []status.Listener{{Name: "nfs", Address: "127.0.0.1:20123"}},
		Upstreams: []status.Upstream{{Name: "storage", LastError: lastError}},
	}
}

// mountAt mounts a source with options, and returns the exit code and how long it took.
func (h *fakeHost) mountAt(t *testing.T, source, dir, options string) (version string, code int, text string, took time.Duration) {
	t.Helper()
	r, err := Parse(source, dir, options, 20049, []string{"iwarp", "ibverbs"})
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	version, err = r.Mount(t.Context(), &h.Host)
	took = time.Since(begin)
	var e *Error
	if err != nil && !errors.As(err, &e) {
		t.Fatalf("%v has no exit code", err)
	}
	if e != nil {
		return version, e.Code, e.Text, took
	}
	return version, 0, "", took
}

const (
	serveOne = "/usr/bin/rdmabridge serve --from tcp://127.0.0.1:%d --to rdma://%s --mount none --clients 127.0.0.1 --admin-address none --until-unmounted"
	asUnit   = "systemd-run --quiet --collect --unit=rdmabridge-mount-%[1]s.service --description=rdmabridge, for mounts of %[1]s --property=Type=notify " +
		"--property=Restart=on-failure --property=RestartSec=1s --property=StartLimitIntervalSec=0 --property=WatchdogSec=30s --property=DefaultDependencies=no " +
		"--property=DynamicUser=yes --property=RuntimeDirectory=rdmabridge-mount-%[1]s --property=LimitNOFILE=65536 --property=LimitCORE=0 -- "
)

// TestMount: the first mount starts a bridge, with systemd and without, and the second one finds it.
func TestMount(t *testing.T) {
	dir := t.TempDir()
	for _, systemd := range []bool{true, false} {
		h := newFakeHost(systemd)
		version, code, text, _ := h.mountAt(t, "10.1.0.5:/export", dir, "ro")
		if code != 0 || version != "4.2" {
			t.Fatalf("%s: %d %s", version, code, text)
		}
		version, code, text, _ = h.mountAt(t, "10.1.0.5:/b", dir, "vers=3,soft")
		if code != 0 || version != "3" {
			t.Fatalf("%s: %d %s", version, code, text)
		}
		want := fmt.Sprintf(serveOne, 20234, "10.1.0.5:20049")
		if systemd {
			want = fmt.Sprintf(asUnit, "10.1.0.5") + want
		}
		if len(h.commands) != 1 || h.commands[0] != want {
			t.Errorf("commands\n%s\nwant\n%s", strings.Join(h.commands, "\n"), want)
		}
		wantMounts := []string{
			"10.1.0.5:/export " + dir + " nfs 1 vers=4.2,proto=tcp,addr=127.0.0.1,port=20123",
			"10.1.0.5:/b " + dir + " nfs 0 vers=3,nolock,soft,mountvers=3,mountproto=tcp,mountaddr=10.1.0.5,mountport=892,proto=tcp,addr=127.0.0.1,port=20123",
		}
		if !slices.Equal(h.mounts, wantMounts) {
			t.Errorf("mounts\n%s\nwant\n%s", strings.Join(h.mounts, "\n"), strings.Join(wantMounts, "\n"))
		}
	}
}

// TestBridgePort: a bridge has the port of mounts that wait for it, and else one that nobody else has.
func TestBridgePort(t *testing.T) {
	dir := t.TempDir()
	own := newBridge("10.1.0.5", 20049, 20049, "")
	// Its mounts have the third candidate, because others had the first two.
	table := strings.ReplaceAll(mountTable, "port=20200", fmt.Sprintf("port=%d", own.candidate(2)))
	for _, tc := range []struct {
		source, options string
		taken           []uint32 // candidates that others have
		want            uint32   // candidate
	}{
		{"10.1.0.5:/new", "", nil, 2},
		{"10.1.0.5:/new", "", []uint32{2}, 2}, // the bridge then says who has it
		{"10.1.0.5:/new", "port=20050", nil, 0},
		{"10.1.0.6:/new", "", nil, 0},
		{"10.1.0.6:/new", "", []uint32{0, 1}, 2},
	} {
		r, err := Parse(tc.source, dir, tc.options, 20049, nil)
		if err != nil {
			t.Fatal(err)
		}
		h := newFakeHost(false)
		h.table = table
		for _, i := range tc.taken {
			h.taken = append(h.taken, r.Bridge.candidate(i))
		}
		if port, err := r.Bridge.port(&h.Host); err != nil || port != r.Bridge.candidate(tc.want) {
			t.Errorf("%s %s, %v taken: port %d, %v, want %d", tc.source, tc.options, tc.taken, port, err, r.Bridge.candidate(tc.want))
		}
	}
	h := newFakeHost(false)
	h.PortIsFree = func(uint16) bool { return false }
	if _, err := own.port(&h.Host); err == nil || err.Error() != "other programs have all ports from 20234 to 20249 of 127.0.0.1" {
		t.Errorf("no port: %v", err)
	}
}

// TestMountFails: each failure has its exit code, says what to do, and comes in time.
func TestMountFails(t *testing.T) {
	dir := t.TempDir()
	down := func(h *fakeHost) {
		h.starts = document(status.NotReady, "dial 10.1.0.5:20049: connection refused")
	}
	fails := func(errs ...error) func(*fakeHost) { return func(h *fakeHost) { h.failures = errs } }
	always := func(err error) func(*fakeHost) { return fails(slices.Repeat([]error{err}, 1000)...) }
	refuses := func(text string) func(*fakeHost) { return func(h *fakeHost) { h.refusal = text } }
	for _, tc := range []struct {
		name, source, options string
		host                  func(*fakeHost)
		code                  int
		text                  string
		took                  time.Duration
	}{
		{"the storage is down", "10.1.0.5:/e", "", down, Failure, "10.1.0.5:/e cannot be mounted within 2m0s (retry=2): the storage cannot be reached over RDMA: dial 10.1.0.5:20049: connection refused", 2 * time.Minute},
		{"retry", "10.1.0.5:/e", "retry=1", down, Failure, "10.1.0.5:/e cannot be mounted within 1m0s", time.Minute},
		{"once", "10.1.0.5:/e", "retry=0", down, Failure, "10.1.0.5:/e cannot be mounted within 5s (retry=0): the storage cannot be reached", attempt},
		{"no name", "nobody.example:/e", "", nil, Failure, "there is no host nobody.example: lookup nobody.example: no such host", 0},
		{"no resolver", "later.example:/e", "retry=1", nil, Failure, "later.example:/e cannot be mounted within 1m0s (retry=1): lookup later.example", time.Minute},
		{"denied", "10.1.0.5:/e", "", fails(syscall.EACCES), Failure, "the storage denies access to /e: its export must allow the address of this host, with the option insecure; NFSv4 calls", 0},
		{"no export", "10.1.0.5:/e", "", fails(syscall.ENOENT), Failure, "the storage has no /e; NFSv4 calls the export with fsid=0 /", 0},
		{"twice", "10.1.0.5:/e", "", fails(syscall.EBUSY), Failure, dir + " is busy, or 10.1.0.5:/e is mounted there already", 0},
		{"no client", "10.1.0.5:/e", "", fails(syscall.ENODEV), System, "this kernel has no NFS client: try modprobe nfs", 0},
		{"an option", "10.1.0.5:/e", "fly", fails(syscall.EINVAL), Failure, "the kernel refuses an option, and its log may say which (dmesg): vers=4.2,fly,", 0},
		{"no version", "10.1.0.5:/e", "vers=4", always(syscall.EPROTONOSUPPORT), Failure, "the storage does not serve NFS 4.2, 4.1, 4.0", 0},
		{"refused", "10.1.0.5:/e", "retry=1", always(syscall.ECONNREFUSED), Failure, "10.1.0.5:/e cannot be mounted within 1m0s (retry=1): mount: connection refused", time.Minute},
		{"another error", "10.1.0.5:/e", "", fails(syscall.EIO), Failure, "mounting 10.1.0.5:/e at " + dir + ": input/output error", 0},
		{"no MOUNT", "10.1.0.6:/e", "vers=3", nil, Failure, "the rpcbind of 10.1.0.6 knows no MOUNT, which NFSv3 needs: say where it is by the option mountport=PORT", 0},
		{"no rpcbind", "10.1.0.7:/e", "vers=3,retry=1", nil, Failure, "10.1.0.7:/e cannot be mounted within 1m0s (retry=1): the rpcbind of 10.1.0.7 does not say where MOUNT is", time.Minute},
		{"systemd refuses", "10.1.0.5:/e", "", refuses("Failed to start transient service unit: Access denied\n"), System, "the bridge does not start: exit status 1: Failed to start transient service unit: Access denied; journalctl -u rdmabridge-mount-10.1.0.5.service may say why", 0},
		{"a unit that never answers", "10.1.0.5:/e", "retry=1", refuses("Failed to start transient service unit: Unit x was already loaded or has a fragment file."), Failure, "10.1.0.5:/e cannot be mounted within 1m0s (retry=1): rdmabridge-mount-10.1.0.5.service does not answer", time.Minute},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newFakeHost(true)
				if tc.host != nil {
					tc.host(h)
				}
				_, code, text, took := h.mountAt(t, tc.source, dir, tc.options)
				if code != tc.code || !strings.HasPrefix(text, tc.text) || took != tc.took {
					t.Errorf("code %d after %v: %s\nwant %d after %v: %s", code, took, text, tc.code, tc.took, tc.text)
				}
			})
		})
	}
	h := newFakeHost(true)
	h.refusal = "Job failed."
	h.mountAt(t, "10.1.0.5:/e", dir, "")
	if want := []string{"stop rdmabridge-mount-10.1.0.5.service"}; !slices.Equal(h.stopped, want) {
		t.Errorf("after a start that failed: %q, want %q", h.stopped, want)
	}
	h = newFakeHost(true)
	if _, code, text, _ := h.mountAt(t, "10.1.0.5:/e", dir+"/none", ""); code != Failure || text != "mount point "+dir+"/none does not exist; make the directory, or name another" || len(h.commands) > 0 {
		t.Errorf("no directory: %d %s %v", code, text, h.commands)
	}
}

// TestMountLater: a mount goes on when the storage comes, when the bridge has ended meanwhile, and with another version.
func TestMountLater(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		h := newFakeHost(true)
		h.starts = document(status.NotReady, "connection refused")
		began := time.Now()
		h.changes = func() {
			switch now := time.Since(began); {
			case now >= 50*time.Second:
				*h.bridge = document(status.Ready, "")
			case now >= 30*time.Second && len(h.commands) == 1:
				h.bridge = nil // it has waited for a mount for too long
			}
		}
		h.failures = []error{syscall.ECONNREFUSED, syscall.EPROTONOSUPPORT}
		version, code, text, took := h.mountAt(t, "storage.example:/e", dir, "")
		if version != "4.1" || code != 0 || took < 50*time.Second || took > 51*time.Second || len(h.commands) != 2 {
			t.Errorf("%s %d %s after %v, %d starts", version, code, text, took, len(h.commands))
		}
	})
}

// TestRemount: a remount changes flags, and needs no bridge.
func TestRemount(t *testing.T) {
	dir := t.TempDir()
	h := newFakeHost(true)
	if _, code, text, _ := h.mountAt(t, "10.1.0.5:/e", dir, "remount,ro,vers=4.2"); code != 0 || len(h.commands) > 0 || !slices.Equal(h.mounts, []string{" " + dir + "  21 "}) {
		t.Errorf("%d %s %v %q", code, text, h.commands, h.mounts)
	}
}

func TestUnmount(t *testing.T) {
	for dir, want := range map[string]string{
		"/mnt2":        "",
		"/mnt/a b/":    "",
		"/mnt4":        "/mnt4 is not mounted through a bridge of this host; name the directory of such a mount, which findmnt lists",
		"/mnt3":        "/mnt3 is busy: a process has a file or its working directory there (fuser -vm /mnt3)",
		"/mnt/nowhere": "/mnt/nowhere is not mounted through a bridge of this host; name the directory of such a mount, which findmnt lists",
	} {
		h := newFakeHost(false)
		h.table = mountTable
		h.Unmount = func(dir string, _ int) error {
			if dir == "/mnt3" {
				return syscall.EBUSY
			}
			return nil
		}
		err := Unmount(&h.Host, dir, 0)
		var e *Error
		if want == "" && err != nil || want != "" && (!errors.As(err, &e) || e.Text != want || e.Code != Failure) {
			t.Errorf("%s: %v, want %q", dir, err, want)
		}
	}
}

// TestSpawnIsSlow: a bridge that takes longer to listen than the mount may take is no failure of the system, and the mount
// says for how long it has tried.
func TestSpawnIsSlow(t *testing.T) {
	b := newBridge("test-"+strconv.Itoa(os.Getpid()), 1, 2, "")
	dir := filepath.Dir(b.Socket(runDir))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Skip(err) // only root may
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	err := spawn(ctx, &b, []string{"/bin/sleep", "5"})
	if final := new(Error); err == nil || errors.As(err, &final) {
		t.Errorf("%v, want an error that is not the last word", err)
	}
}
