//! The tokens of a namespace, by hash and description. A token itself is shown only when it is created.

use std::collections::BTreeMap;

use axum::extract::Path;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use maud::{Markup, html};
use serde_json::json;

use super::page::ask::{Refusal, Said, Sent, part};
use super::page::form::{Fields, Filled};
use super::page::frame::{Page, TOKEN, curl, curls};
use super::page::sure::{Sure, page as asks};
use super::page::text::{cut, text, typed, unknown, volatile};
use super::page::visit::Visit;
use super::publish::PoolNamespace;
use super::queue::push::shown_once;
use crate::http::operators::tokens::{Limit, TokenLimit, TokensReply};
use crate::name::Token;
use crate::random;

/// Maximum number of tokens on a page.
const MOST: usize = 100;

/// A token on the page.
struct TokenRow {
    hash: String,
    description: String,
    limit: Said<Option<Limit>>,
}

/// `GET /ui/tokens/:pool/:namespace`
pub async fn show(visit: Visit, Path(scope): Path<PoolNamespace>) -> Response {
    let page = match visit.fields.get("ask") {
        Some("revoke") => asking(&visit, &scope).await,
        _ => page(&visit, &scope).await,
    };
    visit.answer(page)
}

/// `POST /ui/tokens/:pool/:namespace`
pub async fn change(mut visit: Visit, Path(scope): Path<PoolNamespace>, Filled(form): Filled) -> Response {
    match act(&visit, &scope, &form).await {
        Ok(Done::Said(code)) => visit.done(code),
        Ok(Done::Token(token)) => {
            let page = Page::new(
                format!("A token of {}", scope.namespace),
                "Queues",
                html! {
                    h1 { "A token of " (text(&scope.namespace)) }
                    div data-once="1" { (shown_once("The token", &token)) }
                    p { a.button href="?" { "Back" } }
                },
            );
            visit.answer(Ok(page.under(scope.trail(&visit))))
        }
        Err(refusal) => {
            visit.refuse(refusal, form);
            let page = page(&visit, &scope).await;
            visit.answer(page)
        }
    }
}

