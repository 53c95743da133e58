package admin

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/rdmabridge/rdmabridge/internal/status"
)

// maxFilter bounds the filter of clients, in octets.
const maxFilter = 200

// A resource is a path below /api/v1/.
type resource struct {
	name   string
	choose func(*status.Document) any
	params []string // of the query; all are optional
}

// The parameters of queries.
const (
	paramSort        = "sort"        // of status.Sorts
	paramFilter      = "filter"      // text or network
	paramLimit       = "limit"       // most clients, or all; -1 is all, too, and 0 the default
	paramClients     = "clients"     // the same, where there is more than clients
	paramConnections = "connections" // true or false
)

// resources are what the API has. Each is a member of the document, or the whole.
var resources = []resource{
	{"status", func(d *status.Document) any { return d }, []string{paramClients, paramSort, paramFilter, paramConnections}},
	{"problems", func(d *status.Document) any { return d.Problems }, nil},
	{"listeners", func(d *status.Document) any { return d.Listeners }, nil},
	{"upstreams", func(d *status.Document) any { return d.Upstreams }, []string{paramConnections}},
	{"tenants", func(d *status.Document) any { return d.Tenants }, nil},
	{"locks", func(d *status.Document) any { return d.Locks }, nil},
	{"clients", func(d *status.Document) any { return d.Clients }, []string{paramSort, paramFilter, paramLimit}},
	{"operations", func(d *status.Document) any { return d.Operations }, nil},
	{"memory", func(d *status.Document) any { return d.Memory }, nil},
	{"events", func(d *status.Document) any { return d.Events }, nil},
	{"history", func(d *status.Document) any { return d.History }, nil},
}

func (h *Handler) handleAPI() {
	for _, res := range resources {
		h.mux.Handle("/api/v1/"+res.name, readOnly(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.serve(w, r, res) })))
	}
}

// serve answers a request for res.
func (h *Handler) serve(w http.ResponseWriter, r *http.Request, res resource) {
	q, wrong := parseQuery(r.URL.RawQuery, res.params)
	if wrong != "" {
		fail(w, http.StatusBadRequest, wrong)
		return
	}
	if res.name == "upstreams" && !r.URL.Query().Has(paramConnections) {
		q.Connections = true
	}
	d := h.documents.get(q)
	if d == nil {
		w.Header().Set("Retry-After", "1")
		fail(w, http.StatusTooManyRequests, "Too many different queries in a second. Try again in a second, or ask with the same query as others.")
		return
	}
	b, err := d.encode(res.name, res.choose)
	if err != nil {
		fail(w, http.StatusInternalServerError, err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Vary", "Accept-Encoding")
	text := b.plain
	if b.gzipped != nil && acceptsGzip(r) {
		w.Header().Set("Content-Encoding", "gzip")
		text = b.gzipped
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	_, _ = w.Write(text) // an error means that the client has disconnected
}

// acceptsGzip reports whether the client of r reads gzip.
func acceptsGzip(r *http.Request) bool {
	for _, line := range r.Header.Values("Accept-Encoding") {
		for part := range strings.SplitSeq(line, ",") {
			coding, weight, weighted := strings.Cut(part, ";")
			if strings.TrimSpace(coding) != "gzip" {
				continue
			}
			if !weighted {
				return true
			}
			_, value, _ := strings.Cut(weight, "=")
			q, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			return err != nil || q > 0
		}
	}
	return false
}

// parseQuery reads the query of a request that may have the parameters known. If it cannot, wrong says why.
func parseQuery(raw string, known []string) (q status.Query, wrong string) {
	values, err := url.ParseQuery(raw)
	if err != nil {
		return q, fmt.Sprintf("The query cannot be read: %v.", err)
	}
	for name, v := range values {
		switch {
		case !slices.Contains(known, name) && len(known) == 0:
			return q, fmt.Sprintf("This path takes no parameter %s.", quote(name))
		case !slices.Contains(known, name):
			return q, fmt.Sprintf("This path takes no parameter %s; it takes %s.", quote(name), strings.Join(known, ", "))
		case len(v) > 1:
			return q, fmt.Sprintf("The parameter %s is given %d times.", name, len(v))
		}
		if wrong := setParam(&q, name, v[0]); wrong != "" {
			return q, wrong
		}
	}
	return q, ""
}

// setParam puts one parameter into q. It returns what is wrong with it.
func setParam(q *status.Query, name, value string) (wrong string) {
	switch name {
	case paramSort:
		if value != "" && !slices.Contains(status.Sorts, value) {
			return fmt.Sprintf("sort=%s is not known; use one of %s.", quote(value), strings.Join(status.Sorts, ", "))
		}
		q.Sort = value
	case paramFilter:
		if len(value) > maxFilter || !utf8.ValidString(value) {
			return fmt.Sprintf("filter is at most %d octets of UTF-8.", maxFilter)
		}
		q.Filter = value
	case paramLimit, paramClients:
		n, err := strconv.Atoi(value)
		switch {
		case value == "all" || n == -1:
			q.Clients = status.MostClients
		case err != nil || n < 0 || n > status.MostClients:
			return fmt.Sprintf("%s=%s is not allowed; use a number up to %d, or all.", name, quote(value), status.MostClients)
		default:
			q.Clients = n
		}
	case paramConnections:
		b, err := strconv.ParseBool(value)
		if err != nil {
			return fmt.Sprintf("connections=%s is not allowed; use true or false.", quote(value))
		}
		q.Connections = b
	}
	return ""
}

// quote shows what a client sent, shortened.
func quote(s string) string {
	if len(s) > 40 {
		return strconv.QuoteToASCII(s[:40]) + "..."
	}
	return strconv.QuoteToASCII(s)
}
