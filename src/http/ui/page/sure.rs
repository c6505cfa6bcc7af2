//! Confirmation pages: what will be done, and to how many jobs.

use maud::{Markup, html};

use super::frame::Page;
use super::visit::Visit;

/// A question for confirmation.
pub struct Sure<'a> {
    pub title: String,
    /// Consequences of the action.
    pub what: Markup,
    /// Hidden fields besides the confirmation.
    pub hidden: Vec<(&'a str, &'a str)>,
    /// Additional inputs.
    pub more: Markup,
    pub button: &'a str,
    /// Equivalent commands.
    pub curl: Markup,
}

/// Creates the page. Its form is sent to its own URL.
pub fn page(visit: &Visit, trail: Vec<(String, Markup)>, nav: &'static str, sure: Sure<'_>) -> Page {
    let Sure { title, what, hidden, more, button, curl } = sure;
    let back = visit.fields.link(&[]);
    let body = html! {
        h1 { (title) }
        (what)
        @if visit.may_change() {
            form method="post" action=(back) data-asks="1" {
                input type="hidden" name="sure" value="yes";
                @for (name, value) in hidden { input type="hidden" name=(name) value=(super::text::typed(value)); }
                (more)
                p.actions {
                    button.danger type="submit" { (button) }
                    a.button href=(back) { "Back" }
                }
            }
            (curl)
        } @else {
            p.note { "This account is read-only." }
            p { a.button href=(back) { "Back" } }
        }
    };
    Page::new(title, nav, body).under(trail)
}
