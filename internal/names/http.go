package names

import (
	"encoding/json"
	"net/http"
	"strconv"
)

// Path is where the control socket serves the names.
const Path = "/api/v1/names"

// most rows of a table that are served.
const mostRows = 1000

// Serve answers with the JSON of a [status.Names]. The query has minutes, rows and export. w is nil if names are off.
func Serve(rw http.ResponseWriter, r *http.Request, w *Watch) {
	if w == nil {
		http.Error(rw, "the bridge learns no names: set names.mode to on", http.StatusConflict)
		return
	}
	q := Query{Minutes: 1, Rows: 100, Export: r.URL.Query().Get("export")}
	for _, p := range []struct {
		name string
		most int
		to   *int
	}{{"minutes", MostMinutes, &q.Minutes}, {"rows", mostRows, &q.Rows}} {
		text := r.URL.Query().Get(p.name)
		if text == "" {
			continue
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > p.most {
			http.Error(rw, p.name+" is a number from 1 to "+strconv.Itoa(p.most), http.StatusBadRequest)
			return
		}
		*p.to = n
	}
	n := w.Names(q)
	if n == nil {
		http.Error(rw, "the bridge has just stopped learning names", http.StatusServiceUnavailable)
		return
	}
	rw.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(rw).Encode(n) // the reader has gone
}
