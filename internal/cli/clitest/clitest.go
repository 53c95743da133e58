// Package clitest has what every program's tests check of its commands: manual pages, the command lines in documents, and
// what is said about mistakes on the command line.
package clitest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rdmabridge/rdmabridge/internal/cli"
)

// ManPages checks that each command of a program has a page with all its flags, that groff has nothing to say against
// it, and that there are as many commands as least.
func ManPages(t *testing.T, root func() *cobra.Command, least int) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "man1")
	var out, errOut bytes.Buffer
	code := cli.Run(root(), []string{"man", dir}, &out, &errOut)
	if code != cli.ExitDone || !strings.Contains(out.String(), "manual pages are in "+dir) {
		t.Fatalf("%d %s%s", code, &out, &errOut)
	}
	groff, err := exec.LookPath("groff")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Error("groff is not installed: deploy/lab/install.sh should have done that")
		}
		t.Log("groff is not installed: the markup is not checked")
	}
	n := 0
	cli.EveryCommand(root(), func(c *cobra.Command) {
		if strings.HasPrefix(c.CommandPath(), c.Root().Name()+" completion") {
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
			if !f.Hidden && !strings.Contains(string(page), `\fB\-\-`+strings.ReplaceAll(f.Name, "-", `\-`)+`\fR`) {
				t.Errorf("%s lacks --%s", file, f.Name)
			}
		})
		if c.Long == "" && c.HasParent() && !c.HasSubCommands() {
			t.Errorf("%s has no description", c.CommandPath())
		}
		if groff == "" {
			return
		}
		out, err := exec.Command(groff, "-man", "-ww", "-b", "-Tascii", "-z", file).CombinedOutput()
		if err != nil || len(out) > 0 {
			t.Errorf("%s: %v\n%s", file, err, out)
		}
	})
	if n < least {
		t.Errorf("%d commands", n)
	}
}

// CommandLine returns what is wrong with a command line. One that is not complete may lack arguments.
func CommandLine(root *cobra.Command, words []string, complete bool) error {
	root.InitDefaultCompletionCmd()
	cmd, args, err := root.Find(words)
	if err != nil {
		return err
	}
	cmd.InitDefaultHelpFlag()
	cmd.InitDefaultVersionFlag()
	switch err := cmd.ParseFlags(args); {
	case err != nil:
		return err
	case complete && (!cmd.HasParent() || !cmd.IsAvailableCommand()):
		return errors.New("it is no command, or a hidden one")
	case complete && cmd.Args != nil:
		return cmd.ValidateArgs(cmd.Flags().Args())
	case cmd.HasSubCommands() && cmd.Flags().NArg() > 0:
		return fmt.Errorf("there is no command %s", cmd.Flags().Arg(0))
	}
	return nil
}

// CommandLines checks that the command lines in README.md and docs, below dir, are such that the program would run.
// Files, by their paths below dir, must have at least as many as least says.
func CommandLines(t *testing.T, dir string, root func() *cobra.Command, least map[string]int) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range append(files, filepath.Join(dir, "README.md")) {
		name, err := filepath.Rel(dir, f)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(name, func(t *testing.T) { testCommandLines(t, f, root, least[name]) })
	}
}

func testCommandLines(t *testing.T, file string, root func() *cobra.Command, least int) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text = regexp.MustCompile(`\$\([^)\n]*\)`).ReplaceAll(text, []byte("1")) // what a shell would put there
	n, name := 0, root().Name()
	lines := regexp.MustCompile("(?m)^(?:    +|\\$ )(?:\\$ )?(?:\\./)?" + name + " ((?:[a-z]|-)[^>|#;\n(]+)")
	for _, m := range lines.FindAllStringSubmatch(string(text), -1) {
		n++
		if err := CommandLine(root(), strings.Fields(m[1]), true); err != nil {
			t.Errorf("%s %s: %v", name, m[1], err)
		}
	}
	if n < least {
		t.Errorf("%d command lines", n)
	}
}

// instead is how a message begins what to write or to do: behind a semicolon, a colon or the like. Or it lists what there is.
var instead = regexp.MustCompile(`(; |: |, |\. |\n\n)(write |names? the |name a |start |end |make |use |run: |remove |leave |Did you mean |did you mean |` +
	`known here: |it belongs in |there are |its endpoints: |which has |but for |rdmabridge(-bench)? |mount\.rdmabridge )|^--\S+ needs `)

// missing is how a message says that something is missing. What it is for, or how the command is called, follows.
var missing = regexp.MustCompile(`^(u?mount\.rdmabridge: )?[-A-Za-z ]+ (is|are) missing(: .+|$)`)

// ours are the beginnings of messages of packages, ours and others, which a reader of the documents does not know.
var ours = regexp.MustCompile(`(^|[^-.\w])(bench|configs|faults|iwarp|rdmaside|regmem|strconv|tap|tcpframe|yaml)(\.\w+)?: |EngineOptions|accept_stat|invalid argument "|requires at least`)

// Helps checks that a mistake on the command line args is answered with what is wrong or missing, in the words of args or
// by the name of the flag, and with what to write or do instead. That --help would say it is enough only for a flag that
// does not exist.
func Helps(t *testing.T, args []string, errOut string) {
	t.Helper()
	message, _, _ := strings.Cut(errOut, "\nRun \"rdmabridge")
	if word := ours.FindString(message); word != "" {
		t.Errorf("%q: %q is a word for programmers: %s", args, word, message)
	}
	if missing.MatchString(message) {
		return
	}
	repeats := func(arg string) bool {
		if arg == "-" {
			return strings.Contains(message, "standard input")
		}
		name, value, _ := strings.Cut(arg, "=")
		return strings.Contains(message, strconv.Quote(arg)) || value != "" && strings.Contains(message, strconv.Quote(value)) ||
			strings.ContainsAny(arg, "-./:0123456789") && (strings.Contains(message, name) || strings.Contains(message, filepath.Dir(arg)+";"))
	}
	if !strings.HasPrefix(message, "--") && !slices.ContainsFunc(args, repeats) {
		t.Errorf("%q: the message does not say what is wrong: %s", args, message)
	}
	if !instead.MatchString(message) && !strings.Contains(message, "unknown flag: ") {
		t.Errorf("%q: the message does not say what to write or do: %s", args, message)
	}
}
