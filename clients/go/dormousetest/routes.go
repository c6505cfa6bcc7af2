package dormousetest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"sort"
	"strconv"
	"strings"
	"time"
)

const (
	maxJob        = 1 << 20
	maxReason     = 4096
	maxSeconds    = math.MaxUint32
	defaultTTL    = 24 * time.Hour
	defaultTTR    = 120 * time.Second
	maxAttributes = 16
)

// call is a request with valid names.
type call struct {
	method    string
	namespace string
	queue     string   // or several, for a consume
	rest      []string // of the path
	query     url.Values
	header    http.Header
	body      []byte
}

func (c *call) isPoll() bool { return c.method == http.MethodGet && c.queue != "" && len(c.rest) == 0 }

func parse(req *http.Request, path string, body []byte) (*call, *answer) {
	refuse := func(status int, text string) (*call, *answer) {
		a := failed(status, text)
		return nil, &a
	}
	parts := strings.Split(path, "/")
	for i, part := range parts {
		whole, err := url.PathUnescape(part)
		if err != nil {
			return refuse(http.StatusNotFound, "api not found")
		}
		parts[i] = whole
	}
	c := &call{method: req.Method, namespace: parts[0], query: req.URL.Query(), header: req.Header, body: body}
	if len(parts) > 1 {
		c.queue, c.rest = parts[1], parts[2:]
	}
	for _, name := range append([]string{c.namespace}, strings.Split(c.queue, ",")...) {
		if len(name) > 255 {
			return refuse(http.StatusBadRequest, "namespace or queue name too long")
		}
		if strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") != "" {
			return refuse(http.StatusBadRequest, "queue name contains forbidden characters")
		}
	}
	return c, nil
}

// readPoll parses the parameters of a consume.
func readPoll(c *call) (p poll, refused *answer) {
	refuse := func(text string) (poll, *answer) {
		a := failed(http.StatusBadRequest, text)
		return poll{}, &a
	}
	p = poll{
		namespace: c.namespace, queues: strings.Split(c.queue, ","), count: 1, ttr: defaultTTR,
		receipts: c.query.Get("receipt") == "1",
	}
	if len(p.queues) > 100 {
		return refuse("too many queues")
	}
	if text, given := c.query["count"]; given {
		n, err := strconv.Atoi(text[0])
		if err != nil || n < 1 || n > 100 {
			return refuse("invalid count")
		}
		p.count, p.many = n, n > 1
	}
	for name, into := range map[string]*time.Duration{"ttr": &p.ttr, "timeout": &p.timeout} {
		if text, given := c.query[name]; given {
			n, err := strconv.ParseUint(text[0], 10, 32)
			if err != nil || n == 0 && name == "ttr" {
				return refuse("invalid " + name)
			}
			*into = time.Duration(n) * time.Second
		}
	}
	if text, given := c.query["weights"]; given {
		for _, one := range strings.Split(text[0], ",") {
			n, err := strconv.Atoi(one)
			if err != nil || n < 1 || n > 1000 {
				return refuse("invalid weights")
			}
			p.weights = append(p.weights, n)
		}
		if len(p.weights) != len(p.queues) {
			return refuse("invalid weights")
		}
	}
	return p, nil
}

var (
	notFound    = failed(http.StatusNotFound, "job not found")
	unknown     = failed(http.StatusNotFound, "api not found")
	lost        = failed(http.StatusConflict, "the job is not yours any more")
	noContent   = answer{status: http.StatusNoContent}
	badReceipt  = failed(http.StatusBadRequest, "invalid receipt")
	reusedKey   = failed(http.StatusUnprocessableEntity, "the idempotency key was used for another request")
	emptyQueue  = failed(http.StatusNotFound, "the queue is empty")
	noSuchKey   = failed(http.StatusNotFound, "no job has this key")
	bodyTooLong = failed(http.StatusRequestEntityTooLarge, "body too large")
)

func ok(body object) answer { return answer{status: http.StatusOK, body: body} }

