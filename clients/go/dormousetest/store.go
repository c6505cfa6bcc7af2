package dormousetest

import (
	"fmt"
	"sort"
	"strconv"
	"strings"
	"time"
)

// queue has its jobs by id, in any state.
type queue struct {
	jobs   map[string]*job
	paused bool
	until  time.Time // of the pause; zero if it does not end by itself
}

type state string

const (
	ready   state = "ready"
	delayed state = "delayed"
	running state = "running"
	dead    state = "dead"
)

type job struct {
	id         string
	queue      string
	namespace  string
	data       []byte
	attributes map[string]string
	state      state
	published  time.Time
	since      time.Time // when it is or became ready, when its ttr ends, or when it died
	place      int64     // order among jobs of one state and instant; for ready jobs, their order
	expires    time.Time // zero is never
	tries      int       // that are left
	key        string
	reason     string
	receipt    string // of the current delivery
}

func (s *Server) number() int64 {
	s.numbers++
	return s.numbers
}

func (s *Server) queue(namespace, name string) *queue {
	queues := s.store[namespace]
	if queues == nil {
		queues = map[string]*queue{}
		s.store[namespace] = queues
	}
	if queues[name] == nil {
		queues[name] = &queue{jobs: map[string]*job{}}
	}
	return queues[name]
}

// upkeep executes everything that is due, in order of time.
func (s *Server) upkeep() {
	for _, queues := range s.store {
		for _, q := range queues {
			if q.paused && !q.until.IsZero() && !q.until.After(s.now) {
				q.paused = false
			}
			var due []*job
			for id, j := range q.jobs {
				switch {
				case !j.expires.IsZero() && !j.expires.After(s.now) && j.state != dead:
					delete(q.jobs, id)
				case (j.state == delayed || j.state == running) && !j.since.After(s.now):
					due = append(due, j)
				}
			}
			order(due)
			for _, j := range due {
				s.comeBack(j)
			}
		}
	}
}

// comeBack makes a job ready at its instant, or dead if no try is left.
func (s *Server) comeBack(j *job) {
	if j.tries == 0 {
		s.die(j, j.since)
		return
	}
	j.state, j.place, j.receipt = ready, s.number(), ""
}

func (s *Server) die(j *job, at time.Time) {
	j.state, j.since, j.place = dead, at, s.number()
	j.tries, j.key, j.receipt, j.expires = 0, "", "", time.Time{}
}

// order sorts jobs of one state by their order of delivery.
func order(jobs []*job) {
	sort.Slice(jobs, func(a, b int) bool { return jobs[a].before(jobs[b]) })
}

func (j *job) before(other *job) bool {
	if j.state != ready && !j.since.Equal(other.since) {
		return j.since.Before(other.since)
	}
	return j.place < other.place
}

// in returns the jobs of one state, in order.
func (q *queue) in(st state) []*job {
	var jobs []*job
	for _, j := range q.jobs {
		if j.state == st {
			jobs = append(jobs, j)
		}
	}
	order(jobs)
	return jobs
}

// holder returns the job with the key.
func (q *queue) holder(key string) *job {
	for _, j := range q.jobs {
		if key != "" && j.key == key {
			return j
		}
	}
	return nil
}

// poll is a consume.
type poll struct {
	namespace string
	queues    []string
	weights   []int
	count     int
	many      bool // the reply is an array
	receipts  bool
	ttr       time.Duration
	timeout   time.Duration
}

// weighting serves queues in proportion to their weights: the queue that is owed most is next.
type weighting struct{ owed []int }

// handOut delivers ready jobs; nil if there are none.
func (s *Server) handOut(p poll) any {
	var jobs []object
	for len(jobs) < p.count {
		j := s.next(p)
		if j == nil {
			break
		}
		j.tries--
		s.hold(j, p.ttr)
		shown := j.shown(s.now)
		shown["msg"] = "new job"
		if p.receipts {
			shown["receipt"] = j.receipt
		}
		jobs = append(jobs, shown)
	}
	switch {
	case len(jobs) == 0:
		return nil
	case p.many:
		return jobs
	}
	return jobs[0]
}

// hold gives a job a new receipt: the number of tries left, and a unique number.
func (s *Server) hold(j *job, ttr time.Duration) {
	j.state, j.since, j.place = running, s.now.Add(ttr), s.number()
	j.receipt = fmt.Sprintf("%d-%d", j.tries, j.place)
}

func validReceipt(text string) bool {
	tries, number, found := strings.Cut(text, "-")
	_, err1 := strconv.ParseUint(tries, 10, 16)
	_, err2 := strconv.ParseUint(number, 10, 63)
	return found && err1 == nil && err2 == nil
}

func (s *Server) next(p poll) *job {
	var best *job
	bestQueue := -1
	shares := &weighting{owed: make([]int, len(p.queues))}
	if p.weights != nil {
		name := fmt.Sprint(p.namespace, p.queues, p.weights)
		if s.shares[name] == nil {
			s.shares[name] = shares
		}
		shares = s.shares[name]
	}
	total := 0
	for i, name := range p.queues {
		q := s.store[p.namespace][name]
		if q == nil || q.paused {
			continue
		}
		jobs := q.in(ready)
		if len(jobs) == 0 {
			continue
		}
		if p.weights == nil {
			return jobs[0]
		}
		shares.owed[i] += p.weights[i]
		total += p.weights[i]
		if bestQueue < 0 || shares.owed[i] > shares.owed[bestQueue] {
			best, bestQueue = jobs[0], i
		}
	}
	if bestQueue >= 0 {
		shares.owed[bestQueue] -= total
	}
	return best
}

// shown returns a job in the format of lmstfy's routes.
func (j *job) shown(now time.Time) object {
	var attributes any
	if len(j.attributes) > 0 {
		attributes = j.attributes
	}
	return object{
		"attributes": attributes, "data": j.data, "elapsed_ms": now.Sub(j.published).Milliseconds(), "job_id": j.id,
		"namespace": j.namespace, "queue": j.queue, "remain_tries": j.tries, "ttl": j.ttl(now),
	}
}

// ttl returns seconds, rounded, at least 1; 0 is forever.
func (j *job) ttl(now time.Time) int64 {
	if j.expires.IsZero() {
		return 0
	}
	left := int64(j.expires.Sub(now).Round(time.Second) / time.Second)
	if left < 1 {
		return 1
	}
	return left
}

func instant(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UTC().Format("2006-01-02T15:04:05.000Z")
}

func orNull(text string) any {
	if text == "" {
		return nil
	}
	return text
}
