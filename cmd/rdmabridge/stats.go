package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/rdmabridge/rdmabridge/internal/cli"
	"github.com/rdmabridge/rdmabridge/internal/control"
	"github.com/rdmabridge/rdmabridge/internal/status"
)

func newStatsCommand() *cobra.Command {
	var bridge bridgeFlag
	var asJSON bool
	var over time.Duration
	cmd := &cobra.Command{
		Use:   "stats",
		Short: "Say in words how a running bridge is, problems first",
		Long: `Stats says on one screen how a running bridge is: what is wrong and what to do about
it, how much passes and where the time of Calls goes, its listeners, upstreams,
busiest operations, memory, and the last things that happened.

Rates are over a second, or as --over says. With --json it prints the whole
document at once, without rates; its counters only grow.

Exit codes: 0 the bridge answered; 1 it did not as expected; 2 no bridge was
reached.`,
		Args: cli.AtMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOver(over); err != nil {
				return err
			}
			return bridge.with(func(ctx context.Context, c *control.Client) error {
				if asJSON {
					d, err := document(ctx, c, status.Query{Clients: -1, Connections: true})
					if err != nil {
						return err
					}
					return writeJSON(cmd.OutOrStdout(), d)
				}
				p, err := pair(ctx, c, status.Query{Clients: 1}, over)
				if err != nil {
					return err
				}
				for _, l := range p.Stats() {
					if _, err := fmt.Fprintln(cmd.OutOrStdout(), l); err != nil {
						return cli.Failed(err)
					}
				}
				return nil
			})
		},
	}
	bridge.register(cmd)
	overFlag(cmd, &over)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the document as JSON")
	return cmd
}
