module github.com/btrlog/btrlog

go 1.25.0
