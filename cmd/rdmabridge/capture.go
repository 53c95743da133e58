package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/cli"
	"github.com/rdmabridge/rdmabridge/internal/control"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/tap"
)

// captureFlags are the flags of capture.
type captureFlags struct {
	bridge  bridgeFlag
	write   string
	ring    string
	lists   map[string]*[]string      // those that say which Calls, and the triggers
	times   map[string]*time.Duration // those that are durations
	after   string
	payload bool
	snap    cli.SizeFlag
	buffer  cli.SizeFlag
	count   int
	quiet   bool
}

func newCaptureCommand() *cobra.Command {
	cmd, _ := captureCommand()
	return cmd
}

// captureCommand returns the command, and its flags for tests.
func captureCommand() (*cobra.Command, *captureFlags) {
	f := &captureFlags{lists: map[string]*[]string{}, times: map[string]*time.Duration{}}
	cmd := &cobra.Command{
		Use:   "capture -w FILE",
		Short: "Capture the messages that a running bridge carries, for Wireshark and tshark",
		Long: `Capture writes the RPC messages that a running bridge carries to a file in pcapng, as
RPC over TCP, so that Wireshark and tshark decode them: those between the clients and
the bridge, and those between the bridge and its upstreams, with what RDMA moved put
back into its place. Comments say what the messages do not show: how a Call travelled
over RDMA, credits, which Call became which, and where its time went.

The data of READs and WRITEs are cut unless --payload is given. A capture has names of
files and users in it, and with --payload the contents of files. Only root and the user
of the bridge can make one.

Capture ends after --count Calls, after --duration, or when it is interrupted, and the
file is whole then.

    rdmabridge capture -w - | tshark -r -
    rdmabridge capture -w slow.pcapng --operation READ,WRITE --slower 100ms
    rdmabridge capture -w nfs.pcapng --ring 10x64MiB --client 192.0.2.0/24
    rdmabridge capture -w home.pcapng --export /home --path '/home/a/*'
    rdmabridge capture -w stale.pcapng --trigger status=stale --before 10s

Exit codes: 0 the capture is written; 1 it is not, or not all of it; 2 the command line
is wrong, or no bridge was reached.`,
		Args: cli.AtMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := cli.Interruptible()
			defer stop()
			return f.run(ctx, cmd)
		},
	}
	f.bridge.register(cmd)
	flags := cmd.Flags()
	flags.StringVarP(&f.write, "write", "w", "", "write to `FILE`; - is standard output")
	flags.StringVar(&f.ring, "ring", "", "write a ring of files, `NxSIZE`: at most N files of SIZE; a number and the time are added to the name of each")
	list := func(name, usage string) {
		v := new([]string)
		f.lists[name] = v
		flags.StringSliceVar(v, name, nil, usage)
	}
	for name, usage := range map[string]string{
		"export": "Calls about files in the export `PATH`, as top --exports shows it; needs names.mode: on",
		"path":   "Calls about files at `PATTERN` or below, such as '/home/*/build' or '/home/**/*.log'; needs names.mode: on",
	} {
		v := new([]string)
		f.lists[name] = v
		flags.StringArrayVar(v, name, nil, usage) // a path may have commas
	}
	list("client", "Calls of clients in `NETWORK`, such as 192.0.2.7 or 192.0.2.0/24")
	list("listener", "Calls that came to the listener `NAME`")
	list("upstream", "Calls that go to the upstream `NAME`")
	list("program", "Calls of `PROGRAM`: nfs, mount, nlm, nsm, nfsacl, rpcbind, rquota or a number")
	list("operation", "Calls of `OPERATION`, such as READ; of a COMPOUND the operation that the client wants most")
	list("status", "Calls that got this `STATUS`: ok, error, no_reply, a name such as stale or NFS3ERR_STALE, or a number")
	list("leg", "messages of `LEG`: clients, upstreams or both (default both)")
	list("trigger", "write nothing before `EVENT`: status=STATUS, slower=TIME or disconnect")
	duration := func(name, usage string) {
		v := new(time.Duration)
		f.times[name] = v
		flags.DurationVar(v, name, 0, usage)
	}
	duration("slower", "Calls that took `TIME` or more")
	duration("duration", "end after `TIME`")
	duration("before", "with --trigger: write what came in this `TIME` before it (default 10s)")
	flags.StringVar(&f.after, "after", "", "with --trigger: go on for `TIME` after it, or forever (default: end at once)")
	flags.BoolVar(&f.payload, "payload", false, "capture the data of READs and WRITEs, too")
	flags.Var(&f.snap, "snaplen", "capture no more than this of a message (default 59996; with --payload: all)")
	flags.Var(&f.buffer, "buffer", "memory in the bridge for the capture (default 16MiB)")
	flags.IntVar(&f.count, "count", 0, "end after so many `CALLS`")
	flags.BoolVarP(&f.quiet, "quiet", "q", false, "say nothing but errors")
	cli.Required(cmd, "write")
	_ = cmd.MarkFlagFilename("write", "pcapng") // fails only for unknown flags
	complete := func(flag string, values ...string) {
		_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	}
	complete("leg", "clients", "upstreams", "both")
	complete("program", "nfs", "mount", "nlm", "nsm", "nfsacl", "rpcbind", "rquota")
	complete("status", "ok", "error", "no_reply", "noent", "access", "stale", "delay", "io", "nospc")
	complete("trigger", "status=error", "status=stale", "slower=1s", "disconnect")
	complete("operation", "READ", "WRITE", "COMMIT", "GETATTR", "LOOKUP", "OPEN", "CREATE", "REMOVE", "RENAME", "READDIR", "READDIRPLUS")
	return cmd, f
}

