//! The worker on the double: results of jobs by the outcomes of their handlers.
#![allow(clippy::unwrap_used, reason = "tests state what they expect by unwrapping")]

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dormouse_client::double::Double;
use dormouse_client::transport::{Answering, Head, Request, Transport};
use dormouse_client::{
    Cause, Client, Ended, ErrorKind, Event, Job, NewJob, OnConflict, Outcome, Released, State,
    StreamExt as _, Worker, WorkerError,
};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;

const SECOND: Duration = Duration::from_secs(1);

/// A worker of the queue `q`, and the results of its jobs.
fn worker<R>(
    client: &Client,
    handler: impl Fn(Job) -> R + Send + Sync + 'static,
) -> (Worker, Arc<Mutex<Vec<Ended>>>)
where
    R: Future<Output = Result<(), Outcome>> + Send + 'static,
{
    let ended = Arc::new(Mutex::new(Vec::new()));
    let told = ended.clone();
    let worker = Worker::new(client.clone()).queue("q", handler).backoff([5 * SECOND]).hook(move |event| {
        if let Event::Finish { outcome, .. } = event {
            told.lock().unwrap().push(*outcome);
        }
    });
    (worker, ended)
}

async fn dead_reasons(client: &Client) -> Vec<String> {
    let jobs: Vec<_> = client.jobs("q", State::Dead).collect().await;
    jobs.into_iter().map(|job| job.unwrap().reason.unwrap_or_default()).collect()
}

#[tokio::test]
async fn each_word_of_a_handler_has_its_end() {
    let double = Double::new();
    let client = double.client("demo");
    let (worker, ended) = worker(&client, |job: Job| async move {
        match &*job.data {
            b"fail" => Err(Outcome::failed("no route")),
            b"never" => Err(Outcome::permanent("no such user")),
            b"snooze" => Err(Outcome::Snooze(60 * SECOND)),
            b"panic" => panic!("ouch"),
            b"by hand" => Ok(job.ack().await?),
            b"json" => job.json::<u32>().map(|_| ()).map_err(Outcome::from),
            _ => Ok(()),
        }
    });
    let words = ["fine", "fail", "never", "snooze", "panic", "by hand", "json"];
    for word in words {
        client.publish("q", word).await.unwrap();
    }
    let worker = worker.concurrency(1).time_limit(Duration::MAX);
    double.run_until_idle(&worker).await.unwrap();
    let mut ended = ended.lock().unwrap().clone();
    ended.sort_by_key(|ended| ended.as_str());
    let all = [
        Ended::Acked,
        Ended::Acked,
        Ended::Buried,
        Ended::Buried,
        Ended::Released,
        Ended::Released,
        Ended::Snoozed,
    ];
    assert_eq!(ended, all, "two acked (one by hand), a permanent and a body buried, a failure and a panic");
    let mut reasons = dead_reasons(&client).await;
    reasons.sort();
    assert_eq!(reasons.len(), 4, "{reasons:?}");
    assert_eq!(reasons[0], "attempt 1: no route");
    assert_eq!(reasons[1], "attempt 1: no such user");
    assert_eq!(reasons[2], "attempt 1: panic: ouch");
    assert!(reasons[3].starts_with("attempt 1: the body cannot be read"), "{reasons:?}");
}

#[tokio::test]
async fn attempts_are_counted_and_wait_for_the_back_off() {
    let double = Double::new();
    let client = double.client("demo");
    let attempts = Arc::new(Mutex::new(Vec::new()));
    let seen = attempts.clone();
    let (worker, _) = worker(&client, move |job: Job| {
        let seen = seen.clone();
        async move {
            let attempt = job.attempt().await?;
            seen.lock().unwrap().push(attempt);
            if attempt < 3 { Err(Outcome::failed("not yet")) } else { Ok(()) }
        }
    });
    client.publish("q", NewJob::new("x").tries(5)).await.unwrap();
    double.run_until_idle(&worker).await.unwrap();
    double.advance(4 * SECOND);
    double.run_until_idle(&worker).await.unwrap();
    assert_eq!(*attempts.lock().unwrap(), [1], "the back-off of 5 s, a tenth shorter, is not over after 4");
    for _ in 0..2 {
        double.advance(6 * SECOND);
        double.run_until_idle(&worker).await.unwrap();
    }
    assert_eq!(*attempts.lock().unwrap(), [1, 2, 3]);
    assert_eq!(client.dead_letter("q").await.unwrap().size, 0);
}

