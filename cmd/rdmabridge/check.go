package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rdmabridge/rdmabridge/configs"
)

func newCheckCommand() *cobra.Command {
	var files []string
	var x explainedClient
	cmd := &cobra.Command{
		Use:   "check FILE",
		Short: "Report every problem in a configuration",
		Long: `Check loads a configuration file as serve does and reports every problem with its
line number. It opens no socket. Of a valid file it prints which Calls of each listener
go to which upstream: by its rules, then by its routes. A warning is about a setting that is allowed and
perhaps not meant; it does not change the exit code. With --explain it also says for
a client at an address which rule of each listener matches which of its Calls, and why
the others do not. FILE can be given with -c, too,
and - is standard input.

Exit codes: 0 the file is valid; 1 it has problems; 2 it cannot be read.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, name := range []string{"proxy", "identity"} {
				if x.client == "" && cmd.Flags().Changed(name) {
					return fmt.Errorf("--%s needs --explain CLIENT, the client that it is about", name)
				}
			}
			c, err := loadConfig(files, knownWith(cmd.Flags()))
			if err != nil {
				return err
			}
			for _, w := range c.Warnings() {
				fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s\n", w)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: good: %d listeners, %d upstreams, memory budget %s\n",
				strings.Join(files, ", "), len(c.Listeners), len(c.Upstreams), c.Memory.Budget)
			if w := tooLittleMemory(c.Memory, configs.MachineMemory()); w != "" {
				fmt.Fprintf(cmd.OutOrStdout(), "%s: warning: %s\n", strings.Join(files, ", "), w)
			}
			if x.client == "" {
				printRoutes(cmd.OutOrStdout(), c)
				return nil
			}
			return explainClient(cmd.OutOrStdout(), c, &x)
		},
	}
	configFlag(cmd, &files)
	cmd.Flags().StringVar(&x.client, "explain", "", "say which rules match the Calls of `CLIENT`: an address, or address:port")
	cmd.Flags().StringVar(&x.proxy, "proxy", "", "with --explain: the `ADDRESS` of the load balancer that the client comes through")
	cmd.Flags().StringSliceVar(&x.identity, "identity", nil, "with --explain: `NAMES` in the client's certificate")
	return cmd
}
