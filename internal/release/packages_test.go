package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"
)

const tree = "../../"

// TestPackageContents: what the packages are made of is there, and what has to be in them is named.
// make package-test installs, upgrades and purges one.
func TestPackageContents(t *testing.T) {
	put := map[string]string{} // by destination, the type
	for _, file := range []string{"nfpm.yaml", "nfpm-ibverbs.yaml"} {
		text, err := os.ReadFile(tree + "deploy/package/" + file)
		if err != nil {
			t.Fatal(err)
		}
		var c struct {
			Contents []struct{ Src, Dst, Type string }
			Scripts  map[string]string
		}
		if err := yaml.Unmarshal(text, &c); err != nil {
			t.Fatal(err)
		}
		for _, f := range c.Contents {
			put[f.Dst] = f.Type
			if strings.HasPrefix(f.Src, "${") || f.Type == "symlink" {
				continue // release.sh and packages.sh make it, or it is relative to the link
			}
			if _, err := os.Stat(tree + f.Src); err != nil {
				t.Error(err)
			}
		}
		if c.Scripts["postinstall"] == "" || c.Scripts["postremove"] == "" {
			t.Errorf("%s: systemd does not learn of the units: %v", file, c.Scripts)
		}
		for event, script := range c.Scripts {
			if out, err := exec.Command("sh", "-n", tree+script).CombinedOutput(); err != nil {
				t.Errorf("%s: %v: %s", event, err, out)
			}
		}
	}
	for _, dst := range []string{
		"/usr/bin/rdmabridge", "/usr/bin/rdmabridge-bench", "/usr/lib/systemd/system/rdmabridge.service", "/usr/lib/systemd/system/rdmabridge@.service",
		"/usr/lib/sysusers.d/rdmabridge.conf", "/usr/lib/tmpfiles.d/rdmabridge.conf", "/usr/share/man/man1",
		"/usr/share/doc/rdmabridge/copyright", "/usr/share/doc/rdmabridge/NOTICES.txt", "/usr/share/doc/rdmabridge/rdmabridge.cdx.json",
		"/usr/share/doc/rdmabridge/rdmabridge-bench.NOTICES.txt", "/usr/share/doc/rdmabridge/rdmabridge-bench.cdx.json",
		"/usr/share/doc/rdmabridge/docs", "/usr/share/doc/rdmabridge/deploy", "/usr/share/doc/rdmabridge/examples",
		"/usr/bin/rdmabridge-ibverbs", "/usr/bin/rdmabridge-bench-ibverbs", "/usr/share/doc/rdmabridge-ibverbs/copyright",
	} {
		if _, ok := put[dst]; !ok {
			t.Errorf("no %s in the packages", dst)
		}
	}
	if put["/etc/rdmabridge/annotated.yaml"] != "config|noreplace" {
		t.Error("an upgrade would replace the annotated example that somebody changed")
	}
}

// TestDropIns: with rdmabridge-ibverbs the units run the same lines as without, but of the other program.
func TestDropIns(t *testing.T) {
	lines := regexp.MustCompile(`(?m)^ExecStart.*=/.*$`)
	for unit, dropIn := range map[string]string{"rdmabridge.service": "ibverbs.conf", "rdmabridge@.service": "ibverbs@.conf"} {
		without, err := os.ReadFile(tree + "deploy/systemd/" + unit)
		if err != nil {
			t.Fatal(err)
		}
		with, err := os.ReadFile(tree + "deploy/systemd/" + dropIn)
		if err != nil {
			t.Fatal(err)
		}
		want := strings.ReplaceAll(string(bytes.Join(lines.FindAll(without, -1), []byte("\n"))), "/rdmabridge ", "/rdmabridge-ibverbs ")
		if got := string(bytes.Join(lines.FindAll(with, -1), []byte("\n"))); got != want || got == "" {
			t.Errorf("%s runs\n%s\nwant\n%s", dropIn, got, want)
		}
	}
}

// TestUnits: the template unit differs from the unit in names only, and systemd finds that both are confined.
func TestUnits(t *testing.T) {
	one, errOne := os.ReadFile(tree + "deploy/systemd/rdmabridge.service")
	each, errEach := os.ReadFile(tree + "deploy/systemd/rdmabridge@.service")
	if errOne != nil || errEach != nil {
		t.Fatal(errOne, errEach)
	}
	comments := regexp.MustCompile(`(?m)^#.*\n`)
	names := strings.NewReplacer("rdmabridge %i,", "rdmabridge,", "/%i.yaml", "/rdmabridge.yaml", "=rdmabridge-%i\n", "=rdmabridge\n")
	if got := names.Replace(string(comments.ReplaceAll(each, nil))); got != string(comments.ReplaceAll(one, nil)) {
		t.Errorf("the units differ:\n%s", got)
	}
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("systemd-analyze is not installed")
	}
	for _, name := range []string{"rdmabridge.service", "rdmabridge@.service"} {
		out, err := exec.Command("systemd-analyze", "security", "--offline=true", "--threshold=16", "--no-pager", filepath.Join(tree, "deploy/systemd", name)).CombinedOutput()
		if err != nil || !bytes.Contains(out, []byte("OK")) {
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
}
