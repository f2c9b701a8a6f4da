//go:build !noazure

package main

import _ "github.com/btrlog/btrlog/objstore/azure" // az:// for nodes and for clients that are given the store
