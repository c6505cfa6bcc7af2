//! The laws of admin stores on the one in memory, which other tests stand on.

#[path = "laws/admin.rs"]
mod admin_laws;
mod support;

use support::admin::{AdminStage, AnyAdminStage, MemoryAdmin};
use support::stage::manual_clock;

async fn memory() -> impl AdminStage {
    let clock = manual_clock();
    AnyAdminStage::new(MemoryAdmin::new(clock.clone()), Some(clock), ())
}

admin_laws::admin_laws!(memory_admin, memory);
