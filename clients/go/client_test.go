package dormouse

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

var bg = context.Background()

func TestAPublishSaysAllThatItWasTold(t *testing.T) {
	s := newStage(t)
	at := s.server.Now().Add(90 * time.Second)
	published, err := s.client.Publish(bg, "mail", []byte{0, 255, 'x'}, At(at.In(time.FixedZone("", 5*3600+1800))),
		Tries(3), TTL(time.Hour), Key("ann"), Attribute("a", "b"), Traceparent("00-1"))
	if err != nil || !published.DueAt.Equal(at) || published.Duplicate || published.Replayed {
		t.Fatal(published, err)
	}
	info := s.info("mail", published.JobID)
	if info.State != Delayed || info.Key != "ann" || info.RemainTries != 3 || info.TTL != time.Hour ||
		!bytes.Equal(info.Data, []byte{0, 255, 'x'}) || info.Traceparent() != "00-1" || info.Attributes["a"] != "b" {
		t.Fatalf("%+v %+v", info, info.Job)
	}
	again, err := s.client.Publish(bg, "mail", nil, Key("ann"))
	if err != nil || !again.Duplicate || again.JobID != published.JobID {
		t.Fatal(again, err)
	}
	_, err = s.client.Publish(bg, "mail", nil, Key("ann"), OnConflict(Fail))
	if e := asError(t, err, ErrConflict); e.JobID != published.JobID || e.Status != 409 || e.RequestID == "" || e.Retryable() {
		t.Fatalf("%+v", e)
	}
	replaced, err := s.client.Publish(bg, "mail", nil, Key("ann"), OnConflict(Replace), AtText("2001-02-03T04:05:06Z"))
	if err != nil || replaced.Replaced != published.JobID || !replaced.DueAt.Equal(s.server.Now()) {
		t.Fatal(replaced, err)
	}
	for i := 0; i < 2; i++ {
		one, err := s.client.PublishJSON(bg, "mail", map[string]int{"n": 1}, IdempotencyKey("once"))
		if err != nil || one.Replayed != (i == 1) {
			t.Fatal(i, one, err)
		}
	}
	_, err = s.client.Publish(bg, "mail", nil, IdempotencyKey("once"))
	asError(t, err, ErrKeyReused)
}

func TestAttributesArriveAsTheyWereGivenOrAreRefused(t *testing.T) {
	s := newStage(t)
	for name, value := range map[string]string{
		"plain": "text", "über": "x", "under_score": "x", "blank": " x ", "line": "a\nb", "umlaut": "grüße", "quote": `"`,
		strings.Repeat("n", 32): strings.Repeat("v", 128),
	} {
		id := s.publish("mail", "x", Attribute(name, value))
		if got := s.info("mail", id).Attributes; len(got) != 1 || got[name] != value {
			t.Errorf("%q=%q arrived as %q", name, value, got)
		}
	}
	many := map[string]string{}
	for i := 0; i < 16; i++ {
		many[fmt.Sprint("n", i)] = "x"
	}
	// The context's trace does not make the caller's sixteen attributes invalid.
	published, err := s.client.Publish(ContextWithTraceparent(bg, "00-1"), "mail", nil, Attributes(many))
	if err != nil || len(s.info("mail", published.JobID).Attributes) != 16 {
		t.Error(err)
	}
	sent := len(s.wire.seen(""))
	refused := []PublishOption{
		Attribute("", "x"), Attribute("x", ""), Attribute("Upper", "x"), Attribute(strings.Repeat("n", 33), "x"),
		Attribute("x", strings.Repeat("v", 129)), Attribute("x", "\xff"),
		func(m *Message) { Attributes(many)(m); Attribute("one-more", "x")(m) },
		Delay(-1), TTL(-1), At(time.Time{}), AtText("1700000000"), IdempotencyKey(""), IdempotencyKey("ü"),
	}
	for i, option := range refused {
		_, err := s.client.Publish(bg, "mail", nil, option)
		if e := asError(t, err, ErrInvalid); e.Status != 0 {
			t.Errorf("%d was sent", i)
		}
		_, err = s.client.PublishMany(bg, "mail", []Message{NewMessage(nil), NewMessage(nil, option)})
		if e := asError(t, err, ErrInvalid); e.Index != 1 {
			t.Errorf("%d of many: %+v", i, e)
		}
	}
	_, err = s.client.PublishJSON(bg, "mail", math.NaN())
	asError(t, err, ErrInvalid)
	if n := len(s.wire.seen("")) - sent; n != 0 {
		t.Errorf("%d requests were sent", n)
	}
}

