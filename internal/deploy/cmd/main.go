// Command cmd writes the dashboard of deploy/.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/kvlease/kvlease/internal/deploy"
	"github.com/kvlease/kvlease/internal/output"
)

func main() {
	out := flag.String("o", "dashboard.json", "file to write")
	flag.Parse()
	data, err := deploy.Dashboard()
	if err == nil {
		err = output.WriteFile(*out, "name another file by -o", data)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
