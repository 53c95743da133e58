package main

import (
	"encoding/json"
	"net/http"
	"os"
	"strconv"

	"github.com/rdmabridge/rdmabridge/internal/status"
)

// serveStatus answers with the document of the bridge.
func (b *bridge) serveStatus(w http.ResponseWriter, r *http.Request) {
	v := r.URL.Query()
	clients, _ := strconv.Atoi(v.Get("clients")) // 0 is the default
	d := b.proxy.Status(status.Query{Clients: clients, Sort: v.Get("sort"), Filter: v.Get("filter"), Connections: v.Get("connections") == "true"})
	d.Process, d.Started = os.Getpid(), b.started
	i := buildInfo()
	d.Build = status.Build{Version: i.Version, Revision: i.Revision, Go: i.Go}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(d) // an error means that the client has disconnected
}
