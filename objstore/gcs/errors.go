package gcs

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"cloud.google.com/go/storage"
	"google.golang.org/api/googleapi"
	"google.golang.org/api/iterator"

	"github.com/btrlog/btrlog/objstore"
	"github.com/btrlog/btrlog/objstore/remote"
)

// err says what became of a request.
func (s *store) err(ctx context.Context, op, key string, err error, fate *remote.Fate) error {
	kind, cause := kindOf(op, err, fate.Sent())
	if kind == objstore.ErrNotFound {
		// An object that seems absent because its bucket is gone would be taken for lost, or for never written. Google says which of
		// them is missing; a server that does not is asked for the bucket.
		if body := fate.NotFound(); noBucket(body) {
			kind, cause = objstore.ErrDenied, errNoBucket
		} else if !noObject(body) {
			if e := s.lookForBucket(ctx); e != nil {
				kind, cause = kindOf("list", e, true)
			}
		}
	}
	return &objstore.Error{Store: s.name, Op: op, Key: key, Kind: kind, Err: cause}
}

var errNoBucket = errors.New("404: the bucket does not exist, or it is another project's")

// lookForBucket lists at most one object: that needs no permission that BtrLog does not need anyway.
func (s *store) lookForBucket(ctx context.Context) error {
	it := s.bucket.Objects(ctx, &storage.Query{Prefix: s.prefix, Projection: storage.ProjectionNoACL})
	it.PageInfo().MaxSize = 1
	if _, err := it.Next(); !errors.Is(err, iterator.Done) {
		return err
	}
	return nil
}

// kindOf sorts errors by what is known about the request. sent: it may have reached the server. Of a write that may have reached the
// server and has no definite answer the outcome is unknown; only what certainly was not applied may be called unavailable, for that is
// simply sent again.
func kindOf(op string, err error, sent bool) (kind, cause error) {
	write := op == "put" || op == "delete"
	status := 0
	cause = withoutURL(err)
	var api *googleapi.Error
	switch {
	case errors.As(err, &api):
		status, cause = api.Code, fmt.Errorf("%d %s", api.Code, said(api))
	case errors.Is(err, storage.ErrObjectNotExist), errors.Is(err, storage.ErrBucketNotExist):
		status = http.StatusNotFound // all that the SDK passes on of a read
	}
	switch {
	case status == http.StatusNotFound && (op == "put" || op == "list"):
		return objstore.ErrDenied, errNoBucket // only a bucket can be missing: a replacement of an absent object is answered with 412
	case status == http.StatusNotFound:
		return objstore.ErrNotFound, nil
	case status == http.StatusPreconditionFailed:
		return objstore.ErrPrecondition, cause
	case status == http.StatusConflict:
		return objstore.ErrConflict, cause
	case status == http.StatusRequestedRangeNotSatisfiable:
		return objstore.ErrInvalid, cause
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return objstore.ErrDenied, cause
	case status >= 300 && status < 400:
		return objstore.ErrDenied, fmt.Errorf("%w: the bucket is at another endpoint", cause)
	case status == http.StatusRequestEntityTooLarge:
		return objstore.ErrTooLarge, cause
	case status == http.StatusTooManyRequests:
		return objstore.ErrUnavailable, cause // one object is written too often, or too many requests in all; refused before it was looked at
	case status == http.StatusRequestTimeout:
		// The answer may be a proxy's, which does not know what became of it.
	case status == http.StatusNotImplemented, status >= 400 && status < 500:
		return objstore.ErrInvalid, cause
	}
	// A 503 is here too: a proxy that loses its server in the middle of a request says the same.
	if write && sent {
		return objstore.ErrUnknown, cause
	}
	return objstore.ErrUnavailable, cause
}

// said is what the server said beside the status, in one line. The SDK's reader leaves it unparsed.
func said(e *googleapi.Error) string {
	text := e.Message
	if len(e.Errors) > 0 && e.Errors[0].Reason != "" {
		text = e.Errors[0].Reason + ": " + text
	}
	if text == "" {
		code, message := parse(e.Body)
		text = strings.Trim(code+": "+message, ": ")
	}
	if text == "" {
		text = http.StatusText(e.Code)
	}
	return text
}

// noBucket and noObject tell what is missing by the body of a 404, which is XML for reads and JSON for the rest.
func noBucket(body string) bool {
	code, message := parse(body)
	return code == "NoSuchBucket" || strings.Contains(message, "bucket does not exist")
}

func noObject(body string) bool {
	code, message := parse(body)
	return code == "NoSuchKey" || strings.HasPrefix(message, "No such object")
}

// parse returns code and message of an error's body; empty is what it does not have.
func parse(body string) (code, message string) {
	var x struct {
		Code, Message string
	}
	if xml.Unmarshal([]byte(body), &x) == nil {
		return x.Code, x.Message
	}
	var j struct {
		Error struct{ Message string }
	}
	if json.Unmarshal([]byte(body), &j) == nil {
		return "", j.Error.Message
	}
	return "", ""
}

// withoutURL drops the URL from an error of the HTTP client: its query is long and says nothing, the store and the key stand before it.
func withoutURL(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}
