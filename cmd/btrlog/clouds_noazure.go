//go:build noazure

package main

func init() { leftOut["az"] = "noazure" }
