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

// Job is a job that was delivered or looked up. Touching, releasing, burying and acking require a consumed job; a
// [Worker] does that by itself.
type Job struct {
	ID          string
	Queue       string
	Namespace   string
	Data        []byte
	RemainTries int           // number of deliveries left
	TTL         time.Duration // until it expires; 0 is never
	Elapsed     time.Duration // from the publish to the delivery
	Attributes  map[string]string

	client *Client
	task   *task         // of a worker
	turn   chan struct{} // full while a touch or the result of the job is in flight: they never cross

	mu      sync.Mutex
	receipt string    // of a job that is held
	until   time.Time // end of the delivery, by the local clock
	settled Outcome   // the result
	attempt int       // 0 while unknown

	// Owned by the holder of the turn.
	touchLost bool // the answer of a touch was lost, so the receipt may be old
	givenLost bool // the answer of a release or bury was lost, so it may be done
	givenBack bool // and its try restored: the receipt that the server shows may be another worker's
}

// Outcome is the result of a worker's job.
type Outcome string

// Outcomes of a job.
const (
	OutcomeAcked    Outcome = "acked"
	OutcomeReleased Outcome = "released" // also if the job died of it
	OutcomeBuried   Outcome = "buried"
	OutcomeSnoozed  Outcome = "snoozed"
	OutcomeReturned Outcome = "returned" // by a worker that stops, with its try
	OutcomeLost     Outcome = "lost"
)

// JSON parses the body as JSON. Its error is [Permanent]: if a handler returns it, the job is buried.
func (j *Job) JSON(v any) error {
	if err := json.Unmarshal(j.Data, v); err != nil {
		return Permanent(err)
	}
	return nil
}

// Traceparent returns the attribute of that name; empty if there is none.
func (j *Job) Traceparent() string { return j.Attributes["traceparent"] }

// Touch extends the delivery to ttr from now: 0 means the worker's ttr, or else the server's default. It returns when
// the delivery ends.
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

// Ack deletes the job, which is done.
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

// Release describes how to return a job to its queue.
type Release struct {
	Delay   time.Duration // until it is ready again
	Reason  string        // shown with the job; 4 KiB of it
	KeepTry bool          // restores the try of this delivery
}

// Released is the result of a release.
type Released struct {
	Dead        bool // no try was left
	RemainTries int
	DueAt       time.Time
}

// Release returns the job to its queue.
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

// Bury moves the job to the dead letter, even if tries are left.
func (j *Job) Bury(ctx context.Context, reason string) error {
	return j.byHand(ctx, "bury", func(timeout time.Duration, retryFor *time.Duration) *callError {
		failed := j.bury(ctx, reason, timeout, retryFor)
		if failed == nil {
			j.settle(OutcomeBuried)
		}
		return failed
	})
}

// Attempt returns the number of this attempt at the job, from 1: the number in the reason of the last failure plus
// one. The first call asks the server.
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

// bounds returns the limits of a manual call: for a worker's job, not longer than its delivery.
func (j *Job) bounds() (timeout time.Duration, retryFor *time.Duration) {
	if j.task == nil {
		return 0, nil
	}
	left := longer(j.left(), time.Millisecond)
	all := shorter(j.client.retryFor, left)
	return shorter(j.client.timeout, left), &all
}

// byHand executes a manual call in the job's turn. It looks up the receipt if a touch with a lost reply may have
// replaced it.
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

// left returns the remaining time of the delivery.
func (j *Job) left() time.Duration {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.until.Sub(j.client.clock.Now())
}

// The following methods require the turn. A timeout of 0 and a retryFor of nil mean the client's settings.

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

// maxReason is the maximum length of a reason in bytes.
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

// findReceipt looks up the current receipt, after a touch whose reply was lost. It is ours only while the delivery
// lasts by the local clock.
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

// attemptTold returns the attempt in a reason written by push or a worker; 0 for other reasons.
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
