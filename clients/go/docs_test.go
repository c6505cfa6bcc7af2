package dormouse_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"dormouse.example/clients/go"
	"dormouse.example/clients/go/dormousetest"
)

// patience is the timeout for the programs that a test runs.
const patience = 30 * time.Second

// serve returns a double behind a port, and the environment of programs that use it.
func serve(t *testing.T) (client *dormouse.Client, url string, env []string) {
	t.Helper()
	double := dormousetest.New()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		resp, err := double.RoundTrip(r)
		if err != nil {
			return // the caller has disconnected
		}
		for name, values := range resp.Header {
			w.Header()[name] = values
		}
		w.WriteHeader(resp.StatusCode)
		io.Copy(w, resp.Body)
	}))
	t.Cleanup(server.Close)
	client, err := dormouse.NewClient(server.URL, "demo", "TOKEN")
	if err != nil {
		t.Fatal(err)
	}
	return client, server.URL, append(os.Environ(),
		"DORMOUSE_URL="+server.URL, "DORMOUSE_NAMESPACE=demo", "DORMOUSE_TOKEN=TOKEN",
		"GOPROXY=off", "GOFLAGS=-mod=mod", "GOWORK=off")
}

// build compiles the files as a separate module, offline.
func build(t *testing.T, env []string, files map[string]string) (program string) {
	t.Helper()
	dir := t.TempDir()
	here, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	files["go.mod"] = fmt.Sprintf(`module page

go 1.19

require (
	dormouse.example/clients/go v0.1.0
	go.opentelemetry.io/otel v1.14.0
)

replace dormouse.example/clients/go => %s

replace go.opentelemetry.io/otel => %s
`, here, filepath.Join(here, "testdata", "otel"))
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	program = filepath.Join(dir, "program")
	compile := exec.Command("go", "build", "-o", program, ".")
	compile.Dir, compile.Env = dir, env
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// until runs a program, waits for a line that contains the text, stops it, and requires it to exit cleanly.
func until(t *testing.T, env []string, text string, command ...string) {
	t.Helper()
	run := exec.Command(command[0], command[1:]...)
	run.Env = env
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	run.Stdout, run.Stderr = in, in
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	in.Close()
	late := time.AfterFunc(patience, func() { run.Process.Kill() })
	defer late.Stop()
	found := false
	var all bytes.Buffer
	for lines := bufio.NewScanner(out); lines.Scan(); {
		fmt.Fprintln(&all, lines.Text())
		if !found && strings.Contains(lines.Text(), text) {
			found = true
			run.Process.Signal(syscall.SIGTERM)
		}
	}
	err = run.Wait()
	if !found {
		t.Fatalf("no line has %q: %v\n%s", text, err, &all)
	}
	// log.Fatal(worker.Run(..)) exits with 1, and prints nil.
	if err != nil && !strings.HasSuffix(strings.TrimSpace(all.String()), "<nil>") {
		t.Fatalf("%v\n%s", err, &all)
	}
}

const prelude = `package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"time"

	"dormouse.example/clients/go"
	"dormouse.example/clients/go/dormousetest"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Not every edition of the page uses every import.
var _ = []any{
	errors.New, fmt.Sprint, io.EOF, log.Print, http.StatusOK, os.Getenv, signal.Notify, strings.Cut, sync.Mutex{},
	time.Now, dormouse.Version, dormousetest.New, otel.Tracer, propagation.TraceContext{}, trace.WithSpanKind,
}
`

// The blocks of the page are parts of one program: declarations are used unchanged, statements become a function of
// their own, which is called with a client and a worker, before the worker handles the jobs that are due.
func TestEachBlockOfThePageRuns(t *testing.T) {
	page, err := os.ReadFile("../../docs/clients/go.md")
	if err != nil {
		t.Fatal(err)
	}
	_, url, env := serve(t)
	ctx := context.Background()
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	var declared, calls strings.Builder
	for i, block := range blocks {
		text := strings.ReplaceAll(block[1], "http://127.0.0.1:7777", url)
		switch {
		case strings.HasPrefix(text, "func "):
			declared.WriteString("\n" + text)
		default:
			fmt.Fprintf(&declared, "\nfunc block%d(ctx context.Context, client *dormouse.Client, worker *dormouse.Worker) error {\n{\n%s\n}\nreturn nil\n}\n",
				i, text)
			fmt.Fprintf(&calls, "\tcall(%d, block%d)\n", i, i)
		}
	}
	if len(blocks) < 9 {
		t.Fatalf("only %d blocks: this test looks for the wrong words", len(blocks))
	}
	main := prelude + declared.String() + `
func call(n int, block func(context.Context, *dormouse.Client, *dormouse.Worker) error) {
	ctx := context.Background()
	client, err := dormouse.FromEnv()
	if err != nil {
		log.Fatal(err)
	}
	worker, err := dormouse.NewWorker(client, dormouse.WithoutSignals())
	if err != nil {
		log.Fatal(err)
	}
	worker.Handle("mail", func(context.Context, *dormouse.Job) error { return nil })
	worker.Use(traced)
	if err := block(ctx, client, worker); err != nil {
		log.Fatalf("block %d: %v", n, err)
	}
	for _, queue := range []string{"mail", "orders", "reports"} {
		if _, err := client.PublishJSON(ctx, queue, map[string]string{"To": "ann"}, dormouse.Tries(2), dormouse.Traceparent("00-1")); err != nil {
			log.Fatal(err)
		}
	}
	if err := worker.RunUntilIdle(ctx); err != nil {
		log.Fatalf("block %d: %v", n, err)
	}
}

// seen reports the trace that the page's middleware received.
func seen() (above string) {
	client, _ := dormouse.FromEnv()
	traced(func(ctx context.Context, job *dormouse.Job) error {
		published, err := client.Publish(ctx, "traced", nil)
		if err != nil {
			log.Fatal(err)
		}
		info, err := client.Get(ctx, "traced", published.JobID)
		if err != nil {
			log.Fatal(err)
		}
		above = info.Traceparent()
		return nil
	})(context.Background(), &dormouse.Job{Queue: "mail", Attributes: map[string]string{"traceparent": "00-1"}})
	return above
}

func main() {
` + calls.String() + `	http.HandleFunc("/receive", receive)
	fmt.Println("trace", seen())
}
`
	program := build(t, env, map[string]string{"main.go": main})
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	run := exec.CommandContext(ctx, program)
	run.Env = env
	out, err := run.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, text := range []string{"handled to ann", "dormouse.Client(demo)", "the worker has no handler", "trace 00-1-below"} {
		if !bytes.Contains(out, []byte(text)) {
			t.Errorf("%q is not said:\n%s", text, out)
		}
	}
}

// The module of the example is built in an empty directory, offline, with a replace directive.
func TestTheExampleBuildsOffline(t *testing.T) {
	client, _, env := serve(t)
	source, err := os.ReadFile("example/main.go")
	if err != nil {
		t.Fatal(err)
	}
	own := exec.Command("go", "vet", ".")
	own.Dir, own.Env = "example", env
	if out, err := own.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	program := build(t, env, map[string]string{"main.go": string(source)})
	publish := exec.Command(program, "publish", "ann", "bob", "ann")
	publish.Env = env
	if out, err := publish.CombinedOutput(); err != nil || strings.Count(string(out), "false") != 2 {
		t.Fatalf("%v\n%s", err, out)
	}
	until(t, env, "sent to bob", program, "work")
	if size, err := client.Size(context.Background(), "mail"); err != nil || size != 0 {
		t.Fatal(size, err)
	}
}
