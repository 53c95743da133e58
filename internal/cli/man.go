package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func newManCommand(b Build) *cobra.Command {
	return &cobra.Command{
		Use:   "man DIRECTORY",
		Short: "Write a manual page of each command",
		Long: `Man writes a manual page of each command to DIRECTORY, such as
/usr/local/share/man/man1.`,
		Args: ExactArgs("DIRECTORY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return Failed(fmt.Errorf("%w; name a directory that is there or can be made", err))
			}
			n, err := 0, error(nil)
			EveryCommand(cmd.Root(), func(c *cobra.Command) {
				file := filepath.Join(args[0], strings.ReplaceAll(c.CommandPath(), " ", "-")+".1")
				err = errors.Join(err, os.WriteFile(file, manPage(c, b.Version), 0o644))
				n++
			})
			if err != nil {
				return Failed(err)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%d manual pages are in %s\n", n, args[0])
			return Failed(err)
		},
	}
}

// EveryCommand calls f for cmd and for all commands below it.
func EveryCommand(cmd *cobra.Command, f func(*cobra.Command)) {
	if !cmd.IsAvailableCommand() && cmd.HasParent() {
		return // hidden, or no command but a topic
	}
	f(cmd)
	for _, c := range cmd.Commands() {
		EveryCommand(c, f)
	}
}

// manPage returns the manual page of cmd in roff, for a version of the program. Package doc of cobra makes its pages by way of
// Markdown, which finds markup in texts that have none.
func manPage(cmd *cobra.Command, version string) []byte {
	cmd.InitDefaultHelpFlag()
	cmd.InitDefaultVersionFlag()
	title := strings.ToUpper(strings.ReplaceAll(cmd.CommandPath(), " ", "-"))
	b := fmt.Appendf(nil, ".TH %s 1 \"\" \"rdmabridge %s\" \"rdmabridge\"\n", roff(title), roff(version))
	b = fmt.Appendf(b, ".SH NAME\n%s \\- %s\n", roff(strings.ToLower(title)), roff(cmd.Short))
	b = fmt.Appendf(b, ".SH SYNOPSIS\n.nf\n\\fB%s\\fR\n.fi\n", roff(cmd.UseLine()))
	text, codes, _ := strings.Cut(cmd.Long, "Exit codes: ")
	b = appendText(append(b, ".SH DESCRIPTION\n"...), text)
	if flags := cmd.NonInheritedFlags(); flags.HasAvailableFlags() {
		b = append(b, ".SH OPTIONS\n"...)
		flags.VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				b = appendFlag(b, f)
			}
		})
	}
	if codes != "" {
		b = appendText(append(b, ".SH EXIT STATUS\n"...), codes)
	}
	b = append(b, ".SH SEE ALSO\n"...)
	var see []string
	if cmd.HasParent() {
		see = append(see, cmd.Parent().CommandPath())
	}
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			see = append(see, c.CommandPath())
		}
	}
	for i, path := range see {
		comma := ","
		if i == len(see)-1 {
			comma = ""
		}
		b = fmt.Appendf(b, ".BR %s (1)%s\n", roff(strings.ReplaceAll(path, " ", "-")), comma)
	}
	if cmd.HasParent() {
		b = appendText(append(b, ".PP\n"...), pages)
	}
	return b
}

// appendFlag adds the description of a flag.
func appendFlag(b []byte, f *pflag.Flag) []byte {
	value, usage := pflag.UnquoteUsage(f)
	b = append(b, ".TP\n"...)
	if f.Shorthand != "" {
		b = fmt.Appendf(b, "\\fB\\-%s\\fR, ", f.Shorthand)
	}
	b = fmt.Appendf(b, "\\fB\\-\\-%s\\fR", roff(f.Name))
	if value != "" {
		b = fmt.Appendf(b, " \\fI%s\\fR", roff(value))
	}
	b = append(b, '\n')
	if d := f.DefValue; d != "" && d != "false" && d != "[]" && d != "0" && d != "0s" && !strings.Contains(usage, "(default") {
		usage += " (default " + d + ")"
	}
	return append(append(b, roff(usage)...), '\n')
}

// appendText adds a text: paragraphs, and indented lines that stay as they are.
func appendText(b []byte, text string) []byte {
	for i, paragraph := range strings.Split(strings.TrimSpace(text), "\n\n") {
		if i > 0 {
			b = append(b, ".PP\n"...)
		}
		verbatim := false
		for line := range strings.SplitSeq(paragraph, "\n") {
			if indented := strings.HasPrefix(line, "  ") || strings.HasPrefix(line, "\t"); indented != verbatim {
				verbatim = indented
				b = append(b, map[bool]string{true: ".nf\n", false: ".fi\n"}[verbatim]...)
			}
			b = append(append(b, roff(line)...), '\n')
		}
		if verbatim {
			b = append(b, ".fi\n"...)
		}
	}
	return b
}

// roff escapes a line of text.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`, "\n", " ", "\t", "    ").Replace(s)
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
		s = `\&` + s
	}
	return s
}
