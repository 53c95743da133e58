package cli

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"
)

func newVersionCommand(b Build) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of this binary and how it was built",
		Long: `Version prints the version of this binary, the revision, Go release and platform
it was built with, and the RDMA providers it contains.`,
		Args: AtMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !asJSON {
				_, err := fmt.Fprintln(cmd.OutOrStdout(), b)
				return Failed(err)
			}
			return Failed(json.NewEncoder(cmd.OutOrStdout()).Encode(b))
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	return cmd
}
