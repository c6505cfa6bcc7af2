package dormouse

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// request is a call to the server.
type request struct {
	op, method     string
	queue          string // or several, separated by commas, if several is set
	several        bool
	path           []string // below the queue
	noQueue        bool     // the namespace itself
	query          url.Values
	header         http.Header
	body           []byte
	idempotencyKey string
	repeat         bool           // also after errors that leave open whether it was executed
	goneIsDone     bool           // a 404 of a retry means that the first request was executed
	timeout        time.Duration  // per request; 0 for the client's
	waits          time.Duration  // how long the server may hold the request, in addition to timeout
	retryFor       *time.Duration // nil for the client's
	through        *http.Client   // nil for the client's
	ttr            time.Duration  // of a consume
	heard          func()         // called when the head of a response has arrived
}

func (r *request) name() string {
	if r.noQueue {
		return r.op
	}
	return r.op + " " + r.queue
}

// address returns the URL of the request. It rejects names that would change the path.
func (r *request) address(c *Client) (string, *Error) {
	address := c.base + "/api/" + c.namespace
	if !r.noQueue {
		queues := []string{r.queue}
		if r.several {
			queues = strings.Split(r.queue, ",")
		}
		for _, queue := range queues {
			if !validName(queue) {
				return "", invalid(r.op, "the name of a queue %s: %q", nameRule, cut(queue, 255))
			}
		}
		address += "/" + r.queue
	}
	for _, part := range r.path {
		if part == "" || len(part) > 255 {
			return "", invalid(r.name(), "an id or a key has 1 to 255 bytes")
		}
		part = url.PathEscape(part)
		if part == "." || part == ".." { // a path step, unless escaped
			part = strings.ReplaceAll(part, ".", "%2E")
		}
		address += "/" + part
	}
	if len(r.query) > 0 {
		address += "?" + r.query.Encode()
	}
	return address, nil
}

const nameRule = "has 1 to 255 letters, digits, - and _"

func validName(name string) bool {
	for _, c := range name {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' {
			return false
		}
	}
	return name != "" && len(name) <= 255
}

// callError is an error of a call: an Error, or that of the caller's context.
type callError struct {
	*Error
	ctx error
}

// plain returns the error for the caller of the library.
func (e *callError) plain() error {
	switch {
	case e == nil:
		return nil
	case e.ctx != nil:
		return e.ctx
	}
	return e.Error
}

// answer checks that a 2xx reply has the fields that a Dormouse server sends.
type answer interface{ complete() bool }

// done sends a call whose response headers do not matter.
func (c *Client) done(ctx context.Context, r request, into any) error {
	_, failed := c.call(ctx, r, into)
	return failed.plain()
}

// call sends a request, and retries it while that is safe and useful. It parses the reply as JSON; if into is nil,
// the reply must be a 204.
func (c *Client) call(ctx context.Context, r request, into any) (http.Header, *callError) {
	retryFor := c.retryFor
	if r.retryFor != nil {
		retryFor = *r.retryFor
	}
	timeout := r.timeout
	if timeout == 0 {
		timeout = c.timeout
	}
	address, err := r.address(c)
	if err != nil {
		return nil, &callError{Error: err}
	}
	began := c.clock.Now()
	perhapsDone := false
	for n := 0; ; n++ {
		header, err := c.send(ctx, r, address, timeout+r.waits, into)
		if err == nil || perhapsDone && r.goneIsDone && err.Kind == ErrNotFound {
			return header, nil
		}
		perhapsDone = perhapsDone || err.answerLost()
		if ctx.Err() != nil {
			return nil, &callError{Error: err, ctx: fmt.Errorf("dormouse: %s: %w", r.name(), ctx.Err())}
		}
		pause := longer(pauseAfter(n), err.RetryAfter)
		left := retryFor - c.clock.Now().Sub(began) - pause
		if left <= 0 || !(err.nothingDone() || r.repeat && err.inDoubt()) {
			return nil, &callError{Error: err}
		}
		if !sleep(c.clock, pause, ctx.Done()) {
			return nil, &callError{Error: err, ctx: fmt.Errorf("dormouse: %s: %w", r.name(), ctx.Err())}
		}
		timeout = shorter(timeout, left)
	}
}

// maxAnswer is larger than any reply of a server: 8 MiB of jobs as base64 with their attributes.
const maxAnswer = 64 << 20

