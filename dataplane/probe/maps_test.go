package probe

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTheExecutablePartsOfFilesAreReadOneAFile(t *testing.T) {
	const text = `55d0c0a00000-55d0c0a01000 r--p 00000000 fe:00 123                        /usr/bin/x
55d0c0a01000-55d0c0a02000 r-xp 00001000 fe:00 123                        /usr/bin/x
55d0c0a03000-55d0c0a04000 r-xp 00003000 fe:00 123                        /usr/bin/x
7f0000000000-7f0000001000 r-xp 00000000 00:2a 9 /a b/lib (1).so (deleted)
7f0000002000-7f0000003000 r-xp 00000000 00:00 0
7f0000004000-7f0000005000 r-xp 00000000 00:00 0                          [vdso]
7f0000006000-7f0000007000 rw-p 00000000 00:01 77                         /memfd:x (deleted)
7f0000008000-7f0000009000 r-xp 00000000 00:2b 9 /a\012b.so
`
	got, err := parseMaps(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	want := []mapping{
		{start: 0x55d0c0a01000, end: 0x55d0c0a02000, offset: 0x1000, executable: true, dev: "fe:00", inode: 123, path: "/usr/bin/x"},
		{start: 0x7f0000000000, end: 0x7f0000001000, executable: true, dev: "00:2a", inode: 9, path: "/a b/lib (1).so", deleted: true},
		{start: 0x7f0000008000, end: 0x7f0000009000, executable: true, dev: "00:2b", inode: 9, path: "/a\nb.so"},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(mapping{})); diff != "" {
		t.Errorf("mappings (-want +got):\n%s", diff)
	}
}

func FuzzMapping(f *testing.F) {
	f.Add("55d0c0a00000-55d0c0a01000 r-xp 00000000 fe:00 123                        /usr/bin/x (deleted)")
	f.Add("a-b rwxp 0 0:0 0")
	f.Add("")
	f.Fuzz(func(t *testing.T, line string) {
		m, ok, err := parseMapping(line)
		if err != nil && (ok || !errors.Is(err, errMaps)) {
			t.Errorf("%+v, %v", m, err)
		}
		if ok && (m.end < m.start || m.inode == 0 || !strings.HasPrefix(m.path, "/")) {
			t.Errorf("%+v", m)
		}
	})
}
