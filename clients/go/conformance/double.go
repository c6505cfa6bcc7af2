package main

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"dormouse.example/clients/go"
	"dormouse.example/clients/go/dormousetest"
)

// double publishes jobs to an in-process server and handles them, moves its clock, and handles jobs due by then.
func (p *program) double(ctx context.Context, c command) (any, error) {
	server := dormousetest.New()
	client, err := dormouse.NewClient("http://double", "double", "", dormouse.Transport(server))
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	handled, began := []object{}, map[*dormouse.Job]object{}
	w := &worker{p: p, name: "double", client: client}
	w.worker, err = dormouse.NewWorker(client, dormouse.Concurrency(1), dormouse.Backoff(5*time.Second),
		dormouse.WithoutSignals(), dormouse.WithHooks(dormouse.Hooks{
			Start: func(job *dormouse.Job) {
				mu.Lock()
				defer mu.Unlock()
				began[job] = object{"data": job.Data}
				handled = append(handled, began[job])
			},
			Finish: func(job *dormouse.Job, f dormouse.Finished) {
				mu.Lock()
				defer mu.Unlock()
				began[job]["outcome"] = f.Outcome
			},
		}))
	if err != nil {
		return nil, err
	}
	w.worker.Handle("q", w.handle)
	var jobs []map[string]json.RawMessage
	c.get("jobs", &jobs)
	for _, job := range jobs {
		data, value, opts, err := message(command{fields: job})
		if value != nil {
			data, _ = value.(json.RawMessage)
		}
		if err == nil {
			_, err = client.Publish(ctx, "q", data, opts...)
		}
		if err != nil {
			return nil, err
		}
	}
	if err := w.worker.RunUntilIdle(ctx); err != nil {
		return nil, err
	}
	server.Advance(c.duration("advance"))
	if err := w.worker.RunUntilIdle(ctx); err != nil {
		return nil, err
	}
	result := object{"handled": handled}
	for _, state := range []dormouse.State{dormouse.Ready, dormouse.Delayed, dormouse.Dead} {
		jobs := []object{}
		it := client.Jobs("q", state, dormouse.WithData())
		for it.Next(ctx) {
			jobs = append(jobs, object{"data": it.Value().Data, "reason": orNull(it.Value().Reason)})
		}
		result[string(state)] = jobs
		if it.Err() != nil {
			return nil, it.Err()
		}
	}
	return result, nil
}
