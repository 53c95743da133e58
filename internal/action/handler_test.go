package action

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/status"
)

// busyProxy has one client with two Calls.
type busyProxy struct{ Proxy }

func (busyProxy) Status(status.Query) status.Document {
	return status.Document{Listeners: []status.Listener{{Clients: 1, InFlight: 2}}}
}

// TestDrain: a drain says what it waits for, and one that is not possible is the fault of who asks.
func TestDrain(t *testing.T) {
	var cannot error
	mux := http.NewServeMux()
	h := &Handler{Proxy: busyProxy{}, Log: zerolog.Nop(), Drain: func() (time.Duration, error) { return time.Minute, cannot }}
	h.Register(mux.Handle)
	for _, want := range []struct {
		cannot error
		status int
		text   string
	}{
		{nil, http.StatusOK, "answers the 2 Calls of 1 client, and ends, in 1m0s at the latest"},
		{errors.New("it drains already"), http.StatusBadRequest, `{"error":"it drains already"}`},
	} {
		cannot = want.cannot
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodPost, Path+"drain", strings.NewReader("{}")))
		if w.Code != want.status || !strings.Contains(w.Body.String(), want.text) {
			t.Errorf("%v: %d %s", want.cannot, w.Code, w.Body)
		}
	}
}
