package dormouse

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Handler handles a job. Its result decides about the job: nil acks it, an error releases it for a retry, and
// [RetryAfter], [Snooze] and [Permanent] are more specific. Its context ends when the job is lost, when its time is
// up, or when the worker stops; [Cause] tells which.
type Handler func(ctx context.Context, job *Job) error

// Middleware wraps a handler. Panics of the handler are errors here.
type Middleware func(next Handler) Handler

// Hooks receive events of a worker; nil hooks are skipped. They are called from many goroutines, and block the worker
// while they run.
type Hooks struct {
	// Poll has returned this number of jobs, or an error.
	Poll func(jobs int, took time.Duration, err error)
	// Start of a handler.
	Start func(job *Job)
	// Finish of a job: the server has accepted the result, or the handler of a lost job has returned.
	Finish func(job *Job, f Finished)
	// Touch of a job, by the worker itself.
	Touch func(job *Job, err error)
	// Away is called once per outage, when polls begin to fail. Back ends it.
	Away func(err error)
	Back func(away time.Duration)
	// Drain begins, with this number of running handlers.
	Drain func(running int)
}

// Finished describes how a job ended.
type Finished struct {
	Outcome Outcome
	Took    time.Duration // of the handler
	Elapsed time.Duration // from the publish of the job
	Err     error         // what the handler returned
}

// Logger receives the worker's log lines: a *slog.Logger is one. No line contains the body of a job or the token.
type Logger interface {
	Debug(msg string, args ...any)
	Info(msg string, args ...any)
	Warn(msg string, args ...any)
	Error(msg string, args ...any)
}

// WorkerOption is an option of a [Worker].
type WorkerOption func(*Worker)

// Concurrency sets the maximum number of concurrent handlers, over all queues of the worker; 10 by default.
func Concurrency(n int) WorkerOption { return func(w *Worker) { w.concurrency = n } }

// TTR sets the duration of a delivery: how long it takes until another worker gets the job if this process dies. It
// is extended while the handler runs. Whole seconds, at least 3; 30 by default.
func TTR(d time.Duration) WorkerOption { return func(w *Worker) { w.ttr = d } }

// Poll sets how long a poll waits for jobs: below the timeouts of proxies. Rounded up to seconds; 20 s by default.
func Poll(d time.Duration) WorkerOption { return func(w *Worker) { w.poll = d } }

// Backoff sets the delays after the first failure of a job, the second, and so on. The last one repeats. Each is
// varied by up to a tenth. The default is 5 s, 30 s, 5 min, 30 min, 2 h.
func Backoff(delays ...time.Duration) WorkerOption {
	return func(w *Worker) {
		w.valid(len(delays) > 0, "Backoff needs a delay")
		for _, d := range delays {
			w.valid(d >= 0, "a delay of Backoff is negative")
		}
		w.backoff = func(attempt int, _ error) time.Duration {
			return spread(delays[min(attempt, len(delays))-1])
		}
	}
}

// BackoffFunc is [Backoff] by a function of the failed attempt, from 1, and of its error.
func BackoffFunc(f func(attempt int, err error) time.Duration) WorkerOption {
	return func(w *Worker) { w.backoff = f }
}

// TimeLimit ends a handler's context after d. There is no limit by default.
func TimeLimit(d time.Duration) WorkerOption {
	return func(w *Worker) { w.valid(d > 0, "TimeLimit should be longer than 0"); w.timeLimit = d }
}

// Drain sets how long handlers may continue when the worker stops; 25 s by default.
func Drain(d time.Duration) WorkerOption { return func(w *Worker) { w.drain = d } }

// Grace sets how long handlers may continue after the end of their context; 5 s by default.
func Grace(d time.Duration) WorkerOption { return func(w *Worker) { w.grace = d } }

// AckWindow sets how long an ack waits for others, to be sent together; 5 ms by default.
func AckWindow(d time.Duration) WorkerOption { return func(w *Worker) { w.ackWindow = d } }

// Weights sets the proportions of the queues while several have jobs, 1 to 1000 for each. Without weights, earlier
// queues take precedence, in the order of [Worker.Handle].
func Weights(of map[string]int) WorkerOption { return func(w *Worker) { w.weights = of } }

// WithHooks sets the hooks.
func WithHooks(h Hooks) WorkerOption { return func(w *Worker) { w.hooks = h } }

// WithLogger sets the logger; by default Go's package log, without debug lines.
func WithLogger(l Logger) WorkerOption { return func(w *Worker) { w.log = l } }