#[tokio::test]
async fn a_worker_that_stops_gives_back_what_it_cannot_end() {
    let double = Double::new();
    let client = double.client("demo");
    let (worker, ended) = worker(&client, |job: Job| async move {
        if *job.data == *b"deaf" {
            std::future::pending::<()>().await;
        }
        job.cancelled().await;
        Err(Outcome::failed("cancelled"))
    });
    client.publish("q", NewJob::new("heeds").tries(3)).await.unwrap();
    client.publish("q", NewJob::new("deaf").tries(3)).await.unwrap();
    let worker = worker.signals(false).drain(Duration::ZERO).grace(30 * SECOND);
    let (stopper, begun) = (worker.stopper(), AtomicU32::new(0));
    let worker = worker.hook(move |event| match event {
        Event::Start { .. } if begun.fetch_add(1, Ordering::SeqCst) == 1 => stopper.stop(),
        // The one that heeds has ended: nothing is left to wait for.
        Event::Finish { .. } => stopper.stop(),
        _ => {}
    });
    let result = worker.run().await;
    assert!(matches!(result, Err(WorkerError::Unfinished(1))), "one is deaf: {result:?}");
    assert_eq!(*ended.lock().unwrap(), [Ended::Returned, Ended::Returned]);
    let jobs: Vec<_> = client.jobs("q", State::Ready).collect().await;
    for job in jobs {
        let job = job.unwrap();
        assert_eq!(
            (job.remain_tries, job.reason),
            (Some(3), None),
            "the try is given back, without a reason"
        );
    }
}

#[tokio::test]
async fn what_a_handler_publishes_carries_on_its_trace() {
    let double = Double::new();
    let client = double.client("demo");
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let (worker, _) = worker(&client, |job: Job| async move {
        job.client().publish("next", "x").await?;
        Ok(())
    });
    client.publish("q", NewJob::new("x").traceparent(trace)).await.unwrap();
    double.run_until_idle(&worker).await.unwrap();
    let jobs = client.consume(["next"]).await.unwrap();
    assert_eq!(jobs[0].traceparent(), Some(trace));
}

#[tokio::test]
async fn keys_repeats_and_receipts_are_those_of_a_server() {
    let double = Double::new();
    let client = double.client("demo");
    let first = client.publish("q", NewJob::new("x").key("a")).await.unwrap();
    let second = client.publish("q", NewJob::new("y").key("a")).await.unwrap();
    assert!(second.duplicate && second.job_id == first.job_id, "{second:?}");
    let taken = client.publish("q", NewJob::new("y").key("a").on_conflict(OnConflict::Fail)).await;
    let taken = taken.unwrap_err();
    assert_eq!((taken.kind(), taken.job_id()), (ErrorKind::Conflict, Some(&*first.job_id)));
    let once = client.publish("q", "z").idempotency_key("k").await.unwrap();
    let again = client.publish("q", "z").idempotency_key("k").await.unwrap();
    assert!(again.replayed && again.job_id == once.job_id, "{again:?}");
    let other = client.publish("q", "other").idempotency_key("k").await.unwrap_err();
    assert_eq!(other.kind(), ErrorKind::KeyReused);

    let job = client.consume(["q"]).ttr(3 * SECOND).await.unwrap().remove(0);
    job.touch(10 * SECOND).await.unwrap();
    double.advance(5 * SECOND);
    let released = job.release(Duration::ZERO, false, "not now").await.unwrap();
    assert_eq!(released, Released::Back { remain_tries: 1 });
    assert_eq!(job.ack().await.unwrap_err().kind(), ErrorKind::Lost, "it was released");
}

#[tokio::test]
async fn many_jobs_go_in_batches_and_an_error_says_how_far_it_came() {
    let double = Double::new();
    let client = double.client("demo");
    let jobs: Vec<NewJob> = (0..150).map(|n| NewJob::new(n.to_string()).key(format!("k{n}"))).collect();
    assert_eq!(client.publish_many("q", jobs).await.unwrap().len(), 150);
    let jobs = (140..300).map(|n: i32| {
        // The 101st of the call has a taken key.
        let key = if n == 240 { "k7".to_owned() } else { format!("new{n}") };
        NewJob::new("x").key(key).on_conflict(OnConflict::Fail)
    });
    let error = client.publish_many("q", jobs.collect()).await.unwrap_err();
    assert_eq!((error.kind(), error.index()), (ErrorKind::Conflict, Some(100)));
    assert_eq!(error.published().map(<[_]>::len), Some(64), "the first batch is stored");
    let listed = client.jobs("q", State::Ready).count().await;
    assert_eq!(listed, 150 + 64);
}

