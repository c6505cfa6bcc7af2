package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"dormouse.example/clients/go"
)

// worker is a worker of the library, whose handler follows the steps in the body of each job.
type worker struct {
	p       *program
	name    string
	worker  *dormouse.Worker
	client  *dormouse.Client
	running int64
	ended   chan struct{}
	err     error
	stop    context.CancelFunc // ends its run, even before it has begun; nil before its start
	stopped bool               // it was asked to stop
}

func (p *program) makeWorker(c command) (any, error) {
	p.mu.Lock()
	client := p.clients[c.Client]
	p.mu.Unlock()
	if client == nil {
		return nil, fmt.Errorf("no client is called %q", c.Client)
	}
	w := &worker{p: p, name: c.Worker, client: client, ended: make(chan struct{})}
	opts := []dormouse.WorkerOption{dormouse.WithHooks(w.hooks())}
	var number int
	if c.get("concurrency", &number) {
		opts = append(opts, dormouse.Concurrency(number))
	}
	for name, option := range map[string]func(time.Duration) dormouse.WorkerOption{
		"ttr": dormouse.TTR, "poll": dormouse.Poll, "time_limit": dormouse.TimeLimit, "drain": dormouse.Drain,
		"grace": dormouse.Grace, "ack_window": dormouse.AckWindow,
	} {
		var seconds float64
		if c.get(name, &seconds) {
			opts = append(opts, option(duration(seconds)))
		}
	}
	var backoff []float64
	if c.get("backoff", &backoff) {
		delays := make([]time.Duration, len(backoff))
		for i, seconds := range backoff {
			delays[i] = duration(seconds)
		}
		opts = append(opts, dormouse.Backoff(delays...))
	}
	queues, weights, err := queueList(c.fields["queues"])
	if err != nil {
		return nil, err
	}
	if weights != nil {
		opts = append(opts, dormouse.Weights(weights))
	}
	if w.worker, err = dormouse.NewWorker(client, opts...); err != nil {
		return nil, err
	}
	w.worker.Use(w.middleware)
	for _, queue := range queues {
		w.worker.Handle(queue, w.handle)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.workers[c.Worker] = w
	return object{}, nil
}

// queueList parses a list, or an object of weights in its order.
func queueList(text json.RawMessage) (queues []string, weights map[string]int, err error) {
	if !bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		err = json.Unmarshal(text, &queues)
		return queues, nil, err
	}
	if err = json.Unmarshal(text, &weights); err != nil {
		return nil, nil, err
	}
	tokens := json.NewDecoder(bytes.NewReader(text))
	for {
		token, err := tokens.Token()
		if err != nil {
			return queues, weights, nil
		}
		if name, ok := token.(string); ok {
			queues = append(queues, name)
		}
	}
}

func (p *program) startWorker(c command) (any, error) {
	p.mu.Lock()
	w := p.workers[c.Worker]
	p.mu.Unlock()
	if w == nil {
		return nil, fmt.Errorf("no worker is called %q", c.Worker)
	}
	ctx, stop := context.WithCancel(context.Background())
	p.mu.Lock()
	w.stop = stop
	p.mu.Unlock()
	p.running.Add(1)
	go func() {
		defer p.running.Done()
		defer stop()
		w.err = w.worker.Run(ctx)
		clean := !errors.Is(w.err, dormouse.ErrUnclean)
		p.mu.Lock()
		p.unclean = p.unclean || !clean
		p.mu.Unlock()
		p.event("stopped", object{"worker": w.name, "clean": clean, "error": describe(w.err)})
		close(w.ended)
	}()
	return object{}, nil
}

func (p *program) stopWorker(c command) (any, error) {
	p.mu.Lock()
	w := p.workers[c.Worker]
	if w == nil || w.stop == nil {
		p.mu.Unlock()
		return nil, fmt.Errorf("no worker that was started is called %q", c.Worker)
	}
	again := w.stopped
	w.stopped = true
	p.mu.Unlock()
	if again {
		w.worker.Stop()
	} else {
		w.stop()
	}
	<-w.ended
	return object{"clean": !errors.Is(w.err, dormouse.ErrUnclean)}, nil
}

func (p *program) gate(name string) chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gates[name] == nil {
		p.gates[name] = make(chan struct{})
	}
	return p.gates[name]
}

func (p *program) open(name string) {
	gate := p.gate(name)
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-gate:
	default:
		close(gate)
	}
}

func (w *worker) event(name string, fields object) {
	fields["worker"] = w.name
	w.p.event(name, fields)
}

func (w *worker) hooks() dormouse.Hooks {
	hook := func(name string, fields object) {
		fields["name"] = name
		w.event("hook", fields)
	}
	return dormouse.Hooks{
		Poll: func(jobs int, took time.Duration, err error) {
			hook("poll", object{"jobs": jobs, "seconds": took.Seconds(), "error": textOf(err)})
		},
		Start: func(job *dormouse.Job) { hook("start", object{"job_id": job.ID}) },
		Finish: func(job *dormouse.Job, f dormouse.Finished) {
			hook("finish", object{
				"job_id": job.ID, "outcome": f.Outcome, "seconds": f.Took.Seconds(), "elapsed": f.Elapsed.Seconds(),
				"error": textOf(f.Err),
			})
		},
		Touch: func(job *dormouse.Job, err error) { hook("touch", object{"job_id": job.ID, "error": textOf(err)}) },
		Away:  func(err error) { hook("away", object{"error": textOf(err)}) },
		Back:  func(away time.Duration) { hook("back", object{"seconds": away.Seconds()}) },
		Drain: func(running int) { hook("drain", object{"running": running}) },
	}
}

func textOf(err error) any {
	if err == nil {
		return nil
	}
	return err.Error()
}

