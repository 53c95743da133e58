package control

import (
	"context"

	"github.com/rdmabridge/rdmabridge/internal/unixsocket"
)

// peerKey is the key of the unixsocket.Peer in the context of a request.
type peerKey struct{}

// PeerOf returns the process that sent the request with the context ctx.
func PeerOf(ctx context.Context) (p unixsocket.Peer, ok bool) {
	p, ok = ctx.Value(peerKey{}).(unixsocket.Peer)
	return p, ok
}
