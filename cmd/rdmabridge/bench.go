package main

import (
	"github.com/spf13/cobra"
)

func newBenchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure bridges, servers and what is between them",
		Long: `Bench server answers Calls, bench load makes them and measures, bench compare and
bench peers make them in turn against several addresses. Servers speak an echo
program and NFSv3 NULL, GETATTR, READ and WRITE; every Reply is checked.`,
	}
	cmd.AddCommand(newBenchServerCommand(), newBenchLoadCommand(), newBenchCompareCommand(), newBenchPeersCommand())
	return cmd
}
