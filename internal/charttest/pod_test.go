package charttest

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
)

// inPod is set to the path of the bridge's binary in the process that TestPod starts in namespaces of its own.
const inPod = "CHARTTEST_POD"

// TestPod runs the pods that the chart renders as a kubelet and a container runtime do, without either: the image's root file
// system, read-only; ConfigMaps with the symbolic links of a kubelet, and emptyDirs; user, environment, arguments, dropped
// capabilities and no_new_privs of the container; its probes and its preStop. The storage is a demo at the address that the
// examples name, and goes away twice. Limits of CPU and memory and the seccomp profile are not enforced.
func TestPod(t *testing.T) {
	if bridge := os.Getenv(inPod); bridge != "" {
		testPods(t, bridge)
		return
	}
	if os.Getuid() != 0 {
		t.Skip("needs root, for mounts and another user")
	}
	bridge := filepath.Join(t.TempDir(), "rdmabridge")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Dir(bridge)+"/", "./cmd/rdmabridge", "./cmd/rdmabridge-bench")
	build.Dir, build.Env = "../..", append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	runtime.LockOSThread() // Pdeathsig takes effect when this thread ends
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestPod$", "-test.v", "-test.timeout=5m")
	cmd.Env = append(os.Environ(), inPod+"="+bridge)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatal(err)
	}
}

const (
	storageHost = "10.1.0.5" // as the examples have it
	podHost     = "10.1.0.9" // its network is one from which the examples allow clients
)

func testPods(t *testing.T, bridge string) {
	mount(t, "", "/", "", syscall.MS_PRIVATE|syscall.MS_REC, "")
	for _, args := range []string{"link set lo up", "addr add " + storageHost + "/32 dev lo", "addr add " + podHost + "/32 dev lo"} {
		if out, err := exec.CommandContext(t.Context(), "ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v\n%s", args, err, out)
		}
	}
	t.Run("compose", func(t *testing.T) { testCompose(t, filepath.Dir(bridge)) })
	c := load(t)
	for _, tc := range []struct{ name, example, more string }{
		{"gateway", "gateway", ""},
		{"gateway-minimal", "gateway-minimal", ""},
		{"gateway-drain", "gateway-minimal", "preStop: drain\n"},
		{"gateway-tls", "gateway-tls", ""},
		{"sidecar", "sidecar", ""},
		{"sidecar-drain", "sidecar", "preStop: drain\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			values, err := os.ReadFile(helm + "examples/" + tc.example + ".yaml")
			if err != nil {
				t.Fatal(err)
			}
			text, err := render(c, append(values, tc.more...))
			if err != nil {
				t.Fatal(err)
			}
			testPod(t, bridge, objects(t, text))
		})
	}
}

// testPod takes a pod through its life.
func testPod(t *testing.T, bridge string, all map[string]any) {
	p := newPod(t, bridge, all)
	config := all["ConfigMap"].(*core.ConfigMap).Data
	p.start(t)

	// The pod starts while the storage is away: the container must become started and stay alive.
	p.wantSoon(t, "startup", p.container.StartupProbe)
	p.wantAlive(t)
	if r := p.container.ReadinessProbe; r != nil {
		if err := p.probe(r); err == nil {
			t.Error("ready without storage")
		}
	}

	storage := startStorage(t, bridge)
	p.wantSoon(t, "readiness", p.container.ReadinessProbe)
	p.wantCalls(t)

	// The kubelet writes a ConfigMap that has changed, and the bridge applies it.
	config["rdmabridge.yaml"] += "\nlog: {level: debug}\n"
	p.writeConfigMap(t, config)
	p.log.wait(t, `"event":"reload_applied"`)

	storage.stop(t)
	p.log.wait(t, `"event":"upstream_lost"`)
	if r := p.container.ReadinessProbe; r != nil {
		wait(t, "the pod to be not ready", func() bool { return p.probe(r) != nil })
	}
	p.wantAlive(t)

	storage = startStorage(t, bridge)
	p.wantSoon(t, "readiness", p.container.ReadinessProbe)
	p.wantCalls(t)

	// preStop, and then SIGTERM. With sleep, the bridge serves as before until it has slept.
	stop := p.container.Lifecycle.PreStop
	if stop.Exec != nil {
		if err := p.exec(t.Context(), stop.Exec.Command); err != nil {
			t.Errorf("preStop: %v", err)
		}
	} else {
		p.wantCalls(t)
	}
	p.stop(t)
	storage.stop(t)
}

