package dormouse

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"
)

// RetryAfter returns an error with which a handler sets the time of the next attempt.
func RetryAfter(d time.Duration, err error) error { return &verdict{err: err, after: d, kind: retry} }

// Snooze returns an error with which a handler postpones the job without a failure: no try is used.
func Snooze(d time.Duration) error { return &verdict{after: d, kind: snooze} }

// Permanent returns an error with which a handler says that retries are useless: the job is buried.
func Permanent(err error) error { return &verdict{err: err, kind: permanent} }

type verdict struct {
	err   error
	after time.Duration
	kind  int
}

const (
	retry = iota
	snooze
	permanent
)

func (v *verdict) Unwrap() error { return v.err }

func (v *verdict) Error() string {
	switch {
	case v.err != nil:
		return v.err.Error()
	case v.kind == permanent:
		return "permanent"
	}
	return "again in " + v.after.String()
}

// PanicError is the panic of a handler.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprint("panic: ", e.Value) }

// Unwrap returns the panic value, if that is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// recovered returns a handler that returns its panics as errors.
func recovered(h Handler) Handler {
	return func(ctx context.Context, job *Job) (err error) {
		ended := false
		defer func() {
			if ended {
				return
			}
			value := recover()
			if value == nil {
				// The goroutine still ends; work notices it.
				value = "the handler has ended its goroutine"
			}
			err = &PanicError{Value: value, Stack: debug.Stack()}
		}()
		err = h(ctx, job)
		ended = true
		return err
	}
}

// Causes of the end of a handler's context, besides [ErrLost].
var (
	ErrStopping  = errors.New("dormouse: the worker stops")
	ErrTimeLimit = errors.New("time limit") // as in the reason of a job
)

type taskKey struct{}

// Cause returns why the context of a handler has ended: [ErrLost], [ErrStopping] or [ErrTimeLimit]; otherwise the
// context's own error.
func Cause(ctx context.Context) error {
	if t, ok := ctx.Value(taskKey{}).(*task); ok {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.cause != nil {
			return t.cause
		}
	}
	return ctx.Err()
}

// detached has the values of a context, and never ends.
type detached struct{ context.Context }

func (detached) Deadline() (deadline time.Time, ok bool) { return }
func (detached) Done() <-chan struct{}                   { return nil }
func (detached) Err() error                              { return nil }

// task is a job of a worker.
type task struct {
	run   *run
	job   *Job
	began time.Time
	ctx   context.Context
	end   context.CancelFunc

	mu        sync.Mutex
	cause     error // of the end of the context
	over      bool  // touches have ended
	returned  bool  // the handler has returned
	abandoned bool  // the result was decided before the handler returned
	lost      bool
	failures  int // of touches, since the last success
	touching  timer
	lease     timer
	limit     timer

	took time.Duration
	err  error // of the handler
}

func (t *task) begin(h Handler) {
	r, job := t.run, t.job
	job.task = t
	var values context.Context = detached{r.values}
	values = ContextWithTraceparent(values, job.Traceparent())
	t.ctx, t.end = context.WithCancel(context.WithValue(values, taskKey{}, t))
	t.mu.Lock()
	t.touching = r.w.client.clock.AfterFunc(spread(r.w.ttr/3), t.touch)
	t.lease = r.w.client.clock.AfterFunc(job.left(), t.leaseOver)
	if r.w.timeLimit > 0 {
		t.limit = r.w.client.clock.AfterFunc(r.w.timeLimit, t.limitOver)
	}
	t.mu.Unlock()
	if hook := r.w.hooks.Start; hook != nil {
		hook(job)
	}
	go t.work(h)
}

func (t *task) work(h Handler) {
	err := error(&PanicError{Value: "the handler has ended its goroutine"})
	defer func() { t.ended(err) }()
	err = h(t.ctx, t.job)
}

// ended is called once, when the handler has returned.
func (t *task) ended(err error) {
	var panicked *PanicError
	if errors.As(err, &panicked) {
		t.run.w.log.Error("dormouse: a handler panicked", "queue", t.job.Queue, "job", t.job.ID,
			"panic", fmt.Sprint(panicked.Value), "stack", string(panicked.Stack))
	}
	t.mu.Lock()
	t.returned, t.over = true, true
	t.stopTimers()
	abandoned, lost, cause := t.abandoned, t.lost, t.cause
	if !abandoned { // otherwise settle reads them already
		t.took, t.err = t.run.w.client.clock.Now().Sub(t.began), err
	}
	t.mu.Unlock()
	t.end()
	if lost {
		t.finished(OutcomeLost)
	}
	t.run.leave(t)
	if !lost && !abandoned {
		t.settle(t.resultOf(err, cause))
	}
}

func (t *task) stopTimers() {
	for _, timer := range []timer{t.touching, t.lease, t.limit} {
		if timer != nil {
			timer.Stop()
		}
	}
}

// cancel ends the handler's context, unless it has ended.
func (t *task) cancel(cause error) {
	t.mu.Lock()
	first := t.cause == nil && !t.returned
	if first {
		t.cause = cause
	}
	t.mu.Unlock()
	if first {
		t.end()
	}
}

