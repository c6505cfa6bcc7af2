//! Tests of the whole module: the contract's vectors, and the interaction of its files.

mod decisions;
mod refusals;
mod vectors;
mod walk;
mod zones;

use std::num::NonZeroU16;
use std::sync::Arc;

use serde_json::Value;

use super::cron::Cron;
use super::when::Occurrence;
use super::zones::{NoZone, local};
use super::*;
use crate::clock::Millis;
use crate::name::{Namespace, ScheduleName};

/// Returns the instants of an expression.
fn when(zone: &str, cron: &str) -> When {
    let cron = Cron::parse(cron).unwrap_or_else(|error| panic!("{cron}: {error:?}"));
    When::cron(Arc::new(cron), Zones::bundled().get(zone).expect("a zone of the database"))
}

fn at(text: &str) -> Millis {
    crate::time::instant(text).unwrap_or_else(|| panic!("{text} is no instant"))
}

fn name() -> ScheduleName {
    ScheduleName::parse("nightly").expect("a name")
}

fn parse(given: &Value) -> Result<Given, Refusal> {
    let tries = NonZeroU16::new(3).expect("not 0");
    Given::parse(&name(), given, &Zones::bundled(), &JobDefaults { tries, ttl: None })
}