// once answers all requests except polls.
func (s *Server) once(c *call) answer {
	if c.queue == "" {
		return s.listQueues(c)
	}
	q := s.queue(c.namespace, c.queue)
	route := c.method
	for i, part := range c.rest {
		if i == 1 && (c.rest[0] == "job" || c.rest[0] == "key") {
			part = ":id"
		}
		route += " " + part
	}
	switch route {
	case "POST jobs", "POST jobs batch":
		return s.idempotent(c, func() answer { return s.publish(c, q, route == "POST jobs batch") })
	case "GET job :id":
		return s.show(c, q.jobs[c.rest[1]])
	case "GET key :id":
		if j := q.holder(c.rest[1]); j != nil {
			return s.show(c, j)
		}
		return noSuchKey
	case "GET peek":
		if jobs := q.in(ready); len(jobs) > 0 {
			return ok(jobs[0].shown(s.now))
		}
		return emptyQueue
	case "DELETE job :id":
		return s.ack(c, q)
	case "DELETE key :id":
		j := q.holder(c.rest[1])
		if j == nil {
			return noSuchKey
		}
		delete(q.jobs, j.id)
		return noContent
	case "POST job :id promote":
		return s.promote(q.jobs[c.rest[1]], notFound)
	case "POST key :id promote":
		return s.promote(q.holder(c.rest[1]), noSuchKey)
	case "POST job :id touch", "POST job :id release", "POST job :id bury":
		return s.held(c, q.jobs[c.rest[1]])
	case "POST ack":
		return s.ackMany(c, q)
	case "POST pause", "POST resume":
		return s.pause(c, q)
	case "GET jobs":
		return s.listJobs(c, q)
	case "GET size":
		return ok(object{"namespace": c.namespace, "queue": c.queue, "size": len(q.in(ready))})
	case "DELETE":
		for _, j := range q.in(ready) {
			delete(q.jobs, j.id)
		}
		return noContent
	case "GET deadletter", "PUT deadletter", "DELETE deadletter", "POST deadletter respawn":
		return s.deadLetter(c, q)
	}
	return unknown
}

// repeat is a completed publish.
type repeat struct {
	request string
	got     answer
	until   time.Time
}

func (s *Server) idempotent(c *call, do func() answer) answer {
	key := c.header.Get("Idempotency-Key")
	if key == "" {
		return do()
	}
	name := c.namespace + "/" + c.queue + "/" + key
	request := fmt.Sprint(c.method, c.rest, c.query.Encode(), attributeHeaders(c.header), string(c.body))
	if before := s.repeats[name]; before != nil && before.until.After(s.now) {
		if before.request != request {
			return reusedKey
		}
		got := before.got
		got.replayed = true
		return got
	}
	got := do()
	if got.status < 300 {
		s.repeats[name] = &repeat{request: request, got: got, until: s.now.Add(10 * time.Minute)}
	}
	return got
}

func attributeHeaders(header http.Header) map[string]string {
	attributes := map[string]string{}
	for name, values := range header {
		if name = strings.ToLower(name); strings.HasPrefix(name, "job-attr-") {
			attributes[name[len("job-attr-"):]] = values[0]
		}
	}
	return attributes
}

// wanted is the description of a job in a publish. Numbers are kept as text.
type wanted struct {
	Data       []byte            `json:"data"`
	Text       *string           `json:"text"`
	Delay      json.Number       `json:"delay"`
	At         any               `json:"at"`
	AtMS       json.Number       `json:"at_ms"`
	TTL        json.Number       `json:"ttl"`
	Tries      json.Number       `json:"tries"`
	Key        *string           `json:"key"`
	OnConflict string            `json:"on_conflict"`
	Attributes map[string]string `json:"attributes"`
}

