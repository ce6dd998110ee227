package demo

import "testing"

// FuzzEstablished: whatever stands in a table of connections, nothing panics, and each connection found is of a socket that was asked for.
func FuzzEstablished(f *testing.F) {
	f.Add("  sl  local_address rem_address   st\n   0: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 77 1\n")
	f.Add("   0: 00000000000000000000000001000000:1F90 00000000000000000000000001000000:0001 01 0:0 0:0 0 0 0 77\n")
	f.Add("0: 0100007F 7F:1 01 a b c d e 77\n")
	f.Fuzz(func(t *testing.T, table string) {
		list := map[connection]bool{}
		if err := established(table, map[string]bool{"77": true}, list); err == nil {
			for c := range list {
				if !c.local.IsValid() || !c.remote.IsValid() {
					t.Fatalf("%v in %q", c, table)
				}
			}
		}
		if none := map[connection]bool{}; established(table, nil, none) == nil && len(none) != 0 {
			t.Fatalf("%v of no socket", none)
		}
	})
}
