package logsink

import (
	"fmt"
	"io"
	"os"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"
)

// isJournald reports whether w is connected to the journal of systemd. The service manager says
// so in $JOURNAL_STREAM, by device and inode; a child whose standard error goes elsewhere has the
// variable too, so the file must be the one that it names. systemd.exec(5).
func isJournald(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return false
	}
	var stat unix.Stat_t
	var statErr error
	if err := raw.Control(func(fd uintptr) { statErr = unix.Fstat(int(fd), &stat) }); err != nil || statErr != nil {
		return false
	}
	return os.Getenv("JOURNAL_STREAM") == fmt.Sprintf("%d:%d", stat.Dev, stat.Ino)
}

// priority returns what a line of level l begins with for journald to know its priority:
// sd-daemon(3).
func priority(l zerolog.Level) string {
	switch l {
	case zerolog.TraceLevel, zerolog.DebugLevel:
		return "<7>"
	case zerolog.WarnLevel:
		return "<4>"
	case zerolog.ErrorLevel:
		return "<3>"
	case zerolog.FatalLevel, zerolog.PanicLevel:
		return "<2>"
	}
	return "<6>"
}
