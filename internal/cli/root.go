package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// pages says where what messages name can be read.
const pages = `Pages such as docs/README.md are in /usr/share/doc/rdmabridge, if a package has put them there, and
at https://github.com/rdmabridge/rdmabridge.`

// NewRoot returns the root command of the program b, which has the verbs man and version.
func NewRoot(b Build, short, long string) *cobra.Command {
	cmd := &cobra.Command{
		Use: b.Name, Short: short, Long: long + "\n\n" + pages,
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       b.String(),
	}
	cmd.SetFlagErrorFunc(suggestFlag)
	cmd.SetVersionTemplate("{{.Version}}\n") // as the verb version prints it
	cmd.AddCommand(newManCommand(b), newVersionCommand(b))
	return cmd
}

// suggestFlag adds the flag that was perhaps meant to an error about an unknown one.
func suggestFlag(cmd *cobra.Command, err error) error {
	name, unknown := strings.CutPrefix(err.Error(), "unknown flag: --")
	if !unknown {
		return err
	}
	var flags cobra.Command // its commands have the names of the flags, because cobra compares those
	flags.SuggestionsMinimumDistance = 2
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		flags.AddCommand(&cobra.Command{Use: f.Name, Run: func(*cobra.Command, []string) {}})
	})
	if near := flags.SuggestionsFor(name); len(near) > 0 {
		return fmt.Errorf("%w\n\nDid you mean this?\n\t--%s", err, strings.Join(near, "\n\t--"))
	}
	return err
}

// groups are the beginnings of cobra's errors about a group of flags, and what is said of the flags.
var groups = []struct{ begins, between, says string }{
	{"at least one of the flags in the group [", " or ", " is missing"},
	{"if any flags in the group [", " and ", " exclude each other; write one of them"},
}

// plain returns what err says. Errors of cobra about flags that are missing, or exclude each other, get what to write.
func plain(cmd *cobra.Command, err error) string {
	text := err.Error()
	if rest, ok := strings.CutPrefix(text, "required flag(s) "); ok {
		var missing []string
		for _, name := range strings.Split(strings.TrimSuffix(rest, " not set"), ", ") {
			if f := cmd.Flags().Lookup(strings.Trim(name, `"`)); f != nil {
				word, usage := pflag.UnquoteUsage(f)
				missing = append(missing, fmt.Sprintf("--%s %s is missing: %s", f.Name, word, usage))
			}
		}
		return strings.Join(missing, "\n")
	}
	for _, g := range groups {
		if rest, ok := strings.CutPrefix(text, g.begins); ok {
			names, _, _ := strings.Cut(rest, "]")
			return "--" + strings.Join(strings.Fields(names), g.between+"--") + g.says
		}
	}
	return text
}
