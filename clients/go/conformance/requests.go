package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"dormouse.example/clients/go"
)

// request executes an op that is one call of a client.
func (p *program) request(ctx context.Context, client *dormouse.Client, c command) (any, error) {
	switch c.Op {
	case "publish":
		data, value, opts, err := message(c)
		if err != nil {
			return nil, err
		}
		var published dormouse.Published
		if value != nil {
			published, err = client.PublishJSON(ctx, c.Queue, value, opts...)
		} else {
			published, err = client.Publish(ctx, c.Queue, data, opts...)
		}
		return publishedFields(published), err
	case "publish_many":
		return publishMany(ctx, client, c)
	case "consume":
		return p.consume(ctx, client, c)
	case "ack_many":
		return p.ackMany(ctx, client, c)
	case "cancel":
		if key := c.text("key"); key != "" {
			return object{}, client.CancelByKey(ctx, c.Queue, key)
		}
		return object{}, client.Cancel(ctx, c.Queue, c.JobID)
	case "promote":
		if key := c.text("key"); key != "" {
			return object{}, client.PromoteByKey(ctx, c.Queue, key)
		}
		return object{}, client.Promote(ctx, c.Queue, c.JobID)
	case "get":
		info, err := client.Get(ctx, c.Queue, c.JobID)
		if key := c.text("key"); key != "" {
			info, err = client.GetByKey(ctx, c.Queue, key)
		}
		if err != nil {
			return nil, err
		}
		fields := jobFields(info.Job)
		fields["state"], fields["due_at"] = orNull(string(info.State)), millis(info.DueAt)
		fields["key"], fields["reason"] = orNull(info.Key), orNull(info.Reason)
		return fields, nil
	case "peek":
		job, err := client.Peek(ctx, c.Queue)
		if job == nil {
			return object{"job": nil}, err
		}
		return object{"job": jobFields(job)}, err
	case "size":
		size, err := client.Size(ctx, c.Queue)
		return object{"size": size}, err
	case "dead":
		dead, err := client.DeadLetter(ctx, c.Queue)
		return object{"size": dead.Size, "head": orNull(dead.Head)}, err
	case "destroy":
		return object{}, client.Destroy(ctx, c.Queue)
	case "pause":
		until, err := client.Pause(ctx, c.Queue, c.duration("for"))
		return object{"until": millis(until)}, err
	case "resume":
		return object{}, client.Resume(ctx, c.Queue)
	case "respawn":
		return respawn(ctx, client, c)
	case "delete_dead":
		return object{}, client.DeleteDead(ctx, c.Queue, c.number("oldest"))
	case "list":
		return list(ctx, client, c)
	case "queues":
		return queues(ctx, client, c)
	}
	return nil, fmt.Errorf("the op %q is not known", c.Op)
}

// message parses the options of a publish. A JSON body is returned as value.
func message(c command) (data []byte, value any, opts []dormouse.PublishOption, err error) {
	add := func(opt dormouse.PublishOption) { opts = append(opts, opt) }
	var seconds float64
	var number int
	var text string
	c.get("data", &data)
	if raw, given := c.fields["json"]; given {
		value = raw
	}
	if c.get("delay", &seconds) {
		add(dormouse.Delay(duration(seconds)))
	}
	var at struct {
		As      string
		MS      int64
		Offset  int
		Value   string
		Seconds float64
	}
	if c.get("at", &at) {
		switch at.As {
		case "time":
			add(dormouse.At(time.UnixMilli(at.MS).In(time.FixedZone("", at.Offset*60))))
		case "text":
			add(dormouse.AtText(at.Value))
		case "number":
			add(dormouse.At(time.UnixMicro(int64(at.Seconds * 1e6))))
		default:
			return nil, nil, nil, fmt.Errorf("at: %q", at.As)
		}
	}
	if c.get("ttl", &seconds) {
		add(dormouse.TTL(duration(seconds)))
	}
	if c.get("tries", &number) {
		add(dormouse.Tries(number))
	}
	if c.get("key", &text) {
		add(dormouse.Key(text))
	}
	if c.get("on_conflict", &text) {
		add(dormouse.OnConflict(dormouse.Conflict(text)))
	}
	var attributes map[string]string
	if c.get("attributes", &attributes) {
		add(dormouse.Attributes(attributes))
	}
	if c.get("traceparent", &text) {
		add(dormouse.Traceparent(text))
	}
	if c.get("idempotency_key", &text) {
		add(dormouse.IdempotencyKey(text))
	}
	return data, value, opts, nil
}

func publishedFields(p dormouse.Published) object {
	return object{
		"job_id": p.JobID, "due_at": millis(p.DueAt), "duplicate": p.Duplicate, "replaced": orNull(p.Replaced),
		"replayed": p.Replayed,
	}
}

func publishMany(ctx context.Context, client *dormouse.Client, c command) (any, error) {
	var jobs []map[string]json.RawMessage
	c.get("jobs", &jobs)
	msgs := make([]dormouse.Message, len(jobs))
	for i, job := range jobs {
		data, value, opts, err := message(command{fields: job})
		if err != nil {
			return nil, err
		}
		msgs[i] = dormouse.NewMessage(data, opts...)
		if value != nil {
			msgs[i] = dormouse.NewJSONMessage(value, opts...)
		}
	}
	published, err := client.PublishMany(ctx, c.Queue, msgs)
	results := make([]object, len(published))
	for i, one := range published {
		results[i] = publishedFields(one)
	}
	return object{"jobs": results}, err
}