func TestATraceGoesOnByTheContext(t *testing.T) {
	s := newStage(t)
	ctx := ContextWithTraceparent(bg, "00-a")
	for _, test := range []struct {
		opts []PublishOption
		want string
	}{{nil, "00-a"}, {[]PublishOption{Traceparent("00-b")}, "00-b"}} {
		published, err := s.client.Publish(ctx, "mail", nil, test.opts...)
		if err != nil || s.info("mail", published.JobID).Traceparent() != test.want {
			t.Error(test.want, err)
		}
		many, err := s.client.PublishMany(ctx, "mail", []Message{NewMessage(nil, test.opts...)})
		if err != nil || s.info("mail", many[0].JobID).Traceparent() != test.want {
			t.Error(test.want, err)
		}
	}
}

func TestManyAreSentInBatchesOf64And8MiB(t *testing.T) {
	s := newStage(t)
	msgs := make([]Message, 150)
	for i := range msgs {
		msgs[i] = NewMessage([]byte(fmt.Sprint(i)))
	}
	published, err := s.client.PublishMany(bg, "mail", msgs)
	if err != nil || len(published) != 150 || len(s.wire.seen("batch")) != 3 {
		t.Fatal(len(published), err, s.wire.seen("batch"))
	}
	for i, one := range published {
		if got := string(s.info("mail", one.JobID).Data); got != fmt.Sprint(i) {
			t.Fatalf("job %d is %s", i, got)
		}
	}
	large := make([]Message, 8)
	for i := range large {
		large[i] = NewMessage(make([]byte, 1<<20))
	}
	var sizes []int
	s.wire.fail(func(req *http.Request) (*http.Response, error) {
		body, err := io.ReadAll(req.Body)
		if len(body) > 8<<20+batchJobs {
			t.Errorf("a batch of %d bytes", len(body))
		}
		sizes = append(sizes, bytes.Count(body, []byte(`"data"`)))
		answers := strings.Repeat(`{"job_id":"x"},`, sizes[len(sizes)-1])
		return respond(201, `{"jobs":[`+strings.TrimSuffix(answers, ",")+`]}`), err
	}, nil)
	if published, err := s.client.PublishMany(bg, "large", large); err != nil || len(published) != 8 || fmt.Sprint(sizes) != "[5 3]" {
		t.Fatal(len(published), err, sizes)
	}
	s.wire.fail(nil, nil)
	msgs[130] = NewMessage(nil, Tries(0))
	published, err = s.client.PublishMany(bg, "mail", msgs)
	if e := asError(t, err, ErrInvalid); e.Index != 130 || len(e.Published) != 128 || len(published) != 128 {
		t.Fatal(e.Index, len(published))
	}
}

