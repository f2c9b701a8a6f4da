// Package acktrace holds a test only: it runs a real log node under ptrace and checks, system call by system call, that every
// acknowledgement that leaves the node's socket follows the completed synced write of the records it names. The same check
// must fail for a build that leaves the sync out (tag btrlog_nosync), or it proves nothing.
package acktrace
