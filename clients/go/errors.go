package dormouse

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Kind is the kind of an error. Kinds are errors themselves, so that callers can check for one with errors.Is(err,
// dormouse.ErrConflict); errors.As with an *Error provides the details.
type Kind string

// The kinds of errors. docs/api.md of the server lists their responses.
const (
	ErrInvalid      Kind = "invalid"      // 400, or refused before it was sent
	ErrUnauthorized Kind = "unauthorized" // 401
	ErrForbidden    Kind = "forbidden"    // 403
	ErrNotFound     Kind = "not_found"    // 404
	ErrUnsupported  Kind = "unsupported"  // the server does not support the request: it is too old, or lmstfy's
	ErrLost         Kind = "lost"         // 409: the job is no longer this worker's
	ErrConflict     Kind = "conflict"     // 409: the key is taken; the job is not dead, or not delayed
	ErrBusy         Kind = "busy"         // 409: a request with the same idempotency key is in flight
	ErrTooLarge     Kind = "too_large"    // 413
	ErrKeyReused    Kind = "key_reused"   // 422: the idempotency key was used for another request
	ErrLimited      Kind = "limited"      // 429
	ErrFull         Kind = "full"         // 507: the disk, or the quota of the namespace
	ErrUnavailable  Kind = "unavailable"  // 502, 503, 504
	ErrServer       Kind = "server"       // any other 5xx
	ErrTimeout      Kind = "timeout"      // no response in time, or 408
	ErrNetwork      Kind = "network"      // the connection was refused, reset or aborted
	ErrProtocol     Kind = "protocol"     // not a response of Dormouse: a redirect, or an unreadable body
)

func (k Kind) Error() string { return "dormouse: " + string(k) }

// Retryable reports whether the same call may succeed later.
func (k Kind) Retryable() bool {
	switch k {
	case ErrBusy, ErrLimited, ErrFull, ErrUnavailable, ErrServer, ErrTimeout, ErrNetwork:
		return true
	}
	return false
}

// Error is the error of every call of a [Client], unless the caller's context has ended.
type Error struct {
	Kind       Kind
	Op         string        // the operation, such as "publish mail"
	Status     int           // of HTTP; 0 without a response
	Message    string        // the server's text, or the first 200 bytes of the response
	RequestID  string        // X-Request-ID of the response, also in the server's log
	RetryAfter time.Duration // how long the server asks to wait; 0 if unspecified
	JobID      string        // of a conflict: the job that has the key
	Index      int           // index of the job in the call, from 0; -1 if none
	Published  []Published   // of PublishMany: the jobs published before
	Err        error         // the cause, if there was no response
}

func (e *Error) Error() string {
	status := ""
	if e.Status != 0 {
		status = strconv.Itoa(e.Status) + " "
	}
	return fmt.Sprintf("dormouse: %s: %s (%s%s)", e.Op, e.Message, status, string(e.Kind))
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is the error's [Kind].
func (e *Error) Is(target error) bool { return target == error(e.Kind) }

// Retryable reports whether the same call may succeed later.
func (e *Error) Retryable() bool { return e.Kind.Retryable() }

// nothingDone reports whether the response says that nothing was changed, so that every call may be retried.
func (e *Error) nothingDone() bool {
	return e.Status == http.StatusTooManyRequests || e.Status == http.StatusServiceUnavailable || e.Kind == ErrBusy
}

// inDoubt reports whether the request may or may not have been executed.
func (e *Error) inDoubt() bool {
	switch e.Status {
	case http.StatusRequestTimeout, http.StatusInternalServerError, http.StatusBadGateway,
		http.StatusGatewayTimeout, http.StatusInsufficientStorage:
		return true
	}
	return e.Status == 0 && (e.Kind == ErrTimeout || e.Kind == ErrNetwork)
}

// answerLost reports whether the request may have been executed although its reply was lost or is unreadable.
func (e *Error) answerLost() bool {
	unreadable := e.Kind == ErrProtocol && e.Status >= 200 && e.Status <= 299
	return unreadable || e.inDoubt() && !e.neverSent()
}

// neverSent reports whether the connection could not be made.
func (e *Error) neverSent() bool {
	var dial *net.OpError
	return e.Status == 0 && errors.As(e.Err, &dial) && dial.Op == "dial"
}

func invalid(op, format string, args ...any) *Error {
	return &Error{Kind: ErrInvalid, Op: op, Message: fmt.Sprintf(format, args...), Index: -1}
}

func protocol(op string, status int, format string, args ...any) *Error {
	return &Error{Kind: ErrProtocol, Op: op, Status: status, Message: fmt.Sprintf(format, args...), Index: -1}
}

// broken returns the error of a request without a complete response.
func broken(op string, err error) *Error {
	kind := ErrNetwork
	var timeout interface{ Timeout() bool }
	if errors.As(err, &timeout) && timeout.Timeout() {
		kind = ErrTimeout
	}
	return &Error{Kind: kind, Op: op, Message: err.Error(), Index: -1, Err: err}
}

// refused returns the error in a response other than 2xx.
func refused(op string, status int, header http.Header, body []byte) *Error {
	var told struct {
		Error string `json:"error"`
		Msg   string `json:"msg"`
		Index *int   `json:"index"`
		JobID string `json:"job_id"`
	}
	e := &Error{Op: op, Status: status, RequestID: header.Get("X-Request-ID"), Index: -1}
	if json.Unmarshal(body, &told) == nil && told.Error+told.Msg != "" {
		e.Message, e.JobID = told.Error, told.JobID
		if e.Message == "" {
			e.Message = told.Msg
		}
		if told.Index != nil {
			e.Index = *told.Index
		}
	} else if e.Message = cut(strings.ToValidUTF8(string(body), "\uFFFD"), 200); e.Message == "" {
		if e.Message = http.StatusText(status); e.Message == "" {
			e.Message = "an answer without a text"
		}
	}
	e.Kind = kindOf(status, e.Message)
	if e.Retryable() {
		e.RetryAfter = retryAfter(header.Get("Retry-After"))
	}
	return e
}

func kindOf(status int, message string) Kind {
	switch status {
	case http.StatusBadRequest:
		return ErrInvalid
	case http.StatusUnauthorized:
		return ErrUnauthorized
	case http.StatusForbidden:
		return ErrForbidden
	case http.StatusNotFound:
		if message == "api not found" {
			return ErrUnsupported
		}
		return ErrNotFound
	case http.StatusRequestTimeout:
		return ErrTimeout
	case http.StatusConflict:
		switch {
		case message == "the job is not yours any more":
			return ErrLost
		case strings.HasSuffix(message, "is under way"):
			return ErrBusy
		}
		return ErrConflict
	case http.StatusRequestEntityTooLarge:
		return ErrTooLarge
	case http.StatusUnprocessableEntity:
		return ErrKeyReused
	case http.StatusTooManyRequests:
		return ErrLimited
	case http.StatusInsufficientStorage:
		return ErrFull
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return ErrUnavailable
	}
	if status >= 500 && status < 600 {
		return ErrServer
	}
	return ErrProtocol
}

// retryAfter parses seconds or a date. Invalid and past values are 0.
func retryAfter(text string) time.Duration {
	if seconds, err := strconv.ParseUint(strings.TrimSpace(text), 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(text); err == nil {
		if left := time.Until(at); left > 0 {
			return left
		}
	}
	return 0
}

// cut truncates a text to at most most bytes, in whole characters.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most]
}