// lose gives the job up: another worker has it, or will have it.
func (t *task) lose() {
	t.mu.Lock()
	if t.over {
		t.mu.Unlock()
		return
	}
	t.lost, t.over = true, true
	t.touching.Stop()
	t.lease.Stop()
	t.mu.Unlock()
	t.job.settle(OutcomeLost)
	t.run.logLost(t.job)
	t.cancel(ErrLost)
	t.run.settled()
}

func (r *run) logLost(job *Job) {
	r.w.log.Warn("dormouse: a job is lost: it was not kept in time, and somebody else gets it",
		"queue", job.Queue, "job", job.ID)
}

// leaseOver is called when the delivery ends by the local clock, unless a touch has extended it meanwhile.
func (t *task) leaseOver() {
	if left := t.job.left(); left > 0 {
		t.mu.Lock()
		defer t.mu.Unlock()
		if !t.over {
			t.lease = t.run.w.client.clock.AfterFunc(left, t.leaseOver)
		}
		return
	}
	if t.job.outcome() == "" {
		t.lose()
	}
}

// touchAfter schedules the next touch for a third of ttr from now.
func (t *task) touchAfter(ttr time.Duration) { t.plan(spread(ttr / 3)) }

// touchedByHand reschedules touches after a manual touch of the handler, which may be for a shorter time.
func (t *task) touchedByHand(ttr time.Duration) {
	t.touchAfter(ttr)
	left := t.job.left()
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.over {
		t.lease.Stop()
		t.lease = t.run.w.client.clock.AfterFunc(left, t.leaseOver)
	}
}

func (t *task) plan(d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.over {
		t.touching.Stop()
		t.touching = t.run.w.client.clock.AfterFunc(d, t.touch)
	}
}

func (t *task) isOver() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.over
}

// once disables the client's retries for a worker's calls: the worker retries by itself, with the receipt that is
// current then.
var once = new(time.Duration)

// maxInFlight is the maximum number of touches, releases and buries of a worker in flight. Others wait: a thousand
// connections at once are slower than a few that are reused.
const maxInFlight = 32

// touch extends the delivery by another ttr, independent of the handler's context.
func (t *task) touch() {
	job, w, ctx := t.job, t.run.w, context.Background()
	job.turn <- struct{}{}
	defer job.endTurn()
	t.run.inFlight <- struct{}{}
	defer func() { <-t.run.inFlight }()
	for !t.isOver() && job.outcome() == "" {
		left := job.left()
		if left <= 0 {
			return // leaseOver handles the rest
		}
		timeout := shorter(shorter(w.ttr/3, 10*time.Second), left)
		_, failed := job.touch(ctx, w.ttr, timeout, once)
		if hook := w.hooks.Touch; hook != nil {
			hook(job, failed.plain())
		}
		if failed == nil {
			t.failures = 0
			t.touchAfter(w.ttr)
			return
		}
		if failed.is(ErrLost) || failed.is(ErrNotFound) {
			ours := false
			if failed.is(ErrLost) && job.touchLost {
				ours, failed = job.findReceipt(ctx, shorter(timeout, longer(job.left(), time.Millisecond)), once)
			} else {
				failed = nil
			}
			if ours {
				continue
			}
			if failed == nil {
				t.lose()
				return
			}
		}
		if pause, inTime := job.pauseInTime(t.failures, failed.Error); inTime {
			t.plan(pause)
		}
		t.failures++
		return
	}
}

// limitOver is called at the end of the handler's time limit.
func (t *task) limitOver() {
	t.cancel(ErrTimeLimit)
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.returned && t.cause == ErrTimeLimit {
		t.limit = t.run.w.client.clock.AfterFunc(t.run.w.grace, t.limitIgnored)
	}
}

func (t *task) limitIgnored() {
	t.abandon(t.resultOf(ErrTimeLimit, nil))
	t.stillWorks()
}

func (t *task) stillWorks() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.returned {
		return
	}
	t.run.w.log.Warn("dormouse: a handler has not returned after its time limit; its slot is not free",
		"queue", t.job.Queue, "job", t.job.ID, "since", t.run.w.client.clock.Now().Sub(t.began))
	t.limit = t.run.w.client.clock.AfterFunc(time.Minute, t.stillWorks)
}

// abandon sends a result before the handler has returned. It returns false if the handler has
// returned.
func (t *task) abandon(res result) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.returned || t.abandoned || t.lost {
		return !t.returned
	}
	t.abandoned, t.over = true, true
	t.took = t.run.w.client.clock.Now().Sub(t.began)
	t.touching.Stop()
	t.lease.Stop()
	go t.settle(res)
	return true
}

// result is the result to send for a job.
type result struct {
	outcome Outcome
	keepTry bool
	after   time.Duration
	backoff bool   // after is set by the worker's back-off
	reason  string // without the attempt; empty for none
	err     error
}