func (s *Server) publish(c *call, q *queue, batch bool) answer {
	headers := map[string]string{}
	if strings.EqualFold(c.header.Get("Enable-Job-Version"), "yes") {
		headers = attributeHeaders(c.header)
	}
	if !batch {
		if len(c.body) > maxJob {
			return bodyTooLong
		}
		one := wanted{
			Data: c.body, Delay: given(c.query, "delay"), AtMS: given(c.query, "at_ms"), TTL: given(c.query, "ttl"),
			Tries: given(c.query, "tries"), OnConflict: c.query.Get("on_conflict"), Attributes: headers,
		}
		if c.query.Has("at") {
			one.At = c.query.Get("at")
		}
		if c.query.Has("key") {
			key := c.query.Get("key")
			one.Key = &key
		}
		j, refused := s.prepare(c, one)
		if refused != nil {
			return *refused
		}
		published, refused := s.put(q, j, one)
		if refused != nil {
			return *refused
		}
		published["msg"] = "published"
		return answer{status: http.StatusCreated, body: published}
	}
	var all []wanted
	reader := json.NewDecoder(bytes.NewReader(c.body))
	reader.UseNumber()
	reader.DisallowUnknownFields()
	if err := reader.Decode(&all); err != nil {
		return failed(http.StatusBadRequest, "request body should be an array of jobs")
	}
	if len(all) == 0 {
		return failed(http.StatusBadRequest, "no jobs")
	}
	if len(all) > 64 {
		return failed(http.StatusBadRequest, "too many jobs")
	}
	at := func(i int, refused *answer) answer {
		refused.body.(object)["index"] = i
		return *refused
	}
	jobs, keys := make([]*job, len(all)), map[string]bool{}
	for i, one := range all {
		if one.Attributes == nil {
			one.Attributes = headers
		}
		j, refused := s.prepare(c, one)
		if refused == nil && j.key != "" && keys[j.key] {
			a := failed(http.StatusBadRequest, "two jobs with one key")
			refused = &a
		}
		if refused == nil && one.OnConflict == "fail" {
			refused = taken(q.holder(j.key))
		}
		if refused != nil {
			return at(i, refused)
		}
		jobs[i], keys[j.key] = j, true
	}
	var published []object
	for i, one := range all {
		done, _ := s.put(q, jobs[i], one) // all reasons to refuse it were checked
		published = append(published, done)
	}
	return answer{status: http.StatusCreated, body: object{"msg": "published", "jobs": published}}
}

func given(query url.Values, name string) json.Number { return json.Number(query.Get(name)) }

// prepare creates a job that is not in the store yet.
func (s *Server) prepare(c *call, w wanted) (*job, *answer) {
	refuse := func(text string) (*job, *answer) {
		a := failed(http.StatusBadRequest, text)
		return nil, &a
	}
	if w.Text != nil {
		w.Data = []byte(*w.Text)
	}
	if len(w.Data) > maxJob {
		a := failed(http.StatusRequestEntityTooLarge, "job too large")
		return nil, &a
	}
	j := &job{
		queue: c.queue, namespace: c.namespace, data: w.Data, attributes: w.Attributes, state: ready,
		published: s.now, since: s.now, tries: 1,
	}
	times := 0
	for _, is := range []bool{w.Delay != "", w.At != nil, w.AtMS != ""} {
		if is {
			times++
		}
	}
	if times > 1 {
		return refuse("only one of delay, at and at_ms can be given")
	}
	delay, good := span(w.Delay.String(), 0)
	if !good {
		return refuse("invalid delay")
	}
	if w.AtMS != "" {
		ms, err := strconv.ParseUint(w.AtMS.String(), 10, 53)
		if err != nil {
			return refuse("invalid at_ms")
		}
		delay = time.UnixMilli(int64(ms)).Sub(s.now)
	}
	if w.At != nil {
		at, err := time.Parse(time.RFC3339, strings.Replace(fmt.Sprint(w.At), " ", "+", 1))
		if seconds, good := span(fmt.Sprint(w.At), -1); good && seconds >= 0 {
			at, err = time.Unix(0, 0).Add(seconds), nil
		}
		if err != nil {
			return refuse("invalid at")
		}
		delay = at.Sub(s.now)
	}
	if delay > 0 {
		// Whole milliseconds, rounded up.
		j.state, j.since = delayed, s.now.Add((delay + time.Millisecond - 1).Truncate(time.Millisecond))
	} else {
		delay = 0
	}
	ttl, good := span(w.TTL.String(), delay+defaultTTL)
	if !good {
		return refuse("invalid ttl")
	}
	if ttl > 0 {
		if ttl < delay {
			return refuse("ttl is shorter than delay")
		}
		if ttl == delay {
			return refuse("ttl equals delay: the job would expire when it is due")
		}
		j.expires = s.now.Add(ttl)
	}
	if w.Tries != "" {
		n, err := strconv.ParseUint(w.Tries.String(), 10, 16)
		if err != nil {
			return refuse("invalid tries")
		}
		if n == 0 {
			return refuse("tries shouldn't be zero")
		}
		j.tries = int(n)
	}
	if w.Key != nil {
		for _, b := range []byte(*w.Key) {
			if b <= ' ' || b > '~' {
				return refuse("invalid key")
			}
		}
		if *w.Key == "" || len(*w.Key) > 255 {
			return refuse("invalid key")
		}
		j.key = *w.Key
	}
	switch w.OnConflict {
	case "", "keep", "replace", "fail":
	default:
		return refuse("invalid on_conflict")
	}
	if len(w.Attributes) > maxAttributes {
		return refuse("too many attributes, cannot exceed 16")
	}
	return j, nil
}

