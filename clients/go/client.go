// Package dormouse publishes and handles jobs of a Dormouse server.
//
// A [Client] has all requests; this file has them and their replies, errors.go the errors, message.go the options of
// a publish, call.go the sending and retries. A [Worker] consumes jobs, extends their deliveries while handlers run,
// and reports the results: worker.go has its polls and its stop, task.go a single job, acks.go its acks. verify.go
// has the signatures of push. Package dormousetest has an in-process server for tests.
package dormouse

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

// Version is the version of the library, and of the server that it was made for.
const Version = "0.1.0"

// Client sends requests for one namespace. It is safe for concurrent use, and reuses its connections.
type Client struct {
	base      string // the URL up to and without /api
	namespace string
	token     string
	timeout   time.Duration
	retryFor  time.Duration
	http      *http.Client
	clock     clock
}

// Option is an option of a [Client].
type Option func(*Client)

// Timeout sets the timeout of one request; 10 s by default. The wait of a [Client.Consume] is added to it.
func Timeout(d time.Duration) Option { return func(c *Client) { c.timeout = d } }

// RetryFor sets how long a call may be retried, including the first request and all pauses; 30 s by default, at most
// 9 minutes, and 0 disables retries.
func RetryFor(d time.Duration) Option { return func(c *Client) { c.retryFor = d } }

// Transport sets the transport of requests, instead of the client's own: for a proxy, certificates, or a double.
func Transport(t http.RoundTripper) Option { return func(c *Client) { c.http.Transport = t } }

// NewClient returns a client for a namespace of the server at the URL, which may have a path before /api.
func NewClient(rawURL, namespace, token string, opts ...Option) (*Client, error) {
	const op = "new client"
	base, err := url.Parse(rawURL)
	if err != nil || base.Host == "" || (base.Scheme != "http" && base.Scheme != "https") {
		return nil, invalid(op, "the URL should be http://host:port or https://host:port")
	}
	if base.RawQuery != "" || base.ForceQuery || base.Fragment != "" {
		return nil, invalid(op, "the URL should have neither a query nor a fragment")
	}
	if !validName(namespace) {
		return nil, invalid(op, "the name of a namespace %s: %q", nameRule, cut(namespace, 255))
	}
	if !printable(token) {
		return nil, invalid(op, "the token has characters that no header can carry")
	}
	c := &Client{
		base:      strings.TrimRight(base.String(), "/"),
		namespace: namespace,
		token:     token,
		timeout:   10 * time.Second,
		retryFor:  30 * time.Second,
		http:      &http.Client{Transport: newTransport(), CheckRedirect: noRedirect},
		clock:     systemClock{},
	}
	for _, opt := range opts {
		opt(c)
	}
	if c.timeout <= 0 {
		return nil, invalid(op, "the timeout should be longer than 0")
	}
	if c.retryFor < 0 || c.retryFor > 9*time.Minute {
		return nil, invalid(op, "RetryFor should be from 0 to 9 minutes")
	}
	return c, nil
}

// FromEnv returns a client configured by DORMOUSE_URL (http://127.0.0.1:7777 by default), DORMOUSE_NAMESPACE and
// DORMOUSE_TOKEN.
func FromEnv(opts ...Option) (*Client, error) {
	address := os.Getenv("DORMOUSE_URL")
	if address == "" {
		address = "http://127.0.0.1:7777"
	}
	if os.Getenv("DORMOUSE_NAMESPACE") == "" {
		return nil, invalid("new client", "DORMOUSE_NAMESPACE is not set")
	}
	return NewClient(address, os.Getenv("DORMOUSE_NAMESPACE"), os.Getenv("DORMOUSE_TOKEN"), opts...)
}

// String describes the client without its token.
func (c Client) String() string { return "dormouse.Client(" + c.namespace + ")" }

// GoString describes the client without its token.
func (c Client) GoString() string { return c.String() }

// State is the state of a job.
type State string

// The states of a job.
const (
	Ready   State = "ready"
	Delayed State = "delayed"
	Running State = "running"
	Dead    State = "dead"
)

