//go:build !nogcs

package main

import _ "github.com/btrlog/btrlog/objstore/gcs" // gs:// for nodes and for clients that are given the store
