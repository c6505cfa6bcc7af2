// A program that publishes mails, and one that sends them:
//
//	example publish ann bob
//	example work
//
// Both take DORMOUSE_URL, DORMOUSE_NAMESPACE and DORMOUSE_TOKEN.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"dormouse.example/clients/go"
)

type mail struct {
	To string `json:"to"`
}

func main() {
	client, err := dormouse.FromEnv()
	if err != nil {
		log.Fatal(err)
	}
	switch {
	case len(os.Args) > 2 && os.Args[1] == "publish":
		err = publish(context.Background(), client, os.Args[2:])
	case len(os.Args) == 2 && os.Args[1] == "work":
		err = work(context.Background(), client)
	default:
		err = errors.New("usage: example publish NAME.. | example work")
	}
	if err != nil {
		log.Fatal(err)
	}
}

// publish stores a mail for each name, unless one is waiting already.
func publish(ctx context.Context, client *dormouse.Client, names []string) error {
	for _, name := range names {
		published, err := client.PublishJSON(ctx, "mail", mail{To: name}, dormouse.Tries(5), dormouse.Key(name))
		if err != nil {
			return err
		}
		fmt.Println(published.JobID, published.Duplicate)
	}
	return nil
}

// work sends mails until SIGTERM.
func work(ctx context.Context, client *dormouse.Client) error {
	worker, err := dormouse.NewWorker(client, dormouse.Concurrency(20), dormouse.TimeLimit(time.Minute))
	if err != nil {
		return err
	}
	worker.Handle("mail", func(ctx context.Context, job *dormouse.Job) error {
		var m mail
		if err := job.JSON(&m); err != nil {
			return err
		}
		if m.To == "" {
			return dormouse.Permanent(errors.New("nobody to send it to"))
		}
		fmt.Println("sent to", m.To)
		return nil
	})
	return worker.Run(ctx)
}
