//! Contracts of tokens, on an admin store in memory and in virtual time.

use std::sync::Arc;
use std::time::Duration;

use crate::admin_stage::{MemoryAdmin, open_admin, scope, token};
use crate::stage::{manual_clock, ok};
use crate::stages::virtual_disk;
use crate::support::wait::until;
use dormouse::admin::cache::{FRESH, GRACE, PATIENCE, STALE, TokenCache};
use dormouse::admin::tokens::{CreateError, TokenManager};
use dormouse::admin::{AdminStore, TokenKey};
use dormouse::clock::ManualClock;
use dormouse::error::{Error, Result};
use dormouse::name::Token;
use dormouse::outage::Outage;
use dormouse::process::tasks::{Failure, Tasks};
use dormouse::settings::disk::DiskSettings;
use tokio::task::JoinHandle;
use tokio::time::Instant;

struct Server {
    store: Arc<MemoryAdmin>,
    clock: Arc<ManualClock>,
    tokens: Arc<TokenManager>,
}

async fn server() -> Server {
    let clock = manual_clock();
    let store = MemoryAdmin::new(clock.clone()).await;
    let (outage, tasks) = (Outage::new("the tokens of a test"), Tasks::new(Failure::default()));
    let cache = TokenCache::new(store.clone(), clock.clone(), outage, tasks);
    let tokens = Arc::new(TokenManager::new(store.clone(), cache));
    Server { store, clock, tokens }
}

const MS: Duration = Duration::from_millis(1);

/// Lets other tasks run: queries are sent by their own tasks.
async fn others_run() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_known_token_costs_one_question_until_it_is_stale() {
    let s = server().await;
    let key = token("p", "ns", "t");
    s.store.add_token(&key, "d").await.expect("the store in memory answers");
    let before = s.store.calls();
    for _ in 0..10 {
        assert!(s.tokens.check(&key).await.expect("the store in memory answers"), "it was added");
    }
    assert_eq!(s.store.calls() - before, 1, "ten checks, one question");
    s.clock.advance(FRESH);
    for _ in 0..10 {
        assert!(s.tokens.check(&key).await.expect("the store in memory answers"), "it is still there");
    }
    others_run().await;
    assert_eq!(s.store.calls() - before, 2, "asked again when no longer fresh");
}

#[tokio::test]
async fn a_token_deleted_on_another_server_is_refused_within_a_second() {
    let s = server().await;
    let key = token("p", "ns", "t");
    let check = async || s.tokens.check(&key).await.expect("the store in memory answers");
    for (age, seen) in [(FRESH - MS, true), (STALE - MS, true), (STALE, false)] {
        s.store.add_token(&key, "d").await.expect("the store in memory answers");
        assert!(check().await, "it was added");
        s.store.remove_token(&key).await.expect("the store in memory answers");
        s.clock.advance(age);
        assert_eq!(check().await, seen, "{age:?} after the last yes");
        others_run().await;
        if age >= FRESH {
            assert!(!check().await, "asked again after {age:?}, and the answer is believed");
        }
        s.clock.advance(STALE);
        assert!(!check().await, "refused for good");
    }
}

/// Guards against requests that wait every half second for a distant store.
#[tokio::test]
async fn a_fresh_yes_serves_while_it_is_asked_again() {
    let s = server().await;
    let key = token("p", "ns", "t");
    s.store.add_token(&key, "d").await.expect("the store in memory answers");
    assert!(s.tokens.check(&key).await.expect("the store in memory answers"), "it was added");
    s.clock.advance(FRESH);
    let before = s.store.calls();
    let held = s.store.hold().await;
    for _ in 0..10 {
        let answer = end_check(begin_check(&s, &key).await).await;
        assert!(answer.expect("answered at once"), "the last yes is less than a second old");
    }
    assert_eq!(s.store.calls() - before, 1, "one question for all of them");
    drop(held);
    others_run().await;
    s.clock.advance(FRESH - MS);
    assert!(s.tokens.check(&key).await.expect("the store in memory answers"), "fresh again");
    assert_eq!(s.store.calls() - before, 1, "no further question");
}

