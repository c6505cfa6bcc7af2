package dormouse

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"
)

// RetryAfter is an error of a handler that says when to try again.
func RetryAfter(d time.Duration, err error) error { return &verdict{err: err, after: d, kind: retry} }

// Snooze is an error of a handler that wants the job later, and has not failed: no try is spent.
func Snooze(d time.Duration) error { return &verdict{after: d, kind: snooze} }

// Permanent is an error of a handler after which no try is of use: the job is buried.
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

// PanicError is what a handler has panicked with.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprint("panic: ", e.Value) }

// Unwrap gives what the handler panicked with, if that is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// recovered is a handler that returns its panics.
func recovered(h Handler) Handler {
	return func(ctx context.Context, job *Job) (err error) {
		ended := false
		defer func() {
			if ended {
				return
			}
			value := recover()
			if value == nil {
				// The goroutine ends all the same; work notices it.
				value = "the handler has ended its goroutine"
			}
			err = &PanicError{Value: value, Stack: debug.Stack()}
		}()
		err = h(ctx, job)
		ended = true
		return err
	}
}

// Why the context of a handler has ended, beside [ErrLost].
var (
	ErrStopping  = errors.New("dormouse: the worker stops")
	ErrTimeLimit = errors.New("time limit") // as it stands in the reason of a job
)

type taskKey struct{}

// Cause says why the context of a handler has ended: [ErrLost], [ErrStopping] or [ErrTimeLimit]. Else it is the
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

// task is a job in the hands of a worker.
type task struct {
	run   *run
	job   *Job
	began time.Time
	ctx   context.Context
	end   context.CancelFunc

	mu        sync.Mutex
	cause     error // why the context has ended
	over      bool  // nothing is touched any more
	returned  bool  // the handler has
	abandoned bool  // the result was decided before the handler has returned
	lost      bool
	failures  int // of touches, since the last one that worked
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

// ended is called when the handler has returned, once.
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
	if !abandoned { // else settle reads them already
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

// lose gives the job up: it is somebody else's, or will be.
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

// leaseOver is called when the hand-over ends by our clock, unless a touch has made it longer meanwhile.
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

// touchAfter plans the next touch for a third of ttr from now.
func (t *task) touchAfter(ttr time.Duration) { t.plan(spread(ttr / 3)) }

// touchedByHand plans anew what follows a touch of the handler's own, which may be for a shorter time.
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

// once is the time that a call of the worker's may be repeated by the client: the worker repeats itself, with the
// receipt that is valid then.
var once = new(time.Duration)

// maxInFlight is how many touches, releases and buries of a worker are in flight at most. The others wait: a thousand
// connections at once are slower than some that are kept.
const maxInFlight = 32

// touch keeps the job for another ttr. The handler's context has no part in it.
func (t *task) touch() {
	job, w, ctx := t.job, t.run.w, context.Background()
	job.turn <- struct{}{}
	defer job.endTurn()
	t.run.inFlight <- struct{}{}
	defer func() { <-t.run.inFlight }()
	for !t.isOver() && job.outcome() == "" {
		left := job.left()
		if left <= 0 {
			return // leaseOver does the rest
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

// limitOver is called when the handler has had its time.
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

// abandon sends a result before the handler has returned. It says whether it has not.
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

// result is what is to become of a job.
type result struct {
	outcome Outcome
	keepTry bool
	after   time.Duration
	backoff bool   // after is as the worker's back-off says
	reason  string // without the attempt; none where it is empty
	err     error
}

// returned gives a job back at once, with its try.
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

// settle sends the result until the server has taken it, or the job is lost.
func (t *task) settle(res result) {
	job, w := t.job, t.run.w
	job.turn <- struct{}{}
	if res.outcome == OutcomeAcked && job.outcome() == "" {
		t.run.acks.add(t) // and settled is called from there
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
			outcome = res.outcome // it was done, and the answer was lost
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

// pauseInTime is how long to wait before the next repeat, if there is time for one. Where the job would be lost before
// the server wants to hear of it again, it is half of what is left: that server may be back long before.
func (j *Job) pauseInTime(n int, failed *Error) (pause time.Duration, inTime bool) {
	left := j.left()
	if pause = longer(pauseAfter(n), failed.RetryAfter); pause >= left {
		pause = left / 2
	}
	return pause, left > lastRepeat
}

// lastRepeat is how long a job is held at least when something is repeated for it.
const lastRepeat = 100 * time.Millisecond

// waitInTime waits before a repeat. It says whether there is time for one.
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

// backoffAfter asks the program's own function, if there is one: its panic ends no worker.
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
	if hook == nil || t.ctx == nil { // a job that was given back has not begun
		return
	}
	t.mu.Lock()
	f := Finished{Outcome: outcome, Took: t.took, Err: t.err}
	t.mu.Unlock()
	f.Elapsed = t.job.Elapsed + t.run.w.client.clock.Now().Sub(t.began)
	hook(t.job, f)
}