#[tokio::test]
async fn what_would_not_arrive_as_given_is_refused_before_it_is_sent() {
    let client = Client::new("http://127.0.0.1:9", "demo", "secret-token").unwrap();
    let many = (0..17).fold(NewJob::new("x"), |job, n| job.attribute(format!("a{n}"), "v"));
    let cases = [
        many,
        NewJob::new("x").attribute("n".repeat(33), "v"),
        NewJob::new("x").attribute("n", "ä".repeat(65)),
        NewJob::new("x").attribute("Name", "v"),
        NewJob::new("x").delay(SECOND).at("2027-01-01T00:00:00Z"),
    ];
    for job in cases {
        let error = client.publish("q", job).await.unwrap_err();
        assert_eq!((error.kind(), error.status()), (ErrorKind::Invalid, None), "{error}");
    }
    assert!(!format!("{client:?}").contains("secret-token"), "a client shows its token");
    assert!(Client::builder("http://h", "ns", "t").retry_for(541 * SECOND).build().is_err());
}

/// A fault of requests for a verb.
enum Fault {
    /// The first one is delayed before it is sent.
    Late(Duration),
    /// The response to the first one is unreadable.
    Unreadable,
    /// The first one is executed, but gets no response.
    Unanswered,
    /// Each gets 503, with this `Retry-After`.
    Refused(&'static str),
}

/// A double with a fault.
struct Faulty {
    double: Double,
    verb: &'static str,
    fault: Fault,
    asked: AtomicBool,
}

impl Faulty {
    fn client(verb: &'static str, fault: Fault) -> Client {
        let faulty = Faulty { double: Double::new(), verb, fault, asked: AtomicBool::new(false) };
        Client::builder("http://faulty", "demo", "t").transport(Arc::new(faulty)).build().unwrap()
    }
}

impl Transport for Faulty {
    fn send<'a>(&'a self, request: Request, head: &'a Head) -> Answering<'a> {
        Box::pin(async move {
            if !request.path.contains(self.verb) {
                return self.double.send(request, head).await;
            }
            let first = !self.asked.swap(true, Ordering::SeqCst);
            if let (Fault::Late(wait), true) = (&self.fault, first) {
                tokio::time::sleep(*wait).await;
            }
            let mut answer = self.double.send(request, head).await?;
            match self.fault {
                Fault::Refused(pause) => {
                    answer.status = 503;
                    answer.headers.insert("retry-after", pause.parse().unwrap());
                }
                Fault::Unanswered if first => std::future::pending().await,
                Fault::Unreadable if first => answer.body = "{".into(),
                _ => {}
            }
            Ok(answer)
        })
    }
}

#[tokio::test]
async fn a_touch_whose_answer_cannot_be_read_may_be_done() {
    let client = Faulty::client("/touch?", Fault::Unreadable);
    client.publish("q", "x").await.unwrap();
    let job = client.consume(["q"]).ttr(30 * SECOND).await.unwrap().remove(0);
    assert_eq!(job.touch(30 * SECOND).await.unwrap_err().kind(), ErrorKind::Protocol);
    job.ack().await.unwrap();
}

/// The caller's own timeout is shorter than the client's.
#[tokio::test]
async fn a_touch_that_nobody_waits_for_any_more_may_be_done() {
    let client = Faulty::client("/touch?", Fault::Unanswered);
    client.publish("q", "x").await.unwrap();
    let job = client.consume(["q"]).ttr(30 * SECOND).await.unwrap().remove(0);
    assert!(timeout(Duration::from_millis(50), job.touch(30 * SECOND)).await.is_err());
    job.ack().await.unwrap();
}

#[tokio::test]
async fn a_pause_of_half_an_eternity_is_an_error() {
    let client = Faulty::client("/size", Fault::Refused("18446744073709551615"));
    assert_eq!(client.size("q").await.unwrap_err().kind(), ErrorKind::Unavailable);
}

/// Guards against retries of a manual call that continue when the job is another worker's.
#[tokio::test]
async fn a_release_by_hand_is_not_repeated_when_the_job_is_lost() {
    let client = Faulty::client("/release?", Fault::Refused("1"));
    let told = Arc::new(Mutex::new(None));
    let tell = told.clone();
    let (worker, ended) = worker(&client, move |job: Job| {
        let tell = tell.clone();
        async move {
            let error = job.release(60 * SECOND, false, "not now").await.unwrap_err();
            *tell.lock().unwrap() = Some((error.kind(), job.cause()));
            Ok(())
        }
    });
    client.publish("q", NewJob::new("x").tries(3)).await.unwrap();
    let worker = worker.ttr(3 * SECOND).signals(false);
    let stopper = worker.stopper();
    let worker = worker.hook(move |event| {
        if let Event::Finish { .. } = event {
            stopper.stop();
        }
    });
    worker.run().await.unwrap();
    assert_eq!(*told.lock().unwrap(), Some((ErrorKind::Lost, Some(Cause::Lost))));
    assert_eq!(*ended.lock().unwrap(), [Ended::Lost]);
}

/// Handlers that ignore their cancellation but record it; the second value signals that all have begun.
fn told_and_deaf(
    client: &Client,
    handlers: usize,
) -> (Worker, mpsc::UnboundedReceiver<Cause>, Arc<Semaphore>) {
    let (tell, told) = mpsc::unbounded_channel();
    let begun = Arc::new(Semaphore::new(0));
    let begin = begun.clone();
    let (worker, _) = worker(client, move |job: Job| {
        let tell = tell.clone();
        begin.add_permits(1);
        async move {
            tell.send(job.cancelled().await).unwrap();
            std::future::pending().await
        }
    });
    (worker.concurrency(handlers).signals(false), told, begun)
}

/// Guards against handlers that continue after the worker has ended without knowing it.
#[tokio::test]
async fn a_second_stop_tells_every_handler() {
    let client = Double::new().client("demo");
    let (worker, mut told, begun) = told_and_deaf(&client, 8);
    client.publish_many("q", (0..8).map(|_| NewJob::new("x")).collect()).await.unwrap();
    let stop = async {
        let _all = begun.acquire_many(8).await.unwrap();
        worker.stopper().stop();
        worker.stopper().stop();
    };
    let (ended, ()) = tokio::join!(worker.run(), stop);
    assert!(matches!(ended, Err(WorkerError::Unfinished(8))), "{ended:?}");
    for _ in 0..8 {
        assert_eq!(timeout(5 * SECOND, told.recv()).await.unwrap(), Some(Cause::Drain));
    }
}

/// The job is no longer touched. So its handler should end before another worker gets the job.
#[tokio::test]
async fn a_run_that_is_dropped_cancels_its_handlers() {
    let client = Double::new().client("demo");
    let (worker, mut told, begun) = told_and_deaf(&client, 1);
    client.publish("q", "x").await.unwrap();
    tokio::select! {
        ended = worker.run() => panic!("it has ended: {ended:?}"),
        _ = begun.acquire() => {}
    }
    assert_eq!(timeout(5 * SECOND, told.recv()).await.unwrap(), Some(Cause::Lost));
}

/// The handler returns the error of its own release. So the worker releases too, and is rejected.
#[tokio::test]
async fn a_release_by_hand_whose_answer_was_lost_is_no_loss() {
    let client = Faulty::client("/release?", Fault::Unreadable);
    let (worker, ended) = worker(&client, |job: Job| async move {
        job.release(60 * SECOND, false, "not now").await?;
        Ok(())
    });
    client.publish("q", NewJob::new("x").tries(3)).await.unwrap();
    let worker = worker.signals(false);
    let stopper = worker.stopper();
    let worker = worker.hook(move |event| {
        if let Event::Finish { .. } = event {
            stopper.stop();
        }
    });
    worker.run().await.unwrap();
    assert_eq!(*ended.lock().unwrap(), [Ended::Released]);
    let delayed: Vec<_> = client.jobs("q", State::Delayed).collect().await;
    assert_eq!(delayed[0].as_ref().unwrap().reason.as_deref(), Some("not now"));
}

/// The worker's own touch waits for a manual one, and then shortens the delivery again.
#[tokio::test]
async fn after_a_long_touch_by_hand_and_its_own_the_worker_touches_in_time() {
    // Later than the worker's own touch, which comes after 2.2 s at most, and in time for the delivery of 6 s.
    let client = Faulty::client("/touch?", Fault::Late(Duration::from_millis(3500)));
    let touches = Arc::new(tokio::sync::Semaphore::new(0));
    let enough = touches.clone();
    let (worker, ended) = worker(&client, move |job: Job| {
        let enough = enough.clone();
        async move {
            job.touch(600 * SECOND).await?;
            tokio::select! {
                _ = job.cancelled() => Err(Outcome::failed("cancelled")),
                _ = enough.acquire_many(2) => Ok(()),
            }
        }
    });
    client.publish("q", NewJob::new("x").tries(3)).await.unwrap();
    let worker = worker.ttr(6 * SECOND).signals(false);
    let stopper = worker.stopper();
    let worker = worker.hook(move |event| match event {
        Event::Touch { error: None, .. } => touches.add_permits(1),
        Event::Finish { .. } => stopper.stop(),
        _ => {}
    });
    worker.run().await.unwrap();
    assert_eq!(*ended.lock().unwrap(), [Ended::Acked]);
}
