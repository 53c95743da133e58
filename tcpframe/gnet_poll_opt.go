//go:build poll_opt

package tcpframe

import "errors"

// With this tag gnet keeps Go pointers as epoll data, where we would put a
// descriptor number for it to follow.
func init() {
	unsupported = errors.New("tcpframe: built with gnet's tag poll_opt, which its event loops cannot be paused with")
}
