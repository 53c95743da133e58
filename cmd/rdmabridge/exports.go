package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/rdmabridge/rdmabridge/cmd/rdmabridge/internal/translate"
	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/exports"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
)

// exportsWait bounds how long a start or a reload waits for what storage says of its exports.
const exportsWait = 3 * time.Second

// An exportWatch knows the exports that the rules of a listener name.
type exportWatch struct {
	*exports.Watch
	known    *nfs.Exports
	settings string // that it was made from, for comparison
}

// watchExports returns what knows the exports that rules of l name, or nil if they name none. in gets the Watch: the
// one that is there if its settings are the same.
func (b *bridge) watchExports(c *configs.Config, l *configs.Listener, in map[string]exportWatch) *nfs.Exports {
	paths := l.RuleExports()
	if len(paths) == 0 {
		return nil
	}
	storage := translate.Storage(c, l)
	w := exportWatch{settings: fmt.Sprint(paths, storage)}
	if old, ok := b.exports[l.Name]; ok && old.settings == w.settings {
		w = old
	} else {
		w.known = nfs.NewExports(paths)
		w.Watch = exports.New(w.known, storage, b.log.With().Str("listener", l.Name).Logger())
	}
	in[l.Name] = w
	return w.known
}

// startExports begins to ask storage about the exports of all but those of running.
func startExports(all, running map[string]exportWatch) {
	ctx, cancel := context.WithTimeout(context.Background(), exportsWait)
	defer cancel()
	var wg sync.WaitGroup
	for name, w := range all {
		if running[name].Watch != w.Watch {
			wg.Go(func() { w.Start(ctx) })
		}
	}
	wg.Wait()
}

// closeExports ends all but those of kept.
func closeExports(all, kept map[string]exportWatch) {
	for name, w := range all {
		if kept[name].Watch != w.Watch {
			w.Close()
		}
	}
}
