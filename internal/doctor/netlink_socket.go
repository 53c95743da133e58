package doctor

import (
	"encoding/binary"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// netlinkWait bounds how long the kernel may take for an answer.
const netlinkWait = 5 // seconds

// kernelInventory asks the kernel's RDMA netlink. The kernel answers every user.
func kernelInventory() (*Inventory, error) {
	fd, err := netlinkSocket()
	if err != nil {
		return nil, fmt.Errorf("RDMA netlink: %w", err)
	}
	defer unix.Close(fd)
	v, err := takeInventory(func(request []byte) ([]byte, error) { return askNetlink(fd, request) })
	if err != nil {
		return nil, fmt.Errorf("RDMA netlink: %w", err)
	}
	return v, nil
}

func netlinkSocket() (fd int, err error) {
	if fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_RDMA); err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: netlinkWait})
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// askNetlink is the asker of a socket.
func askNetlink(fd int, request []byte) ([]byte, error) {
	if err := unix.Sendto(fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, os.NewSyscallError("sendto", err)
	}
	dump := binary.NativeEndian.Uint16(request[6:])&nlDumpFlag != 0 // otherwise the answer is one message
	var answer []byte
	buf := make([]byte, 64<<10)
	for len(answer) < maxNetlink {
		n, from, err := unix.Recvfrom(fd, buf, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, os.NewSyscallError("recvfrom", err)
		}
		if a, ok := from.(*unix.SockaddrNetlink); !ok || a.Pid != 0 {
			continue // not from the kernel
		}
		answer = append(answer, buf[:n]...)
		if done, err := nlMessages(buf[:n], func(uint16, []byte) {}); done || !dump || err != nil {
			return answer, err
		}
	}
	return nil, errNetlink
}