// query returns the parameters that ask for the capture.
func (f *captureFlags) query() (url.Values, error) {
	q := url.Values{}
	for name, v := range f.lists {
		if len(*v) > 0 {
			q[name] = *v
		}
	}
	for name, v := range f.times {
		if *v != 0 {
			q.Set(name, v.String())
		}
	}
	for name, n := range map[string]int{"snaplen": int(f.snap), "buffer": int(f.buffer), "count": f.count} {
		if n != 0 {
			q.Set(name, strconv.Itoa(n))
		}
	}
	if f.payload {
		q.Set("payload", "true")
	}
	if f.after != "" {
		q.Set("after", f.after)
	}
	if f.buffer != 0 && (f.buffer < tap.LeastBuffer || f.buffer > tap.MostBuffer) {
		return nil, cli.NotWithin("buffer", f.buffer.String(), configs.Size(tap.LeastBuffer), configs.Size(tap.MostBuffer))
	}
	for _, name := range []string{"before", "after"} {
		if q.Has(name) && !q.Has("trigger") {
			return nil, fmt.Errorf("--%s needs --trigger EVENT, such as slower=1s, status=stale or disconnect", name)
		}
	}
	// The names of parameters are those of the flags.
	if _, err := tap.ParseOptions(q); err != nil {
		return nil, errors.New("--" + strings.ReplaceAll(err.Error(), "\n", "\n--"))
	}
	return q, nil
}

// files returns where the capture is written.
func (f *captureFlags) files() (*tap.Files, error) {
	files := &tap.Files{Name: f.write}
	if f.ring == "" {
		return files, nil
	}
	n, size, ok := strings.Cut(f.ring, "x")
	count, err := strconv.Atoi(n)
	octets, err2 := configs.ParseSize(size)
	if !ok || err != nil || err2 != nil || count < 1 || octets < 1<<10 || f.write == "-" {
		return nil, fmt.Errorf("--ring %q is not possible with -w %q; write a number of files, x, and the size of one of 1KiB or more, such as --ring 10x64MiB, and -w FILE", f.ring, f.write)
	}
	files.Ring, files.Size = count, int64(octets)
	return files, nil
}

// checkNames returns an error if the bridge has no listener or upstream of a name that a flag has: the capture would be empty.
func (f *captureFlags) checkNames(ctx context.Context, c *control.Client) error {
	if len(*f.lists["listener"]) == 0 && len(*f.lists["upstream"]) == 0 {
		return nil
	}
	d, err := document(ctx, c, status.Query{Clients: 1})
	if err != nil {
		return err
	}
	there := make(map[string][]string)
	for i := range d.Listeners {
		there["listener"] = append(there["listener"], d.Listeners[i].Name)
	}
	for i := range d.Upstreams {
		there["upstream"] = append(there["upstream"], d.Upstreams[i].Name)
	}
	for flag, names := range there {
		for _, name := range *f.lists[flag] {
			if !slices.Contains(names, name) {
				return cli.Failed(fmt.Errorf("--%s: the bridge has no %s %q; write %s", flag, flag, name, strings.Join(names, " or ")))
			}
		}
	}
	return nil
}

// run captures until ctx is done, or the capture ends by itself.
func (f *captureFlags) run(ctx context.Context, cmd *cobra.Command) error {
	q, err := f.query()
	if err != nil {
		return err
	}
	files, err := f.files()
	if err != nil {
		return err
	}
	if f.write == "-" && cli.IsTerminal(cmd.OutOrStdout()) {
		return errors.New("-w -: a capture is no text for a terminal; write a file, or to another program: rdmabridge capture -w - | tshark -r -")
	}
	c, err := f.bridge.client(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := f.checkNames(ctx, c); err != nil {
		return err
	}
	s, err := c.Stream(ctx, tap.Path+"?"+q.Encode())
	if err != nil {
		return asked(err)
	}
	defer func() { _ = s.Close() }()
	say := func(format string, args ...any) {
		if !f.quiet {
			fmt.Fprintf(cmd.ErrOrStderr(), format+"\n", args...)
		}
	}
	say("capturing at %s", c.Path())
	if f.write == "-" {
		err = tap.Copy(cmd.OutOrStdout(), s, nil)
		if errors.Is(err, syscall.EPIPE) {
			return nil // its reader has had enough
		}
	} else {
		err = errors.Join(files.Copy(s), files.Close())
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return cli.Failed(fmt.Errorf("there is no directory %s; make it, or name another file", filepath.Dir(f.write)))
	case err != nil:
		return cli.Failed(fmt.Errorf("the capture is not whole: %w", err))
	}
	summary := s.Trailer.Get(tap.SummaryTrailer)
	say("%s", summary)
	// A bridge may know more of these names than this program does.
	for name, those := range map[string]string{"operation": "rdmabridge top --view operations has the names", "status": "write ok, error, or a name such as stale or NFS3ERR_STALE", "export": "rdmabridge top --exports has the names", "path": "rdmabridge top --files has paths"} {
		if all := *f.lists[name]; len(all) > 0 && strings.HasPrefix(summary, "0 calls") {
			say("no Call had --%s %s; %s", name, strings.Join(all, ","), those)
		}
	}
	return nil
}