// returned returns a job to its queue at once, with its try.
var returned = result{outcome: OutcomeReturned, keepTry: true}

func (t *task) resultOf(err, cause error) result {
	var v *verdict
	switch {
	case err == nil:
		return result{outcome: OutcomeAcked}
	case cause == ErrStopping:
		return returned
	case cause == ErrTimeLimit:
		err = ErrTimeLimit
	case errors.As(err, &v) && v.kind == snooze:
		return result{outcome: OutcomeSnoozed, keepTry: true, after: v.after}
	case v != nil && v.kind == permanent:
		return result{outcome: OutcomeBuried, reason: err.Error(), err: err}
	case v != nil:
		return result{outcome: OutcomeReleased, after: v.after, reason: err.Error(), err: err}
	}
	return result{outcome: OutcomeReleased, backoff: true, reason: err.Error(), err: err}
}

// settle sends the result until the server has accepted it, or the job is lost.
func (t *task) settle(res result) {
	job, w := t.job, t.run.w
	job.turn <- struct{}{}
	if res.outcome == OutcomeAcked && job.outcome() == "" {
		t.run.acks.add(t) // settled is called from there
		return
	}
	outcome := job.outcome()
	for n := 0; outcome == ""; n++ {
		t.run.inFlight <- struct{}{}
		left := job.left()
		if left <= 0 {
			<-t.run.inFlight
			outcome = OutcomeLost
			break
		}
		failed := t.give(res, shorter(w.client.timeout, left))
		<-t.run.inFlight
		switch {
		case failed == nil:
			outcome = res.outcome
			continue
		case failed.is(ErrLost) && job.touchLost:
			var ours bool
			if ours, failed = job.findReceipt(context.Background(), shorter(w.client.timeout, left), once); ours {
				continue
			}
			if failed == nil && job.givenLost {
				outcome = res.outcome
				continue
			}
		case (failed.is(ErrLost) || failed.is(ErrNotFound)) && job.givenLost:
			outcome = res.outcome // it was executed, and the reply was lost
			continue
		case failed.is(ErrLost), failed.is(ErrNotFound):
			failed = nil
		}
		if failed == nil || !t.run.waitInTime(job, n, failed.Error) {
			outcome = OutcomeLost
		}
	}
	t.settled(outcome)
}

// pauseInTime returns the pause before the next retry, if there is time for one. If the job would expire before the
// time that the server asks for, it is half of the remaining time: that server may be back long before.
func (j *Job) pauseInTime(n int, failed *Error) (pause time.Duration, inTime bool) {
	left := j.left()
	if pause = longer(pauseAfter(n), failed.RetryAfter); pause >= left {
		pause = left / 2
	}
	return pause, left > lastRepeat
}

// lastRepeat is the minimum remaining time of a delivery for a retry.
const lastRepeat = 100 * time.Millisecond

// waitInTime waits before a retry. It reports whether there is time for one.
func (r *run) waitInTime(job *Job, n int, failed *Error) bool {
	pause, inTime := job.pauseInTime(n, failed)
	return inTime && sleep(r.w.client.clock, pause, nil)
}

func (t *task) give(res result, timeout time.Duration) *callError {
	job, ctx := t.job, context.Background()
	reason, attempt := "", 0
	if res.err != nil {
		var failed *callError
		if attempt, failed = job.findAttempt(ctx, timeout, once); failed != nil {
			return failed
		}
		reason = fmt.Sprintf("attempt %d: %s", attempt, res.reason)
	}
	if res.outcome == OutcomeBuried {
		return job.bury(ctx, reason, timeout, once)
	}
	after := res.after
	if res.backoff {
		after = t.run.w.backoffAfter(attempt, res.err)
	}
	_, failed := job.release(ctx, Release{Delay: longer(after, 0), Reason: reason, KeepTry: res.keepTry}, timeout, once)
	return failed
}

// backoffAfter calls the program's own function, if there is one; a panic of it does not end the worker.
func (w *Worker) backoffAfter(attempt int, err error) (after time.Duration) {
	defer func() {
		if value := recover(); value != nil {
			w.log.Error("dormouse: the back-off panicked", "panic", fmt.Sprint(value), "stack", string(debug.Stack()))
			after = spread(5 * time.Second)
		}
	}()
	return w.backoff(attempt, err)
}

// settled ends the turn that settle has taken.
func (t *task) settled(outcome Outcome) {
	if outcome == OutcomeLost && t.job.outcome() == "" {
		t.run.logLost(t.job)
	}
	t.job.settle(outcome)
	t.job.endTurn()
	t.finished(outcome)
	t.run.settled()
}

func (t *task) finished(outcome Outcome) {
	hook := t.run.w.hooks.Finish
	if hook == nil || t.ctx == nil { // a job that was returned without a handler
		return
	}
	t.mu.Lock()
	f := Finished{Outcome: outcome, Took: t.took, Err: t.err}
	t.mu.Unlock()
	f.Elapsed = t.job.Elapsed + t.run.w.client.clock.Now().Sub(t.began)
	hook(t.job, f)
}
