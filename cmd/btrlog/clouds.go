package main

import _ "github.com/btrlog/btrlog/objstore/s3" // s3:// for nodes and for clients that are given the store

// cloud is an object store in somebody's cloud, as a user writes it.
type cloud struct {
	bucket string // what the store's parts are called there
	form   string // of its URL
}

// clouds are the schemes of the clouds. What more is wrong with a URL their backends say.
var clouds = map[string]cloud{
	"s3": {"bucket", "s3://bucket/prefix"},
	"gs": {"bucket", "gs://bucket/prefix"},
	"az": {"container", "az://container/prefix?account=name"},
}

// otherNames are schemes that people write because other programs do.
var otherNames = map[string]string{"gcs": "gs", "azure": "az", "azblob": "az", "abfs": "az", "abfss": "az", "s3a": "s3", "s3n": "s3"}

// leftOut are the schemes of backends that the program was built without, with the build tag that says so. The SDK of Google brings
// gRPC, which makes up half of the program.
var leftOut = map[string]string{}

// storeForms ends a message about a store's URL.
const storeForms = "a store is s3://bucket/prefix, gs://bucket/prefix or az://container/prefix, or a directory that all nodes share such as file:///var/lib/btrlog/store"
