//go:build lab

package lab

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// testInit runs the bridge with what init writes for one use, and mounts in the guest with every line that init prints:
// the command of each version, and that of /etc/fstab and what systemd does with the unit, by default for NFSv3 only:
// they have the same options.
func testInit(t *testing.T, g *guest, use string) {
	free := freePorts(t, 3)
	port, mount, admin := free[0], free[1], free[2]
	storage, transport, proto := fmt.Sprintf("storage.example:%d", g.rdma), "rdma", "tcp"
	v4, v3 := "2049", "2049" // of the lines
	if use == "reverse" {
		storage, transport, proto = fmt.Sprintf("storage.example:%d", g.nfs), "tcp", "rdma"
		v4, v3 = "20049", "20048"
	} else {
		mount = port
	}
	// The guest's export has fsid=0: it is the root of NFSv4, and MOUNT knows its name.
	text, lines := runInit(t, use, storage, transport, "/")
	_, lines3 := runInit(t, use, storage, transport, "/export")
	config := strings.NewReplacer(
		`"0.0.0.0:2049"`, local(port), `"0.0.0.0:20049"`, local(port), `"0.0.0.0:20048"`, local(mount),
		"storage.example:20048", local(g.mount), "storage.example", "127.0.0.1", "127.0.0.1:9090", local(admin),
	).Replace(text)
	b := newBridgeWith(t, port, admin, config)
	b.start(t)
	defer b.stop(t)

	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	here := strings.NewReplacer(host+":/", "10.0.2.2:/", ",port="+v4, fmt.Sprintf(",port=%d", port), "mountport="+v3, fmt.Sprintf("mountport=%d", mount))
	for _, vers := range kernelVersions {
		said := lines
		if vers == "3" {
			said = lines3
		}
		command, fstab, unit := mountLines(t, here.Replace(said), vers)
		want := fmt.Sprintf("grep '/mnt/nfs nfs.*vers=%[1]s.*proto=%[2]s' /proc/mounts; echo %[1]s > /mnt/nfs/init; [ $(cat /export/init) = %[1]s ]; rm /mnt/nfs/init; umount /mnt/nfs", vers, proto)
		script := []string{"set -ex; mkdir -p /mnt/nfs", command, want}
		if slices.Contains(someVersions("3"), vers) {
			script = append(script,
				"echo '"+fstab+"' > /etc/fstab; mount /mnt/nfs", want,
				// systemd.mount(5): systemd runs mount with these.
				fmt.Sprintf("mount %s %s -t %s -o %s", unit["What"], unit["Where"], unit["Type"], unit["Options"]), want)
		}
		g.job(t, 2*time.Minute, strings.Join(script, "\n"))
	}
	b.wantQuiet(t)
}

// runInit has init write a configuration, and returns it and what init prints.
func runInit(t *testing.T, use, storage, transport, export string) (config, lines string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "rdmabridge.yaml")
	out := command(t, 10*time.Second, bridgeBinary(t), "init", file, "--all", "--no-doctor", "--as", use, "--storage", storage, "--transport", transport,
		"--clients", "127.0.0.0/8", "--export", export)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text), string(out)
}

func local(port int) string { return net.JoinHostPort("127.0.0.1", fmt.Sprint(port)) }

// mountLines returns what init printed for one version.
func mountLines(t *testing.T, text, vers string) (command, fstab string, unit map[string]string) {
	t.Helper()
	_, text, ok := strings.Cut(text, "NFSv"+vers+",")
	if !ok {
		t.Fatalf("nothing about version %s", vers)
	}
	text, _, _ = strings.Cut(text, "\nNFSv")
	unit = make(map[string]string)
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		key, value, _ := strings.Cut(line, "=")
		switch {
		case strings.HasPrefix(line, "mount "):
			command = line
		case strings.HasSuffix(line, " 0 0"):
			fstab = line
		case key == "What" || key == "Where" || key == "Type" || key == "Options":
			unit[key] = value
		}
	}
	if command == "" || fstab == "" || len(unit) != 4 {
		t.Fatalf("version %s: lines are missing in\n%s", vers, text)
	}
	if name := strings.ReplaceAll(strings.Trim(unit["Where"], "/"), "/", "-") + ".mount"; !strings.Contains(text, filepath.Join("/etc/systemd/system", name)) {
		t.Errorf("the unit for %s must be called %s", unit["Where"], name)
	}
	return command, fstab, unit
}
