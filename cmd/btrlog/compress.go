package main

import _ "github.com/btrlog/btrlog/compress/zstd" // for nodes that compress what they archive, and for whoever reads it
