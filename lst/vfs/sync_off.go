//go:build btrlog_nosync

package vfs

// syncing is false: this build leaves O_DSYNC and fdatasync out, so that internal/acktrace can show that its check fails
// without them. It loses acknowledged data with the power; never run it for anything else.
const syncing = false
