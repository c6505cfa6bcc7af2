package dormouse

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Job is one that was handed out, or looked at. What touches, releases, buries or acks it needs a job that was
// consumed; a [Worker] does that by itself.
type Job struct {
	ID          string
	Queue       string
	Namespace   string
	Data        []byte
	RemainTries int           // how many more times it may be handed out
	TTL         time.Duration // until it is forgotten; 0 is never
	Elapsed     time.Duration // from the publish to the hand-over
	Attributes  map[string]string

	client *Client
	task   *task         // of a worker
	turn   chan struct{} // full while a touch or the result of the job is under way: they never cross

	mu      sync.Mutex
	receipt string    // of a job that is held
	until   time.Time // the hand-over stands until then, by our clock
	settled Outcome   // what has become of it
	attempt int       // 0 while it is not known

	// Whoever has the turn uses these.
	touchLost bool // the answer of a touch was lost, so the receipt may be old
	givenLost bool // the answer of a release or bury was lost, so it may be done
	givenBack bool // and the try given back: the receipt that the server shows may be another worker's
}

// Outcome is what has become of a job that a worker had.
type Outcome string

// What becomes of a job.
const (
	OutcomeAcked    Outcome = "acked"
	OutcomeReleased Outcome = "released" // also where that was the job's death
	OutcomeBuried   Outcome = "buried"
	OutcomeSnoozed  Outcome = "snoozed"
	OutcomeReturned Outcome = "returned" // by a worker that stops, with its try
	OutcomeLost     Outcome = "lost"
)

// JSON reads the body as JSON. An error of it is a [Permanent] one: a handler that returns it has the job buried.
func (j *Job) JSON(v any) error {
	if err := json.Unmarshal(j.Data, v); err != nil {
		return Permanent(err)
	}
	return nil
}

// Traceparent is the attribute of that name; empty where there is none.
func (j *Job) Traceparent() string { return j.Attributes["traceparent"] }

// Touch keeps the job for ttr from now: 0 is the worker's own ttr, or else the server's default. It returns when that
// ends.
func (j *Job) Touch(ctx context.Context, ttr time.Duration) (until time.Time, err error) {
	if j.task != nil && ttr == 0 {
		ttr = j.task.run.w.ttr
	}
	if ttr < 0 {
		return until, invalid("touch "+j.Queue, "the ttr is negative")
	}
	err = j.byHand(ctx, "touch", func(timeout time.Duration, retryFor *time.Duration) (failed *callError) {
		until, failed = j.touch(ctx, ttr, timeout, retryFor)
		return failed
	})
	if err == nil && j.task != nil {
		j.task.touchedByHand(ttr)
	}
	return until, err
}

// Ack forgets the job: it is done.
func (j *Job) Ack(ctx context.Context) error {
	return j.byHand(ctx, "ack", func(timeout time.Duration, retryFor *time.Duration) *callError {
		acked, failed := j.client.ackSome(ctx, j.Queue, []*Job{j}, timeout, retryFor)
		if failed == nil && len(acked.Stale) > 0 {
			failed = &callError{Error: notYours("ack " + j.Queue)}
		}
		if failed == nil {
			j.settle(OutcomeAcked)
		}
		return failed
	})
}

// Release says how a job goes back to its queue.
type Release struct {
	Delay   time.Duration // until it is ready again
	Reason  string        // shown with the job; 4 KiB of it
	KeepTry bool          // gives the try back that this hand-over has cost
}

// Released is what a release has made of a job.
type Released struct {
	Dead        bool // no try was left
	RemainTries int
	DueAt       time.Time
}

// Release gives the job back.
func (j *Job) Release(ctx context.Context, how Release) (released Released, err error) {
	if how.Delay < 0 {
		return released, invalid("release "+j.Queue, "the delay is negative")
	}
	err = j.byHand(ctx, "release", func(timeout time.Duration, retryFor *time.Duration) (failed *callError) {
		released, failed = j.release(ctx, how, timeout, retryFor)
		if failed == nil {
			j.settle(OutcomeReleased)
		}
		return failed
	})
	return released, err
}

