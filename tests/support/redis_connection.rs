//! Contents of a Redis, read and changed without Dormouse.

use std::time::Duration;

use super::redis_server::RedisServer;

impl RedisServer {
    /// Returns a plain connection, to act like another kind of server or an operator.
    pub fn connection(&self) -> redis::Connection {
        let secret = self.password.as_ref().map_or(String::new(), |p| format!(":{p}@"));
        let client = redis::Client::open(format!("redis://{secret}{}", self.addr())).expect("a good URL");
        client.get_connection_with_timeout(Duration::from_secs(5)).expect("the server takes connections")
    }
}
