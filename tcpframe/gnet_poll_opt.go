//go:build poll_opt

package tcpframe

import "errors"

// With this tag gnet keeps Go pointers as epoll data. This package registers descriptor
// numbers, which gnet would then dereference.
func init() {
	unsupported = errors.New("tcpframe: this build has gnet's tag poll_opt, with which connections cannot be paused; build without it")
}
