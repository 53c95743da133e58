// Package exports asks storage for the handles of its exports, so that rules know which export a Call is about
// ([nfs.Exports]).
//
// # Operation
//
// A [Watch] asks the storage's MOUNT for the list of exports, and for the root of each, as a client that mounts them all
// would. It does so when it starts, then every minute, and soon after a Call has named a handle that nobody knows. It
// works beside the road of the Calls. What it has learned counts until the storage says something else.
package exports

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/loglimit"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ask"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
	"github.com/rdmabridge/rdmabridge/internal/rpcbind"
)

const (
	every      = time.Minute      // between two rounds
	soonest    = 5 * time.Second  // between two rounds, after a failure or a handle that is not known
	roundTime  = 10 * time.Second // for one round at one storage
	maxReply   = 1 << 20
	maxExports = 1024 // of a storage
	maxPath    = 1024 // MNTPATHLEN
	portBind   = 111
)

// A Storage is what serves an upstream.
type Storage struct {
	Name  string     // of the upstream
	Hosts []string   // names or addresses, of which one is asked
	Port  uint16     // of MOUNT; 0 asks rpcbind
	Paths []string   // of file systems that the list of exports does not have
	From  netip.Addr // where the upstream's connections come from; the zero Addr lets the kernel choose

	bind uint16 // the port of rpcbind; 0: the usual one
}

// A Watch keeps an Exports informed.
type Watch struct {
	exports *nfs.Exports
	storage []Storage
	log     zerolog.Logger
	soonest time.Duration // soonest

	ctx    context.Context // until Close
	cancel context.CancelFunc
	done   sync.WaitGroup

	// The rest belongs to one goroutine: the caller of Start, and then its own.
	roots    []map[string][]byte // by path, for each Storage
	failures loglimit.Seldom
	told     string // what the log has been told
}

// New returns a Watch that does nothing yet.
func New(x *nfs.Exports, storage []Storage, log zerolog.Logger) *Watch {
	w := &Watch{exports: x, storage: storage, log: log, soonest: soonest, roots: make([]map[string][]byte, len(storage))}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	return w
}

// Start asks each storage once, until ctx ends, and then goes on in the background until Close.
func (w *Watch) Start(ctx context.Context) {
	failed := w.round(ctx)
	w.done.Go(func() { w.run(failed) })
}

// Close ends the Watch.
func (w *Watch) Close() {
	w.cancel()
	w.done.Wait()
}

func (w *Watch) run(failed bool) {
	for {
		pause, strange := every-w.soonest, w.exports.Strange()
		if failed {
			pause, strange = 0, nil
		}
		timer := time.NewTimer(w.soonest)
		select {
		case <-w.ctx.Done():
		case <-timer.C:
			timer.Reset(pause)
			select {
			case <-w.ctx.Done():
			case <-timer.C:
			case <-strange:
			}
		}
		timer.Stop()
		if w.ctx.Err() != nil {
			return
		}
		failed = w.round(w.ctx)
	}
}

// round asks each storage, and tells the Exports what is known then. It reports whether something is missing.
func (w *Watch) round(ctx context.Context) (failed bool) {
	var wg sync.WaitGroup
	errs := make([]error, len(w.storage))
	for i := range w.storage {
		wg.Go(func() {
			var roots map[string][]byte
			if roots, errs[i] = w.storage[i].Roots(ctx, w.exports.Paths()); errs[i] == nil {
				w.roots[i] = roots
			}
		})
	}
	wg.Wait()
	all := make(map[string][][]byte)
	for i, roots := range w.roots {
		if errs[i] != nil {
			failed = true
			w.failures.Line(&w.log, zerolog.ErrorLevel, "exports_unknown").Str("upstream", w.storage[i].Name).Err(errs[i]).
				Msg("the storage does not say what its exports are: rules with exports go by what it has said before")
		}
		for p, h := range roots {
			all[p] = append(all[p], h)
		}
	}
	if !failed {
		w.failures.Reset()
	}
	formless, missing := w.exports.Know(all), w.exports.Missing(all)
	w.tell(len(all), missing, formless, failed)
	return failed || len(missing) > 0
}

