// Command prog has nothing but the trace sites, for tests of how they survive linking.
package main

import _ "github.com/kvlease/kvlease/cmd/libkvlease/sites/hooks"

func main() {}
