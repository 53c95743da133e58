package harden

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// inside is the environment variable that names what this program does as a restricted process.
const inside = "RDMABRIDGE_TEST_INSIDE"

// programs of this test: what each prints is what the test expects to be empty.
var insides = map[string]func(dir string){
	"calls":       tryCalls,
	"files":       tryFiles,
	"verbs":       tryVerbs,
	"program":     tryPrograms,
	"crash":       crash,
	"generations": generations,
}

func TestMain(m *testing.M) {
	if f := insides[os.Getenv(inside)]; f != nil {
		f(os.Args[1])
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// run runs this program as name, in dir. It returns what the program printed.
func run(t *testing.T, name, dir string) (string, error) {
	t.Helper()
	cmd := exec.Command(os.Args[0], dir)
	cmd.Env = append(os.Environ(), inside+"="+name)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

// check runs this program as name. It fails the test if the program prints anything.
func check(t *testing.T, name, dir string) {
	t.Helper()
	if out, err := run(t, name, dir); err != nil || out != "" {
		t.Errorf("%v\n%s", err, out)
	}
}

// apply restricts this process, and prints what could not be done.
func apply(n *Needs) {
	for _, r := range Apply(n) {
		if r.Err != nil {
			fmt.Println(r.Name, "not restricted:", r.Err)
		}
	}
}

func TestCalls(t *testing.T) { check(t, "calls", "") }

// tryCalls makes each refused system call on threads that were there before the restrictions, and on one that was not.
func tryCalls(string) {
	if err := unix.Unshare(0); err != nil {
		fmt.Println("unshare failed before:", err)
	}
	var ready, done sync.WaitGroup
	restricted := make(chan struct{})
	for i := range 4 {
		ready.Add(1)
		done.Go(func() {
			runtime.LockOSThread()
			ready.Done()
			<-restricted
			tryAll(fmt.Sprint("thread ", i))
		})
	}
	ready.Wait()
	n := &Needs{}
	n.AddSystem()
	apply(n)
	close(restricted)
	done.Go(func() {
		runtime.LockOSThread()
		tryAll("new thread")
	})
	done.Wait()
	if err := exec.Command("/bin/true").Run(); !errors.Is(err, unix.EPERM) {
		fmt.Println("a program was started:", err)
	}
	var limit unix.Rlimit
	dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	if err = errors.Join(err, unix.Getrlimit(unix.RLIMIT_CORE, &limit)); err != nil || dumpable != 0 || limit.Cur != 0 {
		fmt.Println("dumpable", dumpable, "limit", limit.Cur, err)
	}
	// What the bridge does read of itself.
	for _, name := range []string{"stat", "status", "limits", "maps", "cgroup", "mountinfo", "net/tcp", "fd"} {
		if f, err := os.Open("/proc/self/" + name); err != nil {
			fmt.Println(err)
		} else if f.Close(); name == "fd" {
			if entries, err := os.ReadDir("/proc/self/fd"); err != nil || len(entries) < 3 {
				fmt.Println("descriptors", entries, err)
			}
		}
	}
}

func tryAll(where string) {
	for _, call := range slices.Concat(refused, programs) {
		none := ^uintptr(0)
		if _, _, errno := unix.RawSyscall6(uintptr(call), none, none, none, none, none, none); errno != unix.EPERM {
			fmt.Printf("%s: system call %d: %v\n", where, call, errno)
		}
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_CLONE, unix.CLONE_NEWUTS, 0, 0); errno != unix.EPERM {
		fmt.Printf("%s: a name space: %v\n", where, errno)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_CLONE3, 0, 0, 0); errno != unix.ENOSYS {
		fmt.Printf("%s: clone3: %v\n", where, errno)
	}
}

// TestFilter runs the filter on calls that this process cannot make: those of other architectures.
func TestFilter(t *testing.T) {
	p := filter(unix.AUDIT_ARCH_X86_64, append([]uint32{}, refused...))
	if len(p) > 4096 {
		t.Errorf("%d instructions; the kernel accepts 4096", len(p))
	}
	vm, err := bpf.NewVM(p)
	if err != nil {
		t.Fatal(err)
	}
	eperm, enosys := unix.SECCOMP_RET_ERRNO|int(unix.EPERM), unix.SECCOMP_RET_ERRNO|int(unix.ENOSYS)
	for _, c := range []struct {
		name       string
		arch, call uint32
		arg0       uint32
		want       int
	}{
		{"allowed", unix.AUDIT_ARCH_X86_64, unix.SYS_READ, 0, unix.SECCOMP_RET_ALLOW},
		{"refused", unix.AUDIT_ARCH_X86_64, unix.SYS_PTRACE, 0, eperm},
		{"first", unix.AUDIT_ARCH_X86_64, refused[0], 0, eperm},
		{"last", unix.AUDIT_ARCH_X86_64, refused[len(refused)-1], 0, eperm},
		{"i386", unix.AUDIT_ARCH_I386, 11, 0, eperm},
		{"x32", unix.AUDIT_ARCH_X86_64, x32 | unix.SYS_READ, 0, enosys},
		{"thread", unix.AUDIT_ARCH_X86_64, unix.SYS_CLONE, unix.CLONE_VM | unix.CLONE_THREAD | unix.CLONE_SIGHAND, unix.SECCOMP_RET_ALLOW},
		{"name space", unix.AUDIT_ARCH_X86_64, unix.SYS_CLONE, unix.CLONE_NEWUSER | 17, eperm},
		{"clone3", unix.AUDIT_ARCH_X86_64, unix.SYS_CLONE3, 0, enosys},
	} {
		data := make([]byte, 64) // struct seccomp_data, in the order of octets that the VM expects
		binary.BigEndian.PutUint32(data[offsetCall:], c.call)
		binary.BigEndian.PutUint32(data[offsetArch:], c.arch)
		binary.BigEndian.PutUint32(data[offsetArg0:], c.arg0)
		if got, err := vm.Run(data); err != nil || got != c.want {
			t.Errorf("%s: %#x, %v, want %#x", c.name, got, err, c.want)
		}
	}
}

func TestFiles(t *testing.T) {
	needLandlock(t)
	dir := t.TempDir()
	for _, name := range []string{"read", "read/deep", "write", "other", "apart", "versions/1", "versions/2"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name, "file"), []byte("octets"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("versions/1", filepath.Join(dir, "current")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(dir, "current", "file"), filepath.Join(dir, "read", "link")); err != nil {
		t.Fatal(err)
	}
	check(t, "files", dir)
	check(t, "verbs", dir)
}

// TestVersions: which directories hold the next versions of what symbolic links lead to.
func TestVersions(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"releases/1", "secret/..1/deep", "far/away", "near"} {
		if err := os.MkdirAll(in(name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{
		"current": "releases/1", "absolute": in("releases/1"), "secret/..data": "..1", "secret/file": "..data/file", "secret/deep": "..data/deep",
		"near/far": "../far/away", "near/root": "/", "near/through": "root/usr", "loop": "loop", "file": "releases/1/file", "twice": "current",
	} {
		if err := os.Symlink(to, in(link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		path string
		want []string
	}{
		{"near/file", nil},
		{"file", nil}, // AddFile has the directory of the file
		{"current/file", []string{"releases"}},
		{"absolute/file", []string{"releases"}},
		{"twice/file", []string{".", "releases"}},
		{"current/missing/file", []string{"releases"}},
		{"secret/file", []string{"secret"}},
		{"secret/..data/file", []string{"secret"}},
		{"secret/deep/file", []string{"secret/..1", "secret"}},
		{"near/far/file", nil}, // it is not below
		{"near/root/file", nil},
		{"near/through/file", nil},
	} {
		var want []string
		for _, w := range c.want {
			want = append(want, in(w))
		}
		if got := versions(in(c.path)); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", c.path, got, want)
		}
	}
	versions(in("loop/file")) // it returns
}

// needLandlock skips a test on kernels without Landlock.
func needLandlock(t *testing.T) {
	t.Helper()
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, 1); errno != 0 {
		t.Skipf("no Landlock: %v", errno)
	}
}

// tryVerbs: all threads of a process with RDMA devices have the credentials that it began with, which Landlock
// would replace in each; whoever asks for its files is told why they are not restricted.
func tryVerbs(string) {
	for _, r := range Apply(&Needs{Verbs: true}) {
		if r.Name == Files && !errors.Is(r.Err, errVerbs) {
			fmt.Println("files:", r.Err)
		}
	}
	if _, err := os.ReadDir("/dev"); err != nil { // which no restriction of files would permit
		fmt.Println(err)
	}
}

func tryFiles(dir string) {
	in := func(name string) string { return filepath.Join(dir, name) }
	ln, err := net.Listen("unix", in("other/socket"))
	if err != nil {
		fmt.Println(err)
		return
	}
	n := &Needs{}
	n.AddSystem()
	n.AddFile(in("read/link"))
	n.AddWritten(in("write/new"))
	n.AddWritten(in("apart/made/later/new"))
	apply(n)
	expect := func(what string, err error, want error) {
		if !errors.Is(err, want) {
			fmt.Printf("%s: %v, want %v\n", what, err, want)
		}
	}
	open := func(name string, flags int) error {
		f, err := os.OpenFile(name, flags, 0o600)
		if err == nil {
			f.Close()
		}
		return err
	}
	expect("read", open(in("read/file"), os.O_RDONLY), nil)
	expect("read, deeper", open(in("read/deep/file"), os.O_RDONLY), nil)
	expect("read by a link", open(in("read/link"), os.O_RDONLY), nil)
	expect("read what is not needed", open(in("other/file"), os.O_RDONLY), fs.ErrPermission)
	expect("read another version", open(in("versions/2/file"), os.O_RDONLY), nil)
	expect("write what is read", open(in("read/file"), os.O_WRONLY), fs.ErrPermission)
	expect("make beside what is read", open(in("read/new"), os.O_WRONLY|os.O_CREATE), fs.ErrPermission)
	expect("list", func() error { _, err := os.ReadDir(dir); return err }(), fs.ErrPermission)
	expect("write", open(in("write/file"), os.O_WRONLY|os.O_APPEND), nil)
	expect("make", open(in("write/new"), os.O_WRONLY|os.O_CREATE|os.O_TRUNC), nil)
	expect("rename", os.Rename(in("write/new"), in("write/old")), nil)
	expect("make anew", open(in("write/new"), os.O_WRONLY|os.O_CREATE), nil)
	expect("remove", os.Remove(in("write/old")), nil)
	expect("make a directory", os.MkdirAll(in("apart/made/later"), 0o700), nil)
	expect("make in it", open(in("apart/made/later/new"), os.O_WRONLY|os.O_CREATE), nil)
	expect("remove elsewhere", os.Remove(in("versions/2/file")), fs.ErrPermission)
	expect("a symbolic link", os.Symlink("/", in("write/root")), fs.ErrPermission)
	expect("the resolver's file", open("/etc/hosts", os.O_RDONLY), nil)
	expect("a device", open("/dev/null", os.O_RDONLY), nil)
	expect("a shared object", open("/proc/self/exe", os.O_RDONLY), fs.ErrPermission) // in /tmp
	other, err := net.Listen("unix", in("write/socket"))
	expect("a socket", err, nil)
	if err == nil {
		other.Close()
	}
	c, err := net.Dial("unix", ln.Addr().String())
	expect("connect to a socket elsewhere", err, nil)
	if err == nil {
		c.Close()
	}
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	expect("listen", err, nil)
	if err == nil {
		c, err := net.Dial("tcp", tcp.Addr().String())
		expect("connect", err, nil)
		if err == nil {
			c.Close()
		}
		tcp.Close()
	}
}

func TestPrograms(t *testing.T) {
	needLandlock(t)
	dir := t.TempDir()
	for _, name := range []string{"mine", "others"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"mine/program", "others/program"} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	check(t, "program", dir)
}

func tryPrograms(dir string) {
	mine := filepath.Join(dir, "mine/program")
	n := &Needs{Program: mine, Write: []string{filepath.Join(dir, "mine")}} // to replace the program as an upgrade does
	n.AddSystem()
	apply(n)
	start := func(name string) error {
		cmd := exec.Command(name, "-test.run=^$")
		cmd.Env = []string{"HOME=/"}
		return cmd.Run()
	}
	if err := start(mine); err != nil {
		fmt.Println("the program:", err)
	}
	b, err := os.ReadFile(mine)
	if err = errors.Join(err, os.WriteFile(mine+".new", b, 0o755), os.Rename(mine+".new", mine)); err != nil {
		fmt.Println(err)
	}
	if err := start(mine); err != nil {
		fmt.Println("the program that was installed later:", err)
	}
	for _, name := range []string{filepath.Join(dir, "others/program"), "/bin/true"} {
		if err := start(name); !errors.Is(err, fs.ErrPermission) {
			fmt.Println("another program:", name, err)
		}
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_PTRACE, unix.PTRACE_ATTACH, ^uintptr(0), 0); errno != unix.EPERM {
		fmt.Println("ptrace:", errno)
	}
}

// TestCrash: a process that crashes leaves no dump, whatever the limit was.
func TestCrash(t *testing.T) {
	for _, restricted := range []bool{false, true} {
		cmd := exec.Command("/bin/sh", "-c", `ulimit -c unlimited; exec "$0" "$1"`, os.Args[0], fmt.Sprint(restricted))
		cmd.Dir = t.TempDir()
		cmd.Env = append(os.Environ(), inside+"=crash", "GOTRACEBACK=crash")
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			t.Fatalf("%v\n%s", err, out)
		}
		status := exit.Sys().(syscall.WaitStatus)
		if status.Signal() != syscall.SIGABRT {
			t.Fatalf("%v\n%s", err, out)
		}
		if !restricted && !status.CoreDump() {
			t.Skip("this host writes no core dumps")
		}
		if restricted && status.CoreDump() {
			t.Error("the process left a core dump")
		}
	}
}

func crash(restricted string) {
	if restricted == "true" {
		apply(&Needs{})
	}
	panic("on purpose")
}

// TestGenerations: a process can start its successor any number of times, although each adds to the
// restrictions.
func TestGenerations(t *testing.T) {
	out, err := run(t, "generations", strings.Repeat("x", 18))
	if err != nil || out != strings.Repeat("y", 18) {
		t.Errorf("%v\n%s", err, out)
	}
}

func generations(more string) {
	n := &Needs{Program: os.Args[0]}
	n.AddSystem()
	n.AddFile(os.Args[0])
	apply(n)
	if more == "" {
		return
	}
	fmt.Print("y")
	fmt.Print(errorText(syscall.Exec(os.Args[0], []string{os.Args[0], more[1:]}, os.Environ())))
}

func errorText(err error) string { return fmt.Sprint("exec: ", err) }

func TestMissing(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink("/usr/lib", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	has := &Needs{Read: []string{"/etc", "/usr"}, Write: []string{"/var/log/bridge"}}
	for _, c := range []struct {
		other Needs
		want  string
	}{
		{Needs{Read: []string{"/etc/bridge/tls", "/etc", "/var/log/bridge"}, Write: []string{"/var/log/bridge/calls"}}, ""},
		{Needs{Read: []string{"/etcetera"}}, "/etcetera"},
		{Needs{Read: []string{filepath.Join(dir, "link/x")}}, ""},
		{Needs{Read: []string{"/srv/tls"}}, "/srv/tls"},
		{Needs{Write: []string{"/etc"}}, "/etc"},
	} {
		if got := has.Missing(&c.other); got != c.want {
			t.Errorf("%+v: %q is missing, want %q", c.other, got, c.want)
		}
	}
	all := &Needs{Read: []string{"/"}}
	if got := all.Missing(has); got != "/var/log/bridge" {
		t.Errorf("%q", got)
	}
}
