package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/cli"
)

func newConfigFmtCommand() *cobra.Command {
	var overwrite bool
	cmd := &cobra.Command{
		Use:   "fmt [-w] FILE...",
		Short: "Print a configuration file in its canonical form, with its comments",
		Long: `Fmt prints files with two spaces for each level, lists indented, one space before a
comment, and no more than one empty line at a time. Comments, the order of settings,
quotes, anchors and variables stay. With -w it writes the files and prints the names of
those that it changed. - is standard input.

Exit codes: 0 all files have their canonical form, or it is printed; 1 a file is no YAML,
or cannot be written; 2 a file cannot be read.`,
		Args: cli.AtLeastOne("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, path := range args {
				if err := formatFile(cmd.OutOrStdout(), path, overwrite); err != nil {
					return err
				}
			}
			return nil
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return []string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt
		},
	}
	cmd.Flags().BoolVarP(&overwrite, "write", "w", false, "write the files instead of printing them")
	return cmd
}

// formatFile prints or writes one file.
func formatFile(out io.Writer, path string, overwrite bool) error {
	name := path
	var data []byte
	var err error
	if path == standardInput {
		name = "standard input"
		if overwrite {
			return errors.New("-w writes files, and - is standard input; write > FILE")
		}
		data, err = io.ReadAll(os.Stdin)
	} else {
		data, err = os.ReadFile(path)
	}
	if err != nil {
		return cli.Usage(fileError(name, err, "a configuration file"))
	}
	formatted, err := configs.Format(name, data)
	if err != nil {
		return cli.Failed(err)
	}
	if !overwrite {
		_, err = out.Write(formatted)
		return cli.Failed(err)
	}
	if bytes.Equal(data, formatted) {
		return nil
	}
	if err := replaceFile(path, formatted); err != nil {
		return cli.Failed(err)
	}
	_, err = fmt.Fprintln(out, path)
	return cli.Failed(err)
}

// replaceFile replaces the content of a file in one step, so that a bridge that watches it never sees half of it. A
// symbolic link stays one, and the mode stays.
func replaceFile(path string, data []byte) (err error) {
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	if _, err = f.Write(data); err == nil {
		err = f.Chmod(info.Mode().Perm())
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
