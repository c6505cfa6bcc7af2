//! Restarts of a Redis.

use super::redis_server::RedisServer;

impl RedisServer {
    /// Restarts the server after a kill, on the same port with the same data.
    pub fn restart(&mut self) {
        self.kill();
        for _ in 0..10 {
            if self.launch() {
                return;
            }
        }
        panic!("redis-server did not start again on port {}", self.port)
    }
}
