package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rdmabridge/rdmabridge/internal/cli"
	"github.com/rdmabridge/rdmabridge/internal/control"
	"github.com/rdmabridge/rdmabridge/internal/names"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/top"
)

func newTopCommand() *cobra.Command {
	var bridge bridgeFlag
	var once, exports, files bool
	o := top.Options{Interval: 2 * time.Second, View: top.Views[0], Clients: 2000}
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show clients, operations and connections of a running bridge, live",
		Long: `Top shows live tables of a running bridge, and what is wrong above them. The views are
clients (hosts), operations, connections of clients, upstreams, links (connections to
upstreams), and events. h explains the keys and the columns, q quits.

A bridge whose file has names.mode: on shows which exports and which files are used most
(--exports, --files), and by whom (--clients-of PATH): docs/names.md.

WHERE says where the time of Calls goes, an eighth a letter: A admission, C waiting for
a credit, S server and network, R the client reads the Reply.

With --once, or when the output is not a terminal, top prints one frame as text, with
all columns, and ends. NO_COLOR in the environment switches colours off.`,
		Args: cli.AtMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case exports:
				o.View = "exports"
			case files:
				o.View = "files"
			case o.NamesOf != "":
				o.View = "export-clients"
			}
			if err := checkTop(&o); err != nil {
				return err
			}
			return bridge.with(func(ctx context.Context, c *control.Client) error {
				o.Fetch = func(ctx context.Context, q status.Query) (*status.Document, error) {
					ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
					defer cancel()
					return document(ctx, c, q)
				}
				o.Fatal = func(err error) bool {
					var answer *control.AnswerError
					return errors.As(err, &answer)
				}
				out, isFile := cmd.OutOrStdout().(*os.File)
				if once || !isFile || !top.IsTerminal(out) || !top.IsTerminal(os.Stdin) {
					return asked(top.Once(ctx, cmd.OutOrStdout(), widthOf(cmd.OutOrStdout()), o))
				}
				o.Color = os.Getenv("NO_COLOR") == ""
				return asked(top.Run(ctx, os.Stdin, out, o))
			})
		},
	}
	bridge.register(cmd)
	cmd.Flags().BoolVar(&once, "once", false, "print one frame as text and end")
	cmd.Flags().DurationVarP(&o.Interval, "interval", "d", o.Interval, "show rates over this `TIME`, and look again after it")
	cmd.Flags().StringVar(&o.View, "view", o.View, "begin with the view `NAME`: "+strings.Join(top.Views, ", "))
	cmd.Flags().StringVar(&o.Sort, "sort", "", "order by the column `KEY`, which is its name in small letters; h in top lists them")
	cmd.Flags().BoolVar(&o.Reverse, "reverse", false, "reverse that order")
	cmd.Flags().StringVar(&o.Filter, "filter", "", "show only lines that contain `TEXT`")
	cmd.Flags().IntVarP(&o.Clients, "number", "n", o.Clients, "look at `N` connections of clients at most")
	cmd.Flags().BoolVar(&exports, "exports", false, "begin with what clients mount: --view exports")
	cmd.Flags().BoolVar(&files, "files", false, "begin with the files that are used most: --view files")
	cmd.Flags().StringVar(&o.NamesOf, "clients-of", "", "begin with the clients of the export `PATH`; the files are those of it, too")
	cmd.Flags().IntVar(&o.Minutes, "minutes", 1, "show exports, files and their clients over the last `N` minutes, up to 10, and up to one more")
	cmd.MarkFlagsMutuallyExclusive("view", "exports", "files", "clients-of")
	completeWords(cmd, "view", top.Views...)
	err := cmd.RegisterFlagCompletionFunc("sort", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return top.Keys(o.View), cobra.ShellCompDirectiveNoFileComp
	})
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return cmd
}

// checkTop checks the flags.
func checkTop(o *top.Options) error {
	keys := top.Keys(o.View)
	switch {
	case keys == nil:
		return fmt.Errorf("--view %q is not possible; write %s", o.View, strings.Join(top.Views, ", "))
	case o.Sort != "" && !slices.Contains(keys, o.Sort):
		return fmt.Errorf("--sort %q is not possible; write %s", o.Sort, strings.Join(keys, ", "))
	case o.Interval < 100*time.Millisecond || o.Interval > time.Hour:
		return fmt.Errorf("--interval %s is out of range; write a time from 100ms to 1h", o.Interval)
	case o.Minutes < 1 || o.Minutes > names.MostMinutes:
		return fmt.Errorf("--minutes %d is not possible; write a number from 1 to %d", o.Minutes, names.MostMinutes)
	case o.Clients <= 0:
		return fmt.Errorf("--number %d is not possible; write a number from 1", o.Clients)
	}
	return nil
}

// widthOf returns the width of the terminal w, or 0 if it is none.
func widthOf(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok {
		return 0
	}
	return top.Width(f)
}
