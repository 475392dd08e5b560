// Command picker picks an endpoint for each inference request, and serves the requests as a reverse proxy.
//
// It reads its configuration from the API objects of a cluster (--pool NAMESPACE/NAME) or of a directory (--standalone DIR)
// and follows changes to them; see docs/operations.md and docs/standalone.md.
package main

import (
	"fmt"
	"os"

	_ "golang.org/x/crypto/x509roots/fallback" // authorities, in images that have no file of them

	"github.com/kvasir-dev/kvasir/internal/coredump"
	"github.com/kvasir-dev/kvasir/internal/server"
)

func main() {
	if err := coredump.Forbid(); err != nil { // a sandbox can refuse it, and the picker serves all the same
		fmt.Fprintln(os.Stderr, "picker:", err)
	}
	os.Exit(server.Main(os.Args[1:], os.Stdout, os.Stderr))
}
