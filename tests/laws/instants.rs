//! Laws about single milliseconds: a job that is due or expired at an instant is not due or expired just before. They
//! need a manual clock.

use std::time::Duration;

use crate::stage::*;

const MS: Duration = Duration::from_millis(1);

/// Guards against a timer that is off by one.
pub async fn nothing_happens_one_millisecond_before(s: &dyn Stage) {
    let q = queue("q");
    s.put(job(&q, "job").delay(SHORT).tries(2)).await;
    for time in ["delay", "ttr"] {
        s.advance(SHORT - MS).await;
        let pumped = ok("pump", s.engine().pump().await);
        assert_eq!((pumped.moved, pumped.next), (0, MS), "a millisecond before the {time} ends");
        assert_eq!(s.take(&q, 1, LONG).await, [], "a millisecond before the {time} ends");
        s.advance(MS).await;
        assert_eq!(ok("pump", s.engine().pump().await).moved, 1, "at the end of the {time}");
        s.take_one(&q, SHORT).await;
    }
}

/// Guards against a ttl that ends early.
pub async fn a_job_is_there_until_its_last_millisecond(s: &dyn Stage) {
    let q = queue("q");
    let new = s.put(job(&q, "job").ttl(LIFE).tries(2)).await;
    s.advance(LIFE - MS).await;
    assert_eq!(s.find(&new).await.and_then(|j| j.ttl), Some(MS), "by id");
    assert_eq!(s.peek(&q).await.and_then(|j| j.ttl), Some(MS), "by peek");
    assert_eq!(s.take_one(&q, SHORT).await.ttl, Some(MS), "by consume");
    s.advance(MS * 2).await;
    super::ttl::is_gone(s, &new, "a job two milliseconds later").await;
}
