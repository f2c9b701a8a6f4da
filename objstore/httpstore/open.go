package httpstore

import (
	"context"
	"net/url"

	"github.com/btrlog/btrlog/objstore"
)

// The schemes http and https of objstore.Open: any server that mounts [Handler], a log node or a program of its own.
func init() {
	open := func(_ context.Context, u *url.URL) (objstore.Store, error) {
		return New([]string{u.String()}, Options{})
	}
	objstore.Register("http", open)
	objstore.Register("https", open)
}
