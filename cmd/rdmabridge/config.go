package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rdmabridge/rdmabridge/cmd/rdmabridge/internal/translate"
	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/cli"
)

// known tells package configs what this build knows.
var known = func() configs.Known {
	k := translate.Known
	k.Tracing = tracingError
	return k
}()

// standardInput stands for standard input where a file is named.
const standardInput = "-"

// overriding are the flags that override settings.
var overriding = []string{"log-level", "log-format", "admin-address"}

// knownWith is known with those of flags that override settings; nil has none. Others may have the name of a setting, too,
// such as --identity.
func knownWith(flags *pflag.FlagSet) configs.Known {
	k := known
	if flags == nil {
		return k
	}
	k.Flags = pflag.NewFlagSet("", pflag.ContinueOnError)
	for _, name := range overriding {
		k.Flags.AddFlag(flags.Lookup(name))
	}
	return k
}

// loadConfig loads configuration files, or standard input. A file with problems makes the process exit
// with cli.ExitFailed, a file that cannot be read with cli.ExitUsage.
func loadConfig(paths []string, known configs.Known) (*configs.Config, error) {
	var c *configs.Config
	var err error
	if slices.Equal(paths, []string{standardInput}) {
		c, err = configs.LoadReader("standard input", os.Stdin, known)
	} else {
		c, err = configs.LoadFiles(paths, known)
	}
	var problems configs.Problems
	switch {
	case errors.As(err, &problems):
		return nil, cli.Failed(err)
	case err != nil:
		return nil, cli.Usage(err)
	}
	return c, nil
}

// fileError says why path cannot be read, and what to name in its place if it is no file.
func fileError(path string, err error, wanted string) error {
	if e := (*fs.PathError)(nil); errors.As(err, &e) {
		return fmt.Errorf("%s: %w; name %s", path, e.Err, wanted)
	}
	return fmt.Errorf("%s: %w", path, err)
}

// filesFlag adds the flag --config, -c, which may be there several times. what says what becomes of the files.
func filesFlag(cmd *cobra.Command, files *[]string, what string) {
	cmd.Flags().StringArrayVarP(files, "config", "c", nil, what+" `FILE`, YAML, or the files of a directory; several override each other in their order")
	_ = cmd.MarkFlagFilename("config", "yaml", "yml") // fails only for unknown flags
}

// configFlag makes cmd take configuration files, as flag --config, -c, or one as its argument, and flags that override
// their settings.
func configFlag(cmd *cobra.Command, files *[]string) {
	filesFlag(cmd, files, "read the configuration from")
	cmd.Flags().String("log-level", "", "override log.level with `LEVEL`")
	cmd.Flags().String("log-format", "", "override log.format with `FORMAT`")
	cmd.Flags().String("admin-address", "", "override admin.address with `ADDRESS`")
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) > 1:
			return cli.AtMost(1)(cmd, args)
		case len(args) == 1 && len(*files) > 0:
			return fmt.Errorf("two files, %s and %s: write -c before each, or one alone: rdmabridge %s", (*files)[0], args[0], cmd.Use)
		case len(args) == 1:
			*files = args
		case len(*files) == 0:
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