// span parses seconds with up to three decimals. An empty text means otherwise.
func span(text string, otherwise time.Duration) (time.Duration, bool) {
	if text == "" {
		return otherwise, true
	}
	if strings.Trim(text, "0123456789.") != "" {
		return 0, false
	}
	whole, decimals, _ := strings.Cut(text, ".")
	seconds, err := strconv.ParseFloat(text, 64)
	if err != nil || whole == "" || len(decimals) > 3 || seconds > maxSeconds {
		return 0, false
	}
	return time.Duration(math.Round(seconds*1000)) * time.Millisecond, true
}

func taken(holder *job) *answer {
	if holder == nil {
		return nil
	}
	a := failed(http.StatusConflict, "the key is taken")
	a.body.(object)["job_id"] = holder.id
	return &a
}

// put stores a job, unless its key is taken.
func (s *Server) put(q *queue, j *job, w wanted) (object, *answer) {
	replaced := ""
	if holder := q.holder(j.key); holder != nil {
		switch w.OnConflict {
		case "fail":
			return nil, taken(holder)
		case "replace":
			if holder.state == running {
				holder.key = ""
			} else {
				delete(q.jobs, holder.id)
				replaced = holder.id
			}
		default:
			return object{"job_id": holder.id, "due_at": instant(holder.since), "duplicate": true}, nil
		}
	}
	j.place = s.number()
	j.id = fmt.Sprintf("01DOUBLE%018d", j.place)
	if len(j.attributes) > 0 {
		j.id = "1" + j.id
	}
	q.jobs[j.id] = j
	published := object{"job_id": j.id, "due_at": instant(j.since)}
	if replaced != "" {
		published["replaced"] = replaced
	}
	return published, nil
}

func (s *Server) show(c *call, j *job) answer {
	if j == nil {
		return notFound
	}
	shown := j.shown(s.now)
	if c.query.Get("verbose") != "1" {
		shown["remain_tries"] = 0
		return ok(shown)
	}
	shown["state"], shown["due_at"] = j.state, instant(j.since)
	shown["key"], shown["reason"] = orNull(j.key), orNull(j.reason)
	if old, asked := c.query["receipt"]; asked {
		if !validReceipt(old[0]) {
			return badReceipt
		}
		tries, _, _ := strings.Cut(old[0], "-")
		shown["receipt"] = nil
		if j.state == running && strconv.Itoa(j.tries) == tries {
			shown["receipt"] = j.receipt
		}
	}
	return ok(shown)
}

func (s *Server) ack(c *call, q *queue) answer {
	j := q.jobs[c.rest[1]]
	if receipt, asked := c.query["receipt"]; asked {
		if !validReceipt(receipt[0]) {
			return badReceipt
		}
		if j != nil && j.receipt != receipt[0] {
			return lost
		}
	}
	delete(q.jobs, c.rest[1])
	return noContent
}

func (s *Server) ackMany(c *call, q *queue) answer {
	var body struct{ Jobs []json.RawMessage }
	if json.Unmarshal(c.body, &body) != nil || len(body.Jobs) == 0 {
		return failed(http.StatusBadRequest, "no jobs")
	}
	if len(body.Jobs) > 100 {
		return failed(http.StatusBadRequest, "too many jobs")
	}
	type one struct{ ID, Receipt string }
	all := make([]one, len(body.Jobs))
	for i, text := range body.Jobs {
		if json.Unmarshal(text, &all[i].ID) == nil {
			continue
		}
		if json.Unmarshal(text, &all[i]) != nil || !validReceipt(all[i].Receipt) {
			a := failed(http.StatusBadRequest, "invalid receipt")
			a.body.(object)["index"] = i
			return a
		}
	}
	stale := []string{}
	for _, one := range all {
		if j := q.jobs[one.ID]; j != nil && one.Receipt != "" && j.receipt != one.Receipt {
			stale = append(stale, one.ID)
			continue
		}
		delete(q.jobs, one.ID)
	}
	return ok(object{"acked": len(all) - len(stale), "stale": stale})
}

