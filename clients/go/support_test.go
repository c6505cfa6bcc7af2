package dormouse

import (
	"context"
	"errors"
	"io"
	"net/http"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"dormouse.example/clients/go/dormousetest"
)

// patience is the timeout for events that should happen at once.
const patience = 10 * time.Second

// fakeClock moves only when told to. Timers run in goroutines of their own, like Go's.
type fakeClock struct {
	mu     sync.Mutex
	now    time.Time
	timers map[*fakeTimer]struct{}
	set    chan struct{} // closed and replaced when a timer was set or stopped
}

type fakeTimer struct {
	clock *fakeClock
	at    time.Time
	f     func()
	name  string // of f
}

func newClock() *fakeClock {
	return &fakeClock{now: time.Unix(1_700_000_000, 0), timers: map[*fakeTimer]struct{}{}, set: make(chan struct{})}
}

func (c *fakeClock) changed() {
	close(c.set)
	c.set = make(chan struct{})
}

func (c *fakeClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *fakeClock) AfterFunc(d time.Duration, f func()) timer {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &fakeTimer{clock: c, at: c.now.Add(d), f: f, name: runtime.FuncForPC(reflect.ValueOf(f).Pointer()).Name()}
	if d <= 0 {
		go f()
		return t
	}
	c.timers[t] = struct{}{}
	c.changed()
	return t
}

func (t *fakeTimer) Stop() bool {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	_, waits := t.clock.timers[t]
	delete(t.clock.timers, t)
	t.clock.changed()
	return waits
}

func (c *fakeClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	for t := range c.timers {
		if !t.at.After(c.now) {
			delete(c.timers, t)
			go t.f()
		}
	}
	c.changed()
}

// Names of timers.
const (
	pausing  = "dormouse.example/clients/go.sleep.func1"
	touching = "dormouse.example/clients/go.(*task).touch-fm"
	limiting = "dormouse.example/clients/go.(*task).limitOver-fm"
	deaf     = "dormouse.example/clients/go.(*task).limitIgnored-fm"
	telling  = "dormouse.example/clients/go.(*task).stillWorks-fm"
	ending   = "dormouse.example/clients/go.(*run).wait.func1"
	acking   = "dormouse.example/clients/go.(*acks).add.func1"
)

// next waits for a timer of the name that is due between the two, and returns its remaining time.
func (c *fakeClock) next(t *testing.T, name string, from, to time.Duration) time.Duration {
	t.Helper()
	over := time.After(patience)
	for {
		c.mu.Lock()
		for timer := range c.timers {
			if left := timer.at.Sub(c.now); timer.name == name && left >= from && left <= to {
				c.mu.Unlock()
				return left
			}
		}
		set := c.set
		c.mu.Unlock()
		select {
		case <-set:
		case <-over:
			t.Fatalf("no timer %s from %v to %v", name, from, to)
		}
	}
}

// elapse waits for a timer of the name that is due between the two, and moves the clock to it.
func (c *fakeClock) elapse(t *testing.T, name string, from, to time.Duration) time.Duration {
	t.Helper()
	left := c.next(t, name, from, to)
	c.advance(left)
	return left
}

// wire is a transport that records requests, and lets a test make some of them fail.
type wire struct {
	next http.RoundTripper

	mu       sync.Mutex
	requests []string // method, path and the relevant part of the query
	before   func(req *http.Request) (*http.Response, error)
	after    func(req *http.Request) error
}

func (w *wire) RoundTrip(req *http.Request) (*http.Response, error) {
	w.mu.Lock()
	w.requests = append(w.requests, req.Method+" "+strings.TrimPrefix(req.URL.Path, "/api/test/"))
	before, after := w.before, w.after
	w.mu.Unlock()
	if before != nil {
		if resp, err := before(req); resp != nil || err != nil {
			return resp, err
		}
	}
	resp, err := w.next.RoundTrip(req)
	if err == nil && after != nil {
		if err := after(req); err != nil {
			return nil, err
		}
	}
	return resp, err
}

func (w *wire) fail(before func(*http.Request) (*http.Response, error), after func(*http.Request) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.before, w.after = before, after
}

// seen returns the requests whose path has the suffix, or all.
func (w *wire) seen(suffix string) (found []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, one := range w.requests {
		if strings.HasSuffix(one, suffix) {
			found = append(found, one)
		}
	}
	return found
}

var errBroken = errors.New("connection reset by peer")

// times makes requests whose path has the suffix fail, n times.
func times(n int, suffix string) func(*http.Request) error {
	var mu sync.Mutex
	return func(req *http.Request) error {
		mu.Lock()
		defer mu.Unlock()
		if n > 0 && strings.HasSuffix(req.URL.Path, suffix) {
			n--
			return errBroken
		}
		return nil
	}
}

func respond(status int, body string, header ...string) *http.Response {
	h := http.Header{}
	for i := 0; i < len(header); i += 2 {
		h.Set(header[i], header[i+1])
	}
	return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader(body))}
}

// stage is a client on a double, with a wire between them, and a clock.
type stage struct {
	t      *testing.T
	server *dormousetest.Server
	wire   *wire
	clock  *fakeClock
	client *Client
}

func newStage(t *testing.T, opts ...Option) *stage {
	t.Helper()
	s := &stage{t: t, server: dormousetest.New(), clock: newClock()}
	s.wire = &wire{next: s.server}
	client, err := NewClient("http://double", "test", "secret-token", append(opts, Transport(s.wire))...)
	if err != nil {
		t.Fatal(err)
	}
	client.clock = s.clock
	s.client = client
	return s
}

// advance moves the clocks of the server and of the library.
func (s *stage) advance(d time.Duration) {
	s.server.Advance(d)
	s.clock.advance(d)
}

func (s *stage) publish(queue, data string, opts ...PublishOption) string {
	s.t.Helper()
	published, err := s.client.Publish(context.Background(), queue, []byte(data), opts...)
	if err != nil {
		s.t.Fatal(err)
	}
	return published.JobID
}

func (s *stage) info(queue, id string) *JobInfo {
	s.t.Helper()
	info, err := s.client.Get(context.Background(), queue, id)
	if err != nil {
		s.t.Fatal(err)
	}
	return info
}

func (s *stage) gone(queue, id string) {
	s.t.Helper()
	if _, err := s.client.Get(context.Background(), queue, id); !errors.Is(err, ErrNotFound) {
		s.t.Fatalf("the job should be gone: %v", err)
	}
}

// receive returns the next value of a channel.
func receive[T any](t *testing.T, c <-chan T) (got T) {
	t.Helper()
	select {
	case got = <-c:
	case <-time.After(patience):
		stacks := make([]byte, 1<<20)
		t.Fatalf("nothing came\n%s", stacks[:runtime.Stack(stacks, true)])
	}
	return got
}

func asError(t *testing.T, err error, kind Kind) *Error {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || !errors.Is(err, kind) {
		t.Fatalf("%v is not an Error of the kind %s", err, string(kind))
	}
	return e
}
