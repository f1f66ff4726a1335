package devcluster

import "syscall"

// attributes of a process: the kernel kills it when this one is gone, however
// it went. It has a group of its own, so that ^C in a terminal reaches this
// process alone, which ends the others in order.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
