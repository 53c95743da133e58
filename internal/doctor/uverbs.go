package doctor

import (
	"encoding/binary"
	"fmt"
	"os"
	"path"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The commands of the uverbs interface: enum ib_uverbs_write_cmds.
const (
	uverbsGetContext  = 0
	uverbsQueryDevice = 1
	uverbsQueryPort   = 2
)

// filesDir has the files through which programs use RDMA devices.
const filesDir = "/dev/infiniband"

// deviceLimits asks the driver of a device for its limits, through the file below /dev/infiniband.
// That takes a context, as every program needs that uses the device. Some drivers give one only to
// their own library: the error is then EINVAL.
func deviceLimits(file string) (*Limits, error) {
	return withContext(file, func(uint32, []byte, []byte, error) {})
}

// withContext is deviceLimits, and shows each command and its answer to seen.
func withContext(file string, seen func(command uint32, rest, answer []byte, err error)) (*Limits, error) {
	if file == "" || file != path.Base(file) {
		return nil, fmt.Errorf("there is no file below %s", filesDir)
	}
	// The file is not for reading, and an open file of the os package would be polled.
	fd, err := unix.Open(path.Join(filesDir, file), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path.Join(filesDir, file), Err: err}
	}
	defer unix.Close(fd)
	ask := func(command uint32, rest, answer []byte) error {
		err := uverbs(fd, command, rest, answer)
		seen(command, rest, answer, err)
		return err
	}
	return queryLimits(ask, func(fd int) { _ = unix.Close(fd) })
}

// A commander sends a command of the uverbs interface and stores the kernel's answer in answer.
type commander func(command uint32, rest, answer []byte) error

// queryLimits makes a context and asks for the limits of the device and of its ports. It gives the
// context's descriptor to closing.
func queryLimits(ask commander, closing func(fd int)) (*Limits, error) {
	// The answer starts with the descriptor for asynchronous events; the driver's data follow.
	answer := make([]byte, 128)
	if err := ask(uverbsGetContext, nil, answer); err != nil {
		return nil, err
	}
	defer closing(int(int32(binary.NativeEndian.Uint32(answer))))
	answer = make([]byte, queryDeviceLen)
	if err := ask(uverbsQueryDevice, nil, answer); err != nil {
		return nil, err
	}
	l, ports, err := parseQueryDevice(answer)
	if err != nil {
		return nil, err
	}
	for n := 1; n <= min(ports, maxPorts); n++ {
		answer = make([]byte, queryPortLen)
		if err := ask(uverbsQueryPort, []byte{byte(n), 0, 0, 0, 0, 0, 0, 0}, answer); err != nil {
			return nil, err
		}
		p, err := parseQueryPort(n, answer)
		if err != nil {
			return nil, err
		}
		l.ports = append(l.ports, p)
	}
	return &l, nil
}

// uverbs writes a command, and waits for its answer, which the kernel stores in answer:
//
//	u32 command, u16 length in words, u16 length of the answer in words, u64 address of the answer, rest
func uverbs(fd int, command uint32, rest, answer []byte) error {
	// The answer's address is in the message as a number, so its memory may not move: on the
	// stack it might.
	var pin runtime.Pinner
	pin.Pin(&answer[0])
	defer pin.Unpin()
	n := 16 + len(rest)
	b := binary.NativeEndian.AppendUint32(make([]byte, 0, n), command)
	b = binary.NativeEndian.AppendUint16(b, uint16(n/4))
	b = binary.NativeEndian.AppendUint16(b, uint16(len(answer)/4))
	b = binary.NativeEndian.AppendUint64(b, uint64(uintptr(unsafe.Pointer(&answer[0]))))
	if _, err := unix.Write(fd, append(b, rest...)); err != nil {
		return fmt.Errorf("uverbs command %d: %w", command, os.NewSyscallError("write", err))
	}
	return nil
}