func TestErrorsHaveTheirKinds(t *testing.T) {
	for _, test := range []struct {
		status    int
		body      string
		kind      Kind
		retryable bool
	}{
		{400, `{"error":"invalid delay"}`, ErrInvalid, false},
		{401, `{"error":"invalid token"}`, ErrUnauthorized, false},
		{403, `{"error":"the request was sent by a web page of another site"}`, ErrForbidden, false},
		{404, `{"error":"job not found"}`, ErrNotFound, false},
		{404, `{"error":"pool not found"}`, ErrNotFound, false},
		{404, `{"error":"api not found"}`, ErrUnsupported, false},
		{408, `{"error":"timeout while reading the body"}`, ErrTimeout, true},
		{409, `{"error":"the job is not yours any more"}`, ErrLost, false},
		{409, `{"error":"the key is taken","job_id":"x"}`, ErrConflict, false},
		{409, `{"error":"a request with this idempotency key is under way"}`, ErrBusy, true},
		{413, `{"error":"body too large"}`, ErrTooLarge, false},
		{422, `{"error":"the idempotency key was used for another request"}`, ErrKeyReused, false},
		{429, `{"msg":"token(x) produce reach the limit rate, please retry later"}`, ErrLimited, true},
		{500, `{"error":"internal error"}`, ErrServer, true},
		{502, `<html>`, ErrUnavailable, true},
		{503, `{"error":"the server is shutting down"}`, ErrUnavailable, true},
		{504, ``, ErrUnavailable, true},
		{507, `{"error":"the disk is almost full"}`, ErrFull, true},
		{599, ``, ErrServer, true},
		{301, ``, ErrProtocol, false},
		{418, ``, ErrProtocol, false},
		{200, `<html>`, ErrProtocol, false},
		{201, `{}`, ErrProtocol, false},
	} {
		s := newStage(t, RetryFor(0))
		s.wire.fail(func(*http.Request) (*http.Response, error) {
			return respond(test.status, test.body, "X-Request-ID", "r1", "Retry-After", "7", "Location", "/x"), nil
		}, nil)
		_, err := s.client.Publish(bg, "mail", nil)
		e := asError(t, err, test.kind)
		after := 0 * time.Second
		if test.retryable {
			after = 7 * time.Second
		}
		if e.Status != test.status || e.Retryable() != test.retryable || e.RequestID != "r1" || e.RetryAfter != after {
			t.Errorf("%d: %+v", test.status, e)
		}
		if e.Message == "" || strings.Contains(err.Error(), "secret-token") {
			t.Errorf("%d: %v", test.status, err)
		}
	}
	e := refused("x", 502, nil, []byte(strings.Repeat("ü", 200)))
	if len(e.Message) != 200 {
		t.Errorf("a message of %d bytes", len(e.Message))
	}
}

func TestACallIsRepeatedWhileThatIsSafe(t *testing.T) {
	s := newStage(t)
	s.publish("mail", "x", Tries(5))
	job := func() *Job {
		jobs, err := s.client.Consume(bg, ConsumeOptions{}, "mail")
		if err != nil || len(jobs) != 1 {
			t.Fatal(jobs, err)
		}
		return jobs[0]
	}()
	id := s.publish("looked", "x")
	calls := map[string]struct {
		repeated bool // also if it may have been executed
		do       func() error
	}{
		"publish":      {true, func() error { _, err := s.client.Publish(bg, "q", nil); return err }},
		"publish many": {true, func() error { _, err := s.client.PublishMany(bg, "q", []Message{{}}); return err }},
		"get":          {true, func() error { _, err := s.client.Get(bg, "looked", id); return err }},
		"peek":         {true, func() error { _, err := s.client.Peek(bg, "mail"); return err }},
		"size":         {true, func() error { _, err := s.client.Size(bg, "mail"); return err }},
		"list":         {true, func() error { it := s.client.Jobs("mail", Ready); it.Next(bg); return it.Err() }},
		"queues":       {true, func() error { it := s.client.Queues(); it.Next(bg); return it.Err() }},
		"dead letter":  {true, func() error { _, err := s.client.DeadLetter(bg, "mail"); return err }},
		"cancel":       {true, func() error { return s.client.Cancel(bg, "mail", "x") }},
		"pause":        {true, func() error { _, err := s.client.Pause(bg, "q", 0); return err }},
		"resume":       {true, func() error { return s.client.Resume(bg, "q") }},
		"ack":          {true, func() error { return job.Ack(bg) }},
		"ack many":     {true, func() error { _, err := s.client.AckMany(bg, "mail", []*Job{job, job}); return err }},
		"consume":      {false, func() error { _, err := s.client.Consume(bg, ConsumeOptions{}, "mail"); return err }},
		"destroy":      {false, func() error { return s.client.Destroy(bg, "q") }},
		"respawn old":  {false, func() error { _, err := s.client.RespawnOldest(bg, "q", 1); return err }},
		"respawn":      {false, func() error { _, err := s.client.Respawn(bg, "q", []string{id}); return err }},
		"delete dead":  {false, func() error { return s.client.DeleteDead(bg, "q", 1) }},
	}
	failures := []struct {
		nothingDone bool
		fail        func() (*http.Response, error)
	}{
		{false, func() (*http.Response, error) { return nil, errBroken }},
		{false, func() (*http.Response, error) { return respond(500, "{}"), nil }},
		{false, func() (*http.Response, error) { return respond(408, "{}"), nil }},
		{false, func() (*http.Response, error) { return respond(507, "{}"), nil }},
		{true, func() (*http.Response, error) { return respond(503, "{}"), nil }},
		{true, func() (*http.Response, error) { return respond(429, "{}"), nil }},
		{true, func() (*http.Response, error) {
			return respond(409, `{"error":"a request with this idempotency key is under way"}`), nil
		}},
	}
	for name, call := range calls {
		for i, failure := range failures {
			n := int32(0)
			s.wire.fail(func(*http.Request) (*http.Response, error) {
				if atomic.AddInt32(&n, 1) == 1 {
					return failure.fail()
				}
				return nil, nil
			}, nil)
			done := make(chan error, 1)
			go func() { done <- call.do() }()
			if !call.repeated && !failure.nothingDone {
				if err := receive(t, done); err == nil || n != 1 {
					t.Errorf("%s after failure %d: %v, %d requests", name, i, err, n)
				}
				continue
			}
			s.clock.elapse(t, pausing, 50*time.Millisecond, 100*time.Millisecond)
			if err := receive(t, done); err != nil || n != 2 {
				t.Errorf("%s after failure %d: %v, %d requests", name, i, err, n)
			}
		}
	}
}

