// Package kernel says which kernel this is.
package kernel

import "golang.org/x/sys/unix"

// Release is the kernel's, as uname -r prints it: 6.8.0-45-generic. It cannot fail: uname(2) knows no error but a bad address.
func Release() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		panic(err)
	}
	return unix.ByteSliceToString(u.Release[:])
}
