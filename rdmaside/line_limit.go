package rdmaside

import "github.com/rdmabridge/rdmabridge/internal/loglimit"

// RequesterLines bound the log lines that Responders can cause, also by connecting again and again.
type RequesterLines struct {
	refused loglimit.Limit // invalid messages
	overdue loglimit.Limit // Calls that are not answered in time
}

// responderLines bound the log lines that Requesters can cause.
type responderLines struct {
	refused loglimit.Limit // invalid messages
	calls   loglimit.Limit // Calls that are refused
	stalled loglimit.Limit // too little progress
	bugs    loglimit.Limit
}
