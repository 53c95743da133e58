package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/unixsocket"
)

// MaxAnswer is the longest answer that is read as a whole.
const MaxAnswer = 64 << 20

// answerTimeout bounds how long a bridge may take to begin an answer.
const answerTimeout = 30 * time.Second

// A Client asks one bridge. It is safe for concurrent use.
type Client struct {
	path string
	http *http.Client
}

// NewClient makes a Client of the bridge whose socket is at path. It does not connect yet.
func NewClient(path string) *Client {
	return &Client{path: path, http: &http.Client{
		Transport: &http.Transport{
			DialContext:           func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, path) },
			ResponseHeaderTimeout: answerTimeout,
			MaxIdleConns:          2,
			DisableCompression:    true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Path is the path of the bridge's socket.
func (c *Client) Path() string { return c.path }

// Close ends the connections that no request uses.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// An UnreachableError says that no bridge answers at a path, and what to do.
type UnreachableError struct {
	Path string
	Text string

	absent bool // there is no socket
}

func (e *UnreachableError) Error() string { return e.Text }

// isSocket reports whether path is a socket.
func isSocket(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().Type() == os.ModeSocket
}

// dial connects to the socket at path. It refuses a socket that another user has put there.
func dial(ctx context.Context, path string) (*net.UnixConn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	unreachable := func(format string, args ...any) error {
		return &UnreachableError{Path: path, Text: fmt.Sprintf(format, args...)}
	}
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, &UnreachableError{Path: path, Text: nobody(path), absent: true}
	case errors.Is(err, syscall.ECONNREFUSED) && !isSocket(path):
		return nil, unreachable("%s is no socket: name the one that the bridge listens at, such as /run/rdmabridge/control.sock", path)
	case errors.Is(err, syscall.ECONNREFUSED):
		return nil, unreachable("no process listens at %s any more: the bridge that made it has ended", path)
	case errors.Is(err, os.ErrPermission):
		return nil, unreachable("%s belongs to another user: run this command as root (sudo) or as the user of the bridge", path)
	case err != nil && ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		return nil, unreachable("cannot connect to %s: %v", path, err)
	}
	uc := c.(*net.UnixConn)
	peer, err := unixsocket.PeerOf(uc)
	// Root looks after the bridges of all users.
	if err != nil || !peer.Trusted() && os.Geteuid() != 0 {
		c.Close()
		return nil, unreachable("a process of user %d listens at %s, and that is neither you nor root: what it says is not trusted", peer.UID, path)
	}
	return uc, nil
}

// nobody says that no bridge listens at one of places.
func nobody(places ...string) string {
	return fmt.Sprintf("no bridge listens at %s: start one with rdmabridge serve, or name the socket of one that runs (--socket PATH, or -c with its configuration file)",
		strings.Join(places, " or "))
}

// Do sends a request and returns the answer, whose body the caller closes. It returns an error unless
// the status is 2xx.
func (c *Client) Do(ctx context.Context, method, target string, body io.Reader) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, "http://bridge"+target, body)
	if err != nil {
		return nil, err
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	answer, err := c.http.Do(r)
	if err != nil {
		var u *UnreachableError
		switch {
		case errors.As(err, &u):
			return nil, u
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case strings.Contains(err.Error(), "malformed HTTP"):
			return nil, &UnreachableError{Path: c.path, Text: c.path + " is not the control socket of a bridge: its process does not speak HTTP"}
		}
		return nil, &UnreachableError{Path: c.path, Text: fmt.Sprintf("the bridge at %s does not answer: %v", c.path, errors.Unwrap(err))}
	}
	if answer.StatusCode/100 == 2 && answer.Header.Get(pidHeader) != "" {
		return answer, nil
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(answer.Body, 4096))
	switch {
	case answer.Header.Get(pidHeader) == "":
		return nil, &UnreachableError{Path: c.path, Text: c.path + " is not the control socket of a bridge: another HTTP server answers there"}
	case answer.StatusCode == http.StatusNotFound && !strings.HasPrefix(answer.Header.Get("Content-Type"), "application/json"):
		name, _, _ := strings.Cut(target, "?")
		return nil, fmt.Errorf("the bridge at %s has no %s: it is of another version than this command", c.path, name)
	}
	return nil, &AnswerError{Status: answer.StatusCode, Text: errorText(text, answer.Status)}
}

// An AnswerError is an answer of a bridge that says why it did not do what was asked.
type AnswerError struct {
	Status int // of HTTP
	Text   string
}

func (e *AnswerError) Error() string { return e.Text }

// errorText returns what the body of an answer says, which is text or JSON with a member error.
func errorText(body []byte, status string) string {
	var m struct {
		Error string `json:"error"`
	}
	if json.Unmarshal(body, &m) == nil && m.Error != "" {
		return m.Error
	}
	if s := strings.TrimSpace(string(body)); s != "" {
		return s
	}
	return status
}

// Get reads the JSON at target into v.
func (c *Client) Get(ctx context.Context, target string, v any) error {
	return c.exchange(ctx, http.MethodGet, target, nil, v)
}

// Post sends the JSON of body to target and reads the answer into v.
func (c *Client) Post(ctx context.Context, target string, body, v any) error {
	b, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return c.exchange(ctx, http.MethodPost, target, bytes.NewReader(b), v)
}

func (c *Client) exchange(ctx context.Context, method, target string, body io.Reader, v any) error {
	answer, err := c.Do(ctx, method, target, body)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if err := json.NewDecoder(io.LimitReader(answer.Body, MaxAnswer)).Decode(v); err != nil {
		return fmt.Errorf("the answer of the bridge at %s: %w", c.path, err)
	}
	return nil
}
