module github.com/btrlog/btrlog/torture

go 1.25.0

replace github.com/btrlog/btrlog => ..

require (
	github.com/anishathalye/porcupine v1.3.1
	github.com/btrlog/btrlog v0.0.0-00010101000000-000000000000
	golang.org/x/sys v0.47.0
)
