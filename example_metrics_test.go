package btrlog_test

import (
	"context"
	"log"
	"net/http"

	"github.com/btrlog/btrlog"
	"github.com/btrlog/btrlog/metrics"
)

// A program without a metrics library serves the client's metrics itself, in the text format that Prometheus scrapes.
func ExampleClient_Metrics() {
	client, err := btrlog.Connect(context.Background(), btrlog.Config{StoreURL: "file:///var/lib/btrlog/store"})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	http.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", metrics.ContentType)
		_ = metrics.Write(w, client.Metrics()) // the asker is gone
	})
	log.Fatal(http.ListenAndServe("127.0.0.1:9090", nil))
}
