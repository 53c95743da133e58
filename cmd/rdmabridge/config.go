package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
)

// known tells package configs which providers and programs this build knows.
var known = configs.Known{
	Providers: providerNames(),
	Provider:  providerError,
	IBVerbs:   ibverbsError,
	Tracing:   tracingError,
	Program:   oncrpc.ProgramByName,
}

// loadConfig loads a configuration file. A file with problems makes the process exit
// with exitFailed, a file that cannot be read with exitUsage.
func loadConfig(path string) (*configs.Config, error) {
	c, err := configs.LoadFile(path, known)
	var problems configs.Problems
	switch {
	case errors.As(err, &problems):
		return nil, failed(err)
	case err != nil:
		return nil, &exitError{exitUsage, err}
	}
	return c, nil
}

// configFlag adds the required flag --config, -c to cmd.
func configFlag(cmd *cobra.Command, file *string) {
	cmd.Flags().StringVarP(file, "config", "c", "", "read the configuration from `FILE`, YAML")
	required(cmd, "config")
}
