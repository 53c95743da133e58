package main

import (
	"os"
	"time"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/admin"
	"github.com/rdmabridge/rdmabridge/internal/names"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// document describes the bridge. The admin.Handler adds history and problems.
func (b *bridge) document(q status.Query) status.Document {
	d := b.proxy.Status(q)
	d.PlainErrors()
	i := buildInfo()
	d.Process, d.Started = os.Getpid(), b.started
	d.Build = status.Build{Version: i.Version, Revision: i.Revision, Go: i.Go}
	if c := b.loaded.Load(); c != nil {
		d.Config = *c
	} else {
		d.Config.Loaded = b.started
	}
	d.Hardening = b.hardening.status
	d.Sockets = status.Descriptors{Used: b.engine.Sockets().Open(), Limit: b.engine.Sockets().Limit()}
	d.Events = b.sink.Events()
	d.Locks = b.locksStatus()
	return d
}

// namesOnPage is how many rows of each table of names the status page has.
const namesOnPage = 20

// namesShown returns the names for the status page; nil if it is to have none.
func (b *bridge) namesShown() *status.Names {
	w := b.names.Load()
	if w == nil || !b.paged.Load() {
		return nil
	}
	return w.Names(names.Query{Minutes: 1, Rows: namesOnPage})
}

// makePages makes the answers for operators, which the admin server and the control socket serve, and
// the admin server.
func (b *bridge) makePages(c *configs.Config) error {
	b.pages = admin.NewHandler(admin.Source{Document: b.document, Names: b.namesShown, Metrics: b.metrics.Handler(), Alive: b.alive, Ready: b.proxy.Ready})
	if !c.Admin.Enabled() {
		return nil
	}
	inherited, err := b.inherited.Admin(c.Admin.Address)
	if err != nil {
		return err
	}
	b.admin = admin.NewServer(admin.Options{
		Address: c.Admin.Address, Log: b.log, Handler: b.pages, Listener: inherited,
		Closed: b.metrics.Counter(metrics.AdminClosedConnections),
	})
	return nil
}

// setLoaded records which configuration file is in force.
func (b *bridge) setLoaded(file string, when time.Time, restart bool) {
	b.loaded.Store(&status.Config{File: file, Loaded: when, RestartNeeded: restart})
}

// setRefused records that the file as it is now was refused. The one before it stays in force.
func (b *bridge) setRefused(err error) {
	var c status.Config
	if old := b.loaded.Load(); old != nil {
		c = *old
	}
	c.Refused = status.Plain(err.Error())
	b.loaded.Store(&c)
}