enum Done {
    Said(&'static str),
    Token(String),
}

async fn act(visit: &Visit, scope: &PoolNamespace, form: &Fields) -> Said<Done> {
    let namespace = part(&scope.namespace);
    match form.or_empty("do") {
        "create" => {
            if !visit.ui.is_first(form.or_empty("mark")) {
                return Ok(Done::Said("before"));
            }
            let description = part(form.or_empty("description").trim());
            let path = format!("/token/{namespace}?pool={}&description={description}", part(&scope.pool));
            let said = visit.ask.change(Method::POST, &path, Sent::Nothing).await?;
            Ok(Done::Token(said["token"].as_str().unwrap_or_default().to_owned()))
        }
        "revoke" if form.get("sure") == Some("yes") => {
            let sent = Sent::Json(json!({ "pool": scope.pool, "hash": form.or_empty("hash") }));
            visit.ask.change(Method::POST, &format!("/token/{namespace}/revoke"), sent).await?;
            Ok(Done::Said("revoked"))
        }
        "limit" => {
            let number = |name: &str| {
                let given = form.get(name).unwrap_or("0").trim().parse::<i64>();
                given.map_err(|_| Refusal::bad("Publishes, Consumes and Interval must be whole numbers"))
            };
            let limit = json!({ "read": number("read")?, "write": number("write")?, "interval": number("interval")? });
            let token = token_of(visit, scope, form.or_empty("hash")).await?;
            let path = format!("/token/{namespace}/{}/limit", part(&token));
            visit.ask.change(Method::PUT, &path, Sent::Json(limit)).await?;
            Ok(Done::Said("limited"))
        }
        "unlimit" => {
            let token = token_of(visit, scope, form.or_empty("hash")).await?;
            let path = format!("/token/{namespace}/{}/limit", part(&token));
            visit.ask.change(Method::DELETE, &path, Sent::Nothing).await?;
            Ok(Done::Said("unlimited"))
        }
        _ => Err(Refusal::bad("the form does not say what to do")),
    }
}

/// Returns all tokens of the namespace with their pools, and their descriptions.
async fn listed(visit: &Visit, scope: &PoolNamespace) -> Said<BTreeMap<String, String>> {
    let path = format!("/token/{}?pool={}", part(&scope.namespace), part(&scope.pool));
    Ok(visit.ask.get::<TokensReply>(path).await?.tokens)
}

/// Returns the hash of a token, as in metrics and the log.
fn hash(token: &str) -> String {
    let secret = token.split_once(':').map_or(token, |(_, secret)| secret);
    Token::new(secret).map_or_else(String::new, |token| token.hash())
}

/// Returns the token with this hash.
async fn token_of(visit: &Visit, scope: &PoolNamespace, wanted: &str) -> Said<String> {
    let all = listed(visit, scope).await?;
    let mut found = all.into_keys().filter(|token| hash(token) == wanted);
    match (found.next(), found.next()) {
        (Some(token), None) => Ok(token),
        (None, _) => Err(Refusal::new(StatusCode::NOT_FOUND, "there is no such token")),
        _ => Err(Refusal::new(
            StatusCode::CONFLICT,
            "two tokens have this hash: use the JSON routes with the token itself",
        )),
    }
}

async fn page(visit: &Visit, scope: &PoolNamespace) -> Said<Page> {
    let (all, limits) = tokio::join!(listed(visit, scope), visit.ask.get::<Vec<TokenLimit>>("/limits"));
    let all = all?;
    let limits: Said<BTreeMap<String, Limit>> = limits.map(|limits| {
        let own = limits.iter().filter(|of| of.namespace == scope.namespace);
        let of_pool = |token: &str| match token.split_once(':') {
            Some((pool, _)) => pool == scope.pool,
            None => scope.pool == "default",
        };
        own.filter(|of| of_pool(&of.token)).map(|of| (hash(&of.token), of.limiter)).collect()
    });
    let total = all.len();
    let mut rows: Vec<TokenRow> = all
        .into_iter()
        .map(|(token, description)| {
            let hash = hash(&token);
            let limit = limits.as_ref().map(|limits| limits.get(&hash).copied()).map_err(Refusal::clone);
            TokenRow { limit, hash, description }
        })
        .collect();
    rows.sort_by(|a, b| (&a.description, &a.hash).cmp(&(&b.description, &b.hash)));
    rows.truncate(MOST);
    let body = html! {
        h1 { "Tokens of " (text(&scope.namespace)) }
        @if total > MOST { p.note { "Only the first " (MOST) " of " (total) " are shown." } }
        @if rows.is_empty() { p.hint { "The namespace has no token, so no client can publish to it or consume from it." } }
        @else { (table(visit, scope, &rows)) }
        (create(visit))
        (curl(visit, "POST", &format!("/token/{}?pool={}&description=mailer", part(&scope.namespace), part(&scope.pool)), None))
    };
    let page = Page::new(format!("Tokens of {}", scope.namespace), "Queues", body);
    Ok(page.under(scope.trail(visit)))
}

fn table(visit: &Visit, scope: &PoolNamespace, rows: &[TokenRow]) -> Markup {
    html! {
        div.scroll role="region" aria-label="Tokens" tabindex="0" {
            table.jobs.wrap {
                caption { "Tokens, by the hash that metrics and the log show" }
                thead { tr { @for name in ["Description", "Hash", "Limit", ""] { @if name.is_empty() { td {} } @else { th scope="col" { (name) } } } } }
                tbody { @for row in rows { tr data-key=(row.hash) {
                    th scope="row" { (cut(&row.description)) }
                    td { code { (row.hash) } }
                    td { (limit(visit, scope, row)) }
                    td { @if visit.may_change() {
                        form method="get" {
                            input type="hidden" name="hash" value=(row.hash);
                            button.danger type="submit" name="ask" value="revoke" { "Revoke" span.vh { " " (text(&row.description)) } }
                        }
                    } }
                } } }
            }
        }
    }
}

fn limit(visit: &Visit, scope: &PoolNamespace, row: &TokenRow) -> Markup {
    let any = |n: i64| if n > 0 { n.to_string() } else { "any".into() };
    let set = row.limit.as_ref().ok().copied().flatten();
    let usual = set.unwrap_or(Limit { read: 0, write: 0, interval: 60 });
    // The rejected form belongs to this token.
    let refused = visit.refused.as_ref().map(|(_, fields)| fields);
    let refused = refused.filter(|of| of.get("do") == Some("limit") && of.get("hash") == Some(&*row.hash));
    let field = |name: &str, label: &str, value: i64| {
        let id = format!("{name}-{}", row.hash);
        let value = refused.map_or_else(|| value.to_string(), |of| typed(of.or_empty(name)));
        html! { label for=(id) { (label) } " " input id=(id) name=(name) value=(value) size="6" inputmode="numeric" autocomplete="off"; " " }
    };
    html! {
        @match &row.limit {
            Ok(Some(Limit { read, write, interval })) => { (any(*write)) " publishes, " (any(*read)) " consumes in " (interval) " s" }
            Ok(None) => { "none" }
            Err(refusal) => (unknown(&refusal.text)),
        }
        @if visit.may_change() {
            details open[refused.is_some()] {
                summary { "Set limit" }
                form method="post" action="?" {
                    input type="hidden" name="hash" value=(row.hash);
                    (field("write", "Publishes", usual.write)) (field("read", "Consumes", usual.read)) (field("interval", "Interval", usual.interval))
                    button type="submit" name="do" value="limit" { "Set limit" } " "
                    @if set.is_some() { button type="submit" name="do" value="unlimit" { "Remove limit" } }
                }
                @let path = format!("/token/{}/{TOKEN}/limit", part(&scope.namespace));
                @let limit = json!({ "read": usual.read, "write": usual.write, "interval": usual.interval }).to_string();
                (curls(visit, &[("PUT", path.clone(), Some(&*limit)), ("DELETE", path, None)]))
            }
        }
    }
}

fn create(visit: &Visit) -> Markup {
    let mark = volatile(&html! { (random::ulid().to_string()) }).0;
    html! {
        @if visit.may_change() {
            h2 { "Create token" }
            form.actions method="post" action="?" {
                input type="hidden" name="mark" value=(mark);
                label for="description" { "Description" }
                input #description name="description" value=(visit.typed("description", "")) required autocomplete="off";
                button type="submit" name="do" value="create" { "Create token" }
            }
        }
    }
}

async fn asking(visit: &Visit, scope: &PoolNamespace) -> Said<Page> {
    let wanted = visit.fields.or_empty("hash");
    let all = listed(visit, scope).await?;
    let found = all.iter().find(|(token, _)| hash(token) == wanted);
    let (_, description) = found.ok_or(Refusal::new(StatusCode::NOT_FOUND, "there is no such token"))?;
    let wanted = typed(wanted);
    let mut page = asks(
        visit,
        scope.trail(visit),
        "Queues",
        Sure {
            title: format!("Revoke a token of {}", scope.namespace),
            what: html! {
                p { "The token " code { (wanted) } ", " q { (cut(description)) } ", will be refused from now on. Consumers that wait with it are disconnected. This cannot be undone." }
            },
            hidden: vec![("do", "revoke"), ("hash", &wanted)],
            more: html! {},
            button: "Revoke",
            curl: {
                let order = json!({ "pool": scope.pool, "hash": wanted }).to_string();
                curl(visit, "POST", &format!("/token/{}/revoke", part(&scope.namespace)), Some(&order))
            },
        },
    );
    page.nav = "Queues";
    Ok(page)
}
