package main

import (
	"bytes"
	"html/template"
	"net/http"
	"time"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/status"
)

// statusPage shows the state of the bridge on one screen. It refreshes itself and loads
// no other resource.
var statusPage = template.Must(template.New("status").Funcs(template.FuncMap{
	"size": func(n int64) string { return (configs.Size(n) / configs.KiB * configs.KiB).String() },
	"age": func(t time.Time) string {
		if t.IsZero() {
			return ""
		}
		return time.Since(t).Round(time.Second).String()
	},
}).Parse(`<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="refresh" content="5">
<title>rdmabridge</title>
<style>
 body { font: 14px/1.4 sans-serif; margin: 2em; color: #222 }
 table { border-collapse: collapse; margin-bottom: 1.5em }
 th, td { border: 1px solid #ccc; padding: .2em .6em; text-align: left }
 td.n { text-align: right }
 .bad { background: #fdd } .good { background: #dfd }
</style>
<h1>rdmabridge</h1>
<p>{{.Build}}</p>
<p class="{{if .NotReady}}bad{{else}}good{{end}}">{{if .NotReady}}Not ready: {{.NotReady}}{{else}}Ready{{end}}</p>
<h2>Listeners</h2>
<table>
<tr><th>Name<th>Transport<th>Address<th>Clients
{{range .Status.Listeners}}<tr><td>{{.Name}}<td>{{.Transport}}<td>{{.Address}}<td class="n">{{.Clients}}
{{end}}</table>
<h2>Upstreams</h2>
<table>
<tr><th>Name<th>Endpoint<th>State<th>For<th>Clients<th>Credits granted<th>Calls outstanding<th>Calls queued<th>Last error
{{range .Status.Upstreams}}<tr class="{{if or .Usable (eq .State "asleep")}}good{{else}}bad{{end}}"><td>{{.Name}}<td>all<td>{{.Usable}} of {{.Wanted}} up{{if .Asleep}}, {{.Asleep}} asleep{{end}}{{if .Pinned}}, {{.Pinned}} pinned{{end}}{{if .Sessions}}, {{.Sessions}} sessions{{end}}<td>{{with .DownSince}}{{age .}}{{end}}<td><td class="n">{{.Credits.Granted}}<td class="n">{{.Credits.Used}}<td class="n">{{.Credits.Waiting}}<td>
{{range .Connections}}<tr><td><td>{{.Endpoint}}{{if eq .Kind "lane"}}, for NFSv4.1{{end}}<td>{{.State}}<td>{{age .Since}}<td class="n">{{.Clients}}<td class="n">{{.Credits.Granted}}<td class="n">{{.Credits.Used}}<td><td>{{.LastError}}
{{end}}{{end}}</table>
<h2>Memory</h2>
<table>
<tr><th>Account<th>Used<th>Peak<th>Limit<th>Leases<th>Waiting<th>Refused
<tr><td>all<td class="n">{{size .Status.Memory.Used}}<td><td class="n">{{size .Status.Memory.Budget}}<td class="n">{{.Leases}}<td class="n">{{.Status.Memory.Waiting}}<td class="n">{{.Refused}}
{{range .Status.Memory.Accounts}}<tr><td>{{.Name}}<td class="n">{{size .Used}}<td class="n">{{size .Peak}}<td class="n">{{size .Limit}}<td class="n">{{.Leases}}<td class="n">{{.Waiting}}<td class="n">{{.Refused}}
{{end}}</table>
<p><a href="metrics">metrics</a> <a href="livez">livez</a> <a href="readyz">readyz</a></p>
`))

// statusData is the data of statusPage.
type statusData struct {
	Build    build
	NotReady error // nil if the bridge is ready
	Status   status.Document
	Leases   int    // of all accounts
	Refused  uint64 // leases that failed, of all accounts
}

// page writes the status page.
func (a *admin) page(w http.ResponseWriter, _ *http.Request) {
	data := statusData{Build: buildInfo(), NotReady: a.source.ready(), Status: a.source.status(status.Query{Connections: true})}
	for _, account := range data.Status.Memory.Accounts {
		data.Leases += account.Leases
		data.Refused += account.Refused
	}
	var b bytes.Buffer
	err := statusPage.Execute(&b, data)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = b.WriteTo(w) // an error means that the browser has disconnected
}
