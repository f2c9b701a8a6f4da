//go:build !race

package btrlog_test

const raceDetector = false
