package main

import (
	"github.com/spf13/cobra"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/cli"
)

func newConfigSchemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print a JSON Schema of the configuration, for editors",
		Long: `Schema prints a JSON Schema (2020-12) of configuration files. An editor with it completes
the names of settings, shows what they do, and marks mistakes. With the YAML language
server, which many editors use, write this in the first line of a file:

  # yaml-language-server: $schema=/path/to/rdmabridge.schema.json

The schema knows each setting by itself. rdmabridge check knows how they go together.`,
		Args: cli.AtMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			text, err := configs.JSONSchema()
			if err != nil {
				return cli.Failed(err)
			}
			_, err = cmd.OutOrStdout().Write(append(text, '\n'))
			return cli.Failed(err)
		},
	}
}
