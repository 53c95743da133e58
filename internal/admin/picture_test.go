package admin

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit/browser"
)

// TestPictures writes pictures of the page to the directory of RDMABRIDGE_PICTURES, for people to look
// at. docs/images has some of them.
func TestPictures(t *testing.T) {
	dir := os.Getenv("RDMABRIDGE_PICTURES")
	if dir == "" {
		t.Skip("RDMABRIDGE_PICTURES names no directory for pictures")
	}
	b := browser.Start(t)
	wide, phone := browser.Look{Width: 1280, Height: 1500}, browser.Look{Width: 390, Height: 1500, Phone: true}
	for _, tt := range []struct {
		name string
		f    fixture
		look browser.Look
		dark bool
		js   string
	}{
		{"light", fixture{upstream: 64, clients: 300}, wide, false, ""},
		{"dark", fixture{upstream: 64, clients: 300}, wide, true, ""},
		{"phone", fixture{upstream: 64, clients: 300}, phone, false, ""},
		{"phone-dark-clients", fixture{upstream: 64, clients: 300}, phone, true, "document.getElementById('clients').scrollIntoView({behavior:'instant'})"},
		{"phone-operations", fixture{upstream: 64, clients: 300}, phone, false, "document.getElementById('operations').scrollIntoView({behavior:'instant'})"},
		{"connections", fixture{upstream: 64, clients: 300}, wide, false, "document.querySelector('#upstreams .upstream:last-child details').open=true; document.getElementById('upstreams').scrollIntoView({behavior:'instant'})"},
		{"clients", fixture{upstream: 64, clients: 300}, wide, false, "document.getElementById('clients').scrollIntoView({behavior:'instant'})"},
		{"operations", fixture{upstream: 64, clients: 300}, wide, true, "document.getElementById('operations').scrollIntoView({behavior:'instant'})"},
		{"empty", fixture{empty: true}, wide, false, ""},
		{"broken", fixture{upstream: 64, clients: 300, trouble: true}, wide, false, ""},
		{"broken-phone", fixture{upstream: 64, clients: 300, trouble: true}, phone, true, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.f.began = time.Now()
			s := serveFixture(t, &tt.f)
			tt.look.Dark = tt.dark
			p := b.Open(t, s.URL, tt.look)
			p.Until("the second document is shown", "document.querySelector('#overview') && performance.getEntriesByType('resource').filter(e => e.name.includes('api/v1/status')).length > 2")
			if tt.js != "" {
				p.Do(tt.js)
				p.Until("another document is shown", "performance.getEntriesByType('resource').filter(e => e.name.includes('api/v1/status')).length > 4")
			}
			p.Shoot(filepath.Join(dir, tt.name+".png"))
			if e := p.Errors(); len(e) > 0 {
				t.Errorf("%s: %q", tt.name, e)
			}
		})
	}
}