func TestPausesGrowAndHaveAnEnd(t *testing.T) {
	s := newStage(t, RetryFor(30*time.Second))
	keys := map[string]bool{}
	s.wire.fail(func(req *http.Request) (*http.Response, error) {
		keys[req.Header.Get("Idempotency-Key")] = true
		return nil, errBroken
	}, nil)
	done := make(chan error, 1)
	go func() { _, err := s.client.Publish(bg, "mail", nil); done <- err }()
	for _, most := range []time.Duration{100, 200, 400, 800, 1600, 3200, 5000, 5000} {
		s.clock.elapse(t, pausing, most*time.Millisecond/2, most*time.Millisecond)
	}
	for len(done) == 0 { // how many more there are is random
		s.clock.advance(5 * time.Second)
		time.Sleep(time.Millisecond)
	}
	asError(t, <-done, ErrNetwork)
	if len(keys) != 1 || keys[""] {
		t.Errorf("the idempotency keys were %v", keys)
	}
	s.wire.fail(func(*http.Request) (*http.Response, error) { return respond(503, "{}", "Retry-After", "9"), nil }, nil)
	go func() { _, err := s.client.Publish(bg, "mail", nil); done <- err }()
	for i := 0; i < 3; i++ {
		s.clock.elapse(t, pausing, 9*time.Second, 9*time.Second)
	}
	asError(t, receive(t, done), ErrUnavailable) // the fourth pause would end after 36 s
}

