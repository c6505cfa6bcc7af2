package dormouse

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// shift is a running worker, whose handlers do what the test says.
type shift struct {
	*stage
	worker   *Worker
	done     chan error
	begun    chan *begun   // handlers that have begun
	finished chan finished // finished jobs
	touched  chan error    // touches of the worker
	drained  chan int      // the hook
	away     chan error    // the hook
	back     chan struct{} // the hook
	polled   chan error    // the hook, for failures
	lines    *lines        // of the log
}

type finished struct {
	job *Job
	Finished
}

// begun is a handler that waits for the test to decide its result.
type begun struct {
	ctx context.Context
	job *Job
	ret chan error
}

// ends waits for the end of the context.
func (b *begun) ends(t *testing.T, cause error) {
	t.Helper()
	receive(t, b.ctx.Done())
	if got := Cause(b.ctx); got != cause {
		t.Fatalf("the context has ended by %v, not by %v", got, cause)
	}
}

// lines are the lines of a log.
type lines struct {
	mu  sync.Mutex
	all []string
}

func (l *lines) add(level, msg string, args []any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, fmt.Sprint(level, " ", msg, args))
}

func (l *lines) Debug(msg string, args ...any) { l.add("DEBUG", msg, args) }
func (l *lines) Info(msg string, args ...any)  { l.add("INFO", msg, args) }
func (l *lines) Warn(msg string, args ...any)  { l.add("WARN", msg, args) }
func (l *lines) Error(msg string, args ...any) { l.add("ERROR", msg, args) }