// A process is one that a test has started.
type process struct {
	cmd  *exec.Cmd
	log  *output
	done chan error // closed after it has the error
}

// An output is what a process writes.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

func (o *output) wait(t *testing.T, text string) {
	t.Helper()
	wait(t, text, func() bool { return strings.Contains(o.String(), text) })
}

// wait waits until ok reports true, for a minute.
func wait(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("no %s after a minute", what)
		}
	}
}

// launch starts cmd on a thread of its own, which prepare has changed before.
func launch(t *testing.T, cmd *exec.Cmd, prepare func() error) *process {
	t.Helper()
	p := &process{cmd: cmd, log: new(output), done: make(chan error, 1)}
	cmd.Stdout, cmd.Stderr = p.log, p.log
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // for ever: the thread ends with this goroutine
		err := prepare()
		if err == nil {
			err = cmd.Start()
		}
		started <- err
		if err == nil {
			p.done <- cmd.Wait()
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // an error means that it has ended
		<-p.done
		if t.Failed() {
			t.Logf("%s:\n%s", cmd.Path, p.log)
		}
	})
	return p
}

// stop sends SIGTERM and wants the exit code 0 within a minute, the grace period of the chart. A bridge without clients that
// preStop has told to drain may have ended before.
func (p *process) stop(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatal(err)
	}
	select {
	case err := <-p.done:
		if err != nil {
			t.Errorf("%s: %v\n%s", p.cmd.Path, err, p.log)
		}
	case <-time.After(time.Minute):
		t.Fatalf("%s goes on after SIGTERM", p.cmd.Path)
	}
}

// startStorage serves NFS over RDMA, and MOUNT over TCP.
func startStorage(t *testing.T, bridge string) *process {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), bridge, "demo", "--rdma", storageHost+":20049", "--tcp", storageHost+":20048", "--admin", "127.0.0.1:19090")
	cmd.Env = append(os.Environ(), "RUNTIME_DIRECTORY="+t.TempDir())
	p := launch(t, cmd, func() error { return nil })
	p.log.wait(t, "Press Ctrl-C")
	return p
}

// A pod is one container of a Deployment's pod, the bridge's, and what it runs in.
type pod struct {
	*process
	container core.Container
	spec      core.PodSpec
	root      string // of its file system
	configMap string // the directory of the volume
	versions  int    // of the ConfigMap
	env       []string
	command   []string
	uid       uint32
	port      string // where clients connect
}