func TestTheCallersContextEndsACall(t *testing.T) {
	s := newStage(t)
	s.wire.fail(func(*http.Request) (*http.Response, error) { return nil, errBroken }, nil)
	ctx, cancel := context.WithCancel(bg)
	done := make(chan error, 1)
	go func() { _, err := s.client.Publish(ctx, "mail", nil); done <- err }()
	s.clock.next(t, pausing, 50*time.Millisecond, 100*time.Millisecond)
	cancel()
	if err := receive(t, done); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

func TestListsGoOnWhenTheyAreNeeded(t *testing.T) {
	s := newStage(t)
	for i := 0; i < 250; i++ {
		s.publish("mail", fmt.Sprint(i))
	}
	it := s.client.Jobs("mail", Ready, WithData())
	for i := 0; i < 100; i++ {
		if !it.Next(bg) || string(it.Value().Data) != fmt.Sprint(i) {
			t.Fatal(i, it.Value(), it.Err())
		}
	}
	if n := len(s.wire.seen("GET mail/jobs")); n != 1 {
		t.Fatalf("%d pages for a hundred jobs", n)
	}
	n := 100
	for it.Next(bg) {
		n++
	}
	if n != 250 || it.Err() != nil || it.Next(bg) {
		t.Fatal(n, it.Err())
	}
	// An empty page with a cursor is not the end.
	pages := []string{`{"jobs":[],"cursor":"a"}`, `{"jobs":[],"cursor":"b"}`, `{"jobs":[{"job_id":"x"}],"cursor":null}`}
	s.wire.fail(func(req *http.Request) (*http.Response, error) {
		page := pages[0]
		pages = pages[1:]
		return respond(200, page), nil
	}, nil)
	it = s.client.Jobs("mail", Delayed)
	if !it.Next(bg) || it.Value().ID != "x" || it.Next(bg) || it.Err() != nil {
		t.Fatal(it.Value(), it.Err())
	}
	s.wire.fail(nil, nil)
	if _, err := s.client.Pause(bg, "mail", 90*time.Second); err != nil {
		t.Fatal(err)
	}
	queues := s.client.Queues()
	if !queues.Next(bg) || queues.Value().Queue != "mail" || *queues.Value().Ready != 250 || !queues.Value().Paused ||
		!queues.Value().PausedUntil.Equal(s.server.Now().Add(90*time.Second)) || *queues.Value().OldestReadyAge != 0 {
		t.Fatalf("%+v %v", queues.Value(), queues.Err())
	}
}

func TestTheDeadLetter(t *testing.T) {
	s := newStage(t)
	var ids []string
	for i := 0; i < 5; i++ {
		ids = append(ids, s.publish("mail", "x"))
	}
	jobs, err := s.client.Consume(bg, ConsumeOptions{Count: 5, TTR: 5 * time.Second}, "mail")
	if err != nil || len(jobs) != 5 {
		t.Fatal(jobs, err)
	}
	if err := jobs[0].Bury(bg, strings.Repeat("ü", 3000)); err != nil {
		t.Fatal(err)
	}
	if reason := s.info("mail", ids[0]).Reason; len(reason) != 4096 {
		t.Errorf("a reason of %d bytes", len(reason))
	}
	if released, err := jobs[1].Release(bg, Release{Delay: time.Second, KeepTry: true}); err != nil || released.Dead ||
		released.RemainTries != 1 || !released.DueAt.Equal(s.server.Now().Add(time.Second)) {
		t.Error(released, err)
	}
	if released, err := jobs[2].Release(bg, Release{}); err != nil || !released.Dead {
		t.Error(released, err)
	}
	until, err := jobs[3].Touch(bg, 90*time.Second)
	if err != nil || !until.Equal(s.server.Now().Add(90*time.Second)) {
		t.Error(until, err)
	}
	s.server.Advance(5 * time.Second) // the fifth is lost, and dead
	if dead, err := s.client.DeadLetter(bg, "mail"); err != nil || dead.Size != 3 || dead.Head != ids[0] {
		t.Error(dead, err)
	}
	asError(t, jobs[4].Ack(bg), ErrLost)
	if _, err := jobs[3].Release(bg, Release{}); err != nil {
		t.Error(err)
	}
	later := s.publish("later", "x", Delay(time.Hour), Key("k"))
	if err := s.client.Promote(bg, "later", later); err != nil || s.info("later", later).State != Ready {
		t.Error(err)
	}
	asError(t, s.client.PromoteByKey(bg, "later", "k"), ErrConflict)
	asError(t, s.client.PromoteByKey(bg, "later", "nobody"), ErrNotFound)
	respawned, err := s.client.Respawn(bg, "mail", []string{ids[0], "none"}, Tries(4), Delay(time.Second))
	if err != nil || respawned.Respawned != 1 || len(respawned.Missing) != 1 || s.info("mail", ids[0]).RemainTries != 4 {
		t.Error(respawned, err)
	}
	if n, err := s.client.RespawnOldest(bg, "mail", 1, TTL(1500*time.Millisecond)); err != nil || n != 1 ||
		s.info("mail", ids[2]).TTL != 2*time.Second {
		t.Error(n, err)
	}
	_, err = s.client.RespawnOldest(bg, "mail", 1, Tries(3))
	asError(t, err, ErrInvalid)
	_, err = s.client.Respawn(bg, "mail", ids, Key("x"))
	asError(t, err, ErrInvalid)
	if err := s.client.DeleteDead(bg, "mail", 10); err != nil {
		t.Error(err)
	}
	s.gone("mail", ids[4])
}

func TestACancelByKey(t *testing.T) {
	s := newStage(t)
	for _, key := range []string{"order:1/2", ".", "..", "a%b&c=d+e"} {
		id := s.publish("mail", "x", Key(key))
		if info, err := s.client.GetByKey(bg, "mail", key); err != nil || info.ID != id {
			t.Errorf("%q: %v", key, err)
		}
		if err := s.client.CancelByKey(bg, "mail", key); err != nil {
			t.Errorf("%q: %v", key, err)
		}
		s.gone("mail", id)
		asError(t, s.client.CancelByKey(bg, "mail", key), ErrNotFound)
	}
}

func TestNamesThatWouldMakeAnotherPathAreRefused(t *testing.T) {
	s := newStage(t)
	for _, queue := range []string{"", ".", "..", "a/b", "a,b", "a?b", "a b", strings.Repeat("x", 256)} {
		asError(t, s.client.Destroy(bg, queue), ErrInvalid)
		_, err := s.client.Publish(bg, queue, nil)
		asError(t, err, ErrInvalid)
	}
	asError(t, s.client.Cancel(bg, "mail", ""), ErrInvalid)
	_, err := s.client.Consume(bg, ConsumeOptions{})
	asError(t, err, ErrInvalid)
	_, err = (&Job{}).Attempt(bg)
	asError(t, err, ErrInvalid)
	asError(t, (&Job{}).Ack(bg), ErrInvalid)
	if len(s.wire.seen("")) != 0 {
		t.Error(s.wire.seen(""))
	}
}

func TestAClientIsMadeOfWhatItIsGiven(t *testing.T) {
	for _, url := range []string{"", "127.0.0.1:7777", "ftp://x", "http://", "http://x?", "http://x?y", "http://x#y", "http://%zz"} {
		_, err := NewClient(url, "test", "")
		asError(t, err, ErrInvalid)
	}
	for _, opt := range []Option{Timeout(0), RetryFor(-1), RetryFor(10 * time.Minute)} {
		_, err := NewClient("http://x", "test", "", opt)
		asError(t, err, ErrInvalid)
	}
	_, err := NewClient("http://x", "a/b", "")
	asError(t, err, ErrInvalid)
	_, err = NewClient("http://x", "test", "secret\n")
	if e := asError(t, err, ErrInvalid); strings.Contains(e.Error(), "secret") {
		t.Error(e)
	}
	t.Setenv("DORMOUSE_NAMESPACE", "")
	_, err = FromEnv()
	asError(t, err, ErrInvalid)
	t.Setenv("DORMOUSE_NAMESPACE", "demo")
	t.Setenv("DORMOUSE_TOKEN", "secret-token")
	t.Setenv("DORMOUSE_URL", "")
	c, err := FromEnv()
	if err != nil || c.base != "http://127.0.0.1:7777" || c.namespace != "demo" || c.token != "secret-token" {
		t.Error(c, err)
	}
	for _, shown := range []string{fmt.Sprint(c), fmt.Sprintf("%+v", c), fmt.Sprintf("%#v", c), fmt.Sprintf("%v", *c)} {
		if strings.Contains(shown, "secret") {
			t.Errorf("the token is shown: %s", shown)
		}
	}
}

// served returns a client of a server over TCP.
func served(t *testing.T, handler http.HandlerFunc, opts ...Option) *Client {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	c, err := NewClient(server.URL+"/behind/", "test", "secret-token", opts...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestARequestOnTheWire(t *testing.T) {
	c := served(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.URL.Path != "/behind/api/test/mail/jobs" || r.Header.Get("X-Token") != "secret-token" ||
			strings.Contains(r.URL.String(), "secret") || string(body) != "hi" ||
			r.Header.Get("User-Agent") != "dormouse-go/"+Version || len(r.Header.Get("Idempotency-Key")) != 32 ||
			r.URL.Query().Get("delay") != "1.235" || r.ContentLength != 2 {
			t.Errorf("%v %v %q", r.URL, r.Header, body)
		}
		w.WriteHeader(201)
		io.WriteString(w, `{"job_id":"x","due_at":"2026-11-22T08:00:00.000Z"}`)
	})
	published, err := c.Publish(bg, "mail", []byte("hi"), Delay(1234567*time.Microsecond))
	if err != nil || published.JobID != "x" || published.DueAt.Year() != 2026 {
		t.Fatal(published, err)
	}
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	n := int32(0)
	c := served(t, func(w http.ResponseWriter, r *http.Request) {
		atomic.AddInt32(&n, 1)
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	})
	_, err := c.Size(bg, "mail")
	if e := asError(t, err, ErrProtocol); e.Status != 307 || atomic.LoadInt32(&n) != 1 {
		t.Fatalf("%+v, %d requests", e, n)
	}
}

func TestNoAnswerInTime(t *testing.T) {
	release := make(chan struct{})
	c := served(t, func(http.ResponseWriter, *http.Request) { <-release }, Timeout(50*time.Millisecond), RetryFor(0))
	defer close(release)
	_, err := c.Size(bg, "mail")
	if e := asError(t, err, ErrTimeout); !e.Retryable() || strings.Contains(err.Error(), "secret") {
		t.Fatalf("%+v", e)
	}
}

func TestARefusedConnection(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener.Close()
	c, err := NewClient("http://"+listener.Addr().String(), "test", "", RetryFor(0))
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Size(bg, "mail")
	if e := asError(t, err, ErrNetwork); !e.neverSent() {
		t.Fatalf("%+v", e)
	}
}

func TestAnAnswerThatBreaksOff(t *testing.T) {
	c := served(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "100")
		io.WriteString(w, `{"size"`)
	}, RetryFor(0))
	_, err := c.Size(bg, "mail")
	asError(t, err, ErrNetwork)
}

