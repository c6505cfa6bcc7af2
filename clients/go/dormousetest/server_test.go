package dormousetest_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"dormouse.example/clients/go"
	"dormouse.example/clients/go/dormousetest"
)

var ctx = context.Background()

func start(t *testing.T) (*dormousetest.Server, *dormouse.Client) {
	t.Helper()
	server := dormousetest.New()
	client, err := dormouse.NewClient("http://double/below", "test", "", dormouse.Transport(server), dormouse.RetryFor(0))
	if err != nil {
		t.Fatal(err)
	}
	return server, client
}

func publish(t *testing.T, client *dormouse.Client, queue, data string, opts ...dormouse.PublishOption) string {
	t.Helper()
	published, err := client.Publish(ctx, queue, []byte(data), opts...)
	if err != nil {
		t.Fatal(err)
	}
	return published.JobID
}

// consume returns the bodies of the consumed jobs, separated by blanks.
func consume(t *testing.T, client *dormouse.Client, count int, queues ...string) string {
	t.Helper()
	jobs, err := client.Consume(ctx, dormouse.ConsumeOptions{Count: count, TTR: 10 * time.Second}, queues...)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, job := range jobs {
		all = append(all, string(job.Data))
	}
	return strings.Join(all, " ")
}

func want(t *testing.T, got, wanted string) {
	t.Helper()
	if got != wanted {
		t.Fatalf("%q came, and not %q", got, wanted)
	}
}

func TestJobsComeInTheirOrder(t *testing.T) {
	server, client := start(t)
	publish(t, client, "mail", "c", dormouse.Delay(2*time.Second))
	publish(t, client, "mail", "b", dormouse.Delay(time.Second))
	publish(t, client, "mail", "a")
	publish(t, client, "mail", "late", dormouse.Delay(time.Minute))
	want(t, consume(t, client, 1, "other", "mail"), "a")
	server.Advance(999 * time.Millisecond)
	want(t, consume(t, client, 9, "mail"), "")
	server.Advance(5 * time.Second) // both at once, in order of their due times
	want(t, consume(t, client, 9, "mail"), "b c")
}

func TestAJobThatIsNotAckedComesBackWhileItHasTries(t *testing.T) {
	server, client := start(t)
	id := publish(t, client, "mail", "x", dormouse.Tries(2))
	for i := 0; i < 2; i++ {
		want(t, consume(t, client, 1, "mail"), "x")
		want(t, consume(t, client, 1, "mail"), "")
		server.Advance(10 * time.Second)
	}
	want(t, consume(t, client, 1, "mail"), "")
	if info, err := client.Get(ctx, "mail", id); err != nil || info.State != dormouse.Dead || info.RemainTries != 0 {
		t.Fatal(info, err)
	}
	server.Advance(48 * time.Hour) // a dead job stays
	if dead, err := client.DeadLetter(ctx, "mail"); err != nil || dead.Size != 1 {
		t.Fatal(dead, err)
	}
}

func TestTTL(t *testing.T) {
	server, client := start(t)
	short := publish(t, client, "mail", "short", dormouse.TTL(time.Second))
	publish(t, client, "mail", "forever", dormouse.TTL(0))
	server.Advance(time.Second)
	if _, err := client.Get(ctx, "mail", short); !errors.Is(err, dormouse.ErrNotFound) {
		t.Fatal(err)
	}
	server.Advance(1000 * time.Hour)
	want(t, consume(t, client, 9, "mail"), "forever")
	_, err := client.Publish(ctx, "mail", nil, dormouse.Delay(time.Minute), dormouse.TTL(time.Second))
	if !errors.Is(err, dormouse.ErrInvalid) {
		t.Fatal(err)
	}
}

func TestAPollWaits(t *testing.T) {
	server, client := start(t)
	came := make(chan string, 1)
	wait := func() {
		jobs, err := client.Consume(ctx, dormouse.ConsumeOptions{Timeout: time.Minute}, "mail")
		if err != nil {
			t.Error(err)
		}
		came <- fmt.Sprint(len(jobs))
	}
	go wait()
	publish(t, client, "mail", "x", dormouse.Delay(time.Second))
	server.Advance(time.Second)
	want(t, <-came, "1")
	go wait()
	for ended := false; !ended; { // the poll may not have arrived yet: its minute begins with it
		server.Advance(time.Minute)
		select {
		case got := <-came:
			want(t, got, "0")
			ended = true
		case <-time.After(time.Millisecond):
		}
	}
}

