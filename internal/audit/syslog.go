package audit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// syslogTimeout bounds how long a connection to a syslog server, and the write of a line to it, may take.
const syslogTimeout = time.Second

// syslogHeader is what stands before each line: facility authpriv (10) and severity informational (6), version 1, time,
// host, program, process, message ID, no structured data. RFC 5424 Section 6.
const syslogHeader = "<86>1 %s %s rdmabridge %d AUDIT - "

// A syslog is an Output. A line is a datagram; over TCP, it has its length before it: RFC 6587 Section 3.4.1.
type syslog struct {
	network, address string
	host             string
	conn             net.Conn // nil for none yet, or after an error
	message          []byte
}

// OpenSyslog returns an Output that sends each line as a message of RFC 5424 to a server of syslog. The network is
// unixgram, udp or tcp. It connects when there is a line: a server that is away for now fails that line, and not a start.
func OpenSyslog(network, address string) Output {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "-"
	}
	return &syslog{network: network, address: address, host: host}
}

// Write is part of Output. It stops at the first line that cannot be sent. In the place of one that is too long for a
// datagram goes one that says so: it will never be shorter, and changes may wait for it.
func (s *syslog) Write(lines []byte) (written int, err error) {
	for line := range bytes.Lines(lines) {
		err := s.send(line)
		if errors.Is(err, unix.EMSGSIZE) {
			err = s.send(missingLine(nil, time.Now(), 1))
		}
		if err != nil {
			return written, fmt.Errorf("syslog at %s: %w", s.address, err)
		}
		written += len(line)
	}
	return written, nil
}

// send sends a line. If the connection turns out to be broken, send makes another: the server may have started anew.
func (s *syslog) send(line []byte) error {
	m := fmt.Appendf(s.message[:0], syslogHeader, time.Now().Format("2006-01-02T15:04:05.000000Z07:00"), s.host, os.Getpid())
	m = append(m, bytes.TrimSuffix(line, []byte{'\n'})...)
	if s.network == "tcp" {
		m = append(strconv.AppendInt(nil, int64(len(m)), 10), append([]byte{' '}, m...)...)
	}
	s.message = m
	if s.conn != nil {
		err := s.write(m)
		if err == nil || s.conn != nil || errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
	c, err := net.DialTimeout(s.network, s.address, syslogTimeout)
	if err != nil {
		return err
	}
	if s.conn = c; s.network == "tcp" {
		go func() { // a server sends nothing: what ends the read is that it has closed the connection
			_, _ = io.Copy(io.Discard, c)
			_ = c.Close()
		}()
	}
	return s.write(m)
}

// write writes a message to the connection, and closes it after an error: over TCP, the server may have a part of the
// message.
func (s *syslog) write(m []byte) error {
	_ = s.conn.SetWriteDeadline(time.Now().Add(syslogTimeout))
	_, err := s.conn.Write(m)
	if err != nil && !errors.Is(err, unix.EMSGSIZE) {
		_ = s.Close()
	}
	return err
}

// Reopen is part of Output. The next line makes a connection.
func (s *syslog) Reopen() error { return s.Close() }

// Close is part of Output.
func (s *syslog) Close() error {
	if s.conn == nil {
		return nil
	}
	c := s.conn
	s.conn = nil
	if err := c.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}
