package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/cli"
	"github.com/rdmabridge/rdmabridge/internal/control"
	"github.com/rdmabridge/rdmabridge/internal/names"
	"github.com/rdmabridge/rdmabridge/internal/show"
	"github.com/rdmabridge/rdmabridge/internal/status"
)

// A bridgeFlag says on the command line which running bridge to ask.
type bridgeFlag struct {
	socket string
	files  []string
}

// register adds the flags to cmd.
func (f *bridgeFlag) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.socket, "socket", "", "ask the bridge whose control socket is at `PATH`; left out: the one bridge that runs on this host")
	filesFlag(cmd, &f.files, "ask the bridge that runs with the configuration")
	cmd.MarkFlagsMutuallyExclusive("socket", "config")
	_ = cmd.MarkFlagFilename("socket", "sock") // fails only for unknown flags
}

// client returns a client of the bridge. An error says why there is none.
func (f *bridgeFlag) client(ctx context.Context) (*control.Client, error) {
	path := f.socket
	if len(f.files) > 0 {
		// A file with problems will do: it is then that one wants to know how the bridge is.
		c, err := configs.ReadControl(f.files, known)
		if err != nil {
			return nil, cli.Usage(err)
		}
		if !c.Enabled() {
			return nil, cli.Usage(fmt.Errorf("%s has control: {path: none}: its bridge cannot be asked", strings.Join(f.files, ", ")))
		}
		path = c.Path
	}
	if path == "" {
		// The bridge may run as another user than this command. A demo has no file.
		found, err := control.Find(ctx, len(f.files) == 0)
		if err != nil && len(f.files) > 0 {
			err = fmt.Errorf("%w; %s has no control.path", err, strings.Join(f.files, ", "))
		}
		if err != nil {
			return nil, cli.Usage(err)
		}
		path = found
	}
	return control.NewClient(path), nil
}

// with calls ask with a client of the bridge. An interrupt ends ctx.
func (f *bridgeFlag) with(ask func(ctx context.Context, c *control.Client) error) error {
	ctx, stop := cli.Interruptible()
	defer stop()
	c, err := f.client(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	return ask(ctx, c)
}

// asked wraps an error of a request: one that reached no bridge makes the process exit with cli.ExitUsage,
// and others with cli.ExitFailed.
func asked(err error) error {
	var u *control.UnreachableError
	if errors.As(err, &u) {
		return cli.Usage(err)
	}
	return cli.Failed(err)
}

// target returns the path and query of the document that q asks for.
func target(path string, q status.Query) string {
	v := url.Values{}
	if q.Clients != 0 {
		v.Set("clients", strconv.Itoa(q.Clients))
	}
	if q.Sort != "" {
		v.Set("sort", q.Sort)
	}
	if q.Filter != "" {
		v.Set("filter", q.Filter)
	}
	if q.Connections {
		v.Set("connections", "true")
	}
	if len(v) == 0 {
		return path
	}
	return path + "?" + v.Encode()
}

// document asks the bridge for the document of q.
func document(ctx context.Context, c *control.Client, q status.Query) (*status.Document, error) {
	d := new(status.Document)
	if err := c.Get(ctx, target("/api/v1/status", q), d); err != nil {
		return nil, asked(err)
	}
	if q.Names {
		v := url.Values{"export": {q.NamesOf}, "minutes": {strconv.Itoa(max(1, q.Minutes))}, "rows": {"1000"}}
		err := c.Get(ctx, names.Path+"?"+v.Encode(), &d.Names)
		// A bridge that learns no names has no names to show, and top says so.
		if off := new(control.AnswerError); err != nil && !(errors.As(err, &off) && off.Status == http.StatusConflict) {
			return nil, asked(err)
		}
	}
	return d, nil
}

// pair asks for two documents, the second one after a time, or for one if that is 0.
func pair(ctx context.Context, c *control.Client, q status.Query, after time.Duration) (show.Pair, error) {
	first, err := document(ctx, c, q)
	if err != nil || after == 0 {
		return show.NewPair(first, nil), err
	}
	select {
	case <-ctx.Done():
		return show.Pair{}, cli.Failed(ctx.Err())
	case <-time.After(after):
	}
	second, err := document(ctx, c, q)
	if err != nil {
		return show.Pair{}, err
	}
	return show.NewPair(second, first), nil
}

// writeJSON writes v for people and for programs.
func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return cli.Failed(e.Encode(v))
}

// overFlag adds the flag --over.
func overFlag(cmd *cobra.Command, over *time.Duration) {
	cmd.Flags().DurationVar(over, "over", time.Second, "show rates over this `TIME`; 0: what was counted since the start")
}

// checkOver refuses times that are no use.
func checkOver(over time.Duration) error {
	if over < 0 || over > time.Hour || over > 0 && over < 10*time.Millisecond {
		return fmt.Errorf("--over %s is out of range; write 0, or a time from 10ms to 1h", over)
	}
	return nil
}