// Published is the result of a publish.
type Published struct {
	JobID     string
	DueAt     time.Time // when it becomes ready; zero for a duplicate whose server does not know it
	Duplicate bool      // the key was taken, and nothing was stored: JobID is the job that has it
	Replaced  string    // the id of the job that was replaced, with Replace
	Replayed  bool      // the reply is that of an earlier request with this idempotency key
}

// Publish stores a job.
func (c *Client) Publish(ctx context.Context, queue string, data []byte, opts ...PublishOption) (Published, error) {
	return c.publish(ctx, queue, NewMessage(data, opts...))
}

// PublishJSON stores a job whose body is v as JSON.
func (c *Client) PublishJSON(ctx context.Context, queue string, v any, opts ...PublishOption) (Published, error) {
	return c.publish(ctx, queue, NewJSONMessage(v, opts...))
}

func (c *Client) publish(ctx context.Context, queue string, m Message) (Published, error) {
	op := "publish " + queue
	m.carry(ctx)
	if err := m.check(op); err != nil {
		return Published{}, err
	}
	if !m.fitsHeaders() {
		published, err := c.publishBatch(ctx, queue, [][]byte{m.element()}, m.idempotencyKey)
		if err != nil {
			err.Index = -1
			return Published{}, err.plain()
		}
		return published[0], nil
	}
	var answer publishAnswer
	header, err := c.call(ctx, request{
		op: "publish", method: http.MethodPost, queue: queue, path: []string{"jobs"}, query: m.query(), body: m.data,
		header: m.headers(), idempotencyKey: m.key(), repeat: true,
	}, &answer)
	if err != nil {
		return Published{}, err.plain()
	}
	return answer.published(header), nil
}

// Maximum size of a batch.
const (
	batchJobs  = 64
	batchBytes = 8 << 20
)

// PublishMany stores any number of jobs in order, in batches. Each batch is stored completely or not at all. After an
// error, the jobs published before it are returned too; an [Error] also has them, and its Index counts from the first
// of msgs.
func (c *Client) PublishMany(ctx context.Context, queue string, msgs []Message) ([]Published, error) {
	op := "publish " + queue
	for i := range msgs { // checks all before sending any
		err := msgs[i].check(op)
		if err == nil && msgs[i].idempotencyKey != nil {
			err = invalid(op, "a job of many has no idempotency key of its own")
		}
		if err != nil {
			err.Index, err.Published = i, []Published{}
			return nil, err
		}
	}
	published := make([]Published, 0, len(msgs))
	var batch [][]byte
	size := 1 // of the body: brackets, and a comma between two
	send := func() *callError {
		some, err := c.publishBatch(ctx, queue, batch, nil)
		if err != nil {
			if err.Index >= 0 {
				err.Index += len(published)
			}
			err.Published = published
			return err
		}
		published, batch, size = append(published, some...), nil, 1
		return nil
	}
	for _, m := range msgs {
		m.carry(ctx)
		element := m.element()
		if len(batch) == batchJobs || len(batch) > 0 && size+len(element)+1 > batchBytes {
			if err := send(); err != nil {
				return published, err.plain()
			}
		}
		batch, size = append(batch, element), size+len(element)+1
	}
	if len(batch) > 0 {
		if err := send(); err != nil {
			return published, err.plain()
		}
	}
	return published, nil
}

func (c *Client) publishBatch(
	ctx context.Context, queue string, elements [][]byte, key *string,
) ([]Published, *callError) {
	body := append(append([]byte{'['}, bytes.Join(elements, []byte{','})...), ']')
	var answer struct{ Jobs []publishAnswer }
	header, failed := c.call(ctx, request{
		op: "publish", method: http.MethodPost, queue: queue, path: []string{"jobs", "batch"}, body: body,
		idempotencyKey: keyOrRandom(key), repeat: true,
	}, &answer)
	if failed != nil {
		return nil, failed
	}
	if len(answer.Jobs) != len(elements) {
		return nil, &callError{Error: protocol(
			"publish "+queue, http.StatusCreated, "%d jobs were sent, and %d answered", len(elements), len(answer.Jobs),
		)}
	}
	published := make([]Published, len(answer.Jobs))
	for i, one := range answer.Jobs {
		published[i] = one.published(header)
	}
	return published, nil
}

