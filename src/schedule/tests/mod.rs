//! Tests of the room: the contract's vectors, and what only several of its files do together.

mod vectors;

use std::sync::Arc;

use super::*;

/// The instants of an expression.
fn when(zone: &str, cron: &str) -> When {
    let cron = Cron::parse(cron).unwrap_or_else(|error| panic!("{cron}: {error:?}"));
    When::cron(Arc::new(cron), Zones::bundled().get(zone).expect("a zone of the database"))
}

fn at(text: &str) -> Millis {
    crate::time::instant(text).unwrap_or_else(|| panic!("{text} is no instant"))
}
