//! The laws on the model: they can all be kept, and the model is what it claims to be.

mod laws;
mod support;

use std::sync::Arc;

use support::model::ModelEngine;
use support::stage::{Stage, VirtualStage, manual_clock};

async fn model() -> impl Stage {
    let clock = manual_clock();
    VirtualStage::new(Arc::new(ModelEngine::new(clock.clone())), clock, ())
}

laws::laws!(model_engine, model);