func jobFields(job *dormouse.Job) object {
	attributes := job.Attributes
	if attributes == nil {
		attributes = map[string]string{}
	}
	return object{
		"job_id": job.ID, "queue": job.Queue, "namespace": job.Namespace, "data": job.Data,
		"remain_tries": job.RemainTries, "ttl": job.TTL.Seconds(), "elapsed_ms": job.Elapsed.Milliseconds(),
		"attributes": attributes, "traceparent": orNull(job.Traceparent()),
	}
}

func (p *program) consume(ctx context.Context, client *dormouse.Client, c command) (any, error) {
	var queues []string
	c.get("queues", &queues)
	opts := dormouse.ConsumeOptions{Count: c.number("count"), TTR: c.duration("ttr"), Timeout: c.duration("timeout")}
	c.get("weights", &opts.Weights)
	jobs, err := client.Consume(ctx, opts, queues...)
	fields := make([]object, len(jobs))
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, job := range jobs {
		p.held[job.ID] = job
		fields[i] = jobFields(job)
	}
	return object{"jobs": fields}, err
}

func (p *program) job(id string) (*dormouse.Job, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if job := p.held[id]; job != nil {
		return job, nil
	}
	return nil, fmt.Errorf("the job %q was not consumed", id)
}

// hold executes an op on a consumed job.
func (p *program) hold(ctx context.Context, c command) (any, error) {
	job, err := p.job(c.JobID)
	if err != nil {
		return nil, err
	}
	switch c.Op {
	case "touch":
		until, err := job.Touch(ctx, c.duration("ttr"))
		return object{"until": millis(until)}, err
	case "ack":
		return object{}, job.Ack(ctx)
	case "bury":
		return object{"dead": true}, job.Bury(ctx, c.text("reason"))
	}
	how := dormouse.Release{Delay: c.duration("delay"), Reason: c.text("reason")}
	spend := true
	c.get("spend", &spend)
	how.KeepTry = !spend
	released, err := job.Release(ctx, how)
	if released.Dead {
		return object{"dead": true}, err
	}
	return object{"remain_tries": released.RemainTries}, err
}

func (p *program) ackMany(ctx context.Context, client *dormouse.Client, c command) (any, error) {
	var ids []string
	c.get("job_ids", &ids)
	jobs := make([]*dormouse.Job, len(ids))
	for i, id := range ids {
		job, err := p.job(id)
		if err != nil {
			return nil, err
		}
		jobs[i] = job
	}
	acked, err := client.AckMany(ctx, c.Queue, jobs)
	return object{"acked": acked.Acked, "stale": append([]string{}, acked.Stale...)}, err
}

func respawn(ctx context.Context, client *dormouse.Client, c command) (any, error) {
	_, _, opts, err := message(c)
	if err != nil {
		return nil, err
	}
	if oldest := c.number("oldest"); oldest != 0 {
		n, err := client.RespawnOldest(ctx, c.Queue, oldest, opts...)
		return object{"respawned": n, "missing": []string{}}, err
	}
	var ids []string
	c.get("job_ids", &ids)
	done, err := client.Respawn(ctx, c.Queue, ids, opts...)
	return object{"respawned": done.Respawned, "missing": append([]string{}, done.Missing...)}, err
}

// most returns how many values to read from an iterator: all by default.
func most(c command) int {
	take := 1 << 30
	c.get("take", &take)
	return take
}

func list(ctx context.Context, client *dormouse.Client, c command) (any, error) {
	var opts []dormouse.ListOption
	var data bool
	if c.get("data", &data); data {
		opts = append(opts, dormouse.WithData())
	}
	jobs := []object{}
	it := client.Jobs(c.Queue, dormouse.State(c.text("state")), opts...)
	for take := most(c); len(jobs) < take && it.Next(ctx); {
		j := it.Value()
		jobs = append(jobs, object{
			"job_id": j.ID, "state": j.State, "due_at": millis(j.DueAt), "published_at": millis(j.PublishedAt),
			"remain_tries": j.RemainTries, "ttl": j.TTL.Seconds(), "key": orNull(j.Key), "reason": orNull(j.Reason),
			"size": j.Size, "data": j.Data, "attributes": j.Attributes,
		})
	}
	return object{"jobs": jobs}, it.Err()
}

func queues(ctx context.Context, client *dormouse.Client, c command) (any, error) {
	found := []object{}
	it := client.Queues()
	for take := most(c); len(found) < take && it.Next(ctx); {
		q := it.Value()
		var age any
		if q.OldestReadyAge != nil {
			age = q.OldestReadyAge.Seconds()
		}
		found = append(found, object{
			"queue": q.Queue, "ready": q.Ready, "delayed": q.Delayed, "running": q.Running, "dead": q.Dead,
			"oldest_ready_age": age, "paused": q.Paused, "paused_until": millis(q.PausedUntil),
		})
	}
	return object{"queues": found}, it.Err()
}
