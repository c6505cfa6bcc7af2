package dormouse

import (
	"context"
	"encoding/json"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Conflict says what a publish does whose key is taken.
type Conflict string

// What a taken key means.
const (
	Keep    Conflict = "keep"    // nothing is stored, and the answer has the job that is there
	Replace Conflict = "replace" // a job that is delayed or ready makes room in the same step
	Fail    Conflict = "fail"    // ErrConflict
)

// Message is a job to be published.
type Message struct {
	data           []byte
	delay, ttl     *time.Duration
	at             *time.Time
	atText         *string
	tries          *int
	jobKey         *string
	onConflict     *Conflict
	attributes     map[string]string
	idempotencyKey *string
	err            error // of making it
}

// PublishOption says more of a job. What is not given is the server's default.
type PublishOption func(*Message)

// NewMessage makes a job for [Client.PublishMany].
func NewMessage(data []byte, opts ...PublishOption) Message {
	m := Message{data: data}
	for _, opt := range opts {
		opt(&m)
	}
	return m
}

// NewJSONMessage makes a job whose body is v as JSON. A v that cannot be JSON is an error of the publish.
func NewJSONMessage(v any, opts ...PublishOption) Message {
	data, err := json.Marshal(v)
	m := NewMessage(data, opts...)
	m.err = err
	return m
}

// Delay makes the job ready after d. Parts of a millisecond are rounded up.
func Delay(d time.Duration) PublishOption { return func(m *Message) { m.delay = &d } }

// At makes the job ready at t; at once when t has passed.
func At(t time.Time) PublishOption { return func(m *Message) { m.at = &t } }

// AtText is [At] for a text in RFC 3339.
func AtText(text string) PublishOption { return func(m *Message) { m.atText = &text } }

// TTL has the job forgotten d after its publish; 0 is never.
func TTL(d time.Duration) PublishOption { return func(m *Message) { m.ttl = &d } }

// Tries is how many times the job may be handed out, 1 to 65535.
func Tries(n int) PublishOption { return func(m *Message) { m.tries = &n } }

// Key is a name of the producer's own for the job: no two jobs of a queue have it while they are delayed, ready or
// running. It is 1 to 255 bytes of printable ASCII without blanks.
func Key(key string) PublishOption { return func(m *Message) { m.jobKey = &key } }

// OnConflict says what a taken key means; [Keep] when it is not given.
func OnConflict(c Conflict) PublishOption { return func(m *Message) { m.onConflict = &c } }

// Attribute sends a text beside the body: a name of up to 32 bytes in lower case, a value of up to 128, 16 at most.
func Attribute(name, value string) PublishOption {
	return func(m *Message) {
		if m.attributes == nil {
			m.attributes = map[string]string{}
		}
		m.attributes[name] = value
	}
}

// Attributes are several of [Attribute].
func Attributes(all map[string]string) PublishOption {
	return func(m *Message) {
		for name, value := range all {
			Attribute(name, value)(m)
		}
	}
}

// Traceparent is the attribute of that name, by which traces go on through jobs. Within a handler a publish has that of
// the handler's job by itself.
func Traceparent(value string) PublishOption { return Attribute("traceparent", value) }

// IdempotencyKey makes publishes safe to repeat over calls and processes: 1 to 255 characters of printable ASCII. For
// ten minutes the same publish with the same key stores nothing more. Each call has a random one when none is given.
func IdempotencyKey(key string) PublishOption { return func(m *Message) { m.idempotencyKey = &key } }

type traceparentKey struct{}

// ContextWithTraceparent has publishes with this context carry on the trace. An empty value ends it.
func ContextWithTraceparent(ctx context.Context, value string) context.Context {
	return context.WithValue(ctx, traceparentKey{}, value)
}

const maxAttributes = 16

// carry adds the trace of the context, unless the caller has said another or there is no room.
func (m *Message) carry(ctx context.Context) {
	value, _ := ctx.Value(traceparentKey{}).(string)
	_, given := m.attributes["traceparent"]
	if value == "" || given || len(m.attributes) >= maxAttributes {
		return
	}
	all := map[string]string{"traceparent": value}
	for name, value := range m.attributes {
		all[name] = value
	}
	m.attributes = all
}

// check refuses what the server would store otherwise than it was given, or could not read.
func (m *Message) check(op string) *Error {
	switch {
	case m.err != nil:
		return invalid(op, "the body cannot be JSON: %v", m.err)
	case m.delay != nil && *m.delay < 0:
		return invalid(op, "the delay is negative")
	case m.ttl != nil && *m.ttl < 0:
		return invalid(op, "the ttl is negative")
	case m.at != nil && m.at.IsZero():
		return invalid(op, "the instant is the zero time")
	case m.atText != nil && (len(*m.atText) < len("2006-01-02T15:04:05Z") || (*m.atText)[4] != '-'):
		return invalid(op, "the instant should be a text in RFC 3339")
	case m.idempotencyKey != nil && (*m.idempotencyKey == "" || len(*m.idempotencyKey) > 255 || !printable(*m.idempotencyKey)):
		return invalid(op, "an idempotency key has 1 to 255 characters of printable ASCII")
	case len(m.attributes) > maxAttributes:
		return invalid(op, "too many attributes, cannot exceed %d", maxAttributes)
	}
	for name, value := range m.attributes {
		switch {
		case name == "" || len(name) > 32 || !utf8.ValidString(name) || name != strings.ToLower(name):
			return invalid(op, "the name of an attribute has 1 to 32 bytes of UTF-8 in lower case: %q", name)
		case value == "" || len(value) > 128 || !utf8.ValidString(value):
			return invalid(op, "the value of an attribute has 1 to 128 bytes of UTF-8: that of %q", name)
		}
	}
	return nil
}

// fitsHeaders says whether headers can carry the attributes, through proxies too.
func (m *Message) fitsHeaders() bool {
	for name, value := range m.attributes {
		if !printable(value) || strings.TrimSpace(value) != value {
			return false
		}
		for _, c := range name {
			if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
				return false
			}
		}
	}
	return true
}