// tell logs what has changed.
func (w *Watch) tell(known int, missing, formless []string, failed bool) {
	now := fmt.Sprint(known, missing, formless)
	if now == w.told || failed && len(formless) == 0 {
		return
	}
	w.told = now
	e := w.log.Info().Str("event", "exports_known")
	text := "rules with exports know the handles of the storage's exports"
	switch {
	case len(formless) > 0:
		e = w.log.Error().Str("event", "exports_formless").Strs("exports", formless)
		text = "the storage's handles do not say which export they are in: rules with exports take each of its Calls for one about any export"
	case len(missing) > 0:
		e = w.log.Error().Str("event", "exports_missing").Strs("exports", missing)
		text = "rules name exports that the storage does not have, or does not let this host mount"
	}
	e.Int("known", known).Msg(text)
}

// Roots asks s for the handles of the roots of its exports, by their paths: of those that it lists, of s.Paths, and of
// paths, as far as it has them.
func (s *Storage) Roots(ctx context.Context, paths []string) (roots map[string][]byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, roundTime)
	defer cancel()
	var errs []error
	for _, host := range s.Hosts {
		if roots, err = s.ask(ctx, host, paths); err == nil {
			return roots, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", host, err))
	}
	return nil, errors.Join(errs...)
}

func (s *Storage) ask(ctx context.Context, host string, paths []string) (map[string][]byte, error) {
	port := s.Port
	if port == 0 {
		bind := cmp.Or(s.bind, portBind)
		var err error
		if port, err = rpcbind.Ask(ctx, net.JoinHostPort(host, strconv.Itoa(int(bind))), oncrpc.ProgramMount, 3); err != nil {
			return nil, fmt.Errorf("asking rpcbind: %w", err)
		}
		if port == 0 {
			return nil, errors.New("rpcbind knows no MOUNT of version 3")
		}
	}
	c, err := ask.Dial(ctx, net.Dialer{}, "tcp", s.From, net.JoinHostPort(host, strconv.Itoa(int(port))), true)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	m := mounter{conn: ask.On(c, maxReply), who: user()}
	listed, err := m.list(ctx)
	if err != nil {
		return nil, err
	}
	roots := make(map[string][]byte)
	all := slices.Concat(paths, s.Paths, listed)
	slices.Sort(all)
	for _, p := range slices.Compact(all) {
		h, err := m.mount(ctx, p)
		if err != nil {
			return nil, err
		}
		if h != nil {
			roots[p] = h
		}
	}
	return roots, nil
}

// user is the credential of the questions.
func user() ask.Credential {
	name, _ := os.Hostname()
	return ask.Root(name)
}

// A mounter asks one server for MOUNT version 3: RFC 1813 Appendix I.
type mounter struct {
	conn *ask.Conn
	who  ask.Credential
}

// Procedures of MOUNT.
const (
	procMount   = 1
	procUnmount = 3
	procExport  = 5
)

// list returns the paths that EXPORT lists.
func (m *mounter) list(ctx context.Context) (paths []string, err error) {
	b, x, err := m.conn.Call(ctx, oncrpc.ProgramMount, 3, procExport, m.who, nil)
	if err != nil {
		return nil, err
	}
	for x.Uint32() == 1 {
		pos, n := x.Opaque()
		if !x.OK() || n > maxPath || len(paths) == maxExports {
			return nil, errors.New("the list of exports cannot be read, or is too long")
		}
		paths = append(paths, string(b[pos:pos+n]))
		for x.Uint32() == 1 { // who may mount it
			x.Opaque()
		}
	}
	if !x.OK() {
		return nil, errors.New("the list of exports cannot be read")
	}
	return paths, nil
}

// mount returns the handle of the root of an export; nil if the server refuses that. It takes the mount back, so that the server's list of mounts stays
// that of the clients.
func (m *mounter) mount(ctx context.Context, path string) (handle []byte, err error) {
	args := xdr.AppendOpaque(nil, []byte(path))
	b, x, err := m.conn.Call(ctx, oncrpc.ProgramMount, 3, procMount, m.who, args)
	if err != nil {
		return nil, err
	}
	if status := x.Uint32(); status != 0 {
		return nil, nil
	}
	pos, n := x.Opaque()
	if !x.OK() || n > 64 {
		return nil, fmt.Errorf("the handle of %s cannot be read", path)
	}
	handle = slices.Clone(b[pos : pos+n])
	_, _, err = m.conn.Call(ctx, oncrpc.ProgramMount, 3, procUnmount, m.who, args)
	return handle, err
}
