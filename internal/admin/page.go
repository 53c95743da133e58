package admin

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
)

//go:embed page/page.html page/page.css page/page.js
var pageFiles embed.FS

// thePage is the status page: one HTML document that loads nothing but the JSON of this server.
var thePage = assemblePage()

// A page is a document and what a browser may do with it.
type page struct {
	plain, gzipped []byte
	policy         string // Content-Security-Policy
}

// assemblePage puts the style and the script into the document. The policy names both by their hash,
// so that a browser runs no other script, and forbids to make a document of a string (Trusted Types):
// names of clients and errors come from the network.
func assemblePage() page {
	read := func(name string) string {
		b, err := pageFiles.ReadFile("page/" + name)
		if err != nil {
			panic("BUG: admin: " + err.Error())
		}
		return string(b)
	}
	style, script := read("page.css"), read("page.js")
	text := strings.NewReplacer("/*style*/", style, "/*script*/", script).Replace(read("page.html"))
	hash := func(s string) string {
		sum := sha256.Sum256([]byte(s))
		return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
	}
	var z bytes.Buffer
	zw := gzip.NewWriter(&z)
	_, _ = zw.Write([]byte(text))
	_ = zw.Close()
	return page{plain: []byte(text), gzipped: z.Bytes(), policy: strings.Join([]string{
		"default-src 'none'", "script-src " + hash(script), "style-src " + hash(style), "connect-src 'self'", "img-src data:",
		"base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'", "require-trusted-types-for 'script'", "trusted-types 'none'",
	}, "; ")}
}

// servePage writes the status page.
func servePage(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Content-Type", "text/html; charset=utf-8")
	header.Set("Content-Security-Policy", thePage.policy)
	header.Set("Vary", "Accept-Encoding")
	text := thePage.plain
	if acceptsGzip(r) {
		header.Set("Content-Encoding", "gzip")
		text = thePage.gzipped
	}
	header.Set("Content-Length", strconv.Itoa(len(text)))
	_, _ = w.Write(text) // an error means that the browser has disconnected
}
