//go:build nodemo

package main

import (
	"errors"
	"io"

	"github.com/spf13/cobra"
)

// newDemoCommand returns the verb of a build without the demo and its NFS server.
func newDemoCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "demo",
		Short: "Not in this build, which was made with -tags nodemo",
		RunE: func(*cobra.Command, []string) error {
			return failed(errors.New("demo is not in this build, which was made with -tags nodemo; use a build without that tag"))
		},
	}
}

// serveDemoFiles starts nothing in this build.
func serveDemoFiles(io.Writer) (addr string, stop func() error, err error) {
	return "", nil, errors.New("the NFS server in memory is not in this build, which was made with -tags nodemo; name a server with --to")
}
