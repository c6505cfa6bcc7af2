// Package propagation is a part of the stand-in for OpenTelemetry.
package propagation

import (
	"context"

	"go.opentelemetry.io/otel/trace"
)

// TextMapCarrier carries a traceparent.
type TextMapCarrier interface {
	Get(key string) string
	Set(key string, value string)
	Keys() []string
}

// MapCarrier is a map.
type MapCarrier map[string]string

func (c MapCarrier) Get(key string) string        { return c[key] }
func (c MapCarrier) Set(key string, value string) { c[key] = value }
func (c MapCarrier) Keys() []string               { return nil }

// TraceContext is the format of W3C.
type TraceContext struct{}

func (TraceContext) Extract(ctx context.Context, carrier TextMapCarrier) context.Context {
	return context.WithValue(ctx, trace.Key{}, carrier.Get("traceparent"))
}

func (TraceContext) Inject(ctx context.Context, carrier TextMapCarrier) {
	above, _ := ctx.Value(trace.Key{}).(string)
	carrier.Set("traceparent", above)
}
