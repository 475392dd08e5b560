package transport

import (
	"net"
	"syscall"
)

// quietConn reports whether an idle connection can take a request: it is open, and has sent nothing that no request asked for.
// It does not wait.
func quietConn(c net.Conn) bool {
	socket, ok := c.(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return false
	}
	quiet := false
	err = raw.Read(func(fd uintptr) bool {
		var one [1]byte
		_, _, err := syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK)
		quiet = err == syscall.EAGAIN
		return true
	})
	return err == nil && quiet
}