/// Guards against requests that wait until a hanging store resumes.
#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_delays_a_good_token_by_a_moment() {
    let s = server().await;
    let (key, unknown) = (token("p", "ns", "t"), token("p", "ns", "u"));
    s.store.add_token(&key, "d").await.expect("the store in memory answers");
    assert!(s.tokens.check(&key).await.expect("the store in memory answers"), "it was added");
    s.clock.advance(GRACE - MS);
    let held = s.store.hold().await;
    let began = Instant::now();
    for n in 0..10 {
        assert!(s.tokens.check(&key).await.expect("good within the hour"), "the store hangs, check {n}");
        assert!(began.elapsed() <= PATIENCE, "check {n} came after {:?}: all wait together", began.elapsed());
    }
    let stranger = tokio::time::timeout(2 * PATIENCE, s.tokens.check(&unknown)).await;
    assert!(stranger.is_err(), "an unknown token waits for the store: {stranger:?}");
    // The store's final reply counts: the token was deleted while the store hung.
    drop(held);
    others_run().await;
    s.store.remove_token(&key).await.expect("the store in memory answers");
    s.clock.advance(STALE);
    assert!(!s.tokens.check(&key).await.expect("the store in memory answers"), "the store is back");
}

#[tokio::test]
async fn a_store_that_hangs_gathers_a_bounded_number_of_questions() {
    let s = server().await;
    let known = token("p", "ns", "known");
    s.store.add_token(&known, "d").await.expect("the store in memory answers");
    assert!(s.tokens.check(&known).await.expect("the store in memory answers"), "it was added");
    s.clock.advance(STALE);
    let held = s.store.hold().await;
    let mut guesses = Vec::new();
    let refused = loop {
        let (tokens, key) = (s.tokens.clone(), token("p", "ns", &format!("guess-{}", guesses.len())));
        let guess = tokio::spawn(async move { tokens.check(&key).await });
        tokio::task::yield_now().await;
        if guess.is_finished() {
            break guess.await.expect("no panic");
        }
        guesses.push(guess);
        assert!(guesses.len() <= 20_000, "{} questions wait for the store", guesses.len());
    };
    assert!(matches!(refused, Err(Error::Overloaded)), "too many questions: {refused:?}");
    assert!(guesses.len() > 10_000, "only {} questions may wait", guesses.len());
    assert!(s.tokens.check(&known).await.expect("good within the hour"), "guesses do not lock it out");
    drop(held);
    for guess in guesses {
        assert!(!guess.await.expect("no panic").expect("the store in memory answers"), "a guess");
    }
}

#[tokio::test]
async fn what_this_server_creates_and_deletes_counts_at_once() {
    let s = server().await;
    let scope = scope("p", "ns");
    let chosen = Token::new("a-token-of-20-chars-").expect("not empty");
    let key = token("p", "ns", chosen.reveal());
    assert!(!s.tokens.check(&key).await.expect("the store in memory answers"), "not created yet");
    let made =
        s.tokens.create(&scope, Some(chosen.clone()), "mine").await.expect("the store in memory answers");
    assert_eq!(made, chosen, "the chosen one");
    assert!(s.tokens.check(&key).await.expect("the store in memory answers"), "created");
    s.tokens.delete(&key).await.expect("the store in memory answers");
    assert!(!s.tokens.check(&key).await.expect("the store in memory answers"), "deleted");
}

/// Starts a check in its own task.
async fn begin_check(s: &Server, key: &TokenKey) -> JoinHandle<Result<bool>> {
    let (tokens, key) = (s.tokens.clone(), key.clone());
    let check = tokio::spawn(async move { tokens.check(&key).await });
    others_run().await;
    check
}

/// Returns the result of a check, which must not hang.
async fn end_check(check: JoinHandle<Result<bool>>) -> Result<bool> {
    let answer = tokio::time::timeout(Duration::from_secs(10), check).await;
    answer.expect("the check should not hang").expect("the check should not panic")
}