func TestWeights(t *testing.T) {
	_, client := start(t)
	for i := 0; i < 100; i++ {
		publish(t, client, "a", "a")
		publish(t, client, "b", "b")
	}
	counts := map[string]int{}
	for i := 0; i < 80; i++ {
		jobs, err := client.Consume(ctx, dormouse.ConsumeOptions{Weights: []int{3, 1}}, "a", "b")
		if err != nil {
			t.Fatal(err)
		}
		counts[jobs[0].Queue]++
	}
	if counts["a"] != 60 {
		t.Fatal(counts)
	}
}

func TestAPause(t *testing.T) {
	server, client := start(t)
	publish(t, client, "mail", "x")
	if _, err := client.Pause(ctx, "mail", time.Second); err != nil {
		t.Fatal(err)
	}
	want(t, consume(t, client, 1, "mail"), "")
	server.Advance(time.Second)
	want(t, consume(t, client, 1, "mail"), "x")
	publish(t, client, "mail", "y")
	if until, err := client.Pause(ctx, "mail", 0); err != nil || !until.IsZero() {
		t.Fatal(until, err)
	}
	server.Advance(time.Hour)
	want(t, consume(t, client, 1, "mail"), "")
	if err := client.Resume(ctx, "mail"); err != nil {
		t.Fatal(err)
	}
	want(t, consume(t, client, 1, "mail"), "y")
}

func TestAKeyIsFreeWhenItsJobHasEnded(t *testing.T) {
	server, client := start(t)
	for _, end := range []func(){
		func() { server.Advance(25 * time.Hour) },                                  // its ttl
		func() { consume(t, client, 1, "mail"); server.Advance(10 * time.Second) }, // its death
		func() { _ = client.Destroy(ctx, "mail") },
		func() { _ = client.CancelByKey(ctx, "mail", "k") },
	} {
		first := publish(t, client, "mail", "x", dormouse.Key("k"))
		if second := publish(t, client, "mail", "x", dormouse.Key("k")); second != first {
			t.Fatal("the key was not taken")
		}
		end()
		third := publish(t, client, "mail", "x", dormouse.Key("k"))
		if third == first {
			t.Fatal("the key is not free")
		}
		if err := client.Cancel(ctx, "mail", third); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWhatAServerWouldRefuse(t *testing.T) {
	_, client := start(t)
	for want, opt := range map[string]dormouse.PublishOption{
		"invalid key": dormouse.Key("a b"), "invalid tries": dormouse.Tries(65536), "invalid on_conflict": dormouse.OnConflict("x"),
		"invalid at": dormouse.AtText("2026-99-99T00:00:00Z"), "tries shouldn't be zero": dormouse.Tries(0),
	} {
		_, err := client.Publish(ctx, "mail", nil, opt)
		var e *dormouse.Error
		if !errors.As(err, &e) || e.Status != http.StatusBadRequest || e.Message != want {
			t.Errorf("%s: %v", want, err)
		}
		_, err = client.PublishMany(ctx, "mail", []dormouse.Message{dormouse.NewMessage(nil), dormouse.NewMessage(nil, opt)})
		if !errors.As(err, &e) || e.Message != want || e.Index != 1 {
			t.Errorf("%s in a batch: %v", want, err)
		}
	}
	if size, err := client.Size(ctx, "mail"); err != nil || size != 0 {
		t.Errorf("a batch was stored in part: %d %v", size, err)
	}
	_, err := client.Publish(ctx, "mail", make([]byte, 1<<20+1))
	if !errors.Is(err, dormouse.ErrTooLarge) {
		t.Error(err)
	}
	_, err = client.Consume(ctx, dormouse.ConsumeOptions{Count: 101}, "mail")
	if !errors.Is(err, dormouse.ErrInvalid) {
		t.Error(err)
	}
}
