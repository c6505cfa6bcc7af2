//! Common parts of all pages: request, calls to the JSON routes, frame, texts and charts, response. Imports no page.

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
