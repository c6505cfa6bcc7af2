//! Pages that ask for confirmation: what will be done, and to how much.

use maud::{Markup, html};

use super::frame::Page;
use super::visit::Visit;

/// What is asked.
pub struct Sure<'a> {
    pub title: String,
    /// What will happen.
    pub what: Markup,
    /// What the form says beside that one is sure.
    pub hidden: Vec<(&'a str, &'a str)>,
    /// More that is to be chosen or typed.
    pub more: Markup,
    pub button: &'a str,
    /// The commands that do the same.
    pub curl: Markup,
}

/// The page. The form goes to the page's own address.
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
