package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rdmabridge/rdmabridge/internal/cli"
	"github.com/rdmabridge/rdmabridge/internal/control"
	"github.com/rdmabridge/rdmabridge/internal/show"
	"github.com/rdmabridge/rdmabridge/internal/status"
)

func newClientsCommand() *cobra.Command {
	var bridge bridgeFlag
	var asJSON, hosts, legend, wide bool
	var over time.Duration
	q := status.Query{Clients: 50}
	cmd := &cobra.Command{
		Use:   "clients",
		Short: "List the clients of a running bridge, those that need attention first",
		Long: `Clients lists the connections of clients. Those come first that the bridge does not
read from, those that do not read their Replies, and those with the oldest Calls.
--hosts adds the connections of a host up. --legend says what the columns mean.`,
		Args: cli.AtMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case !slices.Contains(status.Sorts, q.Sort):
				return fmt.Errorf("--sort %q is not possible; write %s", q.Sort, strings.Join(status.Sorts, ", "))
			case q.Clients < 0:
				return fmt.Errorf("--number %d is not possible; write a number, or 0 for all", q.Clients)
			case q.Clients == 0:
				q.Clients = -1
			}
			if err := checkOver(over); err != nil {
				return err
			}
			if legend {
				return printLegend(cmd, clientTable(show.Pair{Now: new(status.Document)}, hosts))
			}
			return bridge.with(func(ctx context.Context, c *control.Client) error {
				if asJSON {
					d, err := document(ctx, c, q)
					if err != nil {
						return err
					}
					return writeJSON(cmd.OutOrStdout(), d.Clients)
				}
				p, err := pair(ctx, c, q, over)
				if err != nil {
					return err
				}
				if err := writeTable(cmd, clientTable(p, hosts), "", wide); err != nil {
					return cli.Failed(err)
				}
				if all := &p.Now.Clients; all.Shown < all.Total {
					fmt.Fprintf(cmd.ErrOrStderr(), "%d of %d connections; --number 0 shows all, --filter chooses\n", all.Shown, all.Total)
				}
				return nil
			})
		},
	}
	bridge.register(cmd)
	overFlag(cmd, &over)
	cmd.Flags().StringVar(&q.Sort, "sort", status.SortWaiting, "order by `KEY`: "+strings.Join(status.Sorts, ", "))
	cmd.Flags().StringVar(&q.Filter, "filter", "", "only clients whose address, listener, tenant, upstream or transport contains `TEXT`, or whose address is in that network")
	cmd.Flags().IntVarP(&q.Clients, "number", "n", q.Clients, "at most `N` connections; 0: all")
	cmd.Flags().BoolVar(&hosts, "hosts", false, "one line for each host, with all its connections")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	wideFlag(cmd, &wide)
	cmd.Flags().BoolVar(&legend, "legend", false, "say what the columns mean, and ask no bridge")
	completeWords(cmd, "sort", status.Sorts...)
	return cmd
}

func clientTable(p show.Pair, hosts bool) *show.Table {
	if hosts {
		return p.Clients()
	}
	return p.Connections()
}

// wideFlag adds the flag --wide.
func wideFlag(cmd *cobra.Command, wide *bool) {
	cmd.Flags().BoolVarP(wide, "wide", "w", false, "show all columns, also those that do not fit the terminal")
}

// writeTable prints t, which is sorted by the column mark.
func writeTable(cmd *cobra.Command, t *show.Table, mark string, wide bool) error {
	width := widthOf(cmd.OutOrStdout())
	if wide {
		width = 0
	}
	return t.Write(cmd.OutOrStdout(), width, mark)
}

// printLegend prints what the columns of tables mean.
func printLegend(cmd *cobra.Command, tables ...*show.Table) error {
	for i, t := range tables {
		if i > 0 {
			fmt.Fprintln(cmd.OutOrStdout())
		}
		for _, l := range t.Legend() {
			if _, err := fmt.Fprintln(cmd.OutOrStdout(), l); err != nil {
				return cli.Failed(err)
			}
		}
	}
	return nil
}
