//go:build nogcs

package main

func init() { leftOut["gs"] = "nogcs" }
