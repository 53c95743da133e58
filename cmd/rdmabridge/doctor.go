package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/cli"
	"github.com/rdmabridge/rdmabridge/internal/doctor"
)

// examineWait bounds how long the kernel may take to say what devices there are.
const examineWait = 30 * time.Second

// doctorFlags are the flags of doctor.
type doctorFlags struct {
	config []string
	json   bool
}

// exitWarned is the exit code when doctor has found nothing worse than a warning.
const exitWarned = 3

func newDoctorCommand() *cobra.Command {
	var f doctorFlags
	cmd := &cobra.Command{
		Use:   "doctor [FILE]",
		Short: "Say what keeps this host, or an upstream, from RDMA, and what to type",
		Long: `Doctor looks at the RDMA devices of this host, their ports, GIDs and limits, at kernel
modules, cgroups and the limits of this process. With a configuration it also
connects to each endpoint of each upstream as the bridge does, sends a NULL Call, and
says how the server answers. It changes nothing. Run it as the bridge's user and in the
bridge's container, which may have other limits than root.

For each finding it prints what is wrong and what to type. docs/doctor.md has a table
of all findings and describes the JSON.

Exit codes: 0 nothing worse than a note; 1 there is an error, so that the bridge or an
upstream does not work; 2 the command line is wrong, or FILE cannot be read; 3 there is
a warning and no error.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && len(f.config) == 0 {
				f.config = args
				return nil
			}
			return cli.AtMost(0)(cmd, args)
		},
		ValidArgsFunction: completeConfig,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := cli.Interruptible()
			defer stop()
			return f.run(ctx, cmd.OutOrStdout())
		},
	}
	filesFlag(cmd, &f.config, "connect to the upstreams of the configuration in")
	cmd.Flags().BoolVar(&f.json, "json", false, "print a JSON object")
	return cmd
}

func (f *doctorFlags) run(ctx context.Context, out io.Writer) error {
	var fs doctor.Findings
	c, err := f.load(&fs)
	if err != nil {
		return err
	}
	examined, cancel := context.WithTimeout(ctx, examineWait)
	host, err := doctor.Examine(examined, "/", doctor.KernelSources)
	cancel()
	if err != nil {
		return cli.Failed(err)
	}
	need := doctor.Need{Memory: 2 * uint64(configs.DefaultBudget()), Configured: len(f.config) > 0}
	var endpoints []doctor.Endpoint
	if c != nil {
		need = doctorNeed(c)
		judgeConfig(c, &host.Process, &fs)
		judgeLocks(ctx, &c.NLM, configs.PortRPCBind, &fs)
		judgeExports(ctx, c, &fs)
		if endpoints, err = askEndpoints(ctx, c, host, &fs); err != nil {
			return cli.Failed(err)
		}
	}
	report := doctor.NewReport(buildInfo().String(), host, endpoints, append(fs, host.Judge(need)...))
	if f.json {
		err = report.JSON(out)
	} else {
		err = report.Print(out)
	}
	if err != nil {
		return cli.Failed(err)
	}
	return worstExit(report.Findings)
}

// load loads the configuration, if there is to be one. A configuration with problems is nil, and
// its problems are findings. One that only lacks a provider of this build is loaded all the same.
func (f *doctorFlags) load(fs *doctor.Findings) (*configs.Config, error) {
	if len(f.config) == 0 {
		return nil, nil
	}
	c, err := configs.LoadFiles(f.config, known)
	var problems configs.Problems
	if !errors.As(err, &problems) {
		if err != nil {
			return nil, cli.Usage(err)
		}
		return c, nil
	}
	more := known
	more.Providers = append([]string{configs.ProviderIBVerbs}, known.Providers...)
	more.Provider = nil // judgeProvider says why one cannot be used
	if known.Provider(configs.ProviderIBVerbs) != nil {
		more.IBVerbs = nil
	}
	if c, err := configs.LoadFiles(f.config, more); err == nil {
		return c, nil
	}
	for _, p := range problems {
		subject := p.File
		p.File = ""
		fs.Add("config", doctor.Error, subject, p.Summary(), "rdmabridge check -c "+strings.Join(f.config, " -c "))
	}
	return nil, nil
}

// worstExit returns the error that makes the exit code say how bad the worst finding is.
func worstExit(fs doctor.Findings) error {
	count := func(s doctor.Severity) (n int) {
		for i := range fs {
			if fs[i].Severity == s {
				n++
			}
		}
		return n
	}
	found := fmt.Errorf("doctor: %d errors, %d warnings", count(doctor.Error), count(doctor.Warning))
	switch fs.Worst() {
	case doctor.Error:
		return cli.Failed(found)
	case doctor.Warning:
		return &cli.ExitError{Code: exitWarned, Err: found}
	}
	return nil
}
