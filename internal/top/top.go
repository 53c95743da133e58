// Package top shows live tables of a running bridge in a terminal: by client, by operation, and by
// connection, with rates over the last interval and what is wrong above them.
//
// A model has what is shown and obeys keys; it knows no terminal. A screen writes whole frames, each with
// one write. Run asks for a document in each interval and connects the two.
package top

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/rdmabridge/rdmabridge/internal/show"
	"github.com/rdmabridge/rdmabridge/internal/status"
)

// Options say what to show and where.
type Options struct {
	// Fetch asks the bridge for the document of q. Run calls it in a goroutine of its own, once at a time.
	Fetch func(ctx context.Context, q status.Query) (*status.Document, error)
	// Fatal reports that an error of Fetch cannot pass; others are shown, and Fetch is tried again.
	Fatal func(error) bool

	Interval time.Duration // between two documents
	View     string        // one of Views
	Sort     string        // key of a column of that view; "" for the view's own
	Reverse  bool
	Filter   string
	Clients  int    // most connections of clients that are asked for
	NamesOf  string // the one export that the views of names are about; "" for all
	Minutes  int    // how long they are about; 0 for 1

	Color bool
}

// Run shows the tables in the terminal of in and out until the user quits, ctx is done or a signal comes.
// The terminal is then as it was, also if Run panics.
func Run(ctx context.Context, in, out *os.File, o Options) (err error) {
	m := newModel(o)
	s := &screen{in: in, out: out, color: o.Color}
	if err := s.open(); err != nil {
		return fmt.Errorf("top: %w", err)
	}
	defer s.close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	signals := make(chan os.Signal, 4)
	signal.Notify(signals, unix.SIGWINCH, unix.SIGCONT, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(signals)
	keys := make(chan []byte)
	go read(ctx, in, keys)
	f := newFetcher(ctx, o.Fetch)
	f.ask(m.query())
	timer := time.NewTimer(m.interval)
	defer timer.Stop()
	for {
		if err := s.show(m.frame); err != nil {
			return fmt.Errorf("top: %w", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case b, ok := <-keys:
			if !ok {
				return nil // the terminal has gone
			}
			for _, k := range decode(b) {
				switch m.key(k) {
				case quit:
					return nil
				case suspend:
					if err := s.suspend(); err != nil {
						return fmt.Errorf("top: %w", err)
					}
				case redraw:
					s.forget()
				case ask:
					f.ask(m.query())
					timer.Reset(m.interval)
				}
			}
		case sig := <-signals:
			if sig != unix.SIGWINCH && sig != unix.SIGCONT {
				return nil
			}
			s.forget()
		case r := <-f.results:
			switch {
			case r.panicked != nil:
				panic(r.panicked)
			case r.err != nil && (o.Fatal != nil && o.Fatal(r.err) || m.now == nil):
				return r.err
			}
			m.update(r.document, r.err)
		case <-timer.C:
			timer.Reset(m.interval)
			f.ask(m.query())
		}
	}
}

// Once writes one frame as text: rates over o.Interval. It is width columns wide, or as wide as need be
// if that is 0.
func Once(ctx context.Context, out io.Writer, width int, o Options) error {
	m := newModel(o)
	for n := range 2 {
		if n > 0 {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(o.Interval):
			}
		}
		d, err := o.Fetch(ctx, m.query())
		if err != nil {
			return err
		}
		m.update(d, nil)
	}
	for _, l := range m.text(width) {
		if _, err := fmt.Fprintln(out, trim(l.String())); err != nil {
			return err
		}
	}
	return nil
}

// read sends what is typed until ctx is done or the terminal has gone, and then closes keys.
func read(ctx context.Context, in *os.File, keys chan<- []byte) {
	defer close(keys)
	b := make([]byte, 256)
	for {
		n, err := in.Read(b)
		if n > 0 {
			select {
			case keys <- append([]byte(nil), b[:n]...):
			case <-ctx.Done():
				return
			}
		}
		if err != nil && !errors.Is(err, syscall.EINTR) {
			return
		}
	}
}

// A fetcher asks for one document at a time.
type fetcher struct {
	queries chan status.Query // one deep: a newer query replaces one that waits
	results chan result
}

type result struct {
	document *status.Document
	err      error
	panicked any
}

func newFetcher(ctx context.Context, fetch func(context.Context, status.Query) (*status.Document, error)) *fetcher {
	f := &fetcher{queries: make(chan status.Query, 1), results: make(chan result)}
	one := func(q status.Query) (r result) {
		defer func() { r.panicked = recover() }()
		r.document, r.err = fetch(ctx, q)
		return r
	}
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case q := <-f.queries:
				select {
				case f.results <- one(q):
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return f
}

// ask asks for the document of q, unless an earlier one is still waited for: then it asks after that.
func (f *fetcher) ask(q status.Query) {
	select {
	case <-f.queries:
	default:
	}
	f.queries <- q
}

// IsTerminal reports whether f is a terminal.
func IsTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// Width is the width of the terminal f; 0 if f is none.
func Width(f *os.File) int {
	w, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return w
}

// Views are the names of the views.
var Views = func() []string {
	var names []string
	for _, v := range views {
		names = append(names, v.name)
	}
	return names
}()

// Keys returns the keys of the columns of a view, by which it can be sorted.
func Keys(view string) []string {
	for _, v := range views {
		if v.name == view {
			return v.table(show.Pair{Now: new(status.Document)}).Keys()
		}
	}
	return nil
}
