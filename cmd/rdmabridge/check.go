package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/rdmabridge/rdmabridge/configs"
)

func newCheckCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "check FILE",
		Short: "Report every problem in a configuration",
		Long: `Check loads a configuration file as serve does and reports every problem with its
line number. It opens no socket. A warning is about a setting that is allowed and
perhaps not meant; it does not change the exit code. FILE can be given with -c, too,
and - is standard input.

Exit codes: 0 the file is valid; 1 it has problems; 2 it cannot be read.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := loadConfig(file)
			if err != nil {
				return err
			}
			for _, w := range c.Warnings() {
				fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s\n", w)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: good: %d listeners, %d upstreams, memory budget %s\n",
				file, len(c.Listeners), len(c.Upstreams), c.Memory.Budget)
			if w := tooLittleMemory(c.Memory, configs.MachineMemory()); w != "" {
				fmt.Fprintf(cmd.OutOrStdout(), "%s: warning: %s\n", file, w)
			}
			return nil
		},
	}
	configFlag(cmd, &file)
	return cmd
}
