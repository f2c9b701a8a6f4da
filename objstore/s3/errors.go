package s3

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"

	"github.com/btrlog/btrlog/objstore"
)

// err says what became of a request. match: it was a Put with IfMatch; sent: it may have reached the server.
func (s *store) err(op, key string, err error, match, sent bool) error {
	kind, cause := kindOf(op, err, match, sent)
	return &objstore.Error{Store: s.name, Op: op, Key: key, Kind: kind, Err: cause}
}

// kindOf sorts errors by what is known about the request. Of a write that may have reached the server and has no definite
// answer the outcome is unknown; only what certainly was not applied may be called unavailable, for that is simply sent again.
func kindOf(op string, err error, match, sent bool) (kind, cause error) {
	write := op == "put" || op == "delete"
	var api smithy.APIError
	code := ""
	if errors.As(err, &api) {
		code = api.ErrorCode()
	}
	status := 0
	var resp *awshttp.ResponseError
	if errors.As(err, &resp) {
		status = resp.HTTPStatusCode()
	}
	cause = err
	if code != "" {
		cause = fmt.Errorf("%d %s: %s", status, code, api.ErrorMessage())
		if resp != nil && resp.ServiceRequestID() != "" {
			cause = fmt.Errorf("%w (request %s)", cause, resp.ServiceRequestID())
		}
	}
	switch code {
	case "NoSuchBucket":
		return objstore.ErrDenied, cause
	case "EntityTooLarge":
		return objstore.ErrTooLarge, cause
	case "NoSuchKey":
		if op == "delete" {
			return objstore.ErrNotFound, cause // some servers say so; see Delete
		}
	case "SlowDown", "Throttling", "ThrottlingException", "RequestThrottled", "TooManyRequests", "RequestLimitExceeded":
		return objstore.ErrUnavailable, cause // refused before it was looked at
	case "RequestTimeout":
		return objstore.ErrUnavailable, cause // the server did not get the whole body
	case "ObjectParentIsFile", "ExistingObjectIsDirectory":
		return objstore.ErrInvalid, cause // a server over a directory tree; a 409 that no repetition ends
	case "RequestTimeTooSkewed":
		return objstore.ErrDenied, fmt.Errorf("%w: set this machine's clock", cause)
	}
	switch {
	case status == http.StatusPreconditionFailed:
		return objstore.ErrPrecondition, cause
	case status == http.StatusNotFound && match:
		return objstore.ErrPrecondition, cause // Amazon's answer to If-Match on an absent key
	case status == http.StatusNotFound && !write:
		return objstore.ErrNotFound, cause
	case status == http.StatusConflict:
		return objstore.ErrConflict, cause
	case status == http.StatusRequestedRangeNotSatisfiable:
		return objstore.ErrInvalid, cause
	case status == http.StatusUnauthorized, status == http.StatusForbidden, status == http.StatusNotFound:
		return objstore.ErrDenied, cause
	case status == http.StatusMovedPermanently, status == http.StatusTemporaryRedirect, status == http.StatusPermanentRedirect:
		return objstore.ErrDenied, fmt.Errorf("%w: the bucket is in another region or at another endpoint", cause)
	case status == http.StatusTooManyRequests:
		return objstore.ErrUnavailable, cause
	case status == http.StatusNotImplemented, status >= 400 && status < 500:
		return objstore.ErrInvalid, cause
	}
	// A 503 that is no throttling is here too: a proxy that loses its server in the middle of a request says the same.
	if write && sent {
		return objstore.ErrUnknown, cause
	}
	return objstore.ErrUnavailable, cause
}

// tracked returns a context under which a request notes whether it got a connection. Without one it certainly was not applied:
// no route, no name, no credentials.
func tracked(ctx context.Context) (context.Context, *atomic.Bool) {
	sent := new(atomic.Bool)
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { sent.Store(true) }}), sent
}