// WithoutSignals leaves SIGTERM and SIGINT to the program.
func WithoutSignals() WorkerOption { return func(w *Worker) { w.noSignals = true } }

// Worker consumes jobs and runs their handlers.
type Worker struct {
	client      *Client
	concurrency int
	ttr         time.Duration
	poll        time.Duration
	backoff     func(attempt int, err error) time.Duration
	timeLimit   time.Duration
	drain       time.Duration
	grace       time.Duration
	ackWindow   time.Duration
	weights     map[string]int
	hooks       Hooks
	log         Logger
	noSignals   bool
	wrong       error // the first invalid option

	mu         sync.Mutex
	queues     []string
	handlers   map[string]Handler
	middleware []Middleware
	running    *run
}

const newWorker = "new worker"

func (w *Worker) valid(ok bool, otherwise string) {
	if !ok && w.wrong == nil {
		w.wrong = invalid(newWorker, "%s", otherwise)
	}
}

// NewWorker returns a worker. Add handlers, then run it.
func NewWorker(client *Client, opts ...WorkerOption) (*Worker, error) {
	w := &Worker{
		client:      client,
		concurrency: 10,
		ttr:         30 * time.Second,
		poll:        20 * time.Second,
		drain:       25 * time.Second,
		grace:       5 * time.Second,
		ackWindow:   5 * time.Millisecond,
		log:         standardLog{},
		handlers:    map[string]Handler{},
	}
	Backoff(5*time.Second, 30*time.Second, 5*time.Minute, 30*time.Minute, 2*time.Hour)(w)
	for _, opt := range opts {
		opt(w)
	}
	w.valid(w.concurrency > 0, "Concurrency should be 1 at least")
	w.valid(w.ttr >= 3*time.Second && w.ttr%time.Second == 0, "TTR should be whole seconds, 3 at least")
	w.valid(w.poll > 0, "Poll should be longer than 0")
	w.valid(w.drain >= 0 && w.grace >= 0 && w.ackWindow >= 0, "a duration is negative")
	for _, weight := range w.weights {
		w.valid(weight >= 1 && weight <= 1000, "a weight is from 1 to 1000")
	}
	if w.wrong != nil {
		return nil, w.wrong
	}
	return w, nil
}

// Handle sets the handler of a queue, from the next Run on. Earlier queues take precedence.
func (w *Worker) Handle(queue string, h Handler) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.handlers[queue] == nil {
		w.queues = append(w.queues, queue)
	}
	w.handlers[queue] = h
}

// Use wraps all handlers, from the next Run on: the first is the outermost.
func (w *Worker) Use(m ...Middleware) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.middleware = append(w.middleware, m...)
}

// ErrUnclean is returned by Run if a handler had not returned at the end of its grace.
var ErrUnclean = errors.New("dormouse: handlers had not returned when the worker ended")

// Run works until it is stopped: by SIGTERM or SIGINT, by [Worker.Stop], or by the end of its context, whose values
// alone are visible to handlers. Then it consumes no more jobs, lets handlers continue for Drain and then for Grace,
// returns unfinished jobs to their queues, and returns nil or [ErrUnclean]. A second signal or Stop ends both times.
// A permanent error, such as an invalid token, ends the worker with that error.
func (w *Worker) Run(ctx context.Context) error { return w.work(ctx, false) }

// RunUntilIdle handles the jobs that are due, and returns when a poll has found nothing and no handler runs: for
// tests, and for programs started by a timer.
func (w *Worker) RunUntilIdle(ctx context.Context) error { return w.work(ctx, true) }

// Stop ends Run like a signal. It does not wait.
func (w *Worker) Stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.running != nil {
		w.running.stop()
	}
}

func (w *Worker) work(ctx context.Context, untilIdle bool) error {
	r, err := w.begin(ctx)
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	signals := make(chan os.Signal, 2)
	if !w.noSignals {
		signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
		defer signal.Stop(signals)
	}
	go func() {
		end := ctx.Done()
		for {
			select {
			case <-end:
				end = nil
				r.stop()
			case <-signals:
				r.stop()
			case <-ended:
				return
			}
		}
	}()
	fatal := r.pollUntilStopped(untilIdle)
	unclean := r.end()
	close(ended)
	w.mu.Lock()
	w.running = nil
	w.mu.Unlock()
	if fatal != nil {
		return fatal
	}
	return unclean
}

