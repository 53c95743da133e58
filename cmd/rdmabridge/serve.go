package main

import (
	"errors"
	"slices"

	"github.com/spf13/cobra"

	"github.com/rdmabridge/rdmabridge/cmd/rdmabridge/internal/translate"
	"github.com/rdmabridge/rdmabridge/internal/cli"
	"github.com/rdmabridge/rdmabridge/internal/logsink"
)

func newServeCommand() *cobra.Command {
	var files []string
	var takeover bool
	var line bridgeLine
	cmd := &cobra.Command{
		Use:   "serve -c FILE | --from URL --to URL",
		Short: "Run the bridge that a configuration, or one line, describes",
		Long: `Serve runs the bridge that a configuration file describes until a signal stops it.

A bridge for one storage needs no file:

  rdmabridge serve --from tcp://0.0.0.0:2049 --to rdma://10.1.0.5
  rdmabridge serve --from rdma://0.0.0.0 --to tcp://10.1.0.5

The ports may be left out: 2049 of tcp, and 20049 of rdma. Serve asks the storage's
rpcbind where MOUNT is, which clients of NFSv3 need, unless --mount says it. With
--print-config it prints the file that the line stands for, and ends.

SIGTERM and SIGINT drain the bridge: it stops listening, answers the Calls that it
has read, and closes each client connection when it is idle. A second signal at
least half a second later, or the end of drain.timeout, closes the connections that
remain.

SIGHUP reloads the file, and so does a change to it; reload.watch sets how often
serve looks. A file with a problem is rejected as a whole and changes nothing. The
log names every setting that changed and every one that needs a restart.

With several -c, or a directory, later files override settings of earlier ones and
add listeners, upstreams and tenants. Variables of the environment such as
RDMABRIDGE_LOG_LEVEL override both, and flags override those: docs/configuration.md.

With --takeover the process starts with the listening sockets of the process that
listens at handover.path. Once the new process is ready, the old one drains and
exits. If the new process fails before that, the old one continues. SIGUSR2 makes a
process start its own successor, with the same command line and --takeover.

Exit codes: 0 the bridge drained; 1 the file has problems or the bridge failed;
2 the file cannot be read.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if line.from != "" {
				return line.run(cmd)
			}
			if slices.Contains(files, standardInput) {
				return errors.New("serve reloads its file, so standard input does not do: write a file")
			}
			// Both look at the files before they are loaded: they miss no change.
			hash, watched := hashFiles(files), newWatcher(files...)
			known := knownWith(cmd.Flags())
			c, err := loadConfig(files, known)
			if err != nil {
				return reported(err, logFileError(cmd.ErrOrStderr(), files, known, err))
			}
			return runLogged(cmd, service{config: c, files: files, flags: cmd.Flags(), hash: hash, watcher: watched, takeover: takeover}, "")
		},
	}
	configFlag(cmd, &files)
	line.register(cmd, &files)
	cmd.Flags().BoolVar(&takeover, "takeover", false, "take over from the process that listens at handover.path; start as usual if there is none")
	return cmd
}

// runLogged runs s with a log and signals of its own. The log has the warning, unless it is "", and the error if s cannot
// start.
func runLogged(cmd *cobra.Command, s service, warning string) error {
	limitHeap(s.config.Memory)
	signals, stop := notify()
	defer stop()
	sink := logsink.NewQueued(cmd.ErrOrStderr(), translate.Log(s.config.Log))
	defer sink.Close()
	s.signals, s.sink, s.log, s.restrict = signals, sink, sink.Logger(), true
	if warning != "" {
		s.log.Warn().Str("event", "config_warning").Str("warning", warning).Msg("the storage has no MOUNT")
	}
	err := cli.Failed(s.run())
	return reported(err, logStartError(sink, err))
}

// reported marks err as one that the log has, if it has.
func reported(err error, has bool) error {
	if exit := (*cli.ExitError)(nil); has && errors.As(err, &exit) {
		return &cli.ExitError{Code: exit.Code, Err: exit.Err, Logged: true}
	}
	return err
}