#[tokio::test]
async fn a_question_from_before_a_change_does_not_cover_it() {
    let s = server().await;
    let key = token("p", "ns", "a-token-of-20-chars-");
    let create = || s.tokens.create(&key.scope, Some(key.token.clone()), "d");
    for deletes in [true, false] {
        if deletes {
            create().await.expect("the store in memory answers");
        }
        // The old reply is held while the token is deleted or created.
        let held = s.store.hold_answers().await;
        let old = begin_check(&s, &key).await;
        match deletes {
            true => s.tokens.delete(&key).await.expect("the store in memory answers"),
            false => drop(create().await.expect("the store in memory answers")),
        }
        let new = begin_check(&s, &key).await;
        drop(held);
        assert_eq!(
            end_check(old).await.expect("the store in memory answers"),
            deletes,
            "the state when the lookup started"
        );
        assert_eq!(
            end_check(new).await.expect("the store in memory answers"),
            !deletes,
            "the state when the lookup started"
        );
        assert_eq!(
            s.tokens.check(&key).await.expect("the store in memory answers"),
            !deletes,
            "nothing old was kept"
        );
    }
}

#[tokio::test]
async fn an_old_answer_that_comes_last_is_not_kept() {
    let s = server().await;
    let key = token("p", "ns", "t");
    s.store.add_token(&key, "d").await.expect("the store in memory answers");
    let held = s.store.hold_answers().await;
    let old = begin_check(&s, &key).await;
    s.tokens.delete(&key).await.expect("the store in memory answers");
    drop(held);
    assert!(end_check(old).await.expect("the store in memory answers"), "the state when the lookup started");
    assert!(!s.tokens.check(&key).await.expect("the store in memory answers"), "deleted since");
}

#[tokio::test]
async fn a_new_token_is_a_fresh_ulid_and_a_chosen_one_is_checked() {
    let s = server().await;
    let ns = scope("p", "ns");
    let [a, b] = [s.tokens.create(&ns, None, "a").await, s.tokens.create(&ns, None, "b").await]
        .map(|made| made.expect("the store in memory answers"));
    assert!(a != b && a.reveal().len() == 26, "two different ULIDs");
    let short = s.tokens.create(&ns, Token::new("nineteen-characters"), "c").await;
    assert!(matches!(short, Err(CreateError::TooShort)), "19 characters: {short:?}");
    let taken = s.tokens.create(&ns, Some(a.clone()), "again").await;
    assert!(matches!(taken, Err(CreateError::Taken)), "it exists: {taken:?}");
    let elsewhere = s.tokens.create(&scope("p", "other"), Some(a.clone()), "elsewhere").await;
    assert!(elsewhere.is_ok(), "another namespace has its own tokens: {elsewhere:?}");
    let list = s.tokens.list(&ns).await.expect("the store in memory answers");
    let expected = [(a.reveal().to_string(), "a".to_string()), (b.reveal().to_string(), "b".to_string())];
    assert_eq!(list, expected.into(), "both with their descriptions");
}

#[tokio::test]
async fn a_token_opens_its_own_scope_only() {
    let s = server().await;
    s.store.add_token(&token("p", "ns", "ab"), "d").await.expect("the store in memory answers");
    assert!(s.tokens.check(&token("p", "ns", "ab")).await.expect("the store in memory answers"), "its own");
    for other in
        [token("p", "nsa", "b"), token("pns", "a", "b"), token("p", "ns", "a"), token("q", "ns", "ab")]
    {
        assert!(!s.tokens.check(&other).await.expect("the store in memory answers"), "not {:?}", other.scope);
    }
}

#[tokio::test]
async fn concurrent_checks_of_one_token_ask_once() {
    let s = server().await;
    for (text, good) in [("good", true), ("bad", false)] {
        let key = token("p", "ns", text);
        if good {
            s.store.add_token(&key, "d").await.expect("the store in memory answers");
        }
        let before = s.store.calls();
        let held = s.store.hold().await;
        let mut checks = Vec::new();
        for _ in 0..50 {
            checks.push(begin_check(&s, &key).await);
        }
        drop(held);
        for check in checks {
            assert_eq!(end_check(check).await.expect("the store in memory answers"), good, "{text}");
        }
        assert_eq!(s.store.calls() - before, 1, "fifty {text} checks, one question");
    }
}