func (w *Worker) begin(ctx context.Context) (*run, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.running != nil {
		return nil, invalid("run", "the worker runs already")
	}
	r := &run{
		w: w, values: ctx, free: w.concurrency, changed: make(chan struct{}, 1), tasks: map[*task]struct{}{},
		inFlight: make(chan struct{}, maxInFlight), handlers: map[string]Handler{}, stopping: make(chan struct{}), hurry: make(chan struct{}),
	}
	r.acks = acks{run: r, waiting: map[string][]*task{}}
	opts := ConsumeOptions{TTR: w.ttr, Timeout: w.poll}
	for _, queue := range w.queues {
		h := recovered(w.handlers[queue])
		for i := len(w.middleware) - 1; i >= 0; i-- {
			h = w.middleware[i](h)
		}
		r.handlers[queue] = recovered(h)
		if len(w.weights) > 0 {
			if w.weights[queue] == 0 {
				return nil, invalid("run", "the queue %s has no weight", queue)
			}
			opts.Weights = append(opts.Weights, w.weights[queue])
		}
	}
	if len(w.queues) == 0 {
		return nil, invalid("run", "the worker has no handler")
	}
	if len(w.queues) > 100 {
		return nil, invalid("run", "a worker has 100 queues at most")
	}
	if len(w.weights) > 0 && len(w.weights) != len(w.queues) {
		return nil, invalid("run", "a queue that has a weight has no handler")
	}
	ask, err := w.client.consumeRequest(opts, w.queues)
	if err != nil {
		return nil, err
	}
	if _, err := ask.address(w.client); err != nil {
		return nil, err
	}
	ask.timeout, ask.waits, ask.retryFor = 10*time.Second, w.poll, once
	r.ask = ask
	r.through, r.halfClose = w.client.forPolls()
	w.running = r
	return r, nil
}

// run is a worker from its start to its end.
type run struct {
	w         *Worker
	values    context.Context
	ask       request
	through   *http.Client // of polls
	halfClose bool
	inFlight  chan struct{} // full while maxInFlight requests for delivered jobs are
	handlers  map[string]Handler
	acks      acks

	stops    sync.Mutex
	stopping chan struct{} // closed: no more polls
	hurry    chan struct{} // closed: handlers are no longer waited for

	mu        sync.Mutex
	free      int
	tasks     map[*task]struct{} // whose handlers have not returned
	unsettled int                // jobs whose results are not sent yet
	changed   chan struct{}      // has a value after a change of these

	away time.Time // since when polls fail; zero while they work
}

func (r *run) stop() {
	r.stops.Lock()
	defer r.stops.Unlock()
	switch {
	case !closed(r.stopping):
		close(r.stopping)
	case !closed(r.hurry):
		close(r.hurry)
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// pollUntilStopped polls for as many jobs as there are free slots, whenever there is one.
func (r *run) pollUntilStopped(untilIdle bool) error {
	defer r.through.CloseIdleConnections()
	if untilIdle {
		r.ask.query.Set("timeout", "0")
	}
	failures := 0
	for {
		free, idle := r.waitForSlot()
		if free == 0 {
			return nil
		}
		r.ask.query.Set("count", fmt.Sprint(min(free, 100)))
		began := r.w.client.clock.Now()
		jobs, failed := r.pollOnce()
		took := r.w.client.clock.Now().Sub(began)
		if hook := r.w.hooks.Poll; hook != nil && (failed == nil || !closed(r.stopping)) {
			hook(len(jobs), took, failed.plain())
		}
		if len(jobs) > 0 {
			r.take(jobs)
		}
		if closed(r.stopping) {
			return nil
		}
		if failed == nil && len(jobs) == 0 {
			if untilIdle {
				if idle {
					return nil
				}
				r.wait(r.handlersReturned, nil, r.stopping)
				r.acks.sendAll()
				r.wait(r.resultsSent, nil, r.stopping)
			} else if took < r.w.poll/2 {
				failed = &callError{Error: &Error{
					Kind: ErrUnavailable, Op: r.ask.name(), Status: http.StatusNotFound, Index: -1,
					Message: "the poll came back empty before its time-out",
				}}
			}
		}
		if failed == nil {
			failures = 0
			r.isBack()
			continue
		}
		switch failed.Kind {
		case ErrInvalid, ErrUnauthorized, ErrForbidden, ErrNotFound, ErrUnsupported:
			r.w.log.Error("dormouse: the worker ends", "error", failed.Error)
			r.stop()
			return failed.plain()
		}
		r.isAway(failed.Error)
		sleep(r.w.client.clock, longer(pauseAfter(failures), failed.RetryAfter), r.stopping)
		failures++
	}
}

// waitForSlot returns the number of free slots, 0 if the worker stops, and whether no job is in progress.
func (r *run) waitForSlot() (free int, idle bool) {
	for {
		if closed(r.stopping) {
			return 0, false
		}
		r.mu.Lock()
		free, idle = r.free, len(r.tasks) == 0 && r.unsettled == 0
		r.mu.Unlock()
		if free > 0 {
			return free, idle
		}
		select {
		case <-r.changed:
		case <-r.stopping:
		}
	}
}

// take starts jobs, or returns them to their queue if the worker stops.
func (r *run) take(jobs []*Job) {
	for _, job := range jobs {
		if job.left() <= 0 { // the reply took too long
			r.logLost(job)
			continue
		}
		t := &task{run: r, job: job, began: r.w.client.clock.Now()}
		h := r.handlers[job.Queue]
		giveBack := h == nil || closed(r.stopping)
		r.mu.Lock()
		r.unsettled++
		if !giveBack {
			r.free--
			r.tasks[t] = struct{}{}
		}
		r.mu.Unlock()
		if giveBack {
			go t.settle(returned)
			continue
		}
		t.begin(h)
	}
}

// leave frees the slot of a task whose handler has returned.
func (r *run) leave(t *task) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.tasks, t)
	r.free++
	r.change()
}