// An idle connection breaks after a consume was sent: Go's transport would retry a GET, and the job of the first
// request would be lost for its ttr.
func TestAConsumeIsSentOnceOnAConnectionThatBreaks(t *testing.T) {
	consumes := int32(0)
	c := served(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/size") {
			io.WriteString(w, `{"size":1}`)
			return
		}
		atomic.AddInt32(&consumes, 1)
		conn, _, _ := w.(http.Hijacker).Hijack()
		conn.Close()
	})
	if _, err := c.Size(bg, "mail"); err != nil { // the connection stays open
		t.Fatal(err)
	}
	_, err := c.Consume(bg, ConsumeOptions{}, "mail")
	asError(t, err, ErrNetwork)
	if atomic.LoadInt32(&consumes) != 1 {
		t.Fatalf("%d consumes", consumes)
	}
}

func TestAServerWithoutReceiptsIsUnsupported(t *testing.T) {
	s := newStage(t)
	s.wire.fail(func(*http.Request) (*http.Response, error) {
		return respond(200, `{"job_id":"x","queue":"mail","data":""}`), nil
	}, nil)
	_, err := s.client.Consume(bg, ConsumeOptions{}, "mail")
	asError(t, err, ErrUnsupported)
}

func TestAckMany(t *testing.T) {
	s := newStage(t)
	for i := 0; i < 150; i++ {
		s.publish("mail", "x")
	}
	var jobs []*Job
	for len(jobs) < 150 {
		some, err := s.client.Consume(bg, ConsumeOptions{Count: 100, TTR: time.Minute}, "mail")
		if err != nil {
			t.Fatal(err)
		}
		jobs = append(jobs, some...)
	}
	if err := s.client.Cancel(bg, "mail", jobs[0].ID); err != nil { // gone counts as acked
		t.Fatal(err)
	}
	stale := jobs[120]
	old := stale.receipt
	if _, err := stale.Touch(bg, time.Minute); err != nil {
		t.Fatal(err)
	}
	stale.receipt = old
	acked, err := s.client.AckMany(bg, "mail", jobs)
	if err != nil || acked.Acked != 149 || len(acked.Stale) != 1 || acked.Stale[0] != stale.ID {
		t.Fatal(acked, err)
	}
	if n := len(s.wire.seen("POST mail/ack")); n != 2 {
		t.Fatalf("%d requests", n)
	}
	_, err = s.client.AckMany(bg, "other", jobs)
	if e := asError(t, err, ErrInvalid); e.Index != 0 {
		t.Fatal(e)
	}
}