type publishAnswer struct {
	JobID     string     `json:"job_id"`
	DueAt     *time.Time `json:"due_at"`
	Duplicate bool       `json:"duplicate"`
	Replaced  string     `json:"replaced"`
}

func (a *publishAnswer) complete() bool { return a.JobID != "" }

func (a *publishAnswer) published(header http.Header) Published {
	return Published{
		JobID: a.JobID, DueAt: orZero(a.DueAt), Duplicate: a.Duplicate, Replaced: a.Replaced,
		Replayed: header.Get("Idempotency-Replayed") == "true",
	}
}

// ConsumeOptions are the options of a [Client.Consume]. Zero values mean the server's defaults.
type ConsumeOptions struct {
	Count   int           // how many jobs at most, 1 to 100
	TTR     time.Duration // until a job is redelivered unless touched; whole seconds, rounded up
	Timeout time.Duration // how long to wait for a job; whole seconds, rounded up
	Weights []int         // one for each queue: their proportions
}

// Consume takes jobs from queues, with receipts; none if no job came in time. It is never retried after a lost reply.
// Most programs should use a [Worker] instead.
func (c *Client) Consume(ctx context.Context, opts ConsumeOptions, queues ...string) ([]*Job, error) {
	ask, err := c.consumeRequest(opts, queues)
	if err != nil {
		return nil, err
	}
	jobs, failed := c.consume(ctx, c.http, ask)
	if failed != nil {
		return nil, failed.plain()
	}
	return jobs, nil
}

func (c *Client) consumeRequest(opts ConsumeOptions, queues []string) (request, error) {
	all := strings.Join(queues, ",")
	if opts.TTR < 0 || opts.Timeout < 0 {
		return request{}, invalid("consume "+all, "a duration is negative")
	}
	query := url.Values{"receipt": {"1"}, "timeout": {wholeSeconds(opts.Timeout)}}
	if opts.TTR > 0 {
		query.Set("ttr", wholeSeconds(opts.TTR))
	}
	if opts.Count != 0 {
		query.Set("count", strconv.Itoa(opts.Count))
	}
	if len(opts.Weights) > 0 {
		query.Set("weights", strings.Trim(strings.ReplaceAll(fmt.Sprint(opts.Weights), " ", ","), "[]"))
	}
	return request{
		op: "consume", method: http.MethodGet, queue: all, several: true, query: query, ttr: opts.TTR,
		waits: opts.Timeout + time.Second, // it is rounded up
	}, nil
}

// consume returns no jobs and no error if no job came in time.
func (c *Client) consume(ctx context.Context, through *http.Client, ask request) ([]*Job, *callError) {
	var answer consumeAnswer
	var came time.Time
	ask.through = through
	ask.heard = func() { came = c.clock.Now() }
	_, failed := c.call(ctx, ask, &answer)
	if failed != nil {
		if failed.Status == http.StatusNotFound && failed.Message == "no job available" {
			return nil, nil
		}
		return nil, failed
	}
	jobs := make([]*Job, len(answer))
	for i, wire := range answer {
		if wire.Receipt == "" {
			return nil, &callError{Error: &Error{
				Kind: ErrUnsupported, Op: ask.name(), Status: http.StatusOK, Message: "the server gives no receipts", Index: -1,
			}}
		}
		jobs[i] = wire.job(c)
		jobs[i].receipt, jobs[i].until = wire.Receipt, came.Add(ask.ttr)
	}
	return jobs, nil
}

// consumeAnswer is one job, or an array of them.
type consumeAnswer []*wireJob

func (a *consumeAnswer) UnmarshalJSON(text []byte) error {
	if len(text) > 0 && text[0] == '[' {
		return json.Unmarshal(text, (*[]*wireJob)(a))
	}
	one := new(wireJob)
	*a = consumeAnswer{one}
	return json.Unmarshal(text, one)
}

func (a *consumeAnswer) complete() bool {
	for _, job := range *a {
		if job == nil || job.ID == "" {
			return false
		}
	}
	return len(*a) > 0
}

