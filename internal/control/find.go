package control

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/rdmabridge/rdmabridge/internal/unixsocket"
)

// Find returns the path of the socket of the one bridge that runs on this host and that this user may
// ask, if its file does not say where it listens. It may be that of a demo, if demo is set. It returns an *UnreachableError if there is none, and
// another error if there are several.
func Find(ctx context.Context, demo bool) (string, error) {
	all := places()
	if path := DemoPath(); demo && path != "" {
		all = append(all, path)
	}
	return find(ctx, all)
}

func find(ctx context.Context, places []string) (string, error) {
	type bridge struct {
		path string
		pid  int
	}
	var found []bridge
	var denied *UnreachableError
	for _, path := range places {
		c, err := dial(ctx, path)
		if err != nil {
			var u *UnreachableError
			if errors.As(err, &u) && !u.absent && denied == nil {
				denied = u
			}
			continue
		}
		peer, _ := unixsocket.PeerOf(c) // dial has asked, too
		c.Close()
		found = append(found, bridge{path, peer.PID})
	}
	switch {
	case len(found) == 1:
		return found[0].path, nil
	case len(found) > 1:
		var all []string
		for _, b := range found {
			all = append(all, fmt.Sprintf("%s (process %d)", b.path, b.pid))
		}
		return "", fmt.Errorf("several bridges run on this host: %s; choose one with --socket PATH", strings.Join(all, ", "))
	case denied != nil:
		return "", denied
	}
	return "", &UnreachableError{Text: nobody(places...), absent: true}
}
