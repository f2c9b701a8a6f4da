module github.com/btrlog/btrlog/compress/zstd

go 1.25.0

replace github.com/btrlog/btrlog => ../..

require (
	github.com/btrlog/btrlog v0.0.0-00010101000000-000000000000
	github.com/klauspost/compress v1.20.4
)
