package cuda

import (
	"encoding/hex"
	"fmt"
	"unsafe"
)

// envTouch: own or shared: which device memory the process touches from the host, after it has shown that the API reaches it.
const (
	envTouch  = "KVLEASE_TEST_TOUCH"
	envHandle = "KVLEASE_TEST_TOUCH_HANDLE"
)

func actTouch(lib, kind string) error {
	d, err := Open(lib)
	if err != nil {
		return err
	}
	c, err := d.Make(0)
	if err != nil {
		return err
	}
	addr, err := c.Alloc(4096)
	if kind == "shared" {
		var h Shared
		if _, err := hex.Decode(h[:], []byte(getenv(envHandle))); err != nil {
			return err
		}
		addr, err = c.OpenShared(h)
	}
	if err != nil {
		return err
	}
	if err := c.CopyOut(make([]byte, 16), addr); err != nil {
		return err
	}
	fmt.Printf("touching %#x\n", addr)
	fmt.Println(**(**byte)(unsafe.Pointer(&addr)))
	return nil
}
