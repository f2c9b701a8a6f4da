// Package e2e holds tests only: real node processes, and a proxy in front of the object store that counts every request from
// outside, so that what the documents say of requests is not taken from the program's own counters.
package e2e
