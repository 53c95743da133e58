package testkit

import (
	"strings"
	"sync"
)

// A Log keeps what several goroutines write. The zero Log is empty.
type Log struct {
	mu   sync.Mutex // guards text; a leaf
	text strings.Builder
}

// Write is part of io.Writer.
func (l *Log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// String returns all that was written.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