// Bury puts the job into the dead letter, whatever tries are left.
func (j *Job) Bury(ctx context.Context, reason string) error {
	return j.byHand(ctx, "bury", func(timeout time.Duration, retryFor *time.Duration) *callError {
		failed := j.bury(ctx, reason, timeout, retryFor)
		if failed == nil {
			j.settle(OutcomeBuried)
		}
		return failed
	})
}

// Attempt is which attempt at the job this is, from 1: one more than the last failure says in its reason. The first
// call asks the server.
func (j *Job) Attempt(ctx context.Context) (int, error) {
	if j.client == nil {
		return 0, invalid("attempt "+j.Queue, "the job was not consumed")
	}
	if j.outcome() == OutcomeLost { // nothing more is sent for it
		return 0, notYours("attempt " + j.Queue)
	}
	timeout, retryFor := j.bounds()
	attempt, failed := j.findAttempt(ctx, timeout, retryFor)
	return attempt, failed.plain()
}

// bounds are those of a call by hand: of a worker's job no longer than it is the worker's.
func (j *Job) bounds() (timeout time.Duration, retryFor *time.Duration) {
	if j.task == nil {
		return 0, nil
	}
	left := longer(j.left(), time.Millisecond)
	all := shorter(j.client.retryFor, left)
	return shorter(j.client.timeout, left), &all
}

// byHand does a call in the job's turn. A receipt that a lost touch has made old is looked for.
func (j *Job) byHand(ctx context.Context, verb string, do func(time.Duration, *time.Duration) *callError) error {
	if j.proof() == "" {
		return invalid(verb+" "+j.Queue, "the job was not consumed")
	}
	if err := j.takeTurn(ctx); err != nil {
		return err
	}
	defer j.endTurn()
	if j.outcome() == OutcomeLost { // nothing more is sent for it
		return notYours(verb + " " + j.Queue)
	}
	failed := do(j.bounds())
	if failed.is(ErrLost) && j.touchLost {
		timeout, retryFor := j.bounds()
		if ours, unknown := j.findReceipt(ctx, timeout, retryFor); ours {
			failed = do(j.bounds())
		} else if unknown != nil {
			failed = unknown // it may be ours still
		}
	}
	if j.task != nil && (failed.is(ErrLost) || failed.is(ErrNotFound)) {
		j.task.lose()
	}
	return failed.plain()
}

func notYours(op string) *Error {
	return &Error{
		Kind: ErrLost, Op: op, Status: http.StatusConflict, Message: "the job is not yours any more", Index: -1,
	}
}

func (j *Job) takeTurn(ctx context.Context) error {
	select {
	case j.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (j *Job) endTurn() { <-j.turn }

func (j *Job) proof() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.receipt
}

func (j *Job) settle(outcome Outcome) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.settled = outcome
}

func (j *Job) outcome() Outcome {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.settled
}

// left is how long the hand-over stands.
func (j *Job) left() time.Duration {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.until.Sub(j.client.clock.Now())
}

// What follows is for whoever has the turn. A timeout of 0 and a retryFor of nil are the client's own.