func (l *lines) with(text string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.all {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

func newShift(t *testing.T, opts ...WorkerOption) *shift {
	t.Helper()
	return newShiftOn(newStage(t), opts...)
}

func newShiftOn(s *stage, opts ...WorkerOption) *shift {
	s.t.Helper()
	sh := &shift{
		stage: s, done: make(chan error, 1), begun: make(chan *begun, 1000), finished: make(chan finished, 1000),
		touched: make(chan error, 1000), drained: make(chan int, 10), away: make(chan error, 10),
		back: make(chan struct{}, 10), polled: make(chan error, 1000), lines: &lines{},
	}
	opts = append([]WorkerOption{AckWindow(0), WithoutSignals(), WithLogger(sh.lines), WithHooks(Hooks{
		Finish: func(job *Job, f Finished) { sh.finished <- finished{job, f} },
		Touch:  func(_ *Job, err error) { sh.touched <- err },
		Drain:  func(running int) { sh.drained <- running },
		Away:   func(err error) { sh.away <- err },
		Back:   func(time.Duration) { sh.back <- struct{}{} },
		Poll: func(_ int, _ time.Duration, err error) {
			if err != nil {
				sh.polled <- err
			}
		},
	})}, opts...)
	w, err := NewWorker(s.client, opts...)
	if err != nil {
		s.t.Fatal(err)
	}
	w.Handle("mail", func(ctx context.Context, job *Job) error {
		b := &begun{ctx, job, make(chan error, 1)}
		sh.begun <- b
		return <-b.ret
	})
	sh.worker = w
	return sh
}

func (sh *shift) start() *shift {
	go func() { sh.done <- sh.worker.Run(bg) }()
	return sh
}

// next returns the next started handler.
func (sh *shift) next() *begun {
	sh.t.Helper()
	return receive(sh.t, sh.begun)
}

func (sh *shift) outcome(want Outcome) {
	sh.t.Helper()
	if got := receive(sh.t, sh.finished); got.Outcome != want {
		sh.t.Fatalf("the outcome is %s, not %s", got.Outcome, want)
	}
}

// stop stops the worker, whose handlers have all returned.
func (sh *shift) stop() {
	sh.t.Helper()
	sh.worker.Stop()
	if err := receive(sh.t, sh.done); err != nil {
		sh.t.Fatal(err)
	}
}

// touches waits for the next touch, moves the clock to it and waits for its end.
func (sh *shift) touches() {
	sh.t.Helper()
	d := sh.clock.next(sh.t, touching, 9*time.Second, 11*time.Second)
	sh.advance(d)
	if err := receive(sh.t, sh.touched); err != nil {
		sh.t.Fatal(err)
	}
}

// waitForAcks waits until n acks wait for others.
func (sh *shift) waitForAcks(n int) {
	sh.t.Helper()
	acks := &sh.worker.running.acks
	for end := time.Now().Add(patience); ; runtime.Gosched() {
		acks.mu.Lock()
		waiting := len(acks.waiting["mail"])
		acks.mu.Unlock()
		if waiting == n {
			return
		}
		if time.Now().After(end) {
			sh.t.Fatalf("%d acks wait, not %d", waiting, n)
		}
	}
}

func TestWhatAHandlerReturnsDecides(t *testing.T) {
	broken := errors.New("broken")
	for name, test := range map[string]struct {
		err     error
		tries   int
		outcome Outcome
		state   State
		left    int // tries
		reason  string
		from    time.Duration
		to      time.Duration
	}{
		"nothing":     {nil, 2, OutcomeAcked, "", 0, "", 0, 0},
		"error":       {broken, 2, OutcomeReleased, Delayed, 1, "attempt 1: broken", 4500, 5500},
		"last try":    {broken, 1, OutcomeReleased, Dead, 0, "attempt 1: broken", 0, 0},
		"retry":       {fmt.Errorf("wrapped: %w", RetryAfter(90*time.Second, broken)), 2, OutcomeReleased, Delayed, 1, "attempt 1: wrapped: broken", 90000, 90000},
		"retry now":   {RetryAfter(0, broken), 2, OutcomeReleased, Ready, 1, "attempt 1: broken", 0, 0},
		"snooze":      {Snooze(time.Minute), 1, OutcomeSnoozed, Delayed, 1, "", 60000, 60000},
		"permanent":   {Permanent(broken), 5, OutcomeBuried, Dead, 0, "attempt 1: broken", 0, 0},
		"long reason": {errors.New(strings.Repeat("ü", 3000)), 2, OutcomeReleased, Delayed, 1, "attempt 1: " + strings.Repeat("ü", 2042), 4500, 5500},
		"no JSON":     {new(Job).JSON(nil), 5, OutcomeBuried, Dead, 0, "attempt 1: unexpected end of JSON input", 0, 0},
	} {
		sh := newShift(t).start()
		id := sh.publish("mail", "x", Tries(test.tries))
		b := sh.next()
		sh.worker.Stop() // further ready jobs stay for another worker
		b.ret <- test.err
		sh.outcome(test.outcome)
		if err := receive(t, sh.done); err != nil {
			t.Fatal(err)
		}
		if test.state == "" {
			sh.gone("mail", id)
			continue
		}
		info := sh.info("mail", id)
		delay := info.DueAt.Sub(sh.server.Now())
		if info.State != test.state || info.RemainTries != test.left || info.Reason != test.reason ||
			delay < test.from*time.Millisecond || delay > test.to*time.Millisecond {
			t.Errorf("%s: %+v %+v in %v", name, info, info.Job, delay)
		}
	}
}

func TestBackoffGrowsWithTheAttempts(t *testing.T) {
	sh := newShift(t).start()
	id := sh.publish("mail", "x", Tries(10), TTL(0))
	for i, want := range []time.Duration{5 * time.Second, 30 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 2 * time.Hour} {
		b := sh.next()
		if attempt, err := b.job.Attempt(b.ctx); err != nil || attempt != i+1 {
			t.Fatal(attempt, err)
		}
		b.ret <- errors.New("no")
		sh.outcome(OutcomeReleased)
		info := sh.info("mail", id)
		delay := info.DueAt.Sub(sh.server.Now())
		if delay < want*9/10 || delay > want*11/10 || info.Reason != fmt.Sprintf("attempt %d: no", i+1) {
			t.Fatalf("attempt %d: %v %q", i+1, delay, info.Reason)
		}
		sh.server.Advance(delay)
	}
	sh.next().ret <- nil
	sh.outcome(OutcomeAcked)
	sh.stop()
	// One look-up per failure, and one per attempt that asked: the same here.
	if looks := len(sh.wire.seen("GET mail/job/" + id)); looks != 12 {
		t.Errorf("%d looks, of which six are this test's own", looks)
	}
	for reason, want := range map[string]int{
		"attempt 7: x": 7, "attempt 7": 0, "attempt x: y": 0, "": 0, "the disk is full": 0, "attempt -1: x": 0,
	} {
		if got := attemptTold(reason); got != want {
			t.Errorf("%q tells of attempt %d", reason, got)
		}
	}
}

func TestABackoffOfOnesOwn(t *testing.T) {
	sh := newShift(t, BackoffFunc(func(attempt int, err error) time.Duration {
		return time.Duration(attempt*len(err.Error())) * time.Second
	})).start()
	id := sh.publish("mail", "x", Tries(3))
	sh.next().ret <- errors.New("four")
	sh.outcome(OutcomeReleased)
	if delay := sh.info("mail", id).DueAt.Sub(sh.server.Now()); delay != 4*time.Second {
		t.Fatal(delay)
	}
	sh.stop()
}

// A back-off such as delays[attempt] must not end the program at the fourth attempt.
func TestABackoffThatPanics(t *testing.T) {
	sh := newShift(t, BackoffFunc(func(int, error) time.Duration { panic("no such attempt") })).start()
	id := sh.publish("mail", "x", Tries(3))
	sh.next().ret <- errors.New("no")
	sh.outcome(OutcomeReleased)
	if delay := sh.info("mail", id).DueAt.Sub(sh.server.Now()); delay < 4*time.Second || delay > 6*time.Second {
		t.Fatal(delay)
	}
	sh.stop()
}

func TestAPanicIsAnError(t *testing.T) {
	s := newStage(t)
	sh := newShiftOn(s)
	sh.worker.Handle("value", func(context.Context, *Job) error { panic("oh") })
	sh.worker.Handle("error", func(context.Context, *Job) error { panic(io.EOF) })
	sh.worker.Handle("exit", func(context.Context, *Job) error { runtime.Goexit(); return nil })
	var order []string
	var mu sync.Mutex
	note := func(text string) { mu.Lock(); defer mu.Unlock(); order = append(order, text) }
	for _, name := range []string{"outer", "inner"} {
		name := name
		sh.worker.Use(func(next Handler) Handler {
			return func(ctx context.Context, job *Job) error {
				note(name + " before")
				err := next(ctx, job)
				note(fmt.Sprint(name, " after ", err))
				return err
			}
		})
	}
	sh.start()
	for queue, reason := range map[string]string{
		"value": "attempt 1: panic: oh", "error": "attempt 1: panic: EOF",
		"exit": "attempt 1: panic: the handler has ended its goroutine",
	} {
		id := sh.publish(queue, "x", Tries(2))
		sh.outcome(OutcomeReleased)
		if got := sh.info(queue, id).Reason; got != reason {
			t.Errorf("%s: %q", queue, got)
		}
		if queue == "value" && fmt.Sprint(order[len(order)-4:]) != fmt.Sprint([]string{
			"outer before", "inner before", "inner after panic: oh", "outer after panic: oh",
		}) {
			t.Error(order)
		}
	}
	if sh.lines.with("worker_test.go") == 0 {
		t.Error("no stack is logged")
	}
	sh.publish("mail", "x") // and the worker continues
	sh.next().ret <- nil
	sh.outcome(OutcomeAcked)
	sh.stop()
}

func TestAJobIsTouchedWhileItsHandlerWorks(t *testing.T) {
	sh := newShift(t, TimeLimit(time.Minute), Grace(time.Hour)).start()
	sh.publish("mail", "x")
	b := sh.next()
	for i := 0; i < 7; i++ { // beyond the time limit, which ends the context, but not the touches
		sh.touches()
	}
	b.ends(t, ErrTimeLimit)
	sh.worker.Stop()
	receive(t, sh.drained)
	sh.touches() // while the worker drains, too
	b.ret <- nil
	sh.outcome(OutcomeAcked)
	if err := receive(t, sh.done); err != nil {
		t.Fatal(err)
	}
	sh.gone("mail", b.job.ID)
}

func TestATouchThatFailedIsRepeated(t *testing.T) {
	sh := newShift(t).start()
	sh.publish("mail", "x")
	b := sh.next()
	sh.wire.fail(func(req *http.Request) (*http.Response, error) {
		if strings.HasSuffix(req.URL.Path, "/touch") {
			return respond(503, "{}"), nil
		}
		return nil, nil
	}, nil)
	sh.advance(sh.clock.next(t, touching, 9*time.Second, 11*time.Second))
	asError(t, receive(t, sh.touched), ErrUnavailable)
	sh.advance(sh.clock.next(t, touching, 50*time.Millisecond, 100*time.Millisecond))
	asError(t, receive(t, sh.touched), ErrUnavailable)
	sh.wire.fail(nil, nil)
	sh.advance(sh.clock.next(t, touching, 100*time.Millisecond, 200*time.Millisecond))
	if err := receive(t, sh.touched); err != nil {
		t.Fatal(err)
	}
	sh.touches()
	b.ret <- nil
	sh.outcome(OutcomeAcked)
	sh.stop()
}

// The server has executed the touch, but its reply was lost: the worker's receipt is old.
func TestATouchWhoseAnswerWasLost(t *testing.T) {
	sh := newShift(t).start()
	id := sh.publish("mail", "x")
	b := sh.next()
	sh.wire.fail(nil, times(1, "/touch"))
	sh.advance(sh.clock.next(t, touching, 9*time.Second, 11*time.Second))
	asError(t, receive(t, sh.touched), ErrNetwork)
	sh.advance(sh.clock.next(t, touching, 50*time.Millisecond, 100*time.Millisecond))
	asError(t, receive(t, sh.touched), ErrLost) // then it looks up the receipt, and touches with it
	if err := receive(t, sh.touched); err != nil {
		t.Fatal(err)
	}
	sh.touches()
	b.ret <- nil
	sh.outcome(OutcomeAcked)
	sh.stop()
	if n := len(sh.wire.seen("GET mail/job/" + id)); n != 1 {
		t.Errorf("%d looks", n)
	}
}

func TestAResultAfterATouchWhoseAnswerWasLost(t *testing.T) {
	for _, result := range []error{nil, errors.New("no"), Permanent(errors.New("no"))} {
		for many := 1; many <= 2; many++ { // alone, and in a batch of acks
			sh := newShift(t, AckWindow(time.Duration(many-1)*time.Millisecond)).start()
			var handlers []*begun
			for i := 0; i < many; i++ {
				sh.publish("mail", "x", Tries(2))
				handlers = append(handlers, sh.next())
			}
			sh.wire.fail(nil, times(1, "/touch"))
			sh.advance(11 * time.Second)
			for i := 0; i < many; i++ {
				if err := receive(t, sh.touched); i == 0 && many == 1 {
					asError(t, err, ErrNetwork)
				}
			}
			for _, b := range handlers {
				b.ret <- result
			}
			if many == 2 && result == nil {
				sh.waitForAcks(2)
				sh.clock.elapse(t, acking, time.Microsecond, time.Millisecond)
			}
			for range handlers {
				if got := receive(t, sh.finished); got.Outcome == OutcomeLost {
					t.Errorf("%v, %d jobs: %s", result, many, got.Outcome)
				}
			}
			sh.stop()
			if result == nil {
				for _, b := range handlers {
					sh.gone("mail", b.job.ID)
				}
			}
		}
	}
}

func TestAJobThatIsGoneIsLost(t *testing.T) {
	sh := newShift(t).start()
	id := sh.publish("mail", "x", Tries(3))
	b := sh.next()
	if err := sh.client.Cancel(bg, "mail", id); err != nil {
		t.Fatal(err)
	}
	sh.advance(sh.clock.next(t, touching, 9*time.Second, 11*time.Second))
	asError(t, receive(t, sh.touched), ErrNotFound)
	b.ends(t, ErrLost)
	sent := len(sh.wire.seen(id))
	b.ret <- errors.New("too late")
	sh.outcome(OutcomeLost)
	sh.stop()
	if n := len(sh.wire.seen(id)); n != sent || sh.lines.with("a job is lost") != 1 {
		t.Errorf("%d requests after the loss, %d lines", n-sent, sh.lines.with("a job is lost"))
	}
}

func TestAJobThatSomebodyElseHasIsLost(t *testing.T) {
	s := newStage(t)
	sh := newShiftOn(s, Concurrency(1)).start()
	sh.publish("mail", "x", Tries(3))
	b := sh.next()
	s.server.Advance(30 * time.Second) // only the server's clock: the delivery is over
	other, err := s.client.Consume(bg, ConsumeOptions{}, "mail")
	if err != nil || len(other) != 1 {
		t.Fatal(other, err)
	}
	s.clock.advance(s.clock.next(t, touching, 9*time.Second, 11*time.Second))
	asError(t, receive(t, sh.touched), ErrLost)
	b.ends(t, ErrLost)
	b.ret <- nil
	sh.outcome(OutcomeLost)
	if err := other[0].Ack(bg); err != nil {
		t.Fatal(err)
	}
	sh.stop()
}

func TestAJobThatCannotBeTouchedIsLostAtTheEndOfItsTTR(t *testing.T) {
	sh := newShift(t).start()
	sh.publish("mail", "x", Tries(3))
	b := sh.next()
	sh.wire.fail(func(req *http.Request) (*http.Response, error) {
		if strings.HasSuffix(req.URL.Path, "/touch") {
			return nil, errBroken
		}
		return nil, nil
	}, nil)
	sh.clock.advance(11 * time.Second)
	receive(t, sh.touched)
	sh.clock.next(t, touching, 50*time.Millisecond, 100*time.Millisecond) // otherwise there is no time for another
	sh.clock.advance(19*time.Second - time.Millisecond)
	receive(t, sh.touched)
	if b.ctx.Err() != nil {
		t.Fatal("lost before the end")
	}
	sh.clock.advance(time.Millisecond)
	b.ends(t, ErrLost)
	b.ret <- nil
	sh.outcome(OutcomeLost)
	sh.stop()
	if len(sh.wire.seen("DELETE mail/job/"+b.job.ID)) != 0 {
		t.Error("an ack was sent for a lost job")
	}
}

// A touch replaces the receipt, so the result waits for the touch in flight.
func TestAResultWaitsForATouch(t *testing.T) {
	sh := newShift(t).start()
	sh.publish("mail", "x")
	b := sh.next()
	hold, held := make(chan struct{}), make(chan struct{})
	sh.wire.fail(nil, func(req *http.Request) error {
		if strings.HasSuffix(req.URL.Path, "/touch") {
			close(held)
			<-hold
		}
		return nil
	})
	sh.advance(11 * time.Second)
	receive(t, held)
	b.ret <- nil
	for b.ctx.Err() == nil { // the handler has returned
		runtime.Gosched()
	}
	if n := len(sh.wire.seen("DELETE mail/job/" + b.job.ID)); n != 0 {
		t.Fatal("the ack did not wait")
	}
	close(hold)
	sh.outcome(OutcomeAcked)
	sh.stop()
	sh.gone("mail", b.job.ID)
}

func TestAResultIsRepeatedUntilTheEndOfTTR(t *testing.T) {
	for _, result := range []error{nil, errors.New("no")} {
		// The reply is lost: the request was executed.
		sh := newShift(t).start()
		id := sh.publish("mail", "x", Tries(2))
		b := sh.next()
		suffix := "/release"
		if result == nil {
			suffix = "/" + id
		}
		sh.wire.fail(nil, times(1, suffix))
		b.ret <- result
		sh.clock.elapse(t, pausing, 50*time.Millisecond, 100*time.Millisecond)
		if got := receive(t, sh.finished); got.Outcome == OutcomeLost {
			t.Fatalf("%v: %s", result, got.Outcome)
		}
		// It never succeeds.
		sh.publish("mail", "y", Tries(2))
		b = sh.next()
		sh.wire.fail(func(req *http.Request) (*http.Response, error) {
			if strings.Contains(req.URL.Path, b.job.ID) {
				return respond(500, "{}"), nil
			}
			return nil, nil
		}, nil)
		b.ret <- result
		for sh.lines.with("a job is lost") == 0 {
			sh.clock.advance(time.Second)
			time.Sleep(time.Millisecond)
		}
		sh.outcome(OutcomeLost)
		sh.wire.fail(nil, nil)
		sh.stop()
	}
}

func TestWhatAHandlerDidByHand(t *testing.T) {
	for name, test := range map[string]struct {
		do      func(context.Context, *Job) error
		outcome Outcome
	}{
		"ack":  {func(ctx context.Context, j *Job) error { return j.Ack(ctx) }, OutcomeAcked},
		"bury": {func(ctx context.Context, j *Job) error { return j.Bury(ctx, "") }, OutcomeBuried},
		"release": {func(ctx context.Context, j *Job) error {
			_, err := j.Release(ctx, Release{Delay: time.Hour})
			return err
		}, OutcomeReleased},
		"ack many": {func(ctx context.Context, j *Job) error {
			_, err := j.client.AckMany(ctx, j.Queue, []*Job{j})
			return err
		}, OutcomeAcked},
	} {
		sh := newShift(t).start()
		id := sh.publish("mail", "x", Tries(2))
		b := sh.next()
		if until, err := b.job.Touch(b.ctx, time.Minute); err != nil || !until.Equal(sh.server.Now().Add(time.Minute)) {
			t.Fatal(until, err)
		}
		sh.clock.next(t, touching, 18*time.Second, 22*time.Second) // the next touch is due after a third of that
		if err := test.do(b.ctx, b.job); err != nil {
			t.Fatal(err)
		}
		sent := len(sh.wire.seen(""))
		sh.advance(61 * time.Second) // neither touched nor lost
		b.ret <- errors.New("no matter")
		sh.outcome(test.outcome)
		sh.stop()
		for _, one := range sh.wire.seen("")[sent:] {
			if strings.Contains(one, id) {
				t.Errorf("%s: %s", name, one)
			}
		}
		if sh.lines.with("lost") != 0 {
			t.Error(sh.lines.all)
		}
	}
}

// It is unknown whether the job is lost while look-ups fail.
func TestALookThatFailsIsNoLoss(t *testing.T) {
	sh := newShiftOn(newStage(t, RetryFor(0))).start()
	sh.publish("mail", "x")
	b := sh.next()
	sh.wire.fail(nil, times(1, "/touch"))
	_, err := b.job.Touch(b.ctx, time.Minute)
	asError(t, err, ErrNetwork)
	sh.wire.fail(func(req *http.Request) (*http.Response, error) {
		if req.Method == http.MethodGet && strings.Contains(req.URL.Path, "/job/") {
			return nil, errBroken
		}
		return nil, nil
	}, nil)
	asError(t, b.job.Ack(b.ctx), ErrNetwork)
	if cause := Cause(b.ctx); cause != nil {
		t.Fatal(cause)
	}
	sh.wire.fail(nil, nil)
	b.ret <- nil
	sh.outcome(OutcomeAcked)
	sh.stop()
}

func TestTheTimeLimit(t *testing.T) {
	sh := newShift(t, TimeLimit(5*time.Second), Concurrency(1)).start()
	for _, returns := range []error{errors.New("interrupted"), nil} {
		id := sh.publish("mail", "x", Tries(2))
		b := sh.next()
		sh.clock.elapse(t, limiting, 5*time.Second, 5*time.Second)
		b.ends(t, ErrTimeLimit)
		b.ret <- returns
		if returns == nil { // it has ended all the same
			sh.outcome(OutcomeAcked)
			sh.gone("mail", id)
			continue
		}
		sh.outcome(OutcomeReleased)
		if reason := sh.info("mail", id).Reason; reason != "attempt 1: time limit" {
			t.Fatal(reason)
		}
	}
	// A handler that ignores its context: its job is returned after grace, its slot stays taken.
	id := sh.publish("mail", "deaf", Tries(2))
	waiting := sh.publish("mail", "waits")
	b := sh.next()
	sh.clock.elapse(t, limiting, 5*time.Second, 5*time.Second)
	b.ends(t, ErrTimeLimit)
	sh.clock.elapse(t, deaf, 5*time.Second, 5*time.Second)
	sh.outcome(OutcomeReleased)
	if info := sh.info("mail", id); info.Reason != "attempt 1: time limit" || info.State != Delayed {
		t.Fatalf("%+v", info)
	}
	for i := 0; i < 2; i++ {
		sh.clock.elapse(t, telling, time.Minute, time.Minute)
	}
	sh.clock.next(t, telling, time.Minute, time.Minute)
	if n := sh.lines.with("has not returned after its time limit"); n != 3 || len(sh.begun) != 0 {
		t.Fatalf("%d lines, %d handlers", n, len(sh.begun))
	}
	b.ret <- nil
	if b = sh.next(); b.job.ID != waiting {
		t.Fatal(b.job)
	}
	b.ret <- nil
	sh.outcome(OutcomeAcked)
	sh.stop()
}

// A thousand handlers that touch at once would open a thousand connections, and be late together.
func TestSoManyRequestsForHeldJobsAreInFlight(t *testing.T) {
	const handlers = 3 * maxInFlight
	s := newStage(t)
	for i := 0; i < handlers; i++ {
		s.publish("mail", "x", Tries(2))
	}
	sh := newShiftOn(s, Concurrency(handlers)).start()
	var all []*begun
	for i := 0; i < handlers; i++ {
		all = append(all, sh.next())
	}
	for _, suffix := range []string{"/touch", "/release"} {
		var open, most int32
		gate := make(chan struct{})
		s.wire.fail(func(req *http.Request) (*http.Response, error) {
			if strings.HasSuffix(req.URL.Path, suffix) {
				now := atomic.AddInt32(&open, 1)
				for old := atomic.LoadInt32(&most); now > old && !atomic.CompareAndSwapInt32(&most, old, now); {
					old = atomic.LoadInt32(&most)
				}
				<-gate
				atomic.AddInt32(&open, -1)
			}
			return nil, nil
		}, nil)
		if suffix == "/touch" {
			sh.advance(11 * time.Second)
		} else {
			for _, b := range all {
				b.ret <- Snooze(time.Hour)
			}
		}
		for atomic.LoadInt32(&open) < maxInFlight {
			runtime.Gosched()
		}
		for i := 0; i < 1000; i++ { // time for any concurrent request
			runtime.Gosched()
		}
		close(gate)
		for range all {
			if suffix == "/touch" {
				if err := receive(t, sh.touched); err != nil {
					t.Fatal(err)
				}
			} else {
				sh.outcome(OutcomeSnoozed)
			}
		}
		if most != maxInFlight {
			t.Errorf("%d requests were in flight that end in %s", most, suffix)
		}
	}
	sh.stop()
}

func TestPollsAskForFreeSlots(t *testing.T) {
	s := newStage(t)
	var mu sync.Mutex
	var counts []string
	open, most := 0, 0
	s.wire.fail(func(req *http.Request) (*http.Response, error) {
		if req.Method != http.MethodGet || req.URL.Path != "/api/test/mail,other" {
			return nil, nil
		}
		q := req.URL.Query()
		if q.Get("ttr") != "45" || q.Get("timeout") != "7" || q.Get("receipt") != "1" || q.Get("weights") != "5,3" {
			t.Errorf("%v", q)
		}
		mu.Lock()
		counts = append(counts, q.Get("count"))
		if open++; open > most {
			most = open
		}
		mu.Unlock()
		resp, err := s.server.RoundTrip(req)
		mu.Lock()
		defer mu.Unlock()
		open--
		return resp, err
	}, nil)
	for i := 0; i < 5; i++ {
		s.publish("mail", "x")
	}
	sh := newShiftOn(s, Concurrency(3), TTR(45*time.Second), Poll(6500*time.Millisecond), Weights(map[string]int{"mail": 5, "other": 3}))
	sh.worker.Handle("other", func(context.Context, *Job) error { return nil })
	sh.start()
	first, second, third := sh.next(), sh.next(), sh.next()
	if len(sh.begun) != 0 || len(counts) != 1 {
		t.Fatal("no slot is free, and there is a poll")
	}
	first.ret <- nil
	fourth := sh.next()
	second.ret <- nil
	for _, b := range []*begun{third, fourth, sh.next()} {
		b.ret <- nil
	}
	for i := 0; i < 5; i++ {
		sh.outcome(OutcomeAcked)
	}
	sh.stop()
	if counts[0] != "3" || counts[1] != "1" || most != 1 {
		t.Fatal(counts, most)
	}
}

func TestAcksGoTogether(t *testing.T) {
	s := newStage(t)
	for i := 0; i < 230; i++ {
		s.publish("mail", "x")
	}
	sh := newShiftOn(s, Concurrency(300), AckWindow(time.Second)).start()
	for i := 0; i < 230; i++ {
		sh.next().ret <- nil
	}
	for len(s.wire.seen("POST mail/ack")) < 2 {
		runtime.Gosched()
	}
	sh.waitForAcks(30) // all others were sent by hundreds
	sh.clock.elapse(t, acking, time.Second, time.Second)
	for i := 0; i < 230; i++ {
		sh.outcome(OutcomeAcked)
	}
	if n := len(s.wire.seen("POST mail/ack")); n != 3 {
		t.Errorf("%d requests for 230 acks", n)
	}
	s.publish("mail", "x")
	sh.next().ret <- nil
	sh.clock.elapse(t, acking, time.Second, time.Second)
	sh.outcome(OutcomeAcked)
	if n := len(s.wire.seen("POST mail/ack")); n != 3 {
		t.Error("a lone ack was sent as many")
	}
	sh.stop()
}

func TestAnOutageIsToldOnce(t *testing.T) {
	s := newStage(t)
	s.wire.fail(func(req *http.Request) (*http.Response, error) {
		if req.URL.Path == "/api/test/mail" {
			return respond(503, "{}", "Retry-After", "2"), nil
		}
		return nil, nil
	}, nil)
	sh := newShiftOn(s).start()
	asError(t, receive(t, sh.away), ErrUnavailable)
	for i := 0; i < 5; i++ {
		asError(t, receive(t, sh.polled), ErrUnavailable)
		sh.clock.elapse(t, pausing, 2*time.Second, 5*time.Second)
	}
	receive(t, sh.polled)
	s.wire.fail(nil, nil)
	sh.clock.elapse(t, pausing, 2*time.Second, 5*time.Second)
	s.publish("mail", "x")
	sh.next().ret <- nil
	receive(t, sh.back)
	sh.outcome(OutcomeAcked)
	sh.stop()
	if len(sh.away)+len(sh.back) != 0 || sh.lines.with("cannot be polled") != 1 || sh.lines.with("polled again") != 1 {
		t.Error(sh.lines.all)
	}
}

// A proxy, or a stopping server, replies at once that there is nothing: no reason to poll a thousand times a second.
func TestAnEmptyAnswerAtOnceIsAFailure(t *testing.T) {
	s := newStage(t)
	empty := func(after time.Duration) {
		s.wire.fail(func(req *http.Request) (*http.Response, error) {
			s.clock.advance(after)
			return respond(404, `{"msg":"no job available"}`), nil
		}, nil)
	}
	empty(9 * time.Second)
	sh := newShiftOn(s).start()
	asError(t, receive(t, sh.away), ErrUnavailable)
	s.clock.next(t, pausing, 50*time.Millisecond, 100*time.Millisecond)
	n := len(s.wire.seen("GET mail"))
	empty(11 * time.Second)
	s.clock.elapse(t, pausing, 50*time.Millisecond, 100*time.Millisecond)
	receive(t, sh.back)
	for len(s.wire.seen("GET mail")) < n+50 { // the next follows at once
		runtime.Gosched()
	}
	sh.stop()
}

func TestWhatNoRepeatCanMendEndsTheWorker(t *testing.T) {
	for _, test := range []struct {
		status int
		body   string
		kind   Kind
	}{
		{400, `{"error":"invalid weights"}`, ErrInvalid},
		{401, `{"error":"invalid token"}`, ErrUnauthorized},
		{403, `{"error":"the request was sent by a web page of another site"}`, ErrForbidden},
		{404, `{"error":"pool not found"}`, ErrNotFound},
		{404, `{"error":"api not found"}`, ErrUnsupported},
		{200, `{"job_id":"x","queue":"mail"}`, ErrUnsupported},
	} {
		s := newStage(t)
		s.publish("mail", "x")
		sh := newShiftOn(s).start()
		b := sh.next()
		s.wire.fail(func(req *http.Request) (*http.Response, error) {
			if req.URL.Path == "/api/test/mail" {
				return respond(test.status, test.body), nil
			}
			return nil, nil
		}, nil)
		s.publish("mail", "y") // ends the poll, if one was sent before
		running := receive(t, sh.drained)
		b.ret <- nil // handlers may end
		sh.outcome(OutcomeAcked)
		if running == 2 {
			sh.next().ret <- nil
			sh.outcome(OutcomeAcked)
		}
		asError(t, receive(t, sh.done), test.kind)
	}
}

func TestStopping(t *testing.T) {
	t.Run("handlers may end", func(t *testing.T) {
		sh := newShift(t).start()
		sh.publish("mail", "x")
		b := sh.next()
		sh.worker.Stop()
		if receive(t, sh.drained) != 1 {
			t.Error("one handler should be at work")
		}
		sh.publish("mail", "for another")
		b.ret <- nil
		sh.outcome(OutcomeAcked)
		if err := receive(t, sh.done); err != nil || len(sh.begun) != 0 {
			t.Fatal(err)
		}
		sh.gone("mail", b.job.ID)
	})
	t.Run("then they are cancelled", func(t *testing.T) {
		sh := newShift(t).start()
		success, failure := sh.publish("mail", "s"), sh.publish("mail", "f")
		b1, b2 := sh.next(), sh.next()
		if b1.job.ID != success {
			b1, b2 = b2, b1
		}
		sh.worker.Stop()
		receive(t, sh.drained)
		sh.clock.elapse(t, ending, 25*time.Second, 25*time.Second)
		b1.ends(t, ErrStopping)
		b2.ends(t, ErrStopping)
		b1.ret <- nil
		sh.outcome(OutcomeAcked)
		b2.ret <- b2.ctx.Err()
		sh.outcome(OutcomeReturned)
		if err := receive(t, sh.done); err != nil {
			t.Fatal(err)
		}
		info := sh.info("mail", failure)
		if info.State != Ready || info.RemainTries != 1 || info.Reason != "" {
			t.Fatalf("%+v %+v", info, info.Job)
		}
		sh.gone("mail", success)
	})
	t.Run("and given back", func(t *testing.T) {
		sh := newShift(t, TTR(time.Hour)).start()
		id := sh.publish("mail", "x")
		sh.next()
		sh.worker.Stop()
		receive(t, sh.drained)
		sh.clock.elapse(t, ending, 25*time.Second, 25*time.Second)
		sh.clock.elapse(t, ending, 5*time.Second, 5*time.Second)
		if err := receive(t, sh.done); !errors.Is(err, ErrUnclean) {
			t.Fatal(err)
		}
		if info := sh.info("mail", id); info.State != Ready || info.RemainTries != 1 {
			t.Fatalf("%+v", info)
		}
	})
	t.Run("a second stop waits for nobody", func(t *testing.T) {
		sh := newShift(t).start()
		id := sh.publish("mail", "x")
		b := sh.next()
		sh.worker.Stop()
		receive(t, sh.drained)
		sh.worker.Stop()
		if err := receive(t, sh.done); !errors.Is(err, ErrUnclean) {
			t.Fatal(err)
		}
		b.ends(t, ErrStopping)
		if info := sh.info("mail", id); info.State != Ready || info.RemainTries != 1 {
			t.Fatalf("%+v", info)
		}
	})
	t.Run("by the context, whose values handlers have", func(t *testing.T) {
		type key struct{}
		sh := newShift(t)
		ctx, cancel := context.WithCancel(context.WithValue(bg, key{}, "value"))
		go func() { sh.done <- sh.worker.Run(ctx) }()
		sh.publish("mail", "x", Traceparent("00-1"))
		b := sh.next()
		cancel()
		receive(t, sh.drained)
		if b.ctx.Err() != nil || b.ctx.Value(key{}) != "value" {
			t.Error("the handler's context")
		}
		published, err := sh.client.Publish(b.ctx, "other", nil)
		if err != nil || sh.info("other", published.JobID).Traceparent() != "00-1" {
			t.Error("the trace does not go on")
		}
		b.ret <- nil
		if err := receive(t, sh.done); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("by a signal", func(t *testing.T) {
		sh := newShift(t)
		sh.worker.noSignals = false
		sh.start()
		sh.publish("mail", "x")
		b := sh.next()
		if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		receive(t, sh.drained)
		b.ret <- nil
		if err := receive(t, sh.done); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("twice", func(t *testing.T) {
		sh := newShift(t).start()
		sh.publish("mail", "x")
		b := sh.next()
		asError(t, sh.worker.Run(bg), ErrInvalid) // it is running already
		b.ret <- nil
		sh.stop()
		sh.start() // and it can run again
		sh.publish("mail", "x")
		sh.next().ret <- nil
		sh.stop()
	})
}

// A parked poll is closed, so that the server gives its job to the next consumer. A job in transit at that moment is
// returned with its try. The server may also send nothing.
func TestTheParkedPollIsClosed(t *testing.T) {
	const silence = "silence"
	for _, answer := range []string{"", silence, `{"job_id":"x","queue":"mail","namespace":"test","data":"","receipt":"r","remain_tries":0,"ttl":1}`} {
		answer := answer // read by the server's goroutines
		parked, closed, over, released := make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan string, 1)
		handler := func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				released <- r.URL.String()
				io.WriteString(w, `{"msg":"released","remain_tries":1,"due_at":"2026-11-22T08:00:00.000Z"}`)
				return
			}
			conn, buffered, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			close(parked)
			if _, err := buffered.ReadByte(); err != io.EOF {
				t.Errorf("the caller should be gone: %v", err)
			}
			close(closed)
			if answer == silence {
				<-over
				return
			}
			if answer == "" {
				answer = `{"msg":"no job available"}`
				fmt.Fprintf(conn, "HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n%s", len(answer), answer)
				return
			}
			fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(answer), answer)
		}
		silent, gives := answer == silence, answer != "" && answer != silence
		server := httptest.NewServer(http.HandlerFunc(handler))
		client, err := NewClient(server.URL, "test", "")
		if err != nil {
			t.Fatal(err)
		}
		clock := newClock() // an answer is never too late by it
		client.clock = clock
		worker, err := NewWorker(client, WithoutSignals())
		if err != nil {
			t.Fatal(err)
		}
		worker.Handle("mail", func(context.Context, *Job) error { t.Error("it was begun"); return nil })
		done := make(chan error, 1)
		go func() { done <- worker.Run(bg) }()
		receive(t, parked)
		worker.Stop()
		receive(t, closed)
		if silent {
			clock.elapse(t, pausing, lastWord, lastWord)
		}
		if err := receive(t, done); err != nil {
			t.Error(err)
		}
		close(over)
		if gives {
			if url := receive(t, released); !strings.Contains(url, "/mail/job/x/release?") || !strings.Contains(url, "spend=0") {
				t.Error(url)
			}
		}
		server.Close()
	}
}

func TestRunUntilIdle(t *testing.T) {
	s := newStage(t)
	var handled []string
	var mu sync.Mutex
	w, err := NewWorker(s.client, Concurrency(2), WithoutSignals(), AckWindow(0))
	if err != nil {
		t.Fatal(err)
	}
	w.Handle("mail", func(ctx context.Context, job *Job) error {
		mu.Lock()
		defer mu.Unlock()
		handled = append(handled, string(job.Data))
		if string(job.Data) == "parent" {
			_, err := s.client.Publish(ctx, "mail", []byte("child"))
			return err
		}
		return nil
	})
	s.publish("mail", "parent")
	s.publish("mail", "later", Delay(time.Minute))
	for _, want := range []string{"[parent child]", "[parent child]", "[parent child later]"} {
		if err := w.RunUntilIdle(bg); err != nil || fmt.Sprint(handled) != want {
			t.Fatal(handled, err)
		}
		s.server.Advance(30 * time.Second)
	}
	if info, err := s.client.DeadLetter(bg, "mail"); err != nil || info.Size != 0 {
		t.Fatal(info, err)
	}
}

func TestOptionsThatAreWrong(t *testing.T) {
	s := newStage(t)
	for i, opt := range []WorkerOption{
		Concurrency(0), TTR(2 * time.Second), TTR(3500 * time.Millisecond), Poll(0), Backoff(), Backoff(-1), TimeLimit(0),
		Drain(-1), Grace(-1), AckWindow(-1), Weights(map[string]int{"mail": 0}), Weights(map[string]int{"mail": 1001}),
	} {
		if _, err := NewWorker(s.client, opt); err == nil {
			t.Errorf("option %d is taken", i)
		} else {
			asError(t, err, ErrInvalid)
		}
	}
	for _, weights := range []map[string]int{{"other": 1}, {"mail": 1, "other": 1}} {
		w, err := NewWorker(s.client, Weights(weights))
		if err != nil {
			t.Fatal(err)
		}
		w.Handle("mail", func(context.Context, *Job) error { return nil })
		asError(t, w.Run(bg), ErrInvalid)
	}
	w, err := NewWorker(s.client)
	if err != nil {
		t.Fatal(err)
	}
	asError(t, w.Run(bg), ErrInvalid) // no queue
}
