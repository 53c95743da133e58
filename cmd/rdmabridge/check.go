package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

func newCheckCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "check -c FILE",
		Short: "Report everything that is wrong with a configuration",
		Long: `Check reads a configuration as serve would and reports every problem with its
line. Nothing is listened to and nothing is connected to.

Exit codes: 0 the file is right, 1 it has problems, 2 it cannot be read.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := loadConfig(file)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: good: %d listeners, %d upstreams, memory budget %s\n",
				file, len(c.Listeners), len(c.Upstreams), c.Memory.Budget)
			return nil
		},
	}
	configFlag(cmd, &file)
	return cmd
}
