// Package trace is a part of the stand-in for OpenTelemetry.
package trace

import "context"

// Tracer begins spans.
type Tracer interface {
	Start(ctx context.Context, name string, opts ...SpanStartOption) (context.Context, Span)
}

// Span is a span.
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

// SpanKindConsumer is the kind of handlers' spans.
const SpanKindConsumer SpanKind = 5

// WithSpanKind sets the kind of a span.
func WithSpanKind(kind SpanKind) SpanStartOption { return kind }

type span struct{}

func (span) End(...SpanEndOption)              {}
func (span) RecordError(error, ...EventOption) {}

// Key is the context key of the traceparent.
type Key struct{}

// Begin returns a child span of the context's span.
func Begin(ctx context.Context) (context.Context, Span) {
	above, _ := ctx.Value(Key{}).(string)
	return context.WithValue(ctx, Key{}, above+"-below"), span{}
}
