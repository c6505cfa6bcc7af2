// Package trace is a part of the stand-in for OpenTelemetry.
package trace

import "context"

// Tracer begins spans.
type Tracer interface {
	Start(ctx context.Context, name string, opts ...SpanStartOption) (context.Context, Span)
}

// Span is one.
type Span interface {
	End(options ...SpanEndOption)
	RecordError(err error, options ...EventOption)
}

type (
	SpanStartOption interface{}
	SpanEndOption   interface{}
	EventOption     interface{}
	SpanKind        int
)

// SpanKindConsumer is of handlers.
const SpanKindConsumer SpanKind = 5

// WithSpanKind says what a span is of.
func WithSpanKind(kind SpanKind) SpanStartOption { return kind }

type span struct{}

func (span) End(...SpanEndOption)              {}
func (span) RecordError(error, ...EventOption) {}

// Key is where a context has its traceparent.
type Key struct{}

// Begin gives a span below that of the context.
func Begin(ctx context.Context) (context.Context, Span) {
	above, _ := ctx.Value(Key{}).(string)
	return context.WithValue(ctx, Key{}, above+"-below"), span{}
}
