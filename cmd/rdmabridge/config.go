package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
)

// known is what this build can do, for package configs.
var known = configs.Known{
	Providers: providerNames(),
	Program:   oncrpc.ProgramByName,
}

// loadConfig reads a file, with the exit code that its error deserves.
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

func configFlag(cmd *cobra.Command, file *string) {
	cmd.Flags().StringVarP(file, "config", "c", "", "configuration `FILE`, YAML")
	if err := cmd.MarkFlagRequired("config"); err != nil {
		panic("BUG: " + err.Error())
	}
}
