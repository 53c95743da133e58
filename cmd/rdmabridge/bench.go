package main

import (
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rdmabridge/rdmabridge/internal/cli"
)

// newBenchCommand returns a hidden verb, which says where its namesake of earlier releases went.
func newBenchCommand() *cobra.Command {
	return &cobra.Command{
		Use:                "bench",
		Short:              "A program of its own: rdmabridge-bench",
		Hidden:             true,
		DisableFlagParsing: true, // the flags are those of the other program
		RunE: func(_ *cobra.Command, args []string) error {
			line := strings.Join(append([]string{"rdmabridge-bench"}, args...), " ")
			return cli.Usage(errors.New("bench is a program of its own, which comes with this one; run: " + line))
		},
	}
}
