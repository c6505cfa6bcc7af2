// The conformance program of the Go library: it executes the commands on its standard input, and writes the results
// to its standard output. The suite in clients/conformance drives it.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"dormouse.example/clients/go"
)

type object = map[string]any

func main() {
	p := &program{
		out:     json.NewEncoder(os.Stdout),
		clients: map[string]*dormouse.Client{},
		workers: map[string]*worker{},
		held:    map[string]*dormouse.Job{},
		gates:   map[string]chan struct{}{},
		done:    map[string]int{},
	}
	log.SetFlags(log.Lmicroseconds)
	p.event("ready", object{"language": "go", "version": dormouse.Version, "lacks": []string{}})
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		<-signals // each worker receives it too
		p.running.Wait()
		p.mu.Lock() // forever: no line is truncated
		if p.unclean {
			os.Exit(1)
		}
		os.Exit(0)
	}()
	p.read(os.Stdin)
	p.mu.Lock()
	os.Exit(0)
}

// program holds the objects created by commands.
type program struct {
	mu      sync.Mutex // of all below
	out     *json.Encoder
	clients map[string]*dormouse.Client
	workers map[string]*worker
	held    map[string]*dormouse.Job // by id
	gates   map[string]chan struct{}
	done    map[string]int // how often a step with "times" has ended a job
	unclean bool           // a worker has ended with running handlers

	running sync.WaitGroup // workers
}

func (p *program) write(line object) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.out.Encode(line); err != nil {
		log.Fatal(err)
	}
}

func (p *program) event(name string, fields object) {
	line := object{"event": name, "at": millis(time.Now())}
	for key, value := range fields {
		line[key] = value
	}
	p.write(line)
}

func (p *program) read(in io.Reader) {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<28)
	for lines.Scan() {
		var c command
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			log.Fatalf("not a command: %v", err)
		}
		if err := json.Unmarshal(lines.Bytes(), &c.fields); err != nil {
			log.Fatalf("not a command: %v", err)
		}
		answer := func() {
			result, err := p.do(c)
			if err != nil {
				p.write(object{"id": c.ID, "error": describe(err)})
				return
			}
			p.write(object{"id": c.ID, "result": result})
		}
		switch c.Op {
		case "client", "worker", "start", "open": // later lines depend on them
			answer()
		default:
			go answer()
		}
	}
}

// describe returns an error in the format of the protocol.
func describe(err error) object {
	if err == nil {
		return nil
	}
	fields := object{
		"type": "other", "status": nil, "message": err.Error(), "retryable": false, "retry_after": nil,
		"request_id": nil, "job_id": nil, "index": nil, "published": nil,
	}
	var signature *dormouse.SignatureError
	if errors.As(err, &signature) {
		fields["type"] = "signature"
		fields["message"] = string(signature.What) + ": " + err.Error()
	}
	if errors.Is(err, dormouse.ErrUnclean) {
		fields["type"] = "unclean"
	}
	var e *dormouse.Error
	if !errors.As(err, &e) {
		return fields
	}
	fields["type"], fields["message"], fields["retryable"] = string(e.Kind), e.Message, e.Retryable()
	if e.Status != 0 {
		fields["status"] = e.Status
	}
	if e.RetryAfter != 0 {
		fields["retry_after"] = e.RetryAfter.Seconds()
	}
	if e.RequestID != "" {
		fields["request_id"] = e.RequestID
	}
	if e.JobID != "" {
		fields["job_id"] = e.JobID
	}
	if e.Index >= 0 {
		fields["index"] = e.Index
	}
	if e.Published != nil {
		fields["published"] = len(e.Published)
	}
	return fields
}

func millis(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UnixMilli()
}

func orNull(text string) any {
	if text == "" {
		return nil
	}
	return text
}

func duration(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }

// command is a line of the input.
type command struct {
	ID     json.RawMessage `json:"id"`
	Op     string          `json:"op"`
	Client string          `json:"client"`
	Worker string          `json:"worker"`
	Queue  string          `json:"queue"`
	JobID  string          `json:"job_id"`
	fields map[string]json.RawMessage
}

// get parses a field; it reports whether the field was given.
func (c command) get(name string, into any) bool {
	text, given := c.fields[name]
	if !given || string(text) == "null" {
		return false
	}
	if err := json.Unmarshal(text, into); err != nil {
		panic(fmt.Errorf("the field %s: %w", name, err))
	}
	return true
}

func (c command) text(name string) (text string) {
	c.get(name, &text)
	return text
}

func (c command) number(name string) (number int) {
	c.get(name, &number)
	return number
}

func (c command) duration(name string) time.Duration {
	var seconds float64
	c.get(name, &seconds)
	return duration(seconds)
}

func (p *program) do(c command) (result any, err error) {
	defer func() {
		if wrong := recover(); wrong != nil {
			err = fmt.Errorf("the command cannot be read: %v", wrong)
		}
	}()
	switch c.Op {
	case "client":
		return p.makeClient(c)
	case "worker":
		return p.makeWorker(c)
	case "start":
		return p.startWorker(c)
	case "stop":
		return p.stopWorker(c)
	case "open":
		p.open(c.text("gate"))
		return object{}, nil
	case "double":
		return p.double(context.Background(), c)
	case "verify":
		return verify(c)
	case "touch", "release", "bury", "ack":
		return p.hold(context.Background(), c)
	}
	p.mu.Lock()
	client := p.clients[c.Client]
	p.mu.Unlock()
	if client == nil {
		return nil, fmt.Errorf("no client is called %q, or the op %q is not known", c.Client, c.Op)
	}
	return p.request(context.Background(), client, c)
}

func (p *program) makeClient(c command) (any, error) {
	var opts []dormouse.Option
	var seconds float64
	if c.get("timeout", &seconds) {
		opts = append(opts, dormouse.Timeout(duration(seconds)))
	}
	if c.get("retry_for", &seconds) {
		opts = append(opts, dormouse.RetryFor(duration(seconds)))
	}
	client, err := dormouse.NewClient(c.text("url"), c.text("namespace"), c.text("token"), opts...)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clients[c.Client] = client
	return object{}, nil
}

func verify(c command) (any, error) {
	var secrets []string
	var headers map[string]string
	var body []byte
	var now float64
	if one := c.fields["secrets"]; len(one) > 0 && one[0] == '"' {
		secrets = []string{c.text("secrets")}
	} else {
		c.get("secrets", &secrets)
	}
	c.get("headers", &headers)
	c.get("data", &body)
	c.get("now", &now)
	header := http.Header{}
	for name, value := range headers {
		header[name] = []string{value}
	}
	return object{}, dormouse.VerifyAt(time.UnixMilli(int64(now)), secrets, header, body)
}