// wireJob is a job in the reply of a route that shows one.
type wireJob struct {
	ID          string            `json:"job_id"`
	Queue       string            `json:"queue"`
	Namespace   string            `json:"namespace"`
	Data        []byte            `json:"data"`
	RemainTries int               `json:"remain_tries"`
	TTL         int64             `json:"ttl"`
	ElapsedMS   int64             `json:"elapsed_ms"`
	Attributes  map[string]string `json:"attributes"`
	Receipt     string            `json:"receipt"`
	State       State             `json:"state"`
	DueAt       *time.Time        `json:"due_at"`
	Key         string            `json:"key"`
	Reason      string            `json:"reason"`
}

func (w *wireJob) complete() bool { return w.ID != "" }

func (w *wireJob) job(c *Client) *Job {
	return &Job{
		ID: w.ID, Queue: w.Queue, Namespace: w.Namespace, Data: w.Data, RemainTries: w.RemainTries,
		TTL: time.Duration(w.TTL) * time.Second, Elapsed: time.Duration(w.ElapsedMS) * time.Millisecond,
		Attributes: w.Attributes, client: c, turn: make(chan struct{}, 1),
	}
}

// JobInfo is a job that was looked up, without a delivery.
type JobInfo struct {
	*Job
	State  State
	DueAt  time.Time // when it is, or became, ready; when the ttr of a running one ends; zero if unknown
	Key    string
	Reason string // of the last release or bury that gave one
}

// look looks up a job with all of its fields: by id, by key, or the next one.
func (c *Client) look(ctx context.Context, queue string, path ...string) (*JobInfo, error) {
	var wire wireJob
	_, failed := c.call(ctx, request{
		op: "look", method: http.MethodGet, queue: queue, path: path, query: url.Values{"verbose": {"1"}}, repeat: true,
	}, &wire)
	if failed != nil {
		return nil, failed.plain()
	}
	return &JobInfo{
		Job: wire.job(c), State: wire.State, DueAt: orZero(wire.DueAt), Key: wire.Key, Reason: wire.Reason,
	}, nil
}

// Get looks up a job by id.
func (c *Client) Get(ctx context.Context, queue, id string) (*JobInfo, error) {
	return c.look(ctx, queue, "job", id)
}

// GetByKey looks up the job with the key.
func (c *Client) GetByKey(ctx context.Context, queue, key string) (*JobInfo, error) {
	return c.look(ctx, queue, "key", key)
}