func (s *Server) promote(j *job, none answer) answer {
	if j == nil {
		return none
	}
	if j.state != delayed {
		refused := failed(http.StatusConflict, "the job is not delayed")
		refused.body.(object)["state"] = string(j.state)
		return refused
	}
	j.state, j.since, j.place = ready, s.now, s.number()
	return ok(object{"msg": "ready"})
}

// held executes an operation that needs a receipt.
func (s *Server) held(c *call, j *job) answer {
	receipt := c.query.Get("receipt")
	ttr, good := span(c.query.Get("ttr"), defaultTTR)
	delay, goodDelay := span(c.query.Get("delay"), 0)
	spend := c.query.Get("spend")
	switch {
	case !validReceipt(receipt):
		return badReceipt
	case !good || ttr == 0:
		return failed(http.StatusBadRequest, "invalid ttr")
	case !goodDelay:
		return failed(http.StatusBadRequest, "invalid delay")
	case spend != "" && spend != "0" && spend != "1":
		return failed(http.StatusBadRequest, "invalid spend")
	case len(c.body) > maxReason:
		return failed(http.StatusRequestEntityTooLarge, "reason too large")
	case j == nil:
		return notFound
	case j.receipt != receipt:
		return lost
	}
	if c.rest[2] == "touch" {
		s.hold(j, ttr)
		return ok(object{"msg": "touched", "receipt": j.receipt, "until": instant(j.since)})
	}
	if len(c.body) > 0 {
		j.reason = string(c.body)
	}
	if spend == "0" {
		j.tries++
	}
	expires := !j.expires.IsZero() && !j.expires.After(s.now.Add(delay))
	if c.rest[2] == "bury" || j.tries == 0 || expires {
		s.die(j, s.now)
		return ok(object{"msg": "dead"})
	}
	j.receipt = ""
	if delay > 0 {
		j.state, j.since, j.place = delayed, s.now.Add(delay), s.number()
	} else {
		s.heads--
		j.state, j.since, j.place = ready, s.now, s.heads
	}
	return ok(object{"msg": "released", "remain_tries": j.tries, "due_at": instant(j.since)})
}

func (s *Server) pause(c *call, q *queue) answer {
	q.paused, q.until = false, time.Time{}
	if c.rest[0] == "resume" {
		return ok(object{"msg": "resumed"})
	}
	howLong, good := span(c.query.Get("for"), 0)
	if !good {
		return failed(http.StatusBadRequest, "invalid for")
	}
	q.paused = true
	if howLong > 0 {
		q.until = s.now.Add(howLong)
	}
	return ok(object{"msg": "paused", "until": instant(q.until)})
}

// page parses the limit and the cursor of a list: the name or position after which it continues.
func page(c *call, otherwise int) (limit int, after string, refused *answer) {
	limit, after = otherwise, c.query.Get("cursor")
	if text, given := c.query["limit"]; given {
		n, err := strconv.Atoi(text[0])
		if err != nil || n < 1 || n > 100 {
			a := failed(http.StatusBadRequest, "invalid limit")
			return 0, "", &a
		}
		limit = n
	}
	return limit, after, nil
}

