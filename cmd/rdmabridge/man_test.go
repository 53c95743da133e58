package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// TestManPages: each command has a page with all its flags, and groff has nothing to say against it.
func TestManPages(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "man1")
	if code, out, errOut := run("man", dir); code != exitDone || !strings.Contains(out, "manual pages are in "+dir) {
		t.Fatalf("%d %s%s", code, out, errOut)
	}
	groff, err := exec.LookPath("groff")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Error("groff is not installed: deploy/lab/install.sh should have done that")
		}
		t.Log("groff is not installed: the markup is not checked")
	}
	n := 0
	everyCommand(newCommand(), func(c *cobra.Command) {
		if strings.HasPrefix(c.CommandPath(), "rdmabridge completion") {
			return // cobra's
		}
		n++
		file := filepath.Join(dir, strings.ReplaceAll(c.CommandPath(), " ", "-")+".1")
		page, err := os.ReadFile(file)
		if err != nil {
			t.Error(err)
			return
		}
		c.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden && !strings.Contains(string(page), `\fB\-\-`+roff(f.Name)+`\fR`) {
				t.Errorf("%s lacks --%s", file, f.Name)
			}
		})
		if c.Long == "" && c.HasParent() && !c.HasSubCommands() {
			t.Errorf("%s has no description", c.CommandPath())
		}
		if groff == "" {
			return
		}
		if out, err := exec.Command(groff, "-man", "-ww", "-b", "-Tascii", "-z", file).CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s: %v\n%s", file, err, out)
		}
	})
	if n < 20 {
		t.Errorf("%d commands", n)
	}
}

func TestRoff(t *testing.T) {
	for in, want := range map[string]string{".x": `\&.x`, "'x": `\&'x`, `a\b`: `a\eb`, "--x": `\-\-x`} {
		if got := roff(in); got != want {
			t.Errorf("roff(%q) = %q, want %q", in, got, want)
		}
	}
	got := string(appendText(nil, "one\ntwo\n\n    code\n\nthree"))
	if want := "one\ntwo\n.PP\n.nf\n    code\n.fi\n.PP\nthree\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