func (m *Message) headers() http.Header {
	if len(m.attributes) == 0 {
		return nil
	}
	header := http.Header{"Enable-Job-Version": {"YES"}}
	for name, value := range m.attributes {
		header.Set("Job-Attr-"+name, value)
	}
	return header
}

// atMillis is the instant in Unix milliseconds, rounded up. What is before 1970 has passed all the same.
func (m *Message) atMillis() int64 {
	millis := m.at.UnixMilli()
	if m.at.Nanosecond()%int(time.Millisecond) != 0 {
		millis++
	}
	if millis < 0 {
		return 0
	}
	return millis
}

// each calls with what was given, by the names and in the texts that the server takes.
func (m *Message) each(number, text func(name, value string)) {
	if m.delay != nil {
		number("delay", seconds(*m.delay))
	}
	if m.at != nil {
		number("at_ms", strconv.FormatInt(m.atMillis(), 10))
	}
	if m.atText != nil {
		text("at", *m.atText)
	}
	if m.ttl != nil {
		number("ttl", seconds(*m.ttl))
	}
	if m.tries != nil {
		number("tries", strconv.Itoa(*m.tries))
	}
	if m.jobKey != nil {
		text("key", *m.jobKey)
	}
	if m.onConflict != nil {
		text("on_conflict", string(*m.onConflict))
	}
}

func (m *Message) query() url.Values {
	query := url.Values{}
	m.each(query.Set, query.Set)
	return query
}

// element is the job as one of a batch.
func (m *Message) element() []byte {
	data := m.data
	if data == nil {
		data = []byte{} // null is no body
	}
	fields := map[string]any{"data": data}
	if len(m.attributes) > 0 {
		fields["attributes"] = m.attributes
	}
	m.each(func(name, value string) { fields[name] = json.Number(value) },
		func(name, value string) { fields[name] = value })
	text, _ := json.Marshal(fields) // bytes, texts and numbers of ours become JSON without fail
	return text
}

func (m *Message) key() string { return keyOrRandom(m.idempotencyKey) }

// seconds is how the server reads durations: with up to three decimals. Parts of a millisecond are rounded up.
func seconds(d time.Duration) string {
	millis := d / time.Millisecond
	if d%time.Millisecond > 0 {
		millis++
	}
	return strconv.FormatFloat(float64(millis)/1000, 'f', -1, 64)
}

// wholeSeconds is how the routes read durations that lmstfy has.
func wholeSeconds(d time.Duration) string {
	return strconv.FormatInt(int64(math.Ceil(d.Seconds())), 10)
}
