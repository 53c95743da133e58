package main

import (
	"errors"
	"fmt"
	"os"

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

// standardInput stands for standard input where a file is named.
const standardInput = "-"

// loadConfig loads a configuration file, or standard input. A file with problems makes the process exit
// with exitFailed, a file that cannot be read with exitUsage.
func loadConfig(path string) (*configs.Config, error) {
	var c *configs.Config
	var err error
	if path == standardInput {
		c, err = configs.LoadReader("standard input", os.Stdin, known)
	} else {
		c, err = configs.LoadFile(path, known)
	}
	var problems configs.Problems
	switch {
	case errors.As(err, &problems):
		return nil, failed(err)
	case err != nil:
		return nil, &exitError{exitUsage, err}
	}
	return c, nil
}

// configFlag makes cmd take a configuration file, as flag --config, -c or as its argument.
func configFlag(cmd *cobra.Command, file *string) {
	cmd.Flags().StringVarP(file, "config", "c", "", "read the configuration from `FILE`, YAML")
	_ = cmd.MarkFlagFilename("config", "yaml", "yml") // fails only for unknown flags
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) > 1:
			return fmt.Errorf("%q is too much: rdmabridge %s", args[1], cmd.Use)
		case len(args) == 1 && *file != "":
			return fmt.Errorf("two files, %s and %s: rdmabridge %s", *file, args[0], cmd.Use)
		case len(args) == 1:
			*file = args[0]
		case *file == "":
			return fmt.Errorf("a configuration file is missing: rdmabridge %s", cmd.Use)
		}
		return nil
	}
	cmd.ValidArgsFunction = completeConfig
}

// completeConfig completes the name of one configuration file.
func completeConfig(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return []string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt
}
