package main

import "github.com/spf13/cobra"

func newBenchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure bridges and servers",
		Long: `Bench measures how fast a bridge or a server answers Calls. "bench server" answers
Calls. "bench load" sends Calls to one address and measures. "bench compare" and
"bench peers" send them to several addresses in turn and print ratios. The server
knows an echo program and NFSv3 NULL, GETATTR, READ and WRITE. The load checks every
Reply.`,
	}
	cmd.AddCommand(newBenchServerCommand(), newBenchLoadCommand(), newBenchCompareCommand(), newBenchPeersCommand())
	return cmd
}