// Peek returns the job that the next consume would get; nil if there is none.
func (c *Client) Peek(ctx context.Context, queue string) (*Job, error) {
	info, err := c.look(ctx, queue, "peek")
	var told *Error
	if errors.As(err, &told) && told.Kind == ErrNotFound && told.Message == "the queue is empty" {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return info.Job, nil
}

// Cancel deletes a job, in any state. It succeeds if there is no such job.
func (c *Client) Cancel(ctx context.Context, queue, id string) error {
	return c.done(ctx, request{op: "cancel", method: http.MethodDelete, queue: queue, path: []string{"job", id}, repeat: true}, nil)
}

// CancelByKey deletes the job with the key; [ErrNotFound] if there is none.
func (c *Client) CancelByKey(ctx context.Context, queue, key string) error {
	return c.done(ctx, request{
		op: "cancel", method: http.MethodDelete, queue: queue, path: []string{"key", key}, repeat: true, goneIsDone: true,
	}, nil)
}

// Promote makes a delayed job ready now, after other ready jobs; [ErrConflict] if it is not delayed.
func (c *Client) Promote(ctx context.Context, queue, id string) error {
	return c.promote(ctx, queue, "job", id)
}

// PromoteByKey makes the delayed job with the key ready now; [ErrNotFound] if no job has it.
func (c *Client) PromoteByKey(ctx context.Context, queue, key string) error {
	return c.promote(ctx, queue, "key", key)
}

func (c *Client) promote(ctx context.Context, queue, by, name string) error {
	var answer struct{}
	path := []string{by, name, "promote"}
	return c.done(ctx, request{op: "promote", method: http.MethodPost, queue: queue, path: path}, &answer)
}

// Acked is the result of an [Client.AckMany].
type Acked struct {
	Acked int
	Stale []string // ids of jobs that are no longer this worker's
}

// AckMany acks jobs of one queue, any number of them, with their receipts.
func (c *Client) AckMany(ctx context.Context, queue string, jobs []*Job) (Acked, error) {
	op := "ack " + queue
	for i, job := range jobs {
		if job.Queue != queue || job.proof() == "" {
			err := invalid(op, "the job was not consumed from this queue")
			err.Index = i
			return Acked{}, err
		}
	}
	var all Acked
	for start := 0; start < len(jobs); start += maxAcks {
		some := jobs[start:min(start+maxAcks, len(jobs))]
		one, failed := c.ackSome(ctx, queue, some, 0, nil)
		if failed != nil {
			if failed.Index >= 0 {
				failed.Index += start
			}
			return all, failed.plain()
		}
		stale := map[string]bool{}
		for _, id := range one.Stale {
			stale[id] = true
		}
		for _, job := range some {
			if !stale[job.ID] {
				job.settle(OutcomeAcked)
			}
		}
		all.Acked += one.Acked
		all.Stale = append(all.Stale, one.Stale...)
	}
	return all, nil
}

// maxAcks is the maximum number of jobs acked by one request.
const maxAcks = 100

// ackSome acks at most 100 jobs of a queue; a single one by its own route. Zero values mean the client's settings.
func (c *Client) ackSome(
	ctx context.Context, queue string, jobs []*Job, timeout time.Duration, retryFor *time.Duration,
) (Acked, *callError) {
	ask := request{op: "ack", queue: queue, repeat: true, timeout: timeout, retryFor: retryFor}
	if len(jobs) == 1 {
		ask.method, ask.path = http.MethodDelete, []string{"job", jobs[0].ID}
		ask.query = url.Values{"receipt": {jobs[0].proof()}}
		_, failed := c.call(ctx, ask, nil)
		if failed != nil && failed.Kind == ErrLost {
			return Acked{Stale: []string{jobs[0].ID}}, nil
		}
		return Acked{Acked: 1}, failed
	}
	type held struct {
		ID      string `json:"id"`
		Receipt string `json:"receipt"`
	}
	list := make([]held, len(jobs))
	for i, job := range jobs {
		list[i] = held{job.ID, job.proof()}
	}
	text, err := json.Marshal(map[string]any{"jobs": list})
	if err != nil {
		return Acked{}, &callError{Error: invalid(ask.name(), "%v", err)}
	}
	ask.method, ask.path, ask.body = http.MethodPost, []string{"ack"}, text
	var answer struct {
		Acked int      `json:"acked"`
		Stale []string `json:"stale"`
	}
	_, failed := c.call(ctx, ask, &answer)
	return Acked(answer), failed
}

// Pause stops deliveries from the queue: for howLong, or if that is 0 until [Client.Resume]. It returns when the
// pause ends by itself.
func (c *Client) Pause(ctx context.Context, queue string, howLong time.Duration) (until time.Time, err error) {
	query := url.Values{}
	if howLong < 0 {
		return until, invalid("pause "+queue, "the duration is negative")
	}
	if howLong > 0 {
		query.Set("for", seconds(howLong))
	}
	var answer struct {
		Until *time.Time `json:"until"`
	}
	err = c.done(ctx, request{
		op: "pause", method: http.MethodPost, queue: queue, path: []string{"pause"}, query: query, repeat: true,
	}, &answer)
	return orZero(answer.Until), err
}

// Resume ends a pause.
func (c *Client) Resume(ctx context.Context, queue string) error {
	var answer struct{}
	return c.done(ctx, request{op: "resume", method: http.MethodPost, queue: queue, path: []string{"resume"}, repeat: true}, &answer)
}

// Size returns the number of ready jobs.
func (c *Client) Size(ctx context.Context, queue string) (int64, error) {
	var answer struct{ Size int64 }
	err := c.done(ctx, request{op: "size", method: http.MethodGet, queue: queue, path: []string{"size"}, repeat: true}, &answer)
	return answer.Size, err
}

// Destroy deletes the ready jobs of the queue.
func (c *Client) Destroy(ctx context.Context, queue string) error {
	return c.done(ctx, request{op: "destroy", method: http.MethodDelete, queue: queue}, nil)
}

// DeadLetter describes the dead jobs of a queue.
type DeadLetter struct {
	Size int64
	Head string // the id of the oldest; empty if there is none
}

// DeadLetter returns the size and the oldest job of the queue's dead letter. [Client.Jobs] lists its jobs.
func (c *Client) DeadLetter(ctx context.Context, queue string) (DeadLetter, error) {
	var answer struct {
		Size int64  `json:"deadletter_size"`
		Head string `json:"deadletter_head"`
	}
	err := c.done(ctx, request{op: "dead letter", method: http.MethodGet, queue: queue, path: []string{"deadletter"}, repeat: true}, &answer)
	return DeadLetter(answer), err
}

// Respawned is the result of a [Client.Respawn].
type Respawned struct {
	Respawned int
	Missing   []string // ids of jobs that are not dead or do not exist
}

// Respawn makes dead jobs ready again, any number of them. It accepts the options [Tries] (1 by default), [Delay] and
// [TTL].
func (c *Client) Respawn(ctx context.Context, queue string, ids []string, opts ...PublishOption) (Respawned, error) {
	op := "respawn " + queue
	query, err := respawnQuery("respawn "+queue, opts)
	if err != nil {
		return Respawned{}, err
	}
	all := Respawned{}
	for start := 0; start < len(ids); start += 100 {
		body, err := json.Marshal(map[string][]string{"jobs": ids[start:min(start+100, len(ids))]})
		if err != nil {
			return all, invalid(op, "%v", err)
		}
		var answer struct {
			Respawned int      `json:"respawned"`
			Missing   []string `json:"missing"`
		}
		err = c.done(ctx, request{
			op: "respawn", method: http.MethodPost, queue: queue, path: []string{"deadletter", "respawn"}, query: query, body: body,
		}, &answer)
		if err != nil {
			return all, err
		}
		all.Respawned += answer.Respawned
		all.Missing = append(all.Missing, answer.Missing...)
	}
	return all, nil
}

// RespawnOldest makes up to most of the oldest dead jobs ready again, with one try each, and returns how many. It
// accepts the option [TTL], in whole seconds, rounded up.
func (c *Client) RespawnOldest(ctx context.Context, queue string, most int, opts ...PublishOption) (int, error) {
	op := "respawn " + queue
	query, err := respawnQuery(op, opts)
	if err == nil && (query.Has("tries") || query.Has("delay")) {
		err = invalid(op, "the oldest are respawned with one try and no delay")
	}
	if err != nil {
		return 0, err
	}
	query.Set("limit", strconv.Itoa(most))
	if m := NewMessage(nil, opts...); m.ttl != nil {
		query.Set("ttl", wholeSeconds(*m.ttl))
	}
	var answer struct {
		Count int `json:"count"`
	}
	err = c.done(ctx, request{op: "respawn", method: http.MethodPut, queue: queue, path: []string{"deadletter"}, query: query}, &answer)
	return answer.Count, err
}

func respawnQuery(op string, opts []PublishOption) (url.Values, error) {
	m := NewMessage(nil, opts...)
	if err := m.check(op); err != nil {
		return nil, err
	}
	query := m.query()
	for name := range query {
		if name != "tries" && name != "delay" && name != "ttl" {
			return nil, invalid(op, "a respawn takes Tries, Delay and TTL")
		}
	}
	if len(m.attributes) > 0 || m.idempotencyKey != nil {
		return nil, invalid(op, "a respawn takes Tries, Delay and TTL")
	}
	return query, nil
}

// DeleteDead deletes up to most of the oldest dead jobs.
func (c *Client) DeleteDead(ctx context.Context, queue string, most int) error {
	query := url.Values{"limit": {strconv.Itoa(most)}}
	return c.done(ctx, request{op: "delete dead", method: http.MethodDelete, queue: queue, path: []string{"deadletter"}, query: query}, nil)
}

// QueueInfo is a queue of the namespace. Numbers that the store cannot count cheaply are nil.
type QueueInfo struct {
	Queue          string
	Ready          *int64
	Delayed        *int64
	Running        *int64
	Dead           *int64
	OldestReadyAge *time.Duration // age of the oldest ready job
	Paused         bool
	PausedUntil    time.Time // zero if the pause does not end by itself
}

// Queues lists the queues of the namespace.
func (c *Client) Queues() *Iterator[QueueInfo] {
	return &Iterator[QueueInfo]{page: func(ctx context.Context, cursor string) ([]QueueInfo, string, error) {
		var answer struct {
			Queues []struct {
				QueueInfo
				OldestReadyAge *float64   `json:"oldest_ready_age"`
				PausedUntil    *time.Time `json:"paused_until"`
			}
			Cursor string
		}
		query := url.Values{"limit": {"100"}}
		if cursor != "" {
			query.Set("cursor", cursor)
		}
		err := c.done(ctx, request{
			op: "list queues", method: http.MethodGet, noQueue: true, query: query, repeat: true,
		}, &answer)
		infos := make([]QueueInfo, len(answer.Queues))
		for i, q := range answer.Queues {
			infos[i] = q.QueueInfo
			infos[i].PausedUntil = orZero(q.PausedUntil)
			if q.OldestReadyAge != nil {
				age := time.Duration(*q.OldestReadyAge * float64(time.Second))
				infos[i].OldestReadyAge = &age
			}
		}
		return infos, answer.Cursor, err
	}}
}

// ListedJob is a job in a list.
type ListedJob struct {
	ID          string
	State       State
	DueAt       time.Time // as in JobInfo
	PublishedAt time.Time
	RemainTries int
	TTL         time.Duration // 0 is forever
	Key         string
	Reason      string
	Size        int64             // of the body
	Data        []byte            // with WithData
	Attributes  map[string]string // with WithData
}

// ListOption is an option of [Client.Jobs].
type ListOption func(url.Values)

// WithData includes bodies and attributes.
func WithData() ListOption { return func(query url.Values) { query.Set("data", "1") } }

// Jobs lists the jobs of a queue in one state, in order of delivery; dead ones oldest first.
func (c *Client) Jobs(queue string, state State, opts ...ListOption) *Iterator[ListedJob] {
	return &Iterator[ListedJob]{page: func(ctx context.Context, cursor string) ([]ListedJob, string, error) {
		var answer struct {
			Jobs []struct {
				wireJob
				PublishedAt *time.Time `json:"published_at"`
				Size        int64      `json:"size"`
			}
			Cursor string
		}
		query := url.Values{"limit": {"100"}, "state": {string(state)}}
		for _, opt := range opts {
			opt(query)
		}
		if cursor != "" {
			query.Set("cursor", cursor)
		}
		err := c.done(ctx, request{
			op: "list", method: http.MethodGet, queue: queue, path: []string{"jobs"}, query: query, repeat: true,
		}, &answer)
		jobs := make([]ListedJob, len(answer.Jobs))
		for i, j := range answer.Jobs {
			jobs[i] = ListedJob{
				ID: j.ID, State: j.State, DueAt: orZero(j.DueAt), PublishedAt: orZero(j.PublishedAt),
				RemainTries: j.RemainTries, TTL: time.Duration(j.TTL) * time.Second, Key: j.Key, Reason: j.Reason,
				Size: j.Size, Data: j.Data, Attributes: j.Attributes,
			}
		}
		return jobs, answer.Cursor, err
	}}
}

// Iterator iterates over a list. It reads pages as needed:
//
//	for jobs := client.Jobs("mail", dormouse.Dead); jobs.Next(ctx); {
//		use(jobs.Value())
//	}
//
// After Next has returned false, Err distinguishes the end of the list from an error.
type Iterator[T any] struct {
	page   func(ctx context.Context, cursor string) ([]T, string, error)
	values []T
	value  T
	cursor string
	begun  bool
	err    error
}

// Next advances to the next value, if there is one.
func (it *Iterator[T]) Next(ctx context.Context) bool {
	for len(it.values) == 0 {
		if it.err != nil || (it.begun && it.cursor == "") {
			return false
		}
		it.values, it.cursor, it.err = it.page(ctx, it.cursor)
		it.begun = true
		if it.err != nil {
			return false
		}
	}
	it.value, it.values = it.values[0], it.values[1:]
	return true
}

// Value returns the current value.
func (it *Iterator[T]) Value() T { return it.value }

// Err returns the error that ended the iteration; nil at the end of the list.
func (it *Iterator[T]) Err() error { return it.err }