// image is what deploy/docker/Dockerfile says of the container that it makes.
func image(t *testing.T) (entrypoint, env []string) {
	t.Helper()
	text, err := os.ReadFile("../../deploy/docker/Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	_, last, _ := strings.Cut(string(text), "\nFROM scratch\n")
	m := regexp.MustCompile(`(?m)^ENTRYPOINT (.*)$`).FindStringSubmatch(last)
	if m == nil || json.Unmarshal([]byte(m[1]), &entrypoint) != nil {
		t.Fatalf("no ENTRYPOINT in\n%s", last)
	}
	for _, m := range regexp.MustCompile(`(?m)^ENV (\S+)$`).FindAllStringSubmatch(last, -1) {
		env = append(env, m[1])
	}
	return entrypoint, env
}

// newPod lays out the file system of the bridge's container.
func newPod(t *testing.T, bridge string, all map[string]any) *pod {
	t.Helper()
	p := &pod{spec: all["Deployment"].(*apps.Deployment).Spec.Template.Spec, root: filepath.Join(t.TempDir(), "root")}
	p.container, p.port = p.spec.Containers[0], net.JoinHostPort(podHost, "2049")
	if len(p.spec.InitContainers) > 0 {
		p.container, p.port = p.spec.InitContainers[0], "127.0.0.1:12049"
	}
	p.command, p.env = image(t)
	p.command = append(p.command, p.container.Args...)
	for _, e := range p.container.Env {
		value := e.Value
		if e.ValueFrom != nil {
			if e.ValueFrom.SecretKeyRef == nil {
				t.Fatalf("%s: this test has no such source", e.Name)
			}
			value = "a secret of " + e.ValueFrom.SecretKeyRef.Name
		}
		p.env = append(p.env, e.Name+"="+value)
	}
	security := p.container.SecurityContext
	p.uid = uint32(*security.RunAsUser)
	if *security.RunAsNonRoot && p.uid == 0 {
		t.Error("a kubelet refuses to run root")
	}
	if p.spec.SecurityContext != nil {
		for _, s := range p.spec.SecurityContext.Sysctls {
			write(t, filepath.Join("/proc/sys", strings.ReplaceAll(s.Name, ".", "/")), s.Value)
		}
	}

	binary, err := os.ReadFile(bridge)
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"proc", "dev", "etc", "run/rdmabridge"} {
		if err := os.MkdirAll(filepath.Join(p.root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(p.root, "rdmabridge"), string(binary))
	if err := os.Chmod(filepath.Join(p.root, "rdmabridge"), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(p.root, "etc/hosts"), "127.0.0.1 localhost\n"+storageHost+" storage.example\n") // in place of the cluster's DNS
	write(t, filepath.Join(p.root, "dev/null"), "")
	// The names of the directories above the root must not keep another user out.
	for dir := p.root; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range p.container.VolumeMounts {
		if err := os.MkdirAll(filepath.Join(p.root, m.MountPath), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	mount(t, p.root, p.root, "", syscall.MS_BIND, "")
	mount(t, "proc", filepath.Join(p.root, "proc"), "proc", 0, "")
	mount(t, "/dev/null", filepath.Join(p.root, "dev/null"), "", syscall.MS_BIND, "")
	for _, m := range p.container.VolumeMounts {
		p.mountVolume(t, m, all)
	}
	if *security.ReadOnlyRootFilesystem {
		mount(t, "", p.root, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, "")
	}
	return p
}

// mountVolume mounts a volume of the pod as a kubelet and the runtime do.
func (p *pod) mountVolume(t *testing.T, m core.VolumeMount, all map[string]any) {
	t.Helper()
	at := filepath.Join(p.root, m.MountPath)
	for _, v := range p.spec.Volumes {
		switch {
		case v.Name != m.Name:
			continue
		case v.EmptyDir != nil:
			mount(t, "tmpfs", at, "tmpfs", 0, fmt.Sprintf("mode=0777,size=%d", v.EmptyDir.SizeLimit.Value()))
		case v.ConfigMap != nil:
			c := all["ConfigMap"].(*core.ConfigMap)
			if c.Name != v.ConfigMap.Name {
				t.Fatalf("the volume %s is of the ConfigMap %s, and there is %s", v.Name, v.ConfigMap.Name, c.Name)
			}
			p.configMap = t.TempDir()
			if err := os.Chmod(p.configMap, 0o777); err != nil { // as a kubelet has it
				t.Fatal(err)
			}
			p.writeConfigMap(t, c.Data)
			mount(t, p.configMap, at, "", syscall.MS_BIND, "")
		case v.Secret != nil: // of root and the group fsGroup, as a kubelet has it
			mount(t, "tmpfs", at, "tmpfs", 0, fmt.Sprintf("mode=0755,gid=%d", *p.spec.SecurityContext.FSGroup))
			writeSecret(t, at, int(*v.Secret.DefaultMode))
			for _, name := range []string{"tls.crt", "tls.key", "ca.crt"} {
				if err := os.Chown(filepath.Join(at, name), 0, int(*p.spec.SecurityContext.FSGroup)); err != nil {
					t.Fatal(err)
				}
			}
		default:
			t.Fatalf("the volume %s is of a kind that this test does not have", v.Name)
		}
		if m.ReadOnly {
			mount(t, "", at, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, "")
		}
		return
	}
	t.Fatalf("no volume %s", m.Name)
}

// writeConfigMap writes a version of the ConfigMap beside the old one, and has a symbolic link name it, by a rename.
func (p *pod) writeConfigMap(t *testing.T, data map[string]string) {
	t.Helper()
	p.versions++
	version := fmt.Sprintf("..version_%d", p.versions)
	if err := os.Mkdir(filepath.Join(p.configMap, version), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range data {
		write(t, filepath.Join(p.configMap, version, name), text)
	}
	link := filepath.Join(p.configMap, "..data")
	if err := errors.Join(os.Symlink(version, link+"_tmp"), os.Rename(link+"_tmp", link)); err != nil {
		t.Fatal(err)
	}
	for name := range data {
		if err := os.Symlink("..data/"+name, filepath.Join(p.configMap, name)); err != nil && !errors.Is(err, os.ErrExist) {
			t.Fatal(err)
		}
	}
}

// in returns a command that runs in the container. It must be started on a thread that restrict has changed.
func (p *pod) in(ctx context.Context, args []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env, cmd.Dir = p.env, "/"
	user := &syscall.Credential{Uid: p.uid}
	if s := p.spec.SecurityContext; s != nil && s.FSGroup != nil {
		user.Groups = []uint32{uint32(*s.FSGroup)}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: p.root, Credential: user}
	return cmd
}

// restrict takes from this thread, and from what it starts, the capabilities that the container drops. With another
// user, those that it has go, too.
func (p *pod) restrict() error {
	s := p.container.SecurityContext
	for _, c := range s.Capabilities.Drop {
		if c != "ALL" || len(s.Capabilities.Add) > 0 {
			return fmt.Errorf("capabilities %+v: this test knows only how to drop ALL", s.Capabilities)
		}
		for n := uintptr(0); ; n++ {
			err := unix.Prctl(unix.PR_CAPBSET_DROP, n, 0, 0, 0)
			if errors.Is(err, unix.EINVAL) { // there are no more
				break
			}
			if err != nil {
				return err
			}
		}
	}
	if s.AllowPrivilegeEscalation != nil && !*s.AllowPrivilegeEscalation {
		return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	}
	return nil
}

func (p *pod) start(t *testing.T) {
	t.Helper()
	p.process = launch(t, p.in(t.Context(), p.command), p.restrict)
}

// exec runs a command in the container, as kubectl exec does.
func (p *pod) exec(ctx context.Context, args []string) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // for ever
		err := p.restrict()
		if err == nil {
			var out []byte
			if out, err = p.in(ctx, args).CombinedOutput(); err != nil {
				err = fmt.Errorf("%w: %s", err, out)
			}
		}
		result <- err
	}()
	return <-result
}

// probe does what a kubelet does for a probe, once.
func (p *pod) probe(probe *core.Probe) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(probe.TimeoutSeconds)*time.Second)
	defer cancel()
	if probe.Exec != nil {
		return p.exec(ctx, probe.Exec.Command)
	}
	port := probe.HTTPGet.Port.String()
	for _, c := range p.container.Ports {
		if c.Name == port {
			port = fmt.Sprint(c.ContainerPort)
		}
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(podHost, port)+probe.HTTPGet.Path, http.NoBody)
	if err != nil {
		return err
	}
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	if err == nil && (a.StatusCode < 200 || a.StatusCode >= 400) {
		err = fmt.Errorf("%s: %s", a.Status, text)
	}
	return err
}

// wantSoon wants that a probe succeeds before a kubelet gives it up.
func (p *pod) wantSoon(t *testing.T, what string, probe *core.Probe) {
	t.Helper()
	if probe == nil {
		return
	}
	var err error
	end := time.Now().Add(time.Duration(max(60, probe.PeriodSeconds*probe.FailureThreshold)) * time.Second)
	for err = p.probe(probe); err != nil && time.Now().Before(end); err = p.probe(probe) {
		select {
		case ended := <-p.done:
			t.Fatalf("the container has ended: %v", ended)
		case <-time.After(100 * time.Millisecond):
		}
	}
	if err != nil {
		t.Errorf("the %s probe: %v", what, err)
	}
}

// wantAlive wants that no probe of those that make a kubelet kill the container fails, as often as it would look.
func (p *pod) wantAlive(t *testing.T) {
	t.Helper()
	for range p.container.LivenessProbe.FailureThreshold {
		if err := p.probe(p.container.LivenessProbe); err != nil {
			t.Errorf("the liveness probe: %v", err)
		}
	}
	select {
	case err := <-p.done:
		t.Fatalf("the container has ended: %v", err)
	default:
	}
}

// wantCalls wants that a client's Calls are answered: one of NFS and one of MOUNT, which go to two upstreams. It repeats those
// that are refused while the bridge connects, for which a sidecar has no probe.
func (p *pod) wantCalls(t *testing.T) {
	t.Helper()
	for _, program := range []uint32{100003, 100005} {
		var err error
		wait(t, fmt.Sprintf("Reply of program %d", program), func() bool {
			err = p.call("tcp", p.port, program)
			return err == nil || p.container.ReadinessProbe != nil
		})
		if err != nil {
			t.Errorf("program %d: %v", program, err)
		}
	}
	for _, port := range p.container.Ports {
		if port.Protocol == core.ProtocolUDP {
			if err := p.call("udp", net.JoinHostPort(podHost, fmt.Sprint(port.ContainerPort)), 100000); err != nil {
				t.Errorf("rpcbind by UDP: %v", err)
			}
		}
	}
}

// call sends NULL of version 3, and wants success. RFC 5531.
func (p *pod) call(network, address string, program uint32) error {
	d := net.Dialer{Timeout: 5 * time.Second}
	if host, _, _ := net.SplitHostPort(address); host == podHost && network == "tcp" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(podHost)}
	}
	c, err := d.Dial(network, address)
	if err != nil {
		return err
	}
	defer c.Close()
	const last = 1 << 31
	record := func(words ...uint32) (b []byte) { // over UDP there are no record marks
		if network == "tcp" {
			b = binary.BigEndian.AppendUint32(b, last|uint32(4*len(words)))
		}
		for _, word := range words {
			b = binary.BigEndian.AppendUint32(b, word)
		}
		return b
	}
	if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return err
	}
	if _, err := c.Write(record(0x5eed, 0, 2, program, 3, 0, 0, 0, 0, 0)); err != nil {
		return err
	}
	want := record(0x5eed, 1, 0, 0, 0, 0)
	reply := make([]byte, len(want))
	if _, err := io.ReadFull(c, reply); err != nil {
		return err
	}
	if !bytes.Equal(reply, want) {
		return fmt.Errorf("the Reply is %x", reply)
	}
	return nil
}

// mount mounts until the end of the test, or of its mount namespace.
func mount(t *testing.T, source, target, kind string, flags uintptr, data string) {
	t.Helper()
	if err := syscall.Mount(source, target, kind, flags, data); err != nil {
		t.Fatalf("mount %s: %v", target, err)
	}
	if flags&(syscall.MS_REMOUNT|syscall.MS_PRIVATE) == 0 {
		t.Cleanup(func() {
			if err := syscall.Unmount(target, syscall.MNT_DETACH); err != nil {
				t.Errorf("umount %s: %v", target, err)
			}
		})
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