// send sends a request once.
func (c *Client) send(
	ctx context.Context, r request, address string, timeout time.Duration, into any,
) (http.Header, *Error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	// http.Transport retries requests that it considers safe when an idle connection breaks, and a consume is a GET. It
	// does not retry a request whose body cannot be read again. So a GET has a body, which turns out to be empty.
	var body io.Reader
	if len(r.body) > 0 || r.method == http.MethodGet {
		body = io.NopCloser(bytes.NewReader(r.body))
	}
	req, err := http.NewRequestWithContext(ctx, r.method, address, body)
	if err != nil {
		return nil, invalid(r.name(), "%v", err)
	}
	req.ContentLength = int64(len(r.body))
	for name, values := range r.header {
		req.Header[name] = values
	}
	if c.token != "" {
		req.Header.Set("X-Token", c.token)
	}
	req.Header.Set("User-Agent", "dormouse-go/"+Version)
	if r.idempotencyKey != "" {
		req.Header.Set("Idempotency-Key", r.idempotencyKey)
	}
	through := c.http
	if r.through != nil {
		through = r.through
	}
	resp, err := through.Do(req)
	if err != nil {
		var outer *url.Error // it contains the URL with the query, which has receipts and keys
		if errors.As(err, &outer) {
			err = outer.Err
		}
		return nil, broken(r.name(), err)
	}
	defer resp.Body.Close()
	if r.heard != nil {
		r.heard()
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, broken(r.name(), err)
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return nil, refused(r.name(), resp.StatusCode, resp.Header, text)
	}
	if into == nil {
		if resp.StatusCode != http.StatusNoContent {
			return nil, unreadable(r.name(), resp, "not 204")
		}
		return resp.Header, nil
	}
	if err := json.Unmarshal(text, into); err != nil {
		return nil, unreadable(r.name(), resp, err.Error())
	}
	if whole, ok := into.(answer); ok && !whole.complete() {
		return nil, unreadable(r.name(), resp, "it lacks a field")
	}
	return resp.Header, nil
}

func unreadable(op string, resp *http.Response, why string) *Error {
	e := protocol(op, resp.StatusCode, "this is no answer of a Dormouse: %s", why)
	e.RequestID = resp.Header.Get("X-Request-ID")
	return e
}

// newTransport returns Go's own transport with more idle connections, for calls from many goroutines.
func newTransport() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConnsPerHost = t.MaxIdleConns
	return t
}

func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// printable reports whether a header can carry the text.
func printable(text string) bool {
	for i := 0; i < len(text); i++ {
		if text[i] < ' ' || text[i] > '~' {
			return false
		}
	}
	return true
}

func keyOrRandom(given *string) string {
	if given != nil {
		return *given
	}
	var key [16]byte
	fill(key[:])
	return hex.EncodeToString(key[:])
}

// pauseAfter returns the pause before the next retry; n is the number of earlier ones.
func pauseAfter(n int) time.Duration {
	longest := 5 * time.Second
	if n < 6 {
		longest = shorter(longest, 100*time.Millisecond<<n)
	}
	return longest/2 + time.Duration(fraction()*float64(longest/2))
}

// spread makes a duration up to a tenth shorter or longer.
func spread(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.9 + 0.2*fraction()))
}

// fraction returns a random number from 0 to 1. (Go 1.19 gives every process the same numbers from math/rand.)
func fraction() float64 {
	var bits [8]byte
	fill(bits[:])
	return float64(binary.LittleEndian.Uint64(bits[:])>>11) / (1 << 53)
}

func fill(bits []byte) {
	if _, err := rand.Read(bits); err != nil {
		panic("dormouse: the system has no random numbers: " + err.Error())
	}
}

// clock tells the time; tests can move it.
type clock interface {
	Now() time.Time
	AfterFunc(d time.Duration, f func()) timer
}

// timer is a scheduled call.
type timer interface{ Stop() bool }

type systemClock struct{}

func (systemClock) Now() time.Time                            { return time.Now() }
func (systemClock) AfterFunc(d time.Duration, f func()) timer { return time.AfterFunc(d, f) }

// sleep reports whether the time has passed without an interrupt.
func sleep(c clock, d time.Duration, interrupt <-chan struct{}) bool {
	over := make(chan struct{})
	timer := c.AfterFunc(d, func() { close(over) })
	defer timer.Stop()
	select {
	case <-over:
		return true
	case <-interrupt:
		return false
	}
}

func shorter(a, b time.Duration) time.Duration {
	if a < b {
		return a
	}
	return b
}

func longer(a, b time.Duration) time.Duration {
	if a > b {
		return a
	}
	return b
}

func min(a, b int) int {
	if a < b {
		return a
	}
	return b
}

func orZero(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}

func (e *callError) is(kind Kind) bool { return e != nil && e.Kind == kind }

// lost reports whether the request may have been executed although its reply was lost.
func (e *callError) lost() bool { return e != nil && e.answerLost() }
