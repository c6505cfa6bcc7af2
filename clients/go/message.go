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

// Conflict is the way in which a publish handles a taken key.
type Conflict string

// Ways to handle a taken key.
const (
	Keep    Conflict = "keep"    // nothing is stored, and the answer has the job that is there
	Replace Conflict = "replace" // a delayed or ready job is replaced in the same step
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

// PublishOption is an option of a job. Omitted options get the server's defaults.
type PublishOption func(*Message)

// NewMessage returns a job for [Client.PublishMany].
func NewMessage(data []byte, opts ...PublishOption) Message {
	m := Message{data: data}
	for _, opt := range opts {
		opt(&m)
	}
	return m
}

// NewJSONMessage returns a job whose body is v as JSON. If v cannot be JSON, publishing it fails.
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

// TTL makes the job expire d after its publish; 0 is never.
func TTL(d time.Duration) PublishOption { return func(m *Message) { m.ttl = &d } }

// Tries sets the maximum number of deliveries, 1 to 65535.
func Tries(n int) PublishOption { return func(m *Message) { m.tries = &n } }

// Key sets the producer's name for the job: unique among the delayed, ready and running jobs of a queue. It has 1 to
// 255 bytes of printable ASCII without blanks.
func Key(key string) PublishOption { return func(m *Message) { m.jobKey = &key } }

// OnConflict sets how to handle a taken key; [Keep] by default.
func OnConflict(c Conflict) PublishOption { return func(m *Message) { m.onConflict = &c } }

// Attribute adds an attribute: a name of up to 32 bytes in lower case, a value of up to 128; at most 16.
func Attribute(name, value string) PublishOption {
	return func(m *Message) {
		if m.attributes == nil {
			m.attributes = map[string]string{}
		}
		m.attributes[name] = value
	}
}

// Attributes adds several attributes.
func Attributes(all map[string]string) PublishOption {
	return func(m *Message) {
		for name, value := range all {
			Attribute(name, value)(m)
		}
	}
}

// Traceparent sets the attribute of that name, through which traces continue. Publishes within a handler use that of
// the handler's job by default.
func Traceparent(value string) PublishOption { return Attribute("traceparent", value) }

// IdempotencyKey makes publishes safe to repeat over calls and processes: 1 to 255 characters of printable ASCII. For
// ten minutes, a repeat of the publish with the same key stores nothing. By default each call has a random key.
func IdempotencyKey(key string) PublishOption { return func(m *Message) { m.idempotencyKey = &key } }

type traceparentKey struct{}

// ContextWithTraceparent makes publishes with this context continue the trace. An empty value ends it.
func ContextWithTraceparent(ctx context.Context, value string) context.Context {
	return context.WithValue(ctx, traceparentKey{}, value)
}

const maxAttributes = 16

// carry adds the context's trace, unless the caller has set one or there are 16 attributes.
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

// check rejects values that the server would change or could not read.
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

// fitsHeaders reports whether headers can carry the attributes, through proxies too.
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

// atMillis returns the instant in Unix milliseconds, rounded up. An instant before 1970 becomes the beginning of
// 1970, which is past as well.
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

// each calls back for each given option, with the names and formats of the server.
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

// element returns the job as an element of a batch.
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
	text, _ := json.Marshal(fields) // bytes, texts and numbers always serialize
	return text
}

func (m *Message) key() string { return keyOrRandom(m.idempotencyKey) }

// seconds formats a duration with up to three decimals, rounded up to milliseconds.
func seconds(d time.Duration) string {
	millis := d / time.Millisecond
	if d%time.Millisecond > 0 {
		millis++
	}
	return strconv.FormatFloat(float64(millis)/1000, 'f', -1, 64)
}

// wholeSeconds formats a duration for lmstfy's routes.
func wholeSeconds(d time.Duration) string {
	return strconv.FormatInt(int64(math.Ceil(d.Seconds())), 10)
}
