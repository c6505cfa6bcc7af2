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

// request is one call of the server.
type request struct {
	op, method     string
	queue          string // or several, with commas, where several is set
	several        bool
	path           []string // below the queue
	noQueue        bool     // the namespace itself
	query          url.Values
	header         http.Header
	body           []byte
	idempotencyKey string
	repeat         bool           // also after answers that leave open whether it was done
	goneIsDone     bool           // a 404 to a repeat says that the first one was done
	timeout        time.Duration  // of one request; 0 is the client's
	waits          time.Duration  // how long the server may hold the request, beside its timeout
	retryFor       *time.Duration // nil is the client's
	through        *http.Client   // nil is the client's
	ttr            time.Duration  // of a consume
	heard          func()         // is called when the head of an answer has come
}

func (r *request) name() string {
	if r.noQueue {
		return r.op
	}
	return r.op + " " + r.queue
}

// address is the URL of the request. Names that would make another path are refused.
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
		if part == "." || part == ".." { // a step in a path, unless it is escaped
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

// callError is an error of a call: Error, or that of the caller's context.
type callError struct {
	*Error
	ctx error
}

// plain is the error as the caller of the library gets it.
func (e *callError) plain() error {
	switch {
	case e == nil:
		return nil
	case e.ctx != nil:
		return e.ctx
	}
	return e.Error
}

// answer is what a 2xx must be complete in, to be one of a Dormouse.
type answer interface{ complete() bool }

// done is a call whose answer's headers do not matter.
func (c *Client) done(ctx context.Context, r request, into any) error {
	_, failed := c.call(ctx, r, into)
	return failed.plain()
}

// call sends a request, and repeats it while that is safe and of use. The answer is read as JSON, or is to be a 204
// where into is nil.
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

// maxAnswer is more than any answer of a server has: 8 MiB of jobs as base64 with their attributes.
const maxAnswer = 64 << 20

// send sends a request once.
func (c *Client) send(
	ctx context.Context, r request, address string, timeout time.Duration, into any,
) (http.Header, *Error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	// http.Transport repeats what it takes for safe when a kept connection breaks, and a consume is a GET. It repeats
	// nothing whose body it cannot have again. So a GET has a body that turns out to be empty.
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
		var outer *url.Error // it names the URL with the query, and that has receipts and keys
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

// newTransport is Go's own with more connections kept, for those who call from many goroutines.
func newTransport() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConnsPerHost = t.MaxIdleConns
	return t
}

func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// printable says whether a header can carry the text.
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

// pauseAfter is how long to wait before the next repeat; n is how many there were.
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

// fraction is random, from 0 to 1. (Go 1.19 gives every process the same numbers from math/rand.)
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

// clock is the time, so that tests can move it.
type clock interface {
	Now() time.Time
	AfterFunc(d time.Duration, f func()) timer
}

// timer is a call to come.
type timer interface{ Stop() bool }

type systemClock struct{}

func (systemClock) Now() time.Time                            { return time.Now() }
func (systemClock) AfterFunc(d time.Duration, f func()) timer { return time.AfterFunc(d, f) }

// sleep says whether the time has passed; not when it was interrupted.
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

// lost says that the request may have been done, though no answer has said so.
func (e *callError) lost() bool { return e != nil && e.answerLost() }
