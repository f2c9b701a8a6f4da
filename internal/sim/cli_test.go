package sim

import (
	"os"
	"strings"
	"testing"
)

func TestCLI(t *testing.T) {
	Main(strings.Fields(os.Getenv("ARGS")), os.Stdout, os.Stderr)
}
