// Package dormousetest provides an in-process Dormouse for tests: an [http.RoundTripper] that responds like a server,
// with a clock that only the test moves.
//
//	server := dormousetest.New()
//	client, err := dormouse.NewClient("http://double", "test", "", dormouse.Transport(server))
//
// The real client and the real worker run on it; [dormouse.Worker.RunUntilIdle] handles the jobs that are due, and
// returns. It has only the routes that the client uses. This file has the server and its clock, store.go the jobs,
// and routes.go the requests.
package dormousetest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Server answers requests in the process. It is safe for concurrent use.
type Server struct {
	mu      sync.Mutex
	now     time.Time
	changed chan struct{} // closed and replaced when a poll may find something
	store   map[string]map[string]*queue
	numbers int64                 // of jobs, positions and deliveries
	heads   int64                 // positions before all others
	repeats map[string]*repeat    // by namespace, queue and idempotency key
	shares  map[string]*weighting // by the list of queues and weights
}

// New returns a server without jobs. Its clock starts at the machine's time, and does not advance by itself.
func New() *Server {
	return &Server{
		now: time.Now().UTC().Truncate(time.Millisecond), changed: make(chan struct{}),
		store: map[string]map[string]*queue{}, repeats: map[string]*repeat{}, shares: map[string]*weighting{},
	}
}

// Now returns the time of the server's clock.
func (s *Server) Now() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

// Advance moves the clock: due jobs become ready, jobs that were not acked in time are redelivered, and polls whose
// timeout has passed are answered.
func (s *Server) Advance(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = s.now.Add(d)
	s.wake()
}

// wake makes polls check again. The caller holds the lock.
func (s *Server) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// answer is a response: JSON, or empty with a 204.
type answer struct {
	status   int
	body     any
	replayed bool
}

type object = map[string]any

func failed(status int, text string) answer {
	return answer{status: status, body: object{"error": text}}
}

// RoundTrip answers a request.
func (s *Server) RoundTrip(req *http.Request) (*http.Response, error) {
	var body []byte
	if req.Body != nil {
		var err error
		body, err = io.ReadAll(req.Body)
		req.Body.Close()
		if err != nil {
			return nil, err
		}
	}
	got, err := s.answer(req, body)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.numbers++
	header := http.Header{"X-Request-Id": {fmt.Sprintf("double-%d", s.numbers)}}
	s.mu.Unlock()
	var text []byte
	if got.body != nil {
		header.Set("Content-Type", "application/json; charset=utf-8")
		if text, err = json.Marshal(got.body); err != nil {
			return nil, err
		}
	}
	if got.replayed {
		header.Set("Idempotency-Replayed", "true")
	}
	return &http.Response{
		StatusCode: got.status, Status: fmt.Sprint(got.status, " ", http.StatusText(got.status)), Proto: "HTTP/1.1",
		ProtoMajor: 1, ProtoMinor: 1, Header: header, ContentLength: int64(len(text)),
		Body: io.NopCloser(bytes.NewReader(text)), Request: req,
	}, nil
}

// answer waits if a poll does; everything else happens under the lock.
func (s *Server) answer(req *http.Request, body []byte) (answer, error) {
	path := req.URL.EscapedPath()
	if i := strings.Index(path, "/api/"); i >= 0 {
		path = path[i+len("/api/"):]
	}
	call, refused := parse(req, path, body)
	if refused != nil {
		return *refused, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !call.isPoll() {
		s.upkeep()
		got := s.once(call)
		s.wake()
		return got, nil
	}
	poll, refused := readPoll(call)
	if refused != nil {
		return *refused, nil
	}
	end := s.now.Add(poll.timeout)
	real := time.NewTimer(poll.timeout) // so that a worker's polls end
	defer real.Stop()
	for over := poll.timeout == 0; ; {
		s.upkeep()
		if jobs := s.handOut(poll); jobs != nil {
			return answer{status: http.StatusOK, body: jobs}, nil
		}
		if over || !s.now.Before(end) {
			return answer{status: http.StatusNotFound, body: object{"msg": "no job available"}}, nil
		}
		changed := s.changed
		s.mu.Unlock()
		var err error
		select {
		case <-changed:
		case <-real.C:
			over = true
		case <-req.Context().Done():
			err = req.Context().Err()
		}
		s.mu.Lock()
		if err != nil {
			return answer{}, err
		}
	}
}