func (w *worker) middleware(next dormouse.Handler) dormouse.Handler {
	return func(ctx context.Context, job *dormouse.Job) error {
		w.event("middleware", object{"job_id": job.ID, "phase": "before", "error": nil})
		err := next(ctx, job)
		w.event("middleware", object{"job_id": job.ID, "phase": "after", "error": textOf(err)})
		return err
	}
}

// handle executes the steps of a job.
func (w *worker) handle(ctx context.Context, job *dormouse.Job) error {
	running := atomic.AddInt64(&w.running, 1)
	defer atomic.AddInt64(&w.running, -1)
	w.event("start", object{"job": jobFields(job), "running": running})
	s := &steps{w: w, ctx: ctx, job: job}
	over := make(chan struct{})
	defer close(over)
	go func() {
		select {
		case <-ctx.Done():
			s.tellCancelled()
		case <-over:
		}
	}()
	result := "panic" // unless it returns
	defer func() { w.event("end", object{"job_id": job.ID, "result": result}) }()
	err := s.all()
	if ctx.Err() != nil { // the other goroutine may not have been notified
		s.tellCancelled()
	}
	switch {
	case err == nil:
		result = "ok"
	case errors.Is(err, errCancelled):
		result = "cancelled"
	default:
		result = "error"
	}
	return err
}

var errCancelled = errors.New("cancelled")

type steps struct {
	w       *worker
	ctx     context.Context
	job     *dormouse.Job
	told    sync.Once
	swallow bool
}

func (s *steps) tellCancelled() {
	s.told.Do(func() {
		causes := map[error]string{
			dormouse.ErrLost: "lost", dormouse.ErrStopping: "drain", dormouse.ErrTimeLimit: "time_limit",
		}
		if cause := causes[dormouse.Cause(s.ctx)]; cause != "" {
			s.w.event("cancelled", object{"job_id": s.job.ID, "cause": cause})
		}
	})
}

// step is a step in a job's body. Missing fields are nil.
type step struct {
	Sleep   *float64 `json:"sleep"`
	Wait    *string  `json:"wait"`
	Ignore  *float64 `json:"ignore"`
	Block   *float64 `json:"block"`
	Publish *struct {
		Queue string `json:"queue"`
		Data  []byte `json:"data"`
	} `json:"publish"`
	Touch     *float64 `json:"touch"`
	Ack       bool     `json:"ack"`
	Attempt   bool     `json:"attempt"`
	Swallow   bool     `json:"swallow"`
	Fail      *string  `json:"fail"`
	Permanent *string  `json:"permanent"`
	Retry     *struct {
		After float64 `json:"after"`
		Text  string  `json:"text"`
	} `json:"retry"`
	Snooze *float64 `json:"snooze"`
	Panic  *string  `json:"panic"`
	Times  *int     `json:"times"`
}

func (s *steps) all() error {
	if bytes.HasPrefix(s.job.Data, []byte("json:")) {
		var value any
		return s.job.JSON(&value)
	}
	var body struct {
		Do []step `json:"do"`
	}
	if json.Unmarshal(s.job.Data, &body) != nil {
		return nil // any other body is done at once
	}
	for i, one := range body.Do {
		if s.passedOver(i, one) {
			continue
		}
		end, err := s.one(one)
		if errors.Is(err, errCancelled) && s.swallow {
			return nil
		}
		if end || err != nil {
			return err
		}
	}
	return nil
}

// passedOver counts the ends with "times", and reports whether to skip this one.
func (s *steps) passedOver(i int, one step) bool {
	if one.Times == nil {
		return false
	}
	s.w.p.mu.Lock()
	defer s.w.p.mu.Unlock()
	name := fmt.Sprint(s.job.ID, "/", i)
	s.w.p.done[name]++
	return s.w.p.done[name] > *one.Times
}

func (s *steps) one(one step) (end bool, err error) {
	ctx, job := s.ctx, s.job
	switch {
	case one.Sleep != nil:
		return false, s.untilDone(time.After(duration(*one.Sleep)), nil)
	case one.Wait != nil:
		return false, s.untilDone(nil, s.w.p.gate(*one.Wait))
	case one.Ignore != nil:
		time.Sleep(duration(*one.Ignore))
	case one.Block != nil: // handlers have no thread of their own in Go: the others continue
		time.Sleep(duration(*one.Block))
	case one.Publish != nil:
		_, err = s.w.client.Publish(ctx, one.Publish.Queue, one.Publish.Data)
	case one.Touch != nil:
		_, err = job.Touch(ctx, duration(*one.Touch))
	case one.Ack:
		err = job.Ack(ctx)
	case one.Attempt:
		attempt, failed := job.Attempt(ctx)
		if failed != nil {
			return false, failed
		}
		s.w.event("attempt", object{"job_id": job.ID, "attempt": attempt})
	case one.Swallow:
		s.swallow = true
	case one.Fail != nil:
		return true, errors.New(*one.Fail)
	case one.Permanent != nil:
		return true, dormouse.Permanent(errors.New(*one.Permanent))
	case one.Retry != nil:
		return true, dormouse.RetryAfter(duration(one.Retry.After), errors.New(one.Retry.Text))
	case one.Snooze != nil:
		return true, dormouse.Snooze(duration(*one.Snooze))
	case one.Panic != nil:
		panic(*one.Panic)
	}
	return false, err
}

// untilDone waits for either of the two, or for the end of the context.
func (s *steps) untilDone(over <-chan time.Time, gate <-chan struct{}) error {
	select {
	case <-over:
	case <-gate:
	case <-s.ctx.Done():
		s.tellCancelled()
		return fmt.Errorf("%w: %v", errCancelled, dormouse.Cause(s.ctx))
	}
	return nil
}