func (j *Job) touch(
	ctx context.Context, ttr, timeout time.Duration, retryFor *time.Duration,
) (until time.Time, failed *callError) {
	query := url.Values{"receipt": {j.proof()}}
	if ttr > 0 {
		query.Set("ttr", seconds(ttr))
	}
	var answer touchAnswer
	sent := j.client.clock.Now()
	_, failed = j.client.call(ctx, request{
		op: "touch", method: http.MethodPost, queue: j.Queue, path: []string{"job", j.ID, "touch"}, query: query,
		timeout: timeout, retryFor: retryFor,
	}, &answer)
	if failed != nil {
		j.touchLost = j.touchLost || failed.lost()
		return until, failed
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.receipt, j.touchLost = answer.Receipt, false
	if ttr > 0 {
		j.until = sent.Add(ttr)
	}
	return orZero(answer.Until), nil
}

type touchAnswer struct {
	Receipt string     `json:"receipt"`
	Until   *time.Time `json:"until"`
}

func (a *touchAnswer) complete() bool { return a.Receipt != "" }

func (j *Job) release(
	ctx context.Context, how Release, timeout time.Duration, retryFor *time.Duration,
) (Released, *callError) {
	query := url.Values{}
	if how.Delay > 0 {
		query.Set("delay", seconds(how.Delay))
	}
	if how.KeepTry {
		query.Set("spend", "0")
	}
	var answer struct {
		Msg         string     `json:"msg"`
		RemainTries int        `json:"remain_tries"`
		DueAt       *time.Time `json:"due_at"`
	}
	failed := j.give(ctx, "release", query, how.Reason, timeout, retryFor, &answer)
	j.givenBack = j.givenBack || how.KeepTry && failed.lost()
	return Released{Dead: answer.Msg == "dead", RemainTries: answer.RemainTries, DueAt: orZero(answer.DueAt)}, failed
}

func (j *Job) bury(ctx context.Context, reason string, timeout time.Duration, retryFor *time.Duration) *callError {
	var answer struct{}
	return j.give(ctx, "bury", url.Values{}, reason, timeout, retryFor, &answer)
}

// maxReason is how much of a reason the server takes.
const maxReason = 4096

func (j *Job) give(
	ctx context.Context, verb string, query url.Values, reason string,
	timeout time.Duration, retryFor *time.Duration, answer any,
) *callError {
	query.Set("receipt", j.proof())
	_, failed := j.client.call(ctx, request{
		op: verb, method: http.MethodPost, queue: j.Queue, path: []string{"job", j.ID, verb}, query: query,
		body: []byte(cut(strings.ToValidUTF8(reason, "\uFFFD"), maxReason)), timeout: timeout, retryFor: retryFor,
	}, answer)
	j.givenLost = j.givenLost || failed.lost()
	return failed
}

// findReceipt looks for the receipt that is valid now, after a touch whose answer was lost. What it finds is ours only
// while the hand-over stands by our own clock.
func (j *Job) findReceipt(
	ctx context.Context, timeout time.Duration, retryFor *time.Duration,
) (ours bool, failed *callError) {
	if j.givenBack {
		return false, nil
	}
	var now wireJob
	_, failed = j.client.call(ctx, request{
		op: "look", method: http.MethodGet, queue: j.Queue, path: []string{"job", j.ID},
		query: url.Values{"verbose": {"1"}, "receipt": {j.proof()}}, repeat: true, timeout: timeout, retryFor: retryFor,
	}, &now)
	if failed.is(ErrNotFound) {
		return false, nil
	}
	if failed != nil || now.Receipt == "" || j.left() <= 0 {
		return false, failed
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.receipt, j.touchLost = now.Receipt, false
	return true, nil
}

func (j *Job) findAttempt(ctx context.Context, timeout time.Duration, retryFor *time.Duration) (int, *callError) {
	j.mu.Lock()
	attempt := j.attempt
	j.mu.Unlock()
	if attempt > 0 {
		return attempt, nil
	}
	var now wireJob
	_, failed := j.client.call(ctx, request{
		op: "look", method: http.MethodGet, queue: j.Queue, path: []string{"job", j.ID},
		query: url.Values{"verbose": {"1"}}, repeat: true, timeout: timeout, retryFor: retryFor,
	}, &now)
	if failed != nil {
		return 0, failed
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.attempt = attemptTold(now.Reason) + 1
	return j.attempt, nil
}

// attemptTold is which attempt a reason tells of, as push and workers write it; 0 when it is none of theirs.
func attemptTold(reason string) int {
	if !strings.HasPrefix(reason, "attempt ") {
		return 0
	}
	number, _, found := strings.Cut(reason[len("attempt "):], ":")
	n, err := strconv.ParseUint(number, 10, 32)
	if !found || err != nil || n >= 1<<31-1 {
		return 0
	}
	return int(n)
}
