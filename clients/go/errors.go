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

// Kind says what went wrong. Kinds are errors themselves, so that a caller asks for one by
// errors.Is(err, dormouse.ErrConflict); errors.As with an *Error has the details.
type Kind string

// The kinds of errors. docs/api.md of the server has the answers behind them.
const (
	ErrInvalid      Kind = "invalid"      // 400, or refused before it was sent
	ErrUnauthorized Kind = "unauthorized" // 401
	ErrForbidden    Kind = "forbidden"    // 403
	ErrNotFound     Kind = "not_found"    // 404
	ErrUnsupported  Kind = "unsupported"  // the server does not know the request: an older one, or lmstfy's
	ErrLost         Kind = "lost"         // 409: the job is not this worker's any more
	ErrConflict     Kind = "conflict"     // 409: the key is taken; the job is not dead, or not delayed
	ErrBusy         Kind = "busy"         // 409: a request with the same idempotency key is under way
	ErrTooLarge     Kind = "too_large"    // 413
	ErrKeyReused    Kind = "key_reused"   // 422: the idempotency key was used for another request
	ErrLimited      Kind = "limited"      // 429
	ErrFull         Kind = "full"         // 507: the disk, or the quota of the namespace
	ErrUnavailable  Kind = "unavailable"  // 502, 503, 504
	ErrServer       Kind = "server"       // any other 5xx
	ErrTimeout      Kind = "timeout"      // no answer in time, or 408
	ErrNetwork      Kind = "network"      // the connection was refused, reset or broken off
	ErrProtocol     Kind = "protocol"     // no answer of a Dormouse: a redirect, or what cannot be read
)

func (k Kind) Error() string { return "dormouse: " + string(k) }

// Retryable says whether the same call may be well later.
func (k Kind) Retryable() bool {
	switch k {
	case ErrBusy, ErrLimited, ErrFull, ErrUnavailable, ErrServer, ErrTimeout, ErrNetwork:
		return true
	}
	return false
}

// Error is what every call of a [Client] returns, unless the caller's context has ended.
type Error struct {
	Kind       Kind
	Op         string        // what was asked, such as "publish mail"
	Status     int           // of HTTP; 0 where there was no answer
	Message    string        // the server's text, or the first 200 bytes of the answer
	RequestID  string        // X-Request-ID of the answer: the server's log has it
	RetryAfter time.Duration // how long the server asks to wait; 0 where it does not say
	JobID      string        // of a conflict: the job that has the key
	Index      int           // which job of the call is meant, from 0; -1 where none is
	Published  []Published   // of PublishMany: what was published before
	Err        error         // the cause, where no answer came
}

func (e *Error) Error() string {
	status := ""
	if e.Status != 0 {
		status = strconv.Itoa(e.Status) + " "
	}
	return fmt.Sprintf("dormouse: %s: %s (%s%s)", e.Op, e.Message, status, string(e.Kind))
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is holds for the error's own [Kind].
func (e *Error) Is(target error) bool { return target == error(e.Kind) }

// Retryable says whether the same call may be well later.
func (e *Error) Retryable() bool { return e.Kind.Retryable() }

// nothingDone tells of answers which say that the request has changed nothing, so that every call may be repeated.
func (e *Error) nothingDone() bool {
	return e.Status == http.StatusTooManyRequests || e.Status == http.StatusServiceUnavailable || e.Kind == ErrBusy
}

// inDoubt tells of errors after which the request may or may not have been done.
func (e *Error) inDoubt() bool {
	switch e.Status {
	case http.StatusRequestTimeout, http.StatusInternalServerError, http.StatusBadGateway,
		http.StatusGatewayTimeout, http.StatusInsufficientStorage:
		return true
	}
	return e.Status == 0 && (e.Kind == ErrTimeout || e.Kind == ErrNetwork)
}

// answerLost says that the request may have been done, though no answer has said so: also where one has come that
// cannot be read.
func (e *Error) answerLost() bool {
	unreadable := e.Kind == ErrProtocol && e.Status >= 200 && e.Status <= 299
	return unreadable || e.inDoubt() && !e.neverSent()
}

// neverSent tells of connections that were not made.
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

// broken is the error of a request that got no whole answer.
func broken(op string, err error) *Error {
	kind := ErrNetwork
	var timeout interface{ Timeout() bool }
	if errors.As(err, &timeout) && timeout.Timeout() {
		kind = ErrTimeout
	}
	return &Error{Kind: kind, Op: op, Message: err.Error(), Index: -1, Err: err}
}

// refused is the error that an answer other than 2xx tells of.
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

// retryAfter reads seconds or a date. What cannot be read, and what has passed, is 0.
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

// cut gives the beginning of a text, at most so many bytes, in whole characters.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most]
}
