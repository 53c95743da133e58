//go:build nodemo

package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/rdmabridge/rdmabridge/internal/cli"
)

// newDemoCommand returns the verb of a build without the demo and its NFS server.
func newDemoCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "demo",
		Short: "Not in this build, which was made with -tags nodemo",
		RunE: func(*cobra.Command, []string) error {
			return cli.Failed(errors.New("demo is not in this build, which was made with -tags nodemo; use a build without that tag"))
		},
	}
}