func (s *Server) listQueues(c *call) answer {
	limit, after, refused := page(c, 100)
	if refused != nil {
		return *refused
	}
	var names []string
	for name, q := range s.store[c.namespace] {
		if name > after && (len(q.jobs) > 0 || q.paused) {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	var cursor any
	if len(names) > limit {
		names, cursor = names[:limit], names[limit-1]
	}
	queues := []object{}
	for _, name := range names {
		q := s.store[c.namespace][name]
		jobs := q.in(ready)
		var age any
		if len(jobs) > 0 {
			age = s.now.Sub(jobs[0].since).Seconds()
		}
		shown := object{
			"queue": name, "ready": len(jobs), "delayed": len(q.in(delayed)), "running": len(q.in(running)),
			"dead": len(q.in(dead)), "oldest_ready_age": age, "paused": q.paused,
		}
		if !q.until.IsZero() {
			shown["paused_until"] = instant(q.until)
		}
		queues = append(queues, shown)
	}
	return ok(object{"namespace": c.namespace, "queues": queues, "cursor": cursor})
}

func (s *Server) listJobs(c *call, q *queue) answer {
	st := state(c.query.Get("state"))
	switch st {
	case "":
		st = ready
	case ready, delayed, running, dead:
	default:
		return failed(http.StatusBadRequest, "invalid state")
	}
	limit, after, refused := page(c, 20)
	if refused != nil {
		return *refused
	}
	// The end of the previous page, as a job that precedes all of this page.
	var last *job
	if after != "" {
		var since int64
		last = &job{state: st}
		if n, err := fmt.Sscanf(after, "%d_%d", &since, &last.place); n != 2 || err != nil {
			return failed(http.StatusBadRequest, "invalid cursor")
		}
		last.since = time.UnixMilli(since)
	}
	shown, cursor := []object{}, any(nil)
	jobs := q.in(st)
	for i, j := range jobs {
		if last != nil && !last.before(j) {
			continue
		}
		one := object{
			"job_id": j.id, "state": j.state, "due_at": instant(j.since), "published_at": instant(j.published),
			"remain_tries": j.tries, "ttl": j.ttl(s.now), "key": orNull(j.key), "reason": orNull(j.reason),
			"size": len(j.data),
		}
		if c.query.Get("data") == "1" {
			one["data"] = j.data
			if len(j.attributes) > 0 {
				one["attributes"] = j.attributes
			}
		}
		if shown = append(shown, one); len(shown) == limit {
			if i+1 < len(jobs) {
				cursor = fmt.Sprintf("%d_%d", j.since.UnixMilli(), j.place)
			}
			break
		}
	}
	return ok(object{"jobs": shown, "cursor": cursor, "scanned": len(shown)})
}

func (s *Server) deadLetter(c *call, q *queue) answer {
	jobs := q.in(dead)
	if c.method == http.MethodGet {
		head := ""
		if len(jobs) > 0 {
			head = jobs[0].id
		}
		return ok(object{
			"namespace": c.namespace, "queue": c.queue, "deadletter_size": len(jobs), "deadletter_head": head,
		})
	}
	if c.method == http.MethodPost {
		return s.respawnMany(c, q)
	}
	limit := 1
	if text, given := c.query["limit"]; given {
		n, err := strconv.ParseUint(text[0], 10, 31)
		if err != nil {
			return failed(http.StatusBadRequest, "invalid limit")
		}
		limit = int(n)
	}
	ttl, good := span(c.query.Get("ttl"), defaultTTL)
	if !good {
		return failed(http.StatusBadRequest, "invalid ttl")
	}
	if limit < len(jobs) {
		jobs = jobs[:limit]
	}
	for _, j := range jobs {
		if c.method == http.MethodDelete {
			delete(q.jobs, j.id)
			continue
		}
		s.respawn(j, 1, 0, ttl)
	}
	if c.method == http.MethodDelete {
		return noContent
	}
	return ok(object{"msg": "respawned", "count": len(jobs)})
}

func (s *Server) respawnMany(c *call, q *queue) answer {
	var body struct{ Jobs []string }
	if json.Unmarshal(c.body, &body) != nil || len(body.Jobs) == 0 {
		return failed(http.StatusBadRequest, "no jobs")
	}
	if len(body.Jobs) > 100 {
		return failed(http.StatusBadRequest, "too many jobs")
	}
	asked := wanted{Delay: given(c.query, "delay"), TTL: given(c.query, "ttl"), Tries: given(c.query, "tries")}
	like, refused := s.prepare(c, asked)
	if refused != nil {
		return *refused
	}
	missing, done := []string{}, 0
	for _, id := range body.Jobs {
		j := q.jobs[id]
		if j == nil || j.state != dead {
			missing = append(missing, id)
			continue
		}
		ttl := time.Duration(0)
		if !like.expires.IsZero() {
			ttl = like.expires.Sub(s.now)
		}
		s.respawn(j, like.tries, like.since.Sub(s.now), ttl)
		done++
	}
	return ok(object{"respawned": done, "missing": missing})
}

func (s *Server) respawn(j *job, tries int, delay, ttl time.Duration) {
	j.state, j.since, j.place, j.tries = ready, s.now.Add(delay), s.number(), tries
	if delay > 0 {
		j.state = delayed
	}
	if ttl > 0 {
		j.expires = s.now.Add(ttl)
	}
}
