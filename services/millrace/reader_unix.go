//go:build unix

package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// readerGone reports whether nobody can read any more what is written to a
// pipe or a socket. Of other files it is not known.
func readerGone(f *os.File) bool {
	fds := []unix.PollFd{{Fd: int32(f.Fd())}} // errors are reported unasked
	n, err := unix.Poll(fds, 0)
	return err == nil && n == 1 && fds[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0
}
