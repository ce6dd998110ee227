package cnixl

import (
	"regexp"
	"testing"
)

func TestTheCopyOfUCXInThisProcessIsKnown(t *testing.T) {
	a := realNIXL(t, Config{Agent: "ucx"})
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	got := MappedUCX()
	if len(got) != 1 || !regexp.MustCompile(`^[0-9]+\.[0-9]+\.[0-9]+`).MatchString(got[0].Version) || !IsUCX(got[0].File) {
		t.Errorf("%+v, want one copy with its version", got)
	}
}

func TestLibrariesAreKnownByTheirNames(t *testing.T) {
	for file, want := range map[string][2]bool{
		"/opt/ucx/lib/libucp.so.0":                          {true, false},
		"/w/nixl_cu12.libs/libucp-b39b3ed9.so.0.0.0":        {true, false},
		"/w/nixl_cu12.libs/libucs-14c218c5.so.0.0.0":        {},
		"/w/.nixl_cu12.mesonpy.libs/libnixl.so":             {false, true},
		"/w/.nixl_cu12.mesonpy.libs/libnixl_capi.so":        {},
		"/w/.nixl_cu12.mesonpy.libs/libnixl_build.so":       {},
		"/w/nixl_cu12.libs/libucp_set.so.1":                 {},
		"/w/.nixl_cu12.mesonpy.libs/libucp-b39b3ed9.policy": {},
	} {
		if got := [2]bool{IsUCX(file), IsNIXL(file)}; got != want {
			t.Errorf("%s: UCX, NIXL are %v, want %v", file, got, want)
		}
	}
}
