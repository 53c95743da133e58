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

func newUpstreamsCommand() *cobra.Command {
	var bridge bridgeFlag
	var asJSON, connections, endpoints, legend, wide bool
	var over time.Duration
	var order, filter string
	cmd := &cobra.Command{
		Use:   "upstreams",
		Short: "List the upstreams of a running bridge, their endpoints or their connections",
		Long: `Upstreams lists the upstreams: whether they are up, their credits, and how long the
server takes. --connections lists each connection instead, --endpoints each address.
--legend says what the columns mean.`,
		Args: cli.AtMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOver(over); err != nil {
				return err
			}
			table := show.Pair.Upstreams
			switch {
			case connections:
				table = show.Pair.Links
			case endpoints:
				table = show.Pair.Endpoints
			}
			keys := table(show.Pair{Now: new(status.Document)}).Keys()
			if order != "" && !slices.Contains(keys, order) {
				return fmt.Errorf("--sort %q is not possible; write %s", order, strings.Join(keys, ", "))
			}
			if legend {
				return printLegend(cmd, table(show.Pair{Now: new(status.Document)}))
			}
			return bridge.with(func(ctx context.Context, c *control.Client) error {
				q := status.Query{Clients: 1, Connections: connections || asJSON}
				if asJSON {
					d, err := document(ctx, c, q)
					if err != nil {
						return err
					}
					return writeJSON(cmd.OutOrStdout(), d.Upstreams)
				}
				p, err := pair(ctx, c, q, over)
				if err != nil {
					return err
				}
				t := table(p)
				t.Filter(filter)
				t.SortBy(order, false)
				return cli.Failed(writeTable(cmd, t, order, wide))
			})
		},
	}
	bridge.register(cmd)
	overFlag(cmd, &over)
	cmd.Flags().StringVar(&order, "sort", "", "order by the column `KEY`, numbers with the largest first; left out: as in the configuration")
	cmd.Flags().StringVar(&filter, "filter", "", "only lines that contain `TEXT`")
	cmd.Flags().BoolVar(&connections, "connections", false, "list each connection")
	cmd.Flags().BoolVar(&endpoints, "endpoints", false, "list each endpoint")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON array, connections and endpoints included")
	wideFlag(cmd, &wide)
	cmd.Flags().BoolVar(&legend, "legend", false, "say what the columns mean, and ask no bridge")
	cmd.MarkFlagsMutuallyExclusive("connections", "endpoints", "json")
	empty := show.Pair{Now: new(status.Document)}
	completeWords(cmd, "sort", slices.Concat(empty.Upstreams().Keys(), empty.Links().Keys(), empty.Endpoints().Keys())...)
	return cmd
}
