//! Metrics of requests by route, and of connections. Independent of HTTP types.

use std::time::Duration;

use ahash::HashMap;
use parking_lot::RwLock;
use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge};

use super::families::{Parted, ms};
use crate::name::{Namespace, PoolName};

/// Converts `/api/{namespace}/{queue}` to the form used by lmstfy's dashboards: `/api/:namespace/:queue`.
pub fn pattern(route: &str) -> String {
    route.replace('{', ":").replace('}', "")
}

/// Metrics of one route. A time series is looked up by its labels once, then cached.
#[derive(Debug)]
pub struct RouteMetrics {
    pub(super) api: String,
    pub(super) latency: Parted<HistogramVec>,
    pub(super) codes: Parted<IntCounterVec>,
    /// By the namespaces that requests with an accepted token have named.
    pub(super) series: RwLock<HashMap<(PoolName, Namespace), Vec<RouteSeries>>>,
}

/// Series of one method and status.
#[derive(Debug)]
pub(super) struct RouteSeries {
    method: &'static str,
    status: u16,
    latency: Histogram,
    codes: IntCounter,
}

impl RouteMetrics {
    /// Counts a request. `accepted` has its pool and namespace if its token was accepted.
    pub fn request(
        &self,
        accepted: Option<&(PoolName, Namespace)>,
        method: &'static str,
        status: u16,
        took: Duration,
    ) {
        let count = |series: &RouteSeries| {
            series.latency.observe(ms(took));
            series.codes.inc();
        };
        let Some(accepted) = accepted else { return count(&self.of("", "", method, status)) };
        let is_it = |series: &&RouteSeries| series.method == method && series.status == status;
        if let Some(series) = self.series.read().get(accepted).and_then(|all| all.iter().find(is_it)) {
            return count(series);
        }
        let series = self.of(accepted.0.as_str(), accepted.1.as_str(), method, status);
        count(&series);
        let mut all = self.series.write();
        let all = all.entry(accepted.clone()).or_default();
        if !all.iter().any(|series| is_it(&series)) {
            all.push(series);
        }
    }

    fn of(&self, pool: &str, namespace: &str, method: &'static str, status: u16) -> RouteSeries {
        let (labels, code) = ([pool, namespace, &self.api, method], status.to_string());
        let codes = self.codes.with_label_values(&[pool, namespace, &self.api, method, &code]);
        RouteSeries { method, status, latency: self.latency.with_label_values(&labels), codes }
    }
}

/// Metrics of one port's connections.
#[derive(Clone, Debug)]
pub struct PortMetrics {
    pub(super) connections: IntGauge,
    pub accept_failures: IntCounter,
    /// Requests that are not HTTP or too large to read.
    pub bad_requests: IntCounter,
}

impl PortMetrics {
    /// Counts a connection until the result is dropped.
    pub fn connected(&self) -> Connected {
        self.connections.inc();
        Connected(self.connections.clone())
    }
}

/// A counted connection.
#[derive(Debug)]
pub struct Connected(IntGauge);

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.dec();
    }
}
