package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// NewRoot returns the root command of the program b, which has the verbs man and version.
func NewRoot(b Build, short, long string) *cobra.Command {
	cmd := &cobra.Command{
		Use: b.Name, Short: short, Long: long,
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
