package tap

import (
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Path is where the control socket serves captures. The query has the parameters that [ParseOptions]
// reads. The answer is pcapng, as it comes. It ends when the capture ends by itself, or after the client
// has closed its half of the connection.
const Path = "/api/v1/capture"

// ContentType is that of pcapng.
const ContentType = "application/x-pcapng"

// SummaryTrailer is the HTTP trailer with the text of the [Summary].
const SummaryTrailer = "Rdmabridge-Capture"

func (s Summary) String() string {
	t := fmt.Sprintf("%d calls, %d messages", s.Calls, s.Messages)
	if s.Dropped > 0 {
		t += fmt.Sprintf("; %d messages are missing, because they came faster than they were written: a filter, a shorter --snaplen or a larger --buffer may help", s.Dropped)
	}
	if s.Unknown > 0 {
		t += fmt.Sprintf("; %d calls are left out, because the bridge does not know the paths or exports of their files", s.Unknown)
	}
	return t
}

// ServeHTTP streams a capture.
func (h *Hub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o, err := ParseOptions(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	rc := http.NewResponseController(w)
	// The capture takes as long as it takes. A deadline for reading would end it, too.
	_ = rc.SetReadDeadline(time.Time{})
	_ = rc.SetWriteDeadline(time.Time{})
	w.Header().Set("Content-Type", ContentType)
	w.Header().Set("Trailer", SummaryTrailer)
	s, err := h.Capture(r.Context(), o, w, rc.Flush)
	switch {
	case errors.Is(err, ErrBusy):
		w.Header().Del("Trailer")
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	case errors.Is(err, ErrNoNames):
		w.Header().Del("Trailer")
		http.Error(w, err.Error(), http.StatusConflict)
	case err != nil:
		panic(http.ErrAbortHandler) // the answer is not whole, and its reader is to know
	default:
		w.Header().Set(SummaryTrailer, s.String())
	}
}
