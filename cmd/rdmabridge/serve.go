package main

import (
	"github.com/spf13/cobra"
)

func newServeCommand() *cobra.Command {
	var file string
	var takeover bool
	cmd := &cobra.Command{
		Use:   "serve -c FILE",
		Short: "Run the bridge",
		Long: `Serve runs the bridge that a configuration describes. SIGTERM or SIGINT drains:
nobody new is let in, Calls in flight are answered, idle connections are closed;
a second signal, half a second later or more, or drain.timeout, cuts what is left.

SIGHUP loads the file again, as does a change of it: reload.watch says how often it
is looked at. A file with problems is refused whole. The log has every setting that
changed, and those that need a restart.

With --takeover it begins with the listening sockets of the process that answers at
handover.path. When this one can serve, that one drains and ends; if this one ends
before, that one goes on. SIGUSR2 makes a process start its successor itself: the
same command line, with --takeover.

Exit codes: 0 drained, 1 the file has problems or the bridge failed, 2 the file
cannot be read.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			hash, watched := hashFile(file), newWatcher(file)
			c, err := loadConfig(file)
			if err != nil {
				return err
			}
			limitHeap(c.Memory)
			signals, stop := notify()
			defer stop()
			sink := newLogSink(cmd.ErrOrStderr(), c.Log)
			return failed(service{
				config: c, log: sink.logger(), signals: signals,
				file: file, hash: hash, watcher: watched, sink: sink, takeover: takeover,
			}.run())
		},
	}
	configFlag(cmd, &file)
	cmd.Flags().BoolVar(&takeover, "takeover", false, "take the listening sockets of the process at handover.path, if there is one")
	return cmd
}
