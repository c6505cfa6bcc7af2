//! A table of routes: a row per pattern, with its methods and handlers. Routers are built from tables only, so that
//! tests can read a port's routes from them.

use std::collections::BTreeSet;

use axum::Router;
use axum::handler::Handler;
use axum::http::HeaderValue;
use axum::http::header::ALLOW;
use axum::routing::{MethodFilter, MethodRouter};

use crate::http::answer::reply;

/// A pattern with its methods.
pub struct Row<S> {
    pub pattern: &'static str,
    methods: Vec<On<S>>,
    others: Others,
    /// Methods that another row with this pattern handles.
    elsewhere: &'static [&'static str],
}

/// Adds a handler to a pattern's others.
type Add<S> = Box<dyn FnOnce(MethodRouter<S>) -> MethodRouter<S>>;

/// A method with its handler; `None` if the fast path answers it.
pub struct On<S> {
    method: &'static str,
    add: Option<Add<S>>,
}

/// Reply to methods not in the row.
enum Others {
    /// 404, as in lmstfy.
    NotFound,
    /// 404, but HEAD is answered like GET.
    NotFoundButHead,
    /// Another row of this pattern, with another guard, decides.
    AnotherRow,
}

/// Creates a row that answers all other methods with 404, as in lmstfy, including HEAD: axum would run the GET handler
/// for it, and a HEAD of a queue would consume a job and discard it.
pub fn only<S, const N: usize>(pattern: &'static str, methods: [On<S>; N]) -> Row<S> {
    Row { pattern, methods: methods.into(), others: Others::NotFound, elsewhere: &[] }
}

/// Like [`only`], but answers HEAD, which some balancers, and browsers of pages, use.
pub fn with_head<S, const N: usize>(pattern: &'static str, methods: [On<S>; N]) -> Row<S> {
    Row { pattern, methods: methods.into(), others: Others::NotFoundButHead, elsewhere: &[] }
}

/// Creates a row for a pattern that is in another row too.
pub fn beside<S, const N: usize>(pattern: &'static str, methods: [On<S>; N]) -> Row<S> {
    Row { pattern, methods: methods.into(), others: Others::AnotherRow, elsewhere: &[] }
}

pub fn get<H: Handler<T, S>, T: 'static, S: Shared>(handler: H) -> On<S> {
    on("GET", MethodFilter::GET, handler)
}

pub fn put<H: Handler<T, S>, T: 'static, S: Shared>(handler: H) -> On<S> {
    on("PUT", MethodFilter::PUT, handler)
}

pub fn post<H: Handler<T, S>, T: 'static, S: Shared>(handler: H) -> On<S> {
    on("POST", MethodFilter::POST, handler)
}

pub fn delete<H: Handler<T, S>, T: 'static, S: Shared>(handler: H) -> On<S> {
    on("DELETE", MethodFilter::DELETE, handler)
}

/// Creates an entry for a method that the fast path answers.
pub fn fast<S>(method: &'static str) -> On<S> {
    On { method, add: None }
}

fn on<H: Handler<T, S>, T: 'static, S: Shared>(
    method: &'static str,
    filter: MethodFilter,
    handler: H,
) -> On<S> {
    On { method, add: Some(Box::new(move |all| all.on(filter, handler))) }
}

/// State shared by handlers.
pub trait Shared: Clone + Send + Sync + 'static {}

impl<S: Clone + Send + Sync + 'static> Shared for S {}

/// Builds the router of a table.
pub fn router<S: Shared>(table: Vec<Row<S>>) -> Router<S> {
    table.into_iter().fold(Router::new(), |router, row| {
        // axum knows neither the methods of the fast path nor that HEAD is rejected.
        let allowed = HeaderValue::from_str(&row.allowed()).expect("names of methods are ASCII");
        let refuse = move || async move {
            let mut response = reply::not_found().await;
            response.headers_mut().insert(ALLOW, allowed);
            response
        };
        let added = row.methods.into_iter().filter_map(|on| on.add);
        let methods = added.fold(MethodRouter::new(), |methods, add| add(methods));
        let methods = match row.others {
            Others::NotFound => methods.head(refuse.clone()).fallback(refuse),
            Others::NotFoundButHead => methods.fallback(refuse),
            Others::AnotherRow => methods,
        };
        router.route(row.pattern, methods)
    })
}

impl<S> Row<S> {
    /// Names the methods that another row with this pattern handles.
    pub fn beside(self, elsewhere: &'static [&'static str]) -> Row<S> {
        Row { elsewhere, ..self }
    }

    /// Returns the value of `Allow`.
    fn allowed(&self) -> String {
        let methods = self.methods().map(|(method, _)| method).chain(self.elsewhere.iter().copied());
        let methods: BTreeSet<&str> = methods.collect();
        methods.into_iter().collect::<Vec<_>>().join(", ")
    }

    /// Returns the methods that it handles, and whether the fast path does.
    pub fn methods(&self) -> impl Iterator<Item = (&'static str, bool)> {
        let gets = self.methods.iter().any(|on| on.method == "GET");
        let head = gets && matches!(self.others, Others::NotFoundButHead);
        let named = self.methods.iter().map(|on| (on.method, on.add.is_none()));
        named.chain(head.then_some(("HEAD", false)))
    }
}
