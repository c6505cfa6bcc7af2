package dormouse

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"time"
)

// forPolls returns an HTTP client for the polls of one worker: if possible with its own connection, which the end of
// a poll may close. Transports other than Go's are used unchanged.
func (c *Client) forPolls() (polls *http.Client, ownConnection bool) {
	copied := *c.http
	if transport, ok := c.http.Transport.(*http.Transport); ok {
		copied.Transport, ownConnection = transport.Clone(), true
	}
	return &copied, ownConnection
}

// How long the end of a poll waits for the server's reply, and for the rest of a reply that has begun.
const (
	lastWord  = 500 * time.Millisecond
	restOfOne = 5 * time.Second
)

// pollOnce sends one poll. When the worker stops, the poll is closed.
func (r *run) pollOnce() ([]*Job, *callError) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	p := &parked{clock: r.w.client.clock, cancel: cancel, done: make(chan struct{})}
	defer close(p.done)
	go func() {
		select {
		case <-r.stopping:
			p.hangUp(r.halfClose)
		case <-p.done:
		}
	}()
	return r.w.client.consume(httptrace.WithClientTrace(ctx, p.trace()), r.through, r.ask)
}

// parked is a poll that waits for its reply.
type parked struct {
	clock  clock
	cancel context.CancelFunc
	done   chan struct{}

	mu       sync.Mutex
	conn     net.Conn
	answered bool // the reply has begun
}

func (p *parked) trace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.conn = info.Conn
		},
		GotFirstResponseByte: func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.answered = true
		},
	}
}

// hangUp ends the poll without losing a job in transit. It closes the write side of the connection: the server takes
// that for a disconnect, and replies that there is no job, or has sent one already.
func (p *parked) hangUp(halfClose bool) {
	p.mu.Lock()
	answered := p.answered
	half, can := p.conn.(interface{ CloseWrite() error })
	if secret, ok := p.conn.(*tls.Conn); ok && secret.ConnectionState().NegotiatedProtocol == "h2" {
		can = false // others share the connection
	}
	p.mu.Unlock()
	if !answered {
		if !halfClose || !can || half.CloseWrite() != nil {
			p.cancel()
			return
		}
		if p.doneWithin(lastWord) {
			return
		}
		p.mu.Lock()
		answered = p.answered
		p.mu.Unlock()
	}
	if !answered || !p.doneWithin(restOfOne) {
		p.cancel()
	}
}

func (p *parked) doneWithin(d time.Duration) bool {
	return !sleep(p.clock, d, p.done)
}