// settled is called once for each consumed job: when its result was sent, or when it is lost.
func (r *run) settled() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unsettled--
	r.change()
}

func (r *run) change() {
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

func (r *run) handlersReturned() bool { return len(r.tasks) == 0 }

func (r *run) resultsSent() bool { return r.unsettled == 0 }

// wait waits for a condition, and reports whether it holds: at most for the given time, and until the interrupt.
func (r *run) wait(is func() bool, most *time.Duration, interrupt <-chan struct{}) bool {
	over := make(chan struct{})
	if most != nil {
		timer := r.w.client.clock.AfterFunc(*most, func() { close(over) })
		defer timer.Stop()
	}
	for {
		r.mu.Lock()
		done := is()
		r.mu.Unlock()
		if done {
			return true
		}
		select {
		case <-r.changed:
		case <-over:
			return false
		case <-interrupt:
			return false
		}
	}
}

func (r *run) isAway(err *Error) {
	if !r.away.IsZero() {
		return
	}
	r.away = r.w.client.clock.Now()
	r.w.log.Warn("dormouse: the server cannot be polled", "error", err)
	if hook := r.w.hooks.Away; hook != nil {
		hook(err)
	}
}

func (r *run) isBack() {
	if r.away.IsZero() {
		return
	}
	away := r.w.client.clock.Now().Sub(r.away)
	r.away = time.Time{}
	r.w.log.Info("dormouse: the server can be polled again", "away", away)
	if hook := r.w.hooks.Back; hook != nil {
		hook(away)
	}
}

// end lets handlers continue for their time, and sends all results.
func (r *run) end() error {
	running := r.working()
	if hook := r.w.hooks.Drain; hook != nil {
		hook(len(running))
	}
	r.acks.sendAll()
	left := 0
	if !r.wait(r.handlersReturned, &r.w.drain, r.hurry) {
		for _, t := range r.working() {
			t.cancel(ErrStopping)
		}
		if !r.wait(r.handlersReturned, &r.w.grace, r.hurry) {
			for _, t := range r.working() {
				if t.abandon(returned) {
					left++
				}
			}
		}
	}
	r.wait(r.resultsSent, nil, nil)
	if left > 0 {
		r.w.log.Warn("dormouse: handlers had not returned when the worker ended", "handlers", left)
		return fmt.Errorf("%w: %d", ErrUnclean, left)
	}
	return nil
}

func (r *run) working() []*task {
	r.mu.Lock()
	defer r.mu.Unlock()
	working := make([]*task, 0, len(r.tasks))
	for t := range r.tasks {
		working = append(working, t)
	}
	return working
}

// standardLog writes to Go's package log.
type standardLog struct{}

func (standardLog) Debug(string, ...any)          {}
func (standardLog) Info(msg string, args ...any)  { logLine("INFO", msg, args) }
func (standardLog) Warn(msg string, args ...any)  { logLine("WARN", msg, args) }
func (standardLog) Error(msg string, args ...any) { logLine("ERROR", msg, args) }

func logLine(level, msg string, args []any) {
	var line strings.Builder
	for i := 0; i+1 < len(args); i += 2 {
		fmt.Fprintf(&line, " %v=%q", args[i], fmt.Sprint(args[i+1]))
	}
	log.Print(level, " ", msg, line.String())
}