#[tokio::test]
async fn a_check_whose_caller_left_does_not_leave_others_waiting() {
    let s = server().await;
    let key = token("p", "ns", "t");
    s.store.add_token(&key, "d").await.expect("the store in memory answers");
    let held = s.store.hold().await;
    let (asks, waits) = (begin_check(&s, &key).await, begin_check(&s, &key).await);
    asks.abort();
    drop(held);
    assert!(end_check(waits).await.expect("the store in memory answers"), "the follower asked in its place");
}

/// Guards against a directory's server that accepts a deleted token until it restarts, since the client that deleted it
/// has disconnected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_follows_a_change_whose_caller_left() {
    let (engine, clock, _dir) = virtual_disk();
    let settings = Arc::new(DiskSettings::new(&engine));
    let admin = Arc::new(open_admin(settings.clone(), clock.clone()).await);
    let keys: Vec<_> = (0..200).map(|n| token("p", "ns", &format!("t{n}"))).collect();
    for (n, key) in keys.iter().enumerate() {
        ok("add_token", admin.add_token(key, "d").await);
        let (admin, key) = (admin.clone(), key.clone());
        let removing = tokio::spawn(async move { admin.remove_token(&key).await });
        for _ in 0..n % 40 {
            tokio::task::yield_now().await;
        }
        removing.abort();
    }
    let of = &keys[0].scope;
    until("memory is as the store", async || {
        let stored = open_admin(settings.clone(), clock.clone()).await;
        ok("tokens", admin.tokens(of).await) == ok("tokens", stored.tokens(of).await)
    })
    .await;
}

#[tokio::test]
async fn while_the_store_is_away_good_tokens_stay_good_for_an_hour() {
    let s = server().await;
    let (key, unknown) = (token("p", "ns", "t"), token("p", "ns", "u"));
    s.store.add_token(&key, "d").await.expect("the store in memory answers");
    assert!(s.tokens.check(&key).await.expect("the store in memory answers"), "it was added");
    s.store.fail(true);
    s.clock.advance(FRESH);
    assert!(s.tokens.check(&key).await.expect("good within the hour"), "during an outage");
    s.clock.advance(GRACE - FRESH - MS);
    assert!(s.tokens.check(&key).await.expect("good within the hour"), "the last millisecond");
    let answer = s.tokens.check(&unknown).await;
    assert!(matches!(answer, Err(Error::Away(_))), "an unknown token: {answer:?}");
    s.clock.advance(MS);
    let answer = s.tokens.check(&key).await;
    assert!(matches!(answer, Err(Error::Away(_))), "the hour has ended: {answer:?}");
    s.store.fail(false);
    assert!(s.tokens.check(&key).await.expect("the store in memory answers"), "the store is back");
}

#[tokio::test]
async fn while_the_store_is_away_few_requests_wait_for_it() {
    let s = server().await;
    let key = token("p", "ns", "t");
    s.store.add_token(&key, "d").await.expect("the store in memory answers");
    assert!(s.tokens.check(&key).await.expect("the store in memory answers"), "it was added");
    s.store.fail(true);
    s.clock.advance(STALE);
    let before = s.store.calls();
    for _ in 0..10 {
        assert!(s.tokens.check(&key).await.expect("good within the hour"), "during an outage");
    }
    assert_eq!(s.store.calls() - before, 1, "one question each half second");
    s.clock.advance(STALE);
    let held = s.store.hold().await;
    let waits = begin_check(&s, &key).await;
    let other = begin_check(&s, &key).await;
    assert!(end_check(other).await.expect("good within the hour"), "answered while one waits to hear");
    drop(held);
    assert!(end_check(waits).await.expect("good within the hour"), "and so is the one that waited");
}

#[tokio::test]
async fn debug_shows_no_token() {
    let s = server().await;
    let key = token("p", "ns", "SECRET");
    s.store.add_token(&key, "d").await.expect("the store in memory answers");
    s.tokens.check(&key).await.expect("the store in memory answers");
    assert!(!format!("{:?} {key:?}", s.tokens).contains("SECRET"), "Debug shows the secret");
}
