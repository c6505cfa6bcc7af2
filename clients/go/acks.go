package dormouse

import (
	"context"
	"sync"
	"time"
)

// acks collects the acks of a queue for a short time, and sends them together.
type acks struct {
	run     *run
	mu      sync.Mutex
	waiting map[string][]*task
}

// add adds a task whose turn the caller has taken.
func (a *acks) add(t *task) {
	queue := t.job.Queue
	a.mu.Lock()
	a.waiting[queue] = append(a.waiting[queue], t)
	var due []*task // taken before another ack can follow: a batch has maxAcks at most
	switch n := len(a.waiting[queue]); {
	case n >= maxAcks || a.run.w.ackWindow == 0 || closed(a.run.stopping):
		due = a.take(queue)
	case n == 1:
		a.run.w.client.clock.AfterFunc(a.run.w.ackWindow, func() { a.send(queue) })
	}
	a.mu.Unlock()
	a.settle(queue, due)
}

// sendAll sends all acks without waiting for others.
func (a *acks) sendAll() {
	a.mu.Lock()
	queues := make([]string, 0, len(a.waiting))
	for queue := range a.waiting {
		queues = append(queues, queue)
	}
	a.mu.Unlock()
	for _, queue := range queues {
		go a.send(queue)
	}
}

func (a *acks) send(queue string) {
	a.mu.Lock()
	tasks := a.take(queue)
	a.mu.Unlock()
	a.settle(queue, tasks)
}

// take removes the waiting acks of a queue. The caller holds the lock.
func (a *acks) take(queue string) []*task {
	tasks := a.waiting[queue]
	delete(a.waiting, queue)
	return tasks
}

// settle retries until each job is acked or lost.
func (a *acks) settle(queue string, tasks []*task) {
	client := a.run.w.client
	for n := 0; ; n++ {
		var held []*task
		var jobs []*Job
		var longest time.Duration
		for _, t := range tasks {
			left := t.job.left()
			if left <= 0 {
				t.settled(OutcomeLost)
				continue
			}
			held, jobs, longest = append(held, t), append(jobs, t.job), longer(longest, left)
		}
		if len(held) == 0 {
			return
		}
		acked, failed := client.ackSome(context.Background(), queue, jobs, shorter(client.timeout, longest), once)
		if failed.is(ErrNotFound) { // an answer that says so: they are lost
			for _, t := range held {
				t.settled(OutcomeLost)
			}
			return
		}
		if failed == nil {
			tasks, failed = a.sort(held, acked.Stale)
			if len(tasks) == 0 {
				return
			}
			if failed == nil {
				continue
			}
		} else {
			tasks = held
		}
		last := tasks[0].job
		for _, t := range tasks {
			if t.job.left() > last.left() {
				last = t.job
			}
		}
		if !a.run.waitInTime(last, n, failed.Error) {
			for _, t := range tasks {
				t.settled(OutcomeLost)
			}
			return
		}
	}
}

// sort settles the jobs that were acked or lost. It returns those whose receipt was replaced by a touch with a lost
// reply, and the error of looking up the new one.
func (a *acks) sort(held []*task, stale []string) (again []*task, failed *callError) {
	lost := map[string]bool{}
	for _, id := range stale {
		lost[id] = true
	}
	for _, t := range held {
		switch {
		case !lost[t.job.ID]:
			t.settled(OutcomeAcked)
		case !t.job.touchLost:
			t.settled(OutcomeLost)
		default:
			ours, err := t.job.findReceipt(context.Background(), a.run.w.client.timeout, once)
			switch {
			case ours:
				again = append(again, t)
			case err != nil:
				again, failed = append(again, t), err
			default:
				t.settled(OutcomeLost)
			}
		}
	}
	return again, failed
}
