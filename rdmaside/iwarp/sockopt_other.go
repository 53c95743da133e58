//go:build !linux

package iwarp

import "syscall"

func setUserTimeout(syscall.RawConn, int) error { return nil }

func portOfPeer(string, string, syscall.RawConn) error { return nil }

func waiting(syscall.RawConn) bool { return false }
