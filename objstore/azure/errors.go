package azure

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/bloberror"

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
	code, status := bloberror.Code(""), 0
	cause = withoutQuery(err)
	var resp *azcore.ResponseError
	if errors.As(err, &resp) {
		code, status = bloberror.Code(resp.ErrorCode), resp.StatusCode
		// The SDK's text has a dozen lines, with the request's URL.
		cause = fmt.Errorf("%d %s", status, resp.ErrorCode)
		if resp.RawResponse != nil {
			if id := resp.RawResponse.Header.Get("X-Ms-Request-Id"); id != "" {
				cause = fmt.Errorf("%w (request %s)", cause, id)
			}
		}
	}
	switch code {
	case bloberror.BlobAlreadyExists, bloberror.ConditionNotMet, bloberror.TargetConditionNotMet:
		return objstore.ErrPrecondition, cause // Azure's answer to If-None-Match: * has status 409
	case bloberror.ContainerNotFound, bloberror.ContainerBeingDeleted, bloberror.ContainerDisabled, bloberror.AccountIsDisabled, bloberror.ResourceNotFound:
		return objstore.ErrDenied, cause
	case bloberror.LeaseIDMissing, bloberror.LeaseIDMismatchWithBlobOperation, bloberror.LeaseLost:
		return objstore.ErrDenied, fmt.Errorf("%w: somebody has a lease on the blob; break it", cause) // status 412, and no condition of ours
	case bloberror.BlobImmutableDueToPolicy, "BlobImmutableDueToLegalHold", bloberror.BlobArchived, bloberror.BlobBeingRehydrated:
		return objstore.ErrDenied, cause // status 409 that no repetition ends
	case bloberror.InvalidBlobType, bloberror.ResourceTypeMismatch, "PathConflict", "PathAlreadyExists", "DirectoryIsNotEmpty":
		return objstore.ErrInvalid, cause // so are these
	case bloberror.RequestBodyTooLarge:
		return objstore.ErrTooLarge, cause
	case bloberror.ServerBusy:
		return objstore.ErrUnavailable, cause // throttled: "unable to receive requests"
	}
	switch {
	case status == http.StatusPreconditionFailed:
		return objstore.ErrPrecondition, cause
	case status == http.StatusNotFound && match:
		return objstore.ErrPrecondition, cause // If-Match on an absent blob
	case status == http.StatusNotFound && op != "put":
		return objstore.ErrNotFound, cause
	case status == http.StatusConflict:
		return objstore.ErrConflict, cause
	case status == http.StatusRequestedRangeNotSatisfiable:
		return objstore.ErrInvalid, cause
	case status == http.StatusUnauthorized, status == http.StatusForbidden, status == http.StatusNotFound:
		return objstore.ErrDenied, cause
	case status >= 300 && status < 400:
		return objstore.ErrDenied, fmt.Errorf("%w: the account is at another endpoint", cause)
	case status == http.StatusRequestEntityTooLarge:
		return objstore.ErrTooLarge, cause
	case status == http.StatusTooManyRequests:
		return objstore.ErrUnavailable, cause
	case status == http.StatusRequestTimeout:
		// The answer may be a proxy's, which does not know what became of it.
	case status == http.StatusNotImplemented, status >= 400 && status < 500:
		return objstore.ErrInvalid, cause
	}
	// A 503 that is no throttling is here too: a proxy that loses its server in the middle of a request says the same. So is 500
	// OperationTimedOut, after which Azure may have applied it.
	if write && sent {
		return objstore.ErrUnknown, cause
	}
	return objstore.ErrUnavailable, cause
}

// withoutQuery drops the URL from an error of the HTTP client: it may carry a signature that gives access.
func withoutQuery(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}
