//! What every page is made of: the request for it, what it asks, its frame, its texts and charts, its answer. Imports no page.

pub mod answer;
pub mod ask;
pub mod assets;
pub mod body;
pub mod chart;
pub mod form;
pub mod frame;
pub mod instant;
pub mod rows;
pub mod sure;
pub mod text;
pub mod visit;
