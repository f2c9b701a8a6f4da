//go:build !btrlog_nosync

package vfs

// syncing is false only in the build that proves that the durability tests can fail: see sync_off.go.
const syncing = true
